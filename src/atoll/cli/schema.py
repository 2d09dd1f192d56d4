"""`atoll schema`: the JSON schema of run and fleet files, for editors and other programs."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class File(StrEnum):
    """Which kind of file."""

    RUN = "run"
    FLEET = "fleet"


def command(file: Annotated[File, typer.Argument(help="Which kind of file.")] = File.RUN) -> None:
    """Print the JSON schema of run files or fleet files."""
    from atoll.spec import fleet, load

    print(json.dumps(load.schema() if file is File.RUN else fleet.schema(), indent=2))
