"""Small worlds for the tests of a peer's life: a few equal machines, counting models, and what happened there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from atoll import journal
from atoll.journal import Line, RoundAnnounced, RoundCommitted
from atoll.model.compute import Cost
from atoll.model.moments import equal_parts
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.peer.store import anchor_from_bytes
from atoll.sim.check import settled, violations
from atoll.sim.compute import CountingEngine
from atoll.sim.disk import SimDisk
from atoll.sim.faults import Fault
from atoll.sim.loop import VirtualLoop
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Build, Entrance, Host, Outcome, Scenario, World, simulate
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.pace import Delay
from atoll.spec.axes.what import LowRank
from atoll.spec.axes.when import Every, Fragments, TargetBatch, Tensors, WithMoments
from atoll.spec.axes.whom import All, Butterfly, Circles
from atoll.spec.fleet import Device, Machine
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel
from atoll.spec.run import Budget, Data, Membership, Run, Upkeep
from atoll.spec.turns import in_order
from atoll.swarm.log import Entry, from_bytes
from atoll.sync.merge import Anchor

T = TypeVar("T")
R = TypeVar("R", RoundAnnounced, RoundCommitted)
DELAYS_S = {("here", "here"): 0.01}
DRAWN = 4
"""Parts by lot, where a recipe has some: of a small model few have any elements at all."""


def virtual(main: Coroutine[Any, Any, T]) -> T:
    """Return what `main` returns in a virtual time of its own."""
    return VirtualLoop().run(main, limit_s=1e6, event_budget=1e7)


def counting_run(
    recipe: str = "diloco",
    *,
    rounds: int = 4,
    steps: int = 2,
    start_with: int = 1,
    codec: Codec | None = None,
    checkpoint_every: int = 1,
    patience_s_max: float = 3600.0,
    **membership: Any,
) -> Run:
    """Return a run of a shipped recipe, cut down to a few samples a round."""
    shipped = load_recipe(recipe)
    ordered = in_order(shipped)
    channels = {
        name: _cut(channel, steps * 2**place, start_with, codec) for place, (name, channel) in enumerate(ordered)
    }
    return Run(
        name="counting",
        recipe=replace(shipped, work=replace(shipped.work, batch=2), channel=channels),
        budget=Budget(rounds=rounds),
        data=Data(context=16),
        membership=Membership(start_with=start_with, **membership),
        upkeep=Upkeep(checkpoint_every=checkpoint_every, patience_s_max=patience_s_max),
    )


def _cut(channel: Channel, steps: int, start_with: int, codec: Codec | None) -> Channel:
    """Return a channel with rounds of a few steps, of which a rarer one has twice as many."""
    match channel.when:
        case Fragments(pattern="drawn"):
            channel = replace(channel, when=Fragments(steps=steps * DRAWN, count=DRAWN, pattern="drawn"))
        case Fragments(count=count) | Tensors(count=count):
            channel = replace(channel, when=replace(channel.when, steps=steps * count))
        case TargetBatch():
            channel = replace(channel, when=TargetBatch(samples=2 * steps * start_with))
        case Every(steps=many) | WithMoments(steps=many) if many > 1:
            channel = replace(channel, when=replace(channel.when, steps=steps))
        case Every():
            pass
    if channel.whom == All(route=Butterfly(group=8)):
        channel = replace(channel, whom=All(route=Butterfly(group=2)))
    if isinstance(channel.whom, Circles) and channel.whom.all_every:
        channel = replace(channel, whom=replace(channel.whom, all_every=2))
    if isinstance(channel.overlap, Delay):
        channel = replace(channel, overlap=replace(channel.overlap, steps=min(steps, channel.overlap.steps)))
    what = channel.what if codec is None else replace(channel.what, codec=codec)
    if isinstance(what.transform, LowRank):
        what = replace(what, transform=replace(what.transform, rank=1))
    return replace(channel, what=what)


def machines(count: int, *, rate_bytes_s: float = 12.5e6) -> list[Machine]:
    """Return equal machines on which a sample of the counting model takes 50 ms."""
    device = Device(flop_s=12e10 / 0.4)
    return [
        Machine(
            name=f"machine-{i}",
            region="here",
            device=device,
            up_bytes_s=rate_bytes_s,
            down_bytes_s=rate_bytes_s,
            disk_bytes=10**12,
        )
        for i in range(count)
    ]


def sized(size: int, *, flop: float = 6e9) -> Build:
    """Return how to build counting models of so many elements, a sample of which takes so many operations."""

    def build(run: Run) -> CountingEngine:
        return CountingEngine(
            seed=run.seeds.data,
            size=size,
            tokens_per_sample=run.data.context,
            sample_cost=Cost(flop=flop),
            moments=equal_parts(run.recipe),
        )

    return build


def play(
    run: Run,
    peers: int = 3,
    *,
    faults: Sequence[Fault] = (),
    entrances: Sequence[Entrance] = (),
    build: Build | None = None,
    enough: Callable[[World], bool] | None = None,
    rate_bytes_s: float = 12.5e6,
    seed: int = 0,
    limit_s: float = 86400.0,
    places: Sequence[str] = (),
) -> Outcome:
    """Play a run on equal machines, all in one place or each in its own."""
    fleet = machines(peers, rate_bytes_s=rate_bytes_s)
    if places:
        fleet = [replace(each, region=place) for each, place in zip(fleet, places, strict=True)]
    return simulate(
        Scenario(
            run=run,
            machines=fleet,
            delays_s={(a, b): 1e-3 if a == b else 40e-3 for a in places for b in places} or DELAYS_S,
            seed=seed,
            faults=faults,
            entrances=entrances,
            build=build or sized(256),
            enough=enough,
            limit_s=limit_s,
        )
    )


class Visit:
    """Somebody who is no peer of ours and does something in the world; stands where a scenario asks for `enough`."""

    def __init__(self, peer: PeerId, visit: Callable[[World, SimTransport], Coroutine[Any, Any, None]]) -> None:
        self._peer = peer
        self._visit = visit
        self._task: asyncio.Task[None] | None = None

    def __call__(self, world: World) -> bool:
        if self._task is None:
            life = world.loop.incarnation("visitor")
            self._task = life.start(self._visit(world, world.network.transport(self._peer, life)))
        return self.over and self._task.exception() is not None

    @property
    def over(self) -> bool:
        """Return whether the visitor has gone again."""
        return self._task is not None and self._task.done()

    def check(self) -> None:
        """Raise what the visitor raised; it must have done all it came for."""
        assert self._task is not None
        assert self._task.done(), "the run was over before the visitor was"
        self._task.result()


# what happened


def once(outcome: Outcome, kind: type[R]) -> list[tuple[float, R]]:
    """Return when each version's event of a kind that every peer writes was first written, and the event."""
    found: dict[int, tuple[float, R]] = {}
    for line in outcome.lines:
        if isinstance(line.event, kind):
            found.setdefault(line.event.version, (line.at_s, line.event))
    return list(found.values())


