"""A pipeline as it is planned: parts of the model in a row, the devices they are on, and what lies between them.

    F   a micro-batch goes through a part            B   its gradient comes back: D and W in one
    D   ... the input's gradient only                W   ... the weights' gradient, which nobody waits for
    R   what F did is done again, since it was not kept

A device may have several parts (interleaved, or folded to a V); messages between two devices share one line each way.
Times of parts and lines may all differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import Struct

Kind = Literal["F", "B", "D", "W", "R"]


class Task(NamedTuple):
    """One piece of work."""

    kind: Kind
    part: int
    micro: int


Orders = list[list[Task]]
"""What each device does, in its order."""


class Part(Struct, frozen=True, kw_only=True):
    """A piece of the model on a device: how long each kind of work takes, and what it keeps."""

    device: int
    forward_s: float
    backward_s: float
    """The input's gradient."""
    weights_s: float = 0.0
    """The weights' gradient, where the two are told apart."""
    kept: float = 1.0
    """What one micro-batch keeps between its way there and its way back, in any unit."""


class Hop(Struct, frozen=True, kw_only=True):
    """What a message between two parts takes: a delay, and the time that it occupies the line."""

    latency_s: float = 0.0
    busy_s: float = 0.0


class Pipeline(Struct, frozen=True, kw_only=True):
    """Parts in a row, and the hops between them in either direction."""

    parts: tuple[Part, ...]
    there: tuple[Hop, ...]
    back: tuple[Hop, ...]

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return 1 + max(part.device for part in self.parts)

    def on(self, device: int) -> list[int]:
        """Return the parts of a device."""
        return [number for number, part in enumerate(self.parts) if part.device == device]


def hop(size_bytes: float, latency_s: float, rate_bytes_s: float) -> Hop:
    """Return what a message takes on a line with a delay and a rate."""
    return Hop(latency_s=latency_s, busy_s=size_bytes / rate_bytes_s)


def straight(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weights_s: Sequence[float] = (),
    *,
    there: Sequence[Hop] = (),
    back: Sequence[Hop] = (),
) -> Pipeline:
    """Return a pipeline with one part on each device; no hops: lines that take no time."""
    weights = weights_s or [0.0] * len(forward_s)
    rows = zip(forward_s, backward_s, weights, strict=True)
    parts = [Part(device=i, forward_s=f, backward_s=d, weights_s=w) for i, (f, d, w) in enumerate(rows)]
    return joined(parts, there, back)


def joined(parts: Sequence[Part], there: Sequence[Hop] = (), back: Sequence[Hop] = ()) -> Pipeline:
    """Return the pipeline of parts; no hops: lines that take no time."""
    between = len(parts) - 1
    hops, returns = there or [Hop()] * between, back or there or [Hop()] * between
    if len(hops) != between or len(returns) != between:
        raise ValueError(f"{len(parts)} parts have {between} hops each way, not {len(hops)} and {len(returns)}")
    return Pipeline(parts=tuple(parts), there=tuple(hops), back=tuple(returns))


def cut(pipeline: Pipeline, devices: Sequence[int]) -> Pipeline:
    """Return the same model in more parts, all as long: part k of the row goes to `devices[k]`.

    Between parts of one device nothing has to travel; between neighbours it is their line, in its direction.
    """
    chunks = len(devices) // pipeline.devices
    parts = []
    for device in devices:
        whole = pipeline.parts[device]
        times = (whole.forward_s / chunks, whole.backward_s / chunks, whole.weights_s / chunks)
        parts.append(
            Part(device=device, forward_s=times[0], backward_s=times[1], weights_s=times[2], kept=whole.kept / chunks)
        )
    pairs = list(pairwise(devices))
    return joined(parts, [_line(pipeline, *each) for each in pairs], [_line(pipeline, b, a) for a, b in pairs])


def looped(devices: int, chunks: int) -> list[int]:
    """Return where parts go that pass all devices in turn, again and again (interleaved)."""
    return [part % devices for part in range(devices * chunks)]


def folded(devices: int) -> list[int]:
    """Return where parts go that pass all devices and come back (a V)."""
    return [*range(devices), *reversed(range(devices))]


def _line(pipeline: Pipeline, one: int, other: int) -> Hop:
    """Return what lies between two devices of a straight pipeline: all that is passed on the way."""
    if one == other:
        return Hop()
    low, high = sorted((one, other))
    passed = (pipeline.there if one < other else pipeline.back)[low:high]
    return Hop(latency_s=sum(each.latency_s for each in passed), busy_s=max(each.busy_s for each in passed))
