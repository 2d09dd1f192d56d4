"""A trial in the simulated world: as many peers as it names, all on this machine's device.

Nothing fails here, so what only a failure needs is left out: peers keep no copy of what is their own, nobody looks at
the model on the way, and links and disks are fast, for their time counts nothing in these trials.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from unittest.mock import patch

from atoll import journal
from atoll.errors import LocalError
from atoll.journal import Line
from atoll.model.compute import Cost, Encoder, Engine, Moments, Rounder, Step, Trained, Transforms, Vector
from atoll.model.engine import Batches, TorchEngine, build_engine
from atoll.model.held import Held
from atoll.observe.trial import fold_trial
from atoll.peer.private import Private
from atoll.peer.store import anchor_from_bytes
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.codec import Codec
from atoll.spec.fleet import Device, Machine
from atoll.spec.run import Run

SAY_EVERY_S = 30.0
RATE_BYTES_S = 10e9
FLOP_S = 1e15
HERE = "here"
NOTHING = b"none"
"""What is kept of a peer's own state."""


class Lean:
    """An engine that says nothing of its private state: whoever asks for it back has no business here."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.size, self.layout, self.shapes = engine.size, engine.layout, engine.shapes
        self.tokens_per_sample = engine.tokens_per_sample

    def cost(self, samples: int, steps: int = 0) -> Cost:
        return self._engine.cost(samples, steps)

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        return self._engine.weights(first, end)

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        self._engine.assign(weights, first, name, less, part)

    def train(self, steps: Sequence[Step]) -> Trained:
        return self._engine.train(steps)

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        return self._engine.gradients(steps, total)

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        return self._engine.inputs(names, samples)

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> Rounder | None:
        return self._engine.rounder(names, samples, damping)

    def encoder(self, codec: Codec) -> Encoder | None:
        return self._engine.encoder(codec)

    def transforms(self) -> Transforms | None:
        return self._engine.transforms()

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        return 0.0, 0

    def held_out(self) -> int:
        return 0

    def private(self) -> bytes:
        return NOTHING

    def restore(self, private: bytes) -> None:
        raise LocalError("a trial is played without failures, and one came")


class Played(NamedTuple):
    """What a play left."""

    weights: Vector
    """Of the last round's anchor, as it lies on the organiser's disk."""
    losses: list[float]
    """Mean training loss of each round, over all peers' steps."""
    moved_bytes: int
    """Sent and received by the peer that had most to do."""


def play(
    run: Run,
    peers: int,
    data: Batches,
    device: str,
    *,
    compiled: bool | None = None,
    wrap: Callable[[TorchEngine], Engine] = Lean,
) -> Played:
    """Train for real among simulated peers; raises when they did not all end on one anchor."""

    def build(run: Run) -> Engine:
        return wrap(build_engine(run, data, device=device, compile=compiled))

    machine = Machine(
        name=HERE,
        region=HERE,
        device=Device(flop_s=FLOP_S),
        up_bytes_s=RATE_BYTES_S,
        down_bytes_s=RATE_BYTES_S,
        disk_bytes=2**62,
    )
    losses: dict[int, list[float]] = defaultdict(list)
    said_s = began_s = time.monotonic()

    def see(line: Line) -> None:
        nonlocal said_s
        if isinstance(line.event, journal.WorkProgressed) and line.event.loss is not None:
            losses[line.event.version].append(line.event.loss)
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                where = f"round {line.event.version}" + (f" of {run.budget.rounds}" if run.budget.rounds else "")
                said = f"{where}, loss {line.event.loss:.3f}, {said_s - began_s:.0f} s"
                print(f"{run.name}: {said}", file=sys.stderr, flush=True)

    scenario = Scenario(
        run=run, machines=[machine] * peers, delays_s={(HERE, HERE): 1e-3}, build=build, remembers=False, sees=see
    )
    with patch.object(Private, "save", lambda *_: NOTHING):
        outcome = simulate(scenario)
    means = [sum(some) / len(some) for _, some in sorted(losses.items())]
    return Played(
        _weights(outcome, run.budget.rounds or max(losses)), means, fold_trial(run.name, outcome.lines).worst_bytes
    )


def _weights(outcome: Outcome, last: int) -> Vector:
    path = f"checkpoint/{last}.safetensors"
    for host in outcome.hosts:
        if host.failed is not None:
            raise host.failed
    anchors = [anchor_from_bytes(host.disk.file(path), path) for host in outcome.hosts]
    assert len({anchor.digest() for anchor in anchors}) == 1, "all peers end on one anchor"
    return anchors[0].weights