def events(outcome: Outcome, kind: type[T], peer: int | None = None) -> list[T]:
    """Return all events of a kind, of one peer or of all, in order."""
    return [line.event for line in lines(outcome, kind, peer)]  # type: ignore[misc]


def lines(outcome: Outcome, kind: type[T], peer: int | None = None) -> list[Line]:
    who = None if peer is None else name(outcome.hosts[peer])
    return [line for line in outcome.lines if isinstance(line.event, kind) and who in (None, line.peer)]


def round_bytes(outcome: Outcome) -> list[int]:
    """Return what each peer sent in rounds, all in all."""
    places = range(len(outcome.hosts))
    return [events(outcome, journal.TrafficCounted, peer=place)[-1].round_sent_bytes for place in places]


def name(host: Host) -> str:
    return short(host.peer)


def log_of(outcome: Outcome, peer: int = 0) -> list[Entry]:
    return from_bytes(outcome.hosts[peer].disk.files()["log"], "log")[0]


def anchor_of(disk: SimDisk) -> Anchor:
    """Return the newest anchor on a disk."""
    found = {
        int(path.partition("/")[2].removesuffix(".safetensors")): data
        for path, data in disk.files().items()
        if path.startswith("checkpoint/") and path.endswith(".safetensors")
    }
    return anchor_from_bytes(found[max(found)], "checkpoint")


def assert_sound(run: Run, outcome: Outcome, *, version: int) -> None:
    """Check every promise, and that all peers ended at one anchor of `version`."""
    assert violations(run, outcome) == []
    assert settled(outcome) == []
    digests = {anchor_of(host.disk).digest() for host in outcome.hosts}
    assert len(digests) == 1
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {version}
