"""`atoll watch HOME`: the terminal view of a run on this machine, live or finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.errors import SpecError

if TYPE_CHECKING:
    from atoll.spec.run import Run


def command(
    home: Annotated[Path, typer.Argument(help="Folder of the run (the one that holds peers/), or one journal file.")],
    once: Annotated[bool, typer.Option("--once", help="Print how it stands now, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print how it stands now as one JSON document.")] = False,
) -> None:
    """Show a run on this machine: peers, rounds, loss, traffic. Closing the view does not stop the run."""
    from atoll.observe.progress import fold
    from atoll.observe.report import report, text
    from atoll.observe.tail import Tail

    run = saved_run(home)
    tail = Tail(home)
    if not tail.files():
        raise SpecError(
            f"{home}: no journal here", hint="give the folder that `atoll train` printed, or a journal.jsonl"
        )
    if as_json or once:
        summary = report(fold(tail.lines()), run)
        print(json.dumps(summary) if as_json else text(summary))
        return
    from atoll.observe.view import follow

    print(text(report(follow(home, run=run), run)))


def saved_run(home: Path) -> Run | None:
    """Return the run that a folder's `run.json` describes, when it has one."""
    from atoll.spec.load import decode_run

    file = home / "run.json"
    return decode_run(file.read_bytes(), source=str(file)) if file.is_file() else None
