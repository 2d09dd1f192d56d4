"""Peers that do not wait for each other, on the toy of the paper on Asynchronous Local-SGD: does momentum survive it?

    python -m bench.clusters                    six ways, three seeds: some minutes each
    python -m bench.clusters --seeds 1

A classifier of points in 512 dimensions, four classes of eight clusters each, is trained by four peers that need 0.58,
0.75, 1.51 and 3.33 s for a step (the speeds are the authors'; how their clusters lie is not known to us, nor how wide
their network is). The peers are the real ones in virtual time, and every way gets the same samples. Printed are the
held-out loss at the end, how far it is from that of waiting for all (as a part of what that gained over the start), how
old contributions were at most in the second half, and the virtual time.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from statistics import mean

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll import journal
from atoll.errors import LocalError
from atoll.model.compute import Cost, Moments, Step, Trained, Vector
from atoll.model.held import Held, less_held
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.optimizer import AdamW, DelayedNesterov, Outer, Sgd
from atoll.spec.axes.when import Every
from atoll.spec.axes.work import Constant, Same
from atoll.spec.fleet import Device, Machine
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.spec.run import Budget, Data, Membership, Run, Seeds, Upkeep

DIMENSIONS, CLASSES, CLUSTERS, HIDDEN = 512, 4, 8, 64
APART, HELD_OUT = 0.2, 2048
"""How far a cluster's centre is off in each dimension, in units of its width; points to judge by."""
STEP_S = (0.58, 0.75, 1.51, 3.33)
STEPS, BATCH, ROUNDS = 50, 32, 60
"""Local steps of a contribution, samples of a step, and contributions of each peer where all are waited for."""
SAMPLE_FLOP = 1e9
INNER = AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
SHAPES = {"first": (DIMENSIONS, HIDDEN), "second": (HIDDEN, CLASSES)}


class _Private(msgspec.Struct):
    steps: int
    moments: list[bytes]


@cache
def centres(seed: int) -> NDArray[np.float32]:
    """Return where the clusters are; class by class in turn."""
    rng = np.random.default_rng(seed)
    return np.float32(APART) * rng.standard_normal((CLASSES * CLUSTERS, DIMENSIONS), np.float32)


def points(seed: int, first: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return new points and their classes: those of a step are drawn together, by its first place in the order."""
    rng = np.random.default_rng((seed, first))
    cluster = rng.integers(0, CLASSES * CLUSTERS, count)
    return centres(seed)[cluster] + rng.standard_normal((count, DIMENSIONS), np.float32), cluster % CLASSES


class Classifier:
    """A network of one hidden layer, trained by AdamW: an engine like that of a language model, of another task."""

    tokens_per_sample = 1

    def __init__(self, run: Run) -> None:
        rng = np.random.default_rng(run.seeds.model)
        self._seed = run.seeds.data
        parts = [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in SHAPES.values()]
        self._vector = np.concatenate([part.ravel() for part in parts]).astype(np.float32)
        self._moments = [np.zeros_like(self._vector), np.zeros_like(self._vector)]
        self._steps = 0

    @property
    def size(self) -> int:
        return self._vector.size

    @property
    def layout(self) -> Mapping[str, int]:
        return {name: int(np.prod(shape)) for name, shape in SHAPES.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return SHAPES

    def cost(self, samples: int, steps: int = 0) -> Cost:
        return Cost(flop=SAMPLE_FLOP * samples)

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        return self._vector[first:end].copy()

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        self._vector[first : first + weights.size] = weights if less is None else less_held(weights, less.read(), part)

    def train(self, steps: Sequence[Step]) -> Trained:
        losses = 0.0
        for step in steps:
            loss, gradient = self._look(*points(self._seed, step.samples[0], len(step.samples)))
            self._step(gradient, step.rate)
            losses += loss
        samples = sum(len(step.samples) for step in steps)
        return Trained(steps=len(steps), samples=samples, tokens=samples, loss_sum=losses)

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        raise NotImplementedError("deltas are exchanged here")

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        """Return nothing: no layer is given anything."""
        return {}

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> None:
        """Return nothing: it is no device."""

    def encoder(self, codec: Codec) -> None:
        """Return nothing: it is no device."""

    def transforms(self) -> None:
        """Return nothing: it is no device."""

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        count = min(count, HELD_OUT - first)
        return self._look(*points(self._seed, 2**40 + first, count))[0] * count, count

    def held_out(self) -> int:
        return HELD_OUT

    def private(self) -> bytes:
        return msgspec.msgpack.encode(_Private(self._steps, [moment.tobytes() for moment in self._moments]))

    def restore(self, private: bytes) -> None:
        try:
            kept = msgspec.msgpack.decode(private, type=_Private)
        except msgspec.MsgspecError as error:
            raise LocalError(f"damaged optimizer state: {error}") from error
        self._steps = kept.steps
        self._moments = [np.frombuffer(moment, np.float32).copy() for moment in kept.moments]

    def _look(self, seen: NDArray[np.float32], classes: NDArray[np.int64]) -> tuple[float, Vector]:
        """Return the mean loss of some points, and its gradient."""
        split = DIMENSIONS * HIDDEN
        first = self._vector[:split].reshape(DIMENSIONS, HIDDEN)
        second = self._vector[split:].reshape(HIDDEN, CLASSES)
        hidden = np.maximum(seen @ first, 0.0)
        scores = hidden @ second
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(seen))
        loss = float(-np.log(chances[rows, classes] + 1e-12).mean())
        chances[rows, classes] -= 1.0
        chances /= len(seen)
        back = (chances @ second.T) * (hidden > 0)
        return loss, np.concatenate([(seen.T @ back).ravel(), (hidden.T @ chances).ravel()])

    def _step(self, gradient: Vector, rate: float) -> None:
        self._steps += 1
        first, second = self._moments
        first += (1 - INNER.betas[0]) * (gradient - first)
        second += (1 - INNER.betas[1]) * (gradient * gradient - second)
        unbiased = first / (1 - INNER.betas[0] ** self._steps)
        root = np.sqrt(second / (1 - INNER.betas[1] ** self._steps))
        self._vector -= np.float32(INNER.lr * rate) * unbiased / (root + np.float32(INNER.eps))


def recipe_of(base: str, outer: Outer, *, by_speed: bool = False) -> Recipe:
    """Return a shipped recipe with the toy's work, and another outer optimizer."""
    shipped = load_recipe(base)
    ((name, channel),) = shipped.channel.items()
    replace = msgspec.structs.replace
    channel = replace(channel, when=Every(steps=STEPS), merge=replace(channel.merge, outer=outer))
    quota = shipped.work.quota if by_speed else Same()
    work = replace(shipped.work, inner=INNER, batch=BATCH, clip=0.0, schedule=Constant(), quota=quota)
    return replace(shipped, work=work, channel={name: channel})


def _each(lr: float) -> Outer:
    return Sgd(lr=lr, momentum=0.9, nesterov=True)


NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)
DELAYED = DelayedNesterov(lr=0.7, momentum=0.9, every=len(STEP_S))
WAYS = {
    "all are waited for, Nesterov (DiLoCo)": recipe_of("diloco", NESTEROV),
    "nobody is, no momentum": recipe_of("async-local-sgd", Sgd(lr=0.7 / len(STEP_S))),
    "nobody is, Nesterov each time, rate 0.7 / 4": recipe_of("async-local-sgd", _each(0.7 / len(STEP_S))),
    "nobody is, Nesterov each time, rate 0.1": recipe_of("async-local-sgd", _each(0.1)),
    "nobody is, Delayed Nesterov": recipe_of("async-local-sgd", DELAYED),
    "nobody is, Delayed Nesterov, work by speed": recipe_of("async-local-sgd", DELAYED, by_speed=True),
}
"""Nesterov at each contribution: at the rate by which the same moves as where all are waited for, and at the larger of
those that the authors found for it."""


