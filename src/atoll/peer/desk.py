"""What a peer has of one round: a desk for each that is open, until its result is applied.

Plan, own contribution, parts of others (as an owner), results as they come, and what the broker must hear of them.
Nothing on a desk is about another round, so rounds need not wait for each other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from msgspec import Struct

from atoll.model.compute import Vector
from atoll.peer.results import Result
from atoll.swarm.log import Key, OpenRound
from atoll.swarm.messages import Carrying, Contributed, Contribution, Holding, Plan, Reduced, Spoiled, Stuck
from atoll.swarm.routes.layout import Cell

T = TypeVar("T")
Report = Contributed | Carrying | Reduced | Holding | Spoiled | Stuck
"""What the broker hears about a round."""


class Changes:
    """A way to wait until something about the desk is true.

    After a change everybody's claim is looked at once, in the loop's next turn, and only those are woken who have what
    they wait for: most changes concern one in ten of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[asyncio.Future[None], Callable[[], object]]] = {}
        self._numbers = count()
        self._due = False

    def notify(self) -> None:
        """Have it looked at who waits for what is true now."""
        if not self._due and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        for future, claim in self._waiting.values():
            if not future.done() and claim():
                future.set_result(None)

    async def until(self, claim: Callable[[], T]) -> T:
        """Wait until `claim` is true and return what it said; it may be asked at any time."""
        while not (said := claim()):
            number, future = next(self._numbers), asyncio.get_running_loop().create_future()
            self._waiting[number] = (future, claim)
            try:
                await future
            finally:
                del self._waiting[number]
        return said


@dataclass
class Own:
    """This peer's contribution to an open round, kept until commit."""

    key: Key
    serial: int
    chunks: dict[int, memoryview]
    """Encoded, as far as it has come to that."""
    made_s: float = 0.0
    encoded: Changes = field(default_factory=Changes)

    async def chunk(self, index: int) -> memoryview:
        """Return a chunk, once it is encoded."""
        await self.encoded.until(lambda: index in self.chunks)
        return self.chunks[index]


class Reduction(Struct, frozen=True):
    """A reduced chunk: what is in it, its digest and its bytes."""

    of: bytes
    digest: bytes
    data: memoryview
    left: Vector | None = None
    """What its maker left out of it, to be added to its next one if this one is committed."""


class Sum(Struct, frozen=True):
    """A weighted sum of a chunk, not yet divided: what is in it, its weight and its bytes.

    A group's is in fp32, what is carried from member to member as contributions would be.
    """

    of: bytes
    weight: float
    data: memoryview


@dataclass
class Owned:
    """What an owner holds of an open round: parts of contributions, and what it made of them."""

    parts: dict[Contribution, dict[int, memoryview]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    """How many contributions each chunk is here of."""
    touched: dict[int, None] = field(default_factory=dict)
    """Chunks of which something came since the reducer looked."""
    reduced: dict[Cell, Reduction] = field(default_factory=dict)
    order: list[Cell] = field(default_factory=list)
    """Results in the order in which they were made; one that was made again is in it again."""
    sums: dict[Cell, Sum] = field(default_factory=dict)
    """Ours, and those passed up to us as a chunk's root, or on to us to be carried further."""
    sum_order: list[Cell] = field(default_factory=list)
    bad: dict[Contribution, None] = field(default_factory=dict)
    """Those that cannot be used."""
    finished: tuple[Key, int, int] | None = None
    """The plan that is settled and for which all our chunks are reduced."""
    arrived: Changes = field(default_factory=Changes)
    summed: Changes = field(default_factory=Changes)
    returned: Changes = field(default_factory=Changes)

    def keep(self, contribution: Contribution, index: int, data: memoryview) -> None:
        """Take in a chunk of a contribution."""
        held = self.parts[contribution]
        self.counts[index] = self.counts.get(index, 0) + (index not in held)
        held[index] = data
        self.touched[index] = None
        self.arrived.notify()

    def forget(self, contribution: Contribution) -> None:
        """Make room: this contribution was computed anew."""
        for index in self.parts.pop(contribution):
            self.counts[index] -= 1


@dataclass
class Desk:
    """One round, as long as it is open; then what is still of use when its result is applied."""

    announced: OpenRound
    began_s: float = 0.0
    plan: Plan | None = None
    """None before there is one, and when the round is over."""
    own: Own | None = None
    lent: Own | None = None
    """The weights that we lent the round while our work goes on."""
    owned: Owned | None = None
    """What we hold of it as one of its owners."""
    incoming: dict[int, Reduction] = field(default_factory=dict)
    """Result chunks, the newest of each; they count once all are of the settled set."""
    fresh: dict[int, None] = field(default_factory=dict)
    """Those of them that are not on their way to the disk yet, as they came."""
    came: Changes = field(default_factory=Changes)
    """Says that there is one more of them, or another word about the plan."""
    held: Result | None = None
    made: dict[int, Reduction] = field(default_factory=dict)
    """As an owner, once it is over: what we made of it, where something was left out of that."""
    reports: list[Report] = field(default_factory=list)
    """What the broker must hear about the present plan; said again after a lost link."""
    carrying: tuple[tuple[Key, int, int] | None, int, float] = (None, 0, 0.0)
    """Under which plan how much was carried, and when the broker last heard of it."""

    @property
    def key(self) -> Key:
        return self.announced.key

    def follows(self, plan: Plan) -> bool:
        """Return whether a plan is the present one; settling it does not make it another."""
        return self.plan is not None and plan_id(self.plan) == plan_id(plan)

    def take_plan(self, plan: Plan, *, anew: bool) -> None:
        """Follow a plan if it is not older than the one we follow; perhaps its chunks are all to be made anew."""
        if self.plan is not None and _age(plan) < _age(self.plan):
            return
        if not self.follows(plan):
            self.reports = []
            if anew:
                self._forget_made()
        self.plan = plan
        self.came.notify()
        if self.owned is not None:
            self.owned.arrived.notify()

    def _forget_made(self) -> None:
        self.incoming, self.fresh = {}, {}
        if self.owned is not None:
            self.owned.reduced.clear()
            self.owned.order.clear()

    @property
    def giving(self) -> Own | None:
        """Return what we have for its plan: our contribution, or what we lend until that is made."""
        return self.own if self.own is not None else self.lent

    def settled(self, peer: bytes) -> int | None:
        """Return the serial of a member's contribution that the present plan is settled on; None: there is none."""
        if self.plan is None or self.plan.settled is None or peer not in self.announced.members:
            return None
        return self.plan.settled[self.announced.members.index(peer)]

    def close(self) -> None:
        """Clear it but for what applying its result may need: the round is over."""
        reduced = self.owned.reduced if self.owned is not None else {}
        self.made = {index: made for (_, index), made in reduced.items() if made.left is not None}
        self.plan = self.lent = self.owned = None
        self.fresh, self.reports = {}, []

    def clear(self) -> None:
        """Clear all of it: whoever still waits beside it must not keep a model's worth of chunks alive."""
        self.plan = self.own = self.lent = self.owned = self.held = None
        self.incoming, self.fresh, self.made, self.reports = {}, {}, {}, []


def plan_id(plan: Plan) -> tuple[Key, int, int]:
    """Return what makes a plan the same plan: settling it does not make it another."""
    return plan.key, plan.epoch, plan.attempt


def _age(plan: Plan) -> tuple[int, int]:
    return plan.epoch, plan.attempt
