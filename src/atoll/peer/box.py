"""The box a peer lives in: its few openings to the world.

Whatever a peer does to the outside goes through one of these. Given the same openings it does the same
things, so it cannot tell, and does not care, whether the world behind them is real. Time is the event
loop's; everything else is a function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from atoll.disk import Disk
from atoll.journal import Journal
from atoll.model.compute import Compute, Engine
from atoll.net.transport import Transport
from atoll.spec.run import Run


@dataclass(frozen=True)
class Box:
    """The openings of one peer."""

    transport: Transport
    compute: Compute
    """Where the model is: training, and whatever reads or writes its weights."""
    beside: Compute
    """Where bytes are added up, hashed and saved meanwhile: an exchange need not wait for a step of training."""
    disk: Disk
    journal: Journal
    random: Random
    sign: Callable[[bytes], bytes]
    """Prove that this peer said something, to whoever knows its key."""
    build: Callable[[Run], Awaitable[Engine]]
    """Make the model of a run on this machine, reading what data it needs."""
    device: str = ""
    """What computes here, for display."""
