"""What a peer knows as a member of the run: one desk that all its tasks read and write.

The log's history, the present plan, the anchor, own contribution, parts of others (as an owner) and
results. Tasks never call each other: each waits until the desk says there is something for it to do,
does it, and says that the desk has changed. So any of them can be restarted, late or repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Struct

from atoll.model.compute import Cost, Engine
from atoll.net.transport import PeerId
from atoll.peer.box import Box
from atoll.peer.links import Links
from atoll.peer.store import Result, Store
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.swarm import log
from atoll.swarm.log import Entry, History, Key, RoundAnnounced, RoundCommitted, RoundVoided
from atoll.swarm.messages import Contribution, FromMember, Plan, Standing
from atoll.sync.grid import Grid, Shard, shards_of
from atoll.sync.merge import Anchor

T = TypeVar("T")
LIFE_CONTRIBUTIONS_MAX = 2**32


class Changes:
    """A way to wait until something about the desk is true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everybody who waits for the desk to change."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, claim: Callable[[], T]) -> T:
        """Wait until `claim` is true and return what it said."""
        while not (said := claim()):
            await self._event.wait()
        return said


class Past(Struct, frozen=True, kw_only=True):
    """What the log says about one version."""

    samples_before: int
    round_samples: int
    base: str
    committed: RoundCommitted | None = None


@dataclass
class Own:
    """This peer's contribution to the open round, kept until commit."""

    key: Key
    serial: int
    chunks: list[bytes]


@dataclass
class Member:
    """The desk."""

    box: Box
    links: Links
    store: Store
    run: Run
    run_id: str
    engine: Engine
    grid: Grid
    life: int
    """How often this peer has started."""
    anchor: Anchor
    digest: str
    broker: PeerId
    keeps_log: bool
    """False where the broker in this same peer keeps it."""
    name: str = ""
    history: History = field(default_factory=History)
    past: dict[int, Past] = field(default_factory=dict)
    plan: Plan | None = None
    own: Own | None = None
    parts: dict[tuple[Key, Contribution], dict[int, bytes]] = field(default_factory=dict)
    incoming: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """Result chunks of the present plan: index to (digest, bytes)."""
    held: Result | None = None
    reports: list[FromMember] = field(default_factory=list)
    """What the broker must hear about the present plan; said again after a lost link."""
    ready: bool = False
    """True once the anchor is worth reporting (a fresh joiner's is not)."""
    leaving: str = ""
    _made: int = 0
    farewell: bool = False
    changes: Changes = field(default_factory=Changes)

    @property
    def me(self) -> PeerId:
        return self.links.me

    @property
    def channel(self) -> Channel:
        return next(iter(self.run.recipe.channel.values()))

    @property
    def silence_s_max(self) -> float:
        """Return how long a peer may take over one message of a bulk transfer before it is given up."""
        return self.run.upkeep.patience_s_max

    def standing(self) -> list[FromMember]:
        """Return what the broker must hear about our state."""
        return [Standing(self.anchor.version, self.digest)] if self.ready else []

    def learn(self, entry: Entry) -> None:
        """Take in one more entry of the log."""
        before = self.history
        self.history = log.apply(before, entry)
        match entry.record:
            case RoundAnnounced(key=key, base=base) as announced:
                samples = sum(r.count for one in announced.leases for r in one)
                self.past[key.version] = Past(samples_before=before.samples, round_samples=samples, base=base)
            case RoundCommitted(key=key) as committed:
                past = self.past[key.version]
                self.past[key.version] = Past(
                    samples_before=past.samples_before,
                    round_samples=past.round_samples,
                    base=past.base,
                    committed=committed,
                )
                self._close(key)
            case RoundVoided(key=key):
                del self.past[key.version]
                self.own = None
                self._close(key)
            case _:
                pass
        self.links.contacts.update({PeerId(p): m.addresses for p, m in self.history.members.items()})
        if self.history.broker:
            self.broker = PeerId(self.history.broker)

    def _close(self, key: Key) -> None:
        """Clear the desk of a round that is over."""
        self.parts = {k: v for k, v in self.parts.items() if k[0].version > key.version}
        self.reports = []
        self.plan = None

    def take_plan(self, plan: Plan) -> None:
        """Follow a plan if it is newer than the one we follow."""
        if self.plan is not None and _age(plan) < _age(self.plan):
            return
        same = self.plan is not None and (plan.key, plan.epoch, plan.attempt) == plan_id(self.plan)
        if not same:
            self.reports = []
            self.incoming = {}
        self.plan = plan

    def next_serial(self) -> int:
        """Return a number no other contribution of this peer has: later ones are larger, also after a restart."""
        self._made += 1
        return self.life * LIFE_CONTRIBUTIONS_MAX + self._made

    def report(self, message: FromMember) -> None:
        """Have the broker told, now and after every reconnection while the plan lasts."""
        if message not in self.reports:
            self.reports.append(message)
            self.changes.notify()

    def shards(self, plan: Plan) -> tuple[Shard, ...]:
        """Return who owns what under a plan."""
        return shards_of(self.grid, plan.owners)

    def is_member(self) -> RoundAnnounced | None:
        """Return the open round if we are in it."""
        announced = self.history.open
        return announced if announced is not None and self.me in announced.members else None

    async def job(self, work: Callable[[], T], vectors: float = 1.0) -> T:
        """Run tensor work that passes over the model `vectors` times."""
        return await self.box.compute.run(work, Cost(moved_bytes=4.0 * self.engine.size * vectors))


def plan_id(plan: Plan) -> tuple[Key, int, int]:
    """Return what makes a plan the same plan: settling it does not make it another."""
    return plan.key, plan.epoch, plan.attempt


def _age(plan: Plan) -> tuple[int, int, int]:
    return plan.epoch, plan.key.version, plan.attempt


async def unless(work: Coroutine[Any, Any, None], stop: Coroutine[Any, Any, Any]) -> None:
    """Run `work` to its end, or cancel it as soon as `stop` returns."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing  # raises what the work raised
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.wait([doing, stopping])
