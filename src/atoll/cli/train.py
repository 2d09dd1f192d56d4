"""`atoll train`: start a run here, or go on with it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import Device, Host, Links, Relay, SummaryJson
from atoll.net.transport import DEFAULT_LINKS, LinkKind

if TYPE_CHECKING:
    from atoll.spec.run import Run


def command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="What to train, and how.")],
    peers: Annotated[int, typer.Option(min=1, help="Peers to start on this machine, each a real process.")] = 1,
    home: Annotated[Path | None, typer.Option(help="Folder of the run; the same folder resumes it.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a key: recipe.work.batch=4")] = None,
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=0, help="Compute threads per peer; 0: an equal share.")] = 0,
    memory: Annotated[
        str,
        typer.Option(
            help="Memory the exchange may take, such as '2 GiB', beside model and optimizer: limits how much each peer "
            "reduces for others. Twice a contribution is needed in any case. Default: no limit."
        ),
    ] = "",
    host: Host = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, help="Port of the organiser; 0: any, kept from then on.")] = 0,
    relay: Relay = False,
    links: Links = DEFAULT_LINKS,
    reform: Annotated[
        bool, typer.Option("--reform", help="The council's other members are lost for good: put a new one in place.")
    ] = False,
    as_json: SummaryJson = False,
) -> None:
    """Start a run here (or resume it) and print the ticket that others join with."""
    from atoll.cli.local import flags
    from atoll.observe.report import text
    from atoll.spec.load import load_run

    run = load_run(run_file, overrides=overrides or ())
    folder = home or Path("runs") / run.name
    here = {
        "device": device,
        "threads": threads,
        "memory": memory,
        "host": host,
        "port": port,
        "relay": relay,
        "links": links,
    }
    same = flags(home=folder, peers=peers, **here)
    changes = [word for change in overrides or () for word in ("--set", change)]
    resume = shlex.join(["atoll", "train", str(run_file), *same, *changes])
    summary = train(
        run,
        folder,
        peers=peers,
        resume=resume,
        as_json=as_json,
        device=device,
        threads=threads,
        memory=memory,
        host=host,
        port=port,
        relay=relay,
        links=links,
        reform=reform,
    )
    print(json.dumps(summary) if as_json else text(summary))


def train(
    run: Run,
    home: Path,
    *,
    peers: int,
    resume: str,
    as_json: bool = False,
    device: str = "auto",
    threads: int = 0,
    memory: str = "",
    host: str = "0.0.0.0",
    port: int = 0,
    relay: bool = False,
    links: LinkKind = DEFAULT_LINKS,
    reform: bool = False,
) -> dict[str, Any]:
    """Start `peers` real processes on a run, show it to the end, and return the summary."""
    from atoll.cli.local import Crew, await_ticket, flags, save_run, share_of_cores, watch, with_peers
    from atoll.cli.machine import Machine, memory_bytes, pinned

    memory_bytes(memory)  # a slip of the pen is reported before anything is begun
    print("preparing data ...", file=sys.stderr)
    run = with_peers(pinned(run, Machine(device=device)), peers)
    path = save_run(home, run)
    here = flags(
        device=device, threads=share_of_cores(peers, threads), memory=memory, host=host, relay=relay, links=links
    )
    crew = Crew(home)
    since_s = time.time()
    try:
        organiser = crew.start(0, ["--run", str(path), *flags(port=port, reform=reform), *here])
        ticket = await_ticket(crew, organiser, since_s)
        for seat in range(1, peers):
            crew.start(seat, ["--ticket", ticket, *here])
    except BaseException:
        crew.leave()
        raise
    print(f"others join with:\n  atoll join {ticket}", file=sys.stderr)
    return watch(crew, run, resume, as_json=as_json)
