"""`atoll join`: take part in a run that somebody else organises."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Device, Host, Links, Relay, SummaryJson
from atoll.net.transport import DEFAULT_LINKS


def command(
    ticket: Annotated[str, typer.Argument(help="The word that starts with atoll1.")],
    home: Annotated[Path | None, typer.Option(help="Folder of the run on this machine.")] = None,
    name: Annotated[str, typer.Option(help="A name to be shown by.")] = "",
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: all cores.")] = 0,
    memory: Annotated[
        str,
        typer.Option(
            help="Memory the exchange may take, such as '2 GiB', beside model and optimizer: limits how much this "
            "machine reduces for others. Twice a contribution is needed in any case. Default: no limit."
        ),
    ] = "",
    line: Annotated[
        str,
        typer.Option(
            help="What this machine's line carries, such as '1 Gbit/s': its slower direction. Worth saying where it is "
            "faster than those of the others, which cannot be seen. Default: measured."
        ),
    ] = "",
    host: Host = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, help="Port to listen at; 0: any.")] = 0,
    relay: Relay = False,
    links: Links = DEFAULT_LINKS,
    data: Annotated[str, typer.Option(help="Where this machine keeps the run's token shards.")] = "",
    model: Annotated[str, typer.Option(help="Where this machine keeps the run's pretrained folder.")] = "",
    as_json: SummaryJson = False,
) -> None:
    """Take part in a run: get its spec and state, work, and show what this machine contributes."""
    from atoll.cli.local import Crew, flags, share_of_cores, watch
    from atoll.cli.machine import line_bytes_s, memory_bytes
    from atoll.net.ticket import parse_ticket
    from atoll.observe.report import text

    memory_bytes(memory)
    line_bytes_s(line)
    run_id = parse_ticket(ticket).run
    folder = home or Path("runs") / run_id[:12]
    crew = Crew(folder)
    here = flags(
        name=name, device=device, threads=threads, memory=memory, host=host, port=port, relay=relay, links=links
    )
    here += flags(line=line, data=data, model=model)
    resume = shlex.join(["atoll", "join", ticket, "--home", str(folder), *here])
    crew.start(0, ["--ticket", ticket, *here, *flags(threads=share_of_cores(1, threads))])
    summary = watch(crew, None, resume, as_json=as_json)
    print(json.dumps(summary) if as_json else text(summary))
