"""`atoll version`: what is installed here, and which protocol it speaks."""

from __future__ import annotations

import json

from atoll import __version__
from atoll.cli.options import Json


def command(as_json: Json = False) -> None:
    """Print the version and the protocol it speaks."""
    from atoll.spec.run import PROTOCOL

    if as_json:
        print(json.dumps({"schema": "atoll.version/1", "version": __version__, "protocol": PROTOCOL}))
    else:
        print(f"atoll {__version__} (protocol {PROTOCOL})")
