"""Options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

from atoll.net.transport import LinkKind

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Host = Annotated[str, typer.Option(help="Address to listen at.")]
Relay = Annotated[bool, typer.Option("--relay", help="Use public relays, for peers behind NAT.")]
Links = Annotated[
    LinkKind, typer.Option(help="How to reach others: iroh, tls, or auto (TLS where that gets through, else iroh).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
SummaryJson = Annotated[bool, typer.Option("--json", help="No view; print the summary as JSON.")]
OutcomeJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