def played(recipe: Recipe, seed: int) -> Outcome:
    """Return a play of one way: as many samples for each."""
    peers = len(STEP_S)
    run = Run(
        name="clusters",
        recipe=recipe,
        budget=Budget(tokens=peers * ROUNDS * STEPS * BATCH),
        data=Data(context=8),
        membership=Membership(start_with=peers),
        seeds=Seeds(model=seed, data=seed),
        upkeep=Upkeep(checkpoint_every=1000, evaluate_every=1000),
    )
    machines = [
        Machine(
            name=f"{step_s} s a step",
            region="here",
            device=Device(flop_s=BATCH * SAMPLE_FLOP / step_s / 0.4),
            up_bytes_s=1e8,
            down_bytes_s=1e8,
            disk_bytes=10**12,
        )
        for step_s in STEP_S
    ]
    return simulate(
        Scenario(run=run, machines=machines, delays_s={("here", "here"): 0.01}, seed=seed, build=Classifier)
    )


def losses_of(outcome: Outcome) -> tuple[float, float]:
    """Return the held-out loss at the start and at the end."""
    looks = [line.event.loss for line in outcome.lines if isinstance(line.event, journal.Evaluated)]
    first, *_, last = (float("nan") if loss is None else loss for loss in looks)
    return first, last


def oldest_of(outcome: Outcome) -> int:
    """Return how many contributions were committed at most while one was made, in the second half: speeds are known."""
    events = [line.event for line in outcome.lines if isinstance(line.event, journal.RoundCommitted)]
    last = max(event.version for event in events)
    return max((age for event in events if 2 * event.version > last for age in event.staleness), default=0)


def main() -> None:
    """Play all ways and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{'':44}  {'loss':>6}  {'gap':>6}  {'oldest':>6}  {'hours':>6}")
    reference = 0.0
    for name, recipe in WAYS.items():
        plays = [played(recipe, seed) for seed in seeds]
        first, last = (mean(each) for each in zip(*(losses_of(play) for play in plays), strict=True))
        reference = reference or last
        gap = 100 * (last - reference) / (first - reference)
        oldest, hours = max(oldest_of(play) for play in plays), mean(play.took_s for play in plays) / 3600
        print(f"{name:44}  {last:6.3f}  {gap:5.1f}%  {oldest:6d}  {hours:6.2f}", flush=True)


if __name__ == "__main__":
    main()
