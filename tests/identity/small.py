"""Runs small enough to be trained for real inside the simulator in a moment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from atoll.model.compute import Step, Vector
from atoll.model.engine import TorchEngine, build_engine
from atoll.sim.faults import Fault
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.merge import Mean, MeanPresent, Merge, Sum
from atoll.spec.axes.optimizer import Accumulate, AdamW, Assign, Inner, Lamb, Outer, Sgd, SignSgd
from atoll.spec.axes.pace import Block, Overlap
from atoll.spec.axes.what import Delta, Grad, LowRank, Params, Residual
from atoll.spec.axes.when import Every, Fragments, TargetBatch, Tensors
from atoll.spec.axes.whom import All, AllGather, Butterfly, Circles, Mesh, Route
from atoll.spec.axes.work import Constant, Schedule, Work
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget, Data, Fresh, Membership, Run, Seeds, Size, Upkeep
from atoll.sync.codec import decoded, encode
from atoll.sync.grid import grid_of
from tests.model.toys import CONTEXT, ToyData
from tests.peer.world import anchor_of, play

BATCH = 4
SIZE = Size(dim=16, layers=2, heads=2, kv_heads=1, ffn=32)
SAME = 1e-6
"""The largest difference of a weight between two ways to the same model."""


def diloco(
    *,
    inner: Inner,
    outer: Outer,
    steps: int,
    rounds: int,
    start_with: int,
    weights: str = "uniform",
    schedule: Schedule | None = None,
    what: Delta | None = None,
    route: Route | None = None,
    overlap: Overlap | None = None,
    fragments: int = 0,
) -> Run:
    """Return a run that exchanges deltas every `steps` steps, perhaps in so many parts."""
    merge = Merge(outer=outer, combine=Mean(weights="samples" if weights == "samples" else "uniform"))
    whom = All(route=route or Butterfly())
    overlap = overlap or Block()
    when = Fragments(steps=steps, count=fragments) if fragments else Every(steps=steps)
    channel = Channel(when=when, what=what or Delta(), merge=merge, whom=whom, overlap=overlap)
    return _run(Work(inner=inner, batch=BATCH, schedule=schedule or Constant()), channel, rounds, start_with)


def ddp(
    *,
    outer: Sgd | AdamW | Lamb,
    rounds: int,
    start_with: int,
    schedule: Schedule | None = None,
    overlap: Overlap | None = None,
    what: Grad | None = None,
) -> Run:
    """Return a run that exchanges gradients every step; sparse ones are gathered by all."""
    merge = Merge(outer=outer, combine=Mean(weights="samples"), scheduled=True)
    whom = All(route=AllGather() if what is not None and what.result is not None else Butterfly())
    channel = Channel(when=Every(steps=1), what=what or Grad(), whom=whom, merge=merge, overlap=overlap or Block())
    return _run(Work(inner=Accumulate(), batch=BATCH, schedule=schedule or Constant()), channel, rounds, start_with)


def mesh(
    what: Grad, *, outer: Sgd, rounds: int, start_with: int, teach_every: int = 0, pull: float = 0.75, weights: str = ""
) -> Run:
    """Return a run that sends gradients over each link by itself; everybody has a model of its own."""
    merge = Merge(outer=outer, combine=Mean(weights="uniform" if weights == "uniform" else "samples"), scheduled=True)
    whom = Circles(pattern=Mesh(teach_every=teach_every, pull=pull))
    channel = Channel(when=TargetBatch(samples=BATCH * start_with), what=what, whom=whom, merge=merge)
    return _run(Work(inner=Accumulate(), batch=BATCH), channel, rounds, start_with)


def low_rank(low: LowRank, residual: Residual, *, outer: Sgd | AdamW, rounds: int, start_with: int) -> Run:
    """Return a run that exchanges gradients as factors, every step in two rounds."""
    merge = Merge(outer=outer, combine=Mean(weights="samples"), scheduled=True)
    channel = Channel(when=Every(steps=1), what=Grad(transform=low, residual=residual), merge=merge)
    return _run(Work(inner=Accumulate(), batch=BATCH), channel, rounds, start_with)


def in_turns(when: Tensors, what: Params | Delta, *, inner: Inner, rounds: int, start_with: int) -> Run:
    """Return a run that averages weights, some tensors at a time."""
    channel = Channel(when=when, what=what, merge=Merge(outer=Assign()))
    return _run(Work(inner=inner, batch=BATCH), channel, rounds, start_with)


def gaia(what: Delta, *, inner: Inner, rounds: int, start_with: int, overlap: Overlap | None = None) -> Run:
    """Return a run that adds up after every step what everybody has sent."""
    merge = Merge(outer=Assign(), combine=Sum())
    whom = All(route=AllGather())
    channel = Channel(when=Every(steps=1), what=what, merge=merge, whom=whom, overlap=overlap or Block())
    return _run(Work(inner=inner, batch=BATCH), channel, rounds, start_with)


def demo(*, what: Grad, outer: SignSgd, rounds: int, start_with: int) -> Run:
    """Return a run that gathers gradients every step, of which each coordinate counts for those who sent it."""
    merge = Merge(outer=outer, combine=MeanPresent(), scheduled=True)
    channel = Channel(when=Every(steps=1), what=what, merge=merge, whom=All(route=AllGather()))
    return _run(Work(inner=Accumulate(), batch=BATCH), channel, rounds, start_with)


def shipped(
    name: str, *, steps: int, rounds: int, start_with: int, work: Work | None = None, overlap: Overlap | None = None
) -> Run:
    """Return a run of a shipped recipe in small steps, so many a round; perhaps with other work or overlap."""
    recipe = load_recipe(name)
    channel = recipe.channel["outer"]
    channel = replace(channel, when=replace(channel.when, steps=steps), overlap=overlap or channel.overlap)
    return _run(replace(work or recipe.work, batch=BATCH), channel, rounds, start_with)


def _run(work: Work, channel: Channel, rounds: int, start_with: int) -> Run:
    return Run(
        name="identity",
        recipe=Recipe(work=work, channel={"outer": channel}),
        budget=Budget(rounds=rounds),
        model=Fresh(size=SIZE),
        data=Data(context=CONTEXT),
        membership=Membership(start_with=start_with),
        seeds=Seeds(model=7),
        upkeep=Upkeep(checkpoint_every=1),
    )


def engine_of(run: Run) -> TorchEngine:
    """Return the real model of a run, on one thread of this machine's processor."""
    return build_engine(run, ToyData(), device="cpu", threads=1)


