"""One peer as a process, without a view: what `atoll train` and `atoll join` start and then only watch.

It is on its own: whoever started it may go away. SIGTERM and SIGINT ask it to leave cleanly.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.errors import LocalError
from atoll.net.transport import DEFAULT_LINKS, LinkKind

HIDDEN = True


def command(
    home: Annotated[Path, typer.Option(help="This peer's folder.")],
    run: Annotated[Path | None, typer.Option(help="Canonical run (JSON): organise it.")] = None,
    ticket: Annotated[str, typer.Option(help="Join the run of this ticket.")] = "",
    name: str = "",
    device: str = "auto",
    threads: int = 0,
    memory: str = "",
    line: str = "",
    host: str = "0.0.0.0",
    port: int = 0,
    relay: bool = False,
    links: LinkKind = DEFAULT_LINKS,
    data: str = "",
    model: str = "",
    reform: bool = False,
) -> None:
    """Run one peer in the foreground, without a view."""
    import asyncio

    from atoll.cli.machine import Machine, line_bytes_s, memory_bytes, real_box
    from atoll.net.ticket import parse_ticket
    from atoll.peer.life import Start, Stop, live
    from atoll.spec.load import decode_run

    machine = Machine(
        device=device, threads=threads, host=host, port=port, relay=relay, links=links, data=data, model=model
    )
    if run is not None:
        start = Start(run=decode_run(run.read_bytes(), source=str(run)), name=name, reform=reform)
    else:
        pass_ = parse_ticket(ticket)
        start = Start(run_id=pass_.run, contacts={c.peer: c.addresses for c in pass_.peers}, name=name)
    start.memory_bytes, start.line_bytes_s = memory_bytes(memory), line_bytes_s(line)

    async def main() -> None:
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            if sys.platform != "win32":
                loop.add_signal_handler(number, stop.ask, f"asked to leave ({signal.Signals(number).name})")
        box = await real_box(home, machine)
        try:
            await live(box, start, stop)
        except LocalError as error:
            raise _placed(error, home) from error
        finally:
            await box.compute.close()
            await box.beside.close()

    asyncio.run(main())


def _placed(error: LocalError, home: Path) -> LocalError:
    """Return the error with the whole path of the file it names: inside its box a peer knows only relative ones."""
    name, colon, rest = error.what.partition(": ")
    inside = bool(colon) and not Path(name).is_absolute() and (home / name).exists()
    return LocalError(f"{home / name}: {rest}", hint=error.hint) if inside else error
