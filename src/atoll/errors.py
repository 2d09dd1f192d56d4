"""What can go wrong, as a tree of who has to act.

    AtollError
    ├── SpecError        the run file is wrong: a person must edit it
    ├── PeerError        another peer misbehaved or vanished: the swarm carries on
    │   ├── PeerLost     the link died or timed out: retry, reroute or replace
    │   └── PeerRefused  the peer answered no: do not retry
    └── LocalError       this machine cannot do its part: leave cleanly

What came from another machine or from a person is checked and raises one of these; what we computed
ourselves is asserted. Every error says what was wrong and, in `hint`, what to do about it.
"""

from __future__ import annotations


class AtollError(Exception):
    """Anything Atoll reports to a person; `hint` says what to do."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class SpecError(AtollError):
    """The run file, a fleet file or a flag is wrong: a person must edit it."""

    exit_code = 2


class LocalError(AtollError):
    """This machine cannot do its part (disk, memory, device, damaged file): leave cleanly."""

    exit_code = 3


class PeerError(AtollError):
    """Another peer misbehaved or vanished: the swarm carries on."""

    exit_code = 4


class PeerLost(PeerError):
    """The link died or timed out: retry, reroute or replace."""


class PeerRefused(PeerError):
    """The peer answered no: do not retry."""

    exit_code = 5