def trained(run: Run, peers: int, faults: Sequence[Fault] = (), places: Sequence[str] = ()) -> Outcome:
    """Play a run with real training, and check that all peers ended on one anchor of its last round."""
    outcome = play(run, peers, build=engine_of, faults=faults, places=places)
    anchors = [anchor_of(host.disk) for host in outcome.hosts]
    assert {anchor.version for anchor in anchors} == {run.budget.rounds}
    assert len({anchor.digest() for anchor in anchors}) == 1
    return outcome


def weights_of(outcome: Outcome) -> Vector:
    """Return the weights of the final anchor."""
    return anchor_of(outcome.hosts[0].disk).weights


def digest_of(outcome: Outcome) -> str:
    """Return the digest of the final anchor, outer state included."""
    return anchor_of(outcome.hosts[0].disk).digest()


def steps_over(first: int, count: int, rates: Sequence[float] | None = None) -> list[Step]:
    """Return local steps over consecutive samples."""
    starts = range(first, first + count * BATCH, BATCH)
    return [
        Step(samples=tuple(range(at, at + BATCH)), rate=1.0 if rates is None else rates[i])
        for i, at in enumerate(starts)
    ]


def apart(one: Vector, other: Vector) -> float:
    """Return the largest difference of two vectors."""
    return float(np.abs(one - other).max())


def as_it_arrives(codec: Codec, values: Vector) -> Vector:
    """Return what comes of values that travel in a codec, chunk by chunk."""
    grid = grid_of(values.size, codec)
    chunks = [values[slice(*grid.bounds(index))] for index in range(grid.chunks)]
    return np.concatenate([decoded(codec, encode(codec, chunk, 0), chunk.size) for chunk in chunks])
