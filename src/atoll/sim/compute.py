"""Computers that exist only in virtual time, and a model that only counts.

`SimCompute` runs a job at its virtual start and then lets the modelled time pass, one job at a time, so that a
peer killed in mid-job never sees the result. With `hesitates` some jobs run only in the middle of their time, as a
worker thread's do, so that what others do meanwhile comes before them. The job may be real torch work (loss real, time
modelled) or that of `CountingEngine`, which stands for a model of any size with a small vector. Each sample moves that
vector by a pure function of (seed, position), so a checker recomputes any anchor from the log alone, to the bit: a
sample counted twice or never shows. Every other element moves by whole counts, which add up exactly in fp32; the rest
move by fractions that do not, as a real model's do, so that who adds contributions up in another order shows too. Real
training after a restart never gives the same bits: elements here and there tell which life a contribution is from.

On a computer whose cores are counted a job takes one of them for as long as it computes, or longer where others want
them too (`cores`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from random import Random
from typing import TypeVar

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from atoll.errors import LocalError
from atoll.model.compute import Cost, Moments, Step, Trained, Vector
from atoll.model.held import Held, added_up, less_held
from atoll.sim.cores import Cores, Work
from atoll.spec.axes.codec import Codec

T = TypeVar("T")

UNIT = 2.0**-12
"""What one count moves a weight by. Below 2^24 counts in all, fp32 holds every sum exactly."""
SWING = 16
"""A sample moves an element by less than this many counts, up or down."""
_FINE_BITS = 24
"""A count has 2^24 fractions: sums of those do not fit fp32."""
MARKS = slice(63, None, 64)
"""Elements, of every chunk at least one, that move by as many counts as their contributor has had lives."""
LAYERS = 8
NO_MOMENTS: Mapping[str, float] = {}
LOSS_FIRST = 7.0
LOSS_LAST = 2.5
LOSS_HALF_SAMPLES = 4096
_CHUNK = 2**16


class Device(Struct, frozen=True, kw_only=True):
    """What a simulated computer can do."""

    flop_s: float = 20e12
    efficiency: float = 0.4
    """Part of the peak that training reaches."""
    memory_bytes_s: float = 400e9


class SimCompute:
    """One device: jobs run in order, each as long as its cost says."""

    def __init__(
        self,
        device: Device | None = None,
        *,
        hesitates: float = 0.0,
        rng: Random | None = None,
        cores: Cores | None = None,
    ) -> None:
        self.slow = 1.0
        """How many times slower than the device's own speed."""
        self.device = device or Device()
        self._cores = cores
        self._work: Work | None = None
        """The last job on counted cores."""
        self._hesitates = hesitates
        self._rng = rng or Random(0)
        self._turn = asyncio.Lock()
        self._begins, self._free = _Moment(), _Moment()
        """When the job under way runs, where it hesitates; and when its time has passed."""

    def slow_down(self, factor: float) -> None:
        """Be so many times slower than the device's own speed from now on, also with what is left of a job."""
        times, self.slow = factor / self.slow, factor
        self._begins.stretch(times)
        self._free.stretch(times)
        if self._work is not None:
            self._work.stretch(times)

    async def run(self, job: Callable[[], T], cost: Cost) -> T:
        """Run `job` now and return its result when its time has passed; cancelled: the device stays busy till then."""
        async with self._turn:
            if self._cores is not None:
                return await self._run_on(self._cores, job, self.took_s(cost))
            await self._free.come()
            now_s = asyncio.get_running_loop().time()
            self._free.at_s = now_s + self.took_s(cost)
            if self._hesitates and self._rng.random() < self._hesitates:
                self._begins.at_s = now_s + self._rng.random() * (self._free.at_s - now_s)
                await self._begins.come()
            result = job()
            await self._free.come()
            return result

    async def _run_on(self, cores: Cores, job: Callable[[], T], cpu_s: float) -> T:
        """Run a job on cores that others use too: when it ends is not known before."""
        if self._work is not None:
            await self._work.done()
        work = self._work = cores.work(cpu_s)
        if self._hesitates and self._rng.random() < self._hesitates:
            await asyncio.sleep(self._rng.random() * cpu_s)
        result = job()
        await work.done()
        return result

    def again(self) -> SimCompute:
        """Return the same device as a new process finds it: nothing running, at its own speed."""
        self.stop()
        return SimCompute(self.device, hesitates=self._hesitates, rng=self._rng, cores=self._cores)

    def stop(self) -> None:
        """Leave the cores to others: the process is gone."""
        if self._work is not None:
            self._work.stop()

    async def close(self) -> None:
        """Wait for nothing: a simulated device has no thread to end."""

    def took_s(self, cost: Cost) -> float:
        """Return how long a job takes: the longer of computing and moving memory."""
        flop_s = self.device.flop_s * self.device.efficiency
        return self.slow * max(cost.flop / flop_s, cost.moved_bytes / self.device.memory_bytes_s)


