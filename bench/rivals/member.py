"""What a member of any rival does alike: wait for a permit, exchange its own vector, say how that went.

A line on stdin permits one more round; the end of stdin ends the member. A line of JSON on stdout says what became of a
round. CPU time that goes into drawing and checking vectors is left out of what is reported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import usage

if TYPE_CHECKING:
    from bench.rivals.vector import Vector


@dataclass(frozen=True)
class Place:
    """Who and where this member is in the lab."""

    index: int
    ips: list[str]

    @property
    def ip(self) -> str:
        return self.ips[self.index]

    @property
    def count(self) -> int:
        return len(self.ips)


def place() -> Place:
    """Return what the lab told this process of its place."""
    return Place(int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IPS"].split())


@dataclass
class Exchanged:
    """What a rival says of one round."""

    ok: bool
    members: int
    group: str
    """The same for all who took part in this exchange, and for no other exchange."""
    matched_s: float = 0.0
    """How much of the round went by before it knew with whom to exchange."""
    why: str = ""


def say(**facts: object) -> None:
    """Tell the director."""
    print(json.dumps(facts), flush=True)


def ready() -> None:
    """Tell the director that rounds may begin."""
    say(ready=True, cpu_s=cpu_s())


def cpu_s() -> float:
    """Return the CPU time that all processes of this host have used."""
    return usage.cpu_s(usage.processes(usage.OWN))


def play(vector: Vector, exchange: Callable[[int], Exchanged]) -> None:
    """Play a round for each permit, and say what became of it."""
    vector.draw(1)
    ready()
    aside_s = 0.0
    for number, _ in enumerate(sys.stdin, start=1):
        began_s = time.time()
        done = _tried(exchange, number)
        ended_s, aside_from_s = time.time(), time.thread_time()
        digest, grain = vector.digests()
        off = vector.off(number) if done.ok and done.members == vector.here.count else None
        vector.draw(number + 1)
        aside_s += time.thread_time() - aside_from_s
        say(
            round=number,
            began_s=began_s,
            took_s=ended_s - began_s,
            matched_s=done.matched_s,
            ok=done.ok,
            members=done.members,
            group=done.group,
            why=done.why,
            digest=digest,
            grain=grain,
            off=off,
            cpu_s=cpu_s() - aside_s,
        )


def _tried(exchange: Callable[[int], Exchanged], number: int) -> Exchanged:
    """Return what came of a round; one that raises has failed, and the next is tried all the same."""
    try:
        return exchange(number)
    except Exception as error:  # whatever a rival raises is one of its outcomes
        return Exchanged(ok=False, members=0, group="", why=repr(error)[:500])
