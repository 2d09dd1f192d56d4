"""Bad input: nonsense is blamed on who sent it, and on nobody else."""

from __future__ import annotations

from collections.abc import Iterator

from atoll import journal
from atoll.net.identity import short
from atoll.sim.scenario import Outcome

SAID_MIN = 20
"""Messages of nonsense of which at least one must have been heard by somebody."""


def blamed_rightly(outcome: Outcome) -> Iterator[str]:
    """Check that refused messages are blamed on who sent nonsense, and on nobody else."""
    liars = {short(host.peer) for host in outcome.hosts if host.lied}
    blamed: dict[str, str] = {}
    for line in outcome.lines:
        if isinstance(line.event, journal.MessageRefused | journal.JoinRefused):
            blamed.setdefault(line.event.who, line.event.why)
    for who in sorted(outcome.vandals):
        if outcome.vandals[who] >= SAID_MIN and who not in blamed:
            yield f"{who} said {outcome.vandals[who]} messages of nonsense and no journal blames it"
    honest = {short(host.peer): host for host in outcome.hosts if not host.lied and not host.gone}
    for who in sorted(honest.keys() & blamed.keys() - liars):
        yield f"peer {honest[who].place}, which is honest, is blamed: {blamed[who]}"