class _Moment:
    """When something will be, which may move while somebody waits for it."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self._nap: asyncio.Future[bool] | None = None

    def stretch(self, times: float) -> None:
        """Let what is left until then take so many times as long."""
        now_s = asyncio.get_running_loop().time()
        if self.at_s > now_s:
            self.at_s = now_s + times * (self.at_s - now_s)
            _wake(self._nap, True)

    async def come(self) -> None:
        """Wait for it."""
        loop, moved = asyncio.get_running_loop(), True
        while moved:
            left_s = self.at_s - loop.time()
            if left_s <= 0:
                await asyncio.sleep(0)
                return
            self._nap = loop.create_future()
            timer = loop.call_later(left_s, _wake, self._nap, False)
            try:
                moved = await self._nap
            finally:
                timer.cancel()
                self._nap = None


def _wake(nap: asyncio.Future[bool] | None, moved: bool) -> None:
    if nap is not None and not nap.done():
        nap.set_result(moved)


def delta_of(seed: int, size: int, positions: Sequence[int]) -> Vector:
    """Return by how much training on these samples lowers the weights, whoever trains and in whatever order.

    Element 0 counts the samples themselves, negatively: it rises by one count with each. The other even elements
    move by whole counts; odd ones by fractions of a count, rounded once, when all samples are added up. Marks stay.
    """
    return _rounded(_moves(seed, size, positions))


def _moves(seed: int, size: int, positions: Sequence[int]) -> NDArray[np.int64]:
    """Return by how many fractions of a count these samples lower the weights: exact, so they can be added up."""
    moves = np.zeros(size, np.int64)
    rows = max(1, _CHUNK // size)
    place = np.arange(size, dtype=np.uint64)
    for first in range(0, len(positions), rows):
        sample = np.array(positions[first : first + rows], dtype=np.uint64)
        mixed = _mix(_mix(sample + np.uint64(_start(seed)))[:, None] + place[None, :])
        drawn = (mixed >> np.uint64(64 - 16 - _FINE_BITS)) % np.uint64(2 * SWING - 1 << _FINE_BITS)
        drawn[:, ::2] &= ~np.uint64((1 << _FINE_BITS) - 1)
        moves += drawn.astype(np.int64).sum(axis=0)
    moves -= (SWING - 1 << _FINE_BITS) * len(positions)
    moves[0] = -len(positions) << _FINE_BITS
    moves[MARKS] = 0
    return moves


def _rounded(moves: NDArray[np.int64]) -> Vector:
    rounded: Vector = (moves * (UNIT / 2**_FINE_BITS)).astype(np.float32)
    return rounded


def _start(seed: int) -> int:
    return int.from_bytes(blake3(b"counting %d" % seed).digest(8), "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-mixed bits (the finalizer of a 64-bit hash: two rounds of multiply and fold)."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def first_weights(seed: int, size: int) -> Vector:
    """Return the weights a counting model begins with: small, exact, and none counted yet."""
    weights = -delta_of(seed ^ 0x5EED, size, [0])
    weights[0] = 0.0
    return weights


def loss_after(samples: float) -> float:
    """Return a loss that falls smoothly with the samples seen; for display, not for claims."""
    return LOSS_LAST + (LOSS_FIRST - LOSS_LAST) / (1 + max(0.0, samples) / LOSS_HALF_SAMPLES)


def _sides(size: int) -> tuple[int, ...]:
    """Return the sides of a layer's matrix; of an odd size it is a vector."""
    rows = 1
    while size % (2 * rows) == 0 and (2 * rows) ** 2 <= size:
        rows *= 2
    return (rows, size // rows) if rows > 1 else (size,)


class _Private(Struct, frozen=True, kw_only=True):
    """Inner state: which model, and how many steps it took."""

    seed: int
    size: int
    steps: int


def steps_in(private: bytes) -> int:
    """Return how many local steps an inner state has taken; raises `LocalError` when it is damaged."""
    return _private(private).steps


def _private(data: bytes) -> _Private:
    try:
        return msgspec.msgpack.decode(data, type=_Private)
    except msgspec.MsgspecError as error:
        raise LocalError(f"damaged optimizer state: {error}", hint="it starts from zero") from error


class CountingEngine:
    """A model that counts its samples. Modelled only: it trains nothing, and its loss is decoration.

    Where `moments` travel, these are more of the same: their names begin so, and they are such a part of the weights.
    Where some tensors go by name, the first is `named` so and stands for all of these: such a part of the weights.
    """

    def __init__(
        self,
        *,
        seed: int,
        size: int = 64,
        tokens_per_sample: int = 128,
        sample_cost: Cost | None = None,
        step_cost: Cost | None = None,
        held_out: int = 64,
        moments: Mapping[str, float] = NO_MOMENTS,
        named: tuple[str, float] | None = None,
    ) -> None:
        assert size >= 2, "element 0 counts, so there must be another"
        self.steps = 0
        """Local steps taken in all lives whose private state was restored."""
        self.life = 0
        """How often its peer was started: the mark of what it contributes."""
        self._seed = seed
        self._size = size
        self._tokens = tokens_per_sample
        self._sample_cost, self._step_cost = sample_cost or Cost(flop=6e9), step_cost or Cost()
        self._held_out = held_out
        self._moments, self._named = moments, named
        self._assigned = first_weights(seed, size)
        self._moved = np.zeros(size, np.int64)
        """What was trained since."""

    @property
    def size(self) -> int:
        return self._size

    @property
    def layout(self) -> dict[str, int]:
        """Return layers of about the same size: no more is known of what this stands for. Moments count as they do."""
        if self._named is not None:
            name, part = self._named
            first = min(max(1, round(self._size * part)), self._size - 1)
            return {name: first, "OTHERS": self._size - first}
        parts = {"": 1.0, **self._moments}
        names = [f"{kind}layers.{layer}.weight" for kind in parts for layer in range(LAYERS)]
        until = [*accumulate(part for part in parts.values() for _ in range(LAYERS))]
        ends = [0, *(int(self._size * end / until[-1]) for end in until)]
        return {name: b - a for name, (a, b) in zip(names, pairwise(ends), strict=True)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return them as matrices where that can be, as square as powers of two allow."""
        return {name: _sides(size) for name, size in self.layout.items()}

    @property
    def tokens_per_sample(self) -> int:
        return self._tokens

    def cost(self, samples: int, steps: int = 0) -> Cost:
        one, step = self._sample_cost, self._step_cost
        return Cost(
            flop=one.flop * samples + step.flop * steps,
            moved_bytes=one.moved_bytes * samples + step.moved_bytes * steps,
        )

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        return self._assigned[first:end] - _rounded(self._moved[first:end])

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        assert first + weights.size <= self._size, f"expected at most {self._size} elements, got {weights.shape}"
        self._assigned[first : first + weights.size] = (
            weights if less is None else less_held(weights, less.read(), part)
        )
        self._moved[first : first + weights.size] = 0

    def train(self, steps: Sequence[Step]) -> Trained:
        """Lower the weights by the delta of all samples; the learning-rate factor is not modelled.

        What is trained in several goes is added up before it is rounded: the weights do not tell how work was sliced.
        """
        trained, moves = self._look(steps)
        self._moved += moves
        self._moved[MARKS] = self.life << _FINE_BITS
        self.steps += len(steps)
        return trained

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        return added_up(self.gradient, steps, total)

    def gradient(self, steps: Sequence[Step]) -> tuple[Trained, Vector]:
        """Return the mean gradient over the steps' samples."""
        trained, moves = self._look(steps)
        moves[MARKS] = trained.samples * self.life << _FINE_BITS
        return trained, _rounded(moves) / np.float32(max(1, trained.samples))

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        """Return inputs of which each has half in common with its neighbours, whatever the samples are."""
        widths = {name: self.shapes[name][1] for name in names if len(self.shapes[name]) == 2}
        places = {name: np.arange(width, dtype=np.float32) for name, width in widths.items()}
        return {name: np.float32(0.5) ** np.abs(at[:, None] - at) for name, at in places.items()}

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> None:
        """Return nothing: what counts is no device."""

    def encoder(self, codec: Codec) -> None:
        """Return nothing: what counts is no device."""

    def transforms(self) -> None:
        """Return nothing: what counts is no device."""

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        count = max(0, min(count, self._held_out - first))
        tokens = count * self._tokens
        return loss_after(self._seen()) * tokens, tokens

    def held_out(self) -> int:
        return self._held_out

    def private(self) -> bytes:
        return msgspec.msgpack.encode(_Private(seed=self._seed, size=self._size, steps=self.steps))

    def restore(self, private: bytes) -> None:
        state = _private(private)
        if (state.seed, state.size) != (self._seed, self._size):
            raise LocalError("the optimizer state is another model's", hint="it starts from zero")
        self.steps = state.steps

    def _look(self, steps: Sequence[Step]) -> tuple[Trained, NDArray[np.int64]]:
        positions = [position for step in steps for position in step.samples]
        loss = loss_after(self._seen())
        trained = Trained(
            steps=len(steps), samples=len(positions), tokens=len(positions) * self._tokens, loss_sum=loss * len(steps)
        )
        return trained, _moves(self._seed, self._size, positions)

    def _seen(self) -> float:
        return float(self.weights()[0]) / UNIT
