"""Units: the parts of a model that travel on their own, each with a chunk grid of its own.

Mostly that is the whole vector. Where a recipe exchanges fragments, a round is about one of them, in turn: a channel's
round n about fragment n - 1 modulo their number. A fragment is whole tensors; where these lie in the vector are its
spans, which, one after the other, are the unit's own vector.

    vector   | embed | layer 0 | layer 1 | layer 2 | layer 3 | norm |
    strided  |   0   |    0    |    1    |    0    |    1    |  1   |

Or a fragment is elements by lot: of a random order of all elements, another one whenever all fragments have had their
turn, each has its part. The order is that of samples (`data.order`), of which anybody finds any part alone.

Or it is what optimizers remember (`model.moments`) that has its turns, while the weights go every time.

Everybody derives the same units from the spec and the names and sizes of the tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from atoll.data.order import indices_of
from atoll.errors import SpecError
from atoll.model.compute import Vector
from atoll.model.moments import FIRST, is_weight
from atoll.spec.axes.codec import BLOCK_MAX, Codec
from atoll.spec.axes.when import Every, Fragments, Named, TargetBatch, Tensors, When, WithMoments
from atoll.spec.recipe import Channel
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import FP32, Grid, grid_of
from atoll.sync.tensors import Profile, turns

_LAYER = re.compile(r"\blayers\.(\d+)\.")

Span = tuple[int, int]
"""The first element of a run of the whole vector, and the one after its last."""
Places = NDArray[np.int64]
"""Elements of the whole vector, each by itself."""
LOT = 0
"""The seed of random orders: the same in all runs, so that it need not be told."""


class Unit(Struct, frozen=True):
    """What one round is about."""

    spans: tuple[Span, ...]
    """In order, none touching the next."""
    grid: Grid

    @property
    def size(self) -> int:
        """Return how many of the model's elements it is; what travels for them may be more or fewer."""
        return sum(end - first for first, end in self.spans)

    @property
    def reach(self) -> int:
        """Return how many elements are passed over to get at these."""
        return self.size

    def begins_with(self, count: int) -> bool:
        """Return whether the first so many elements of a vector are among these, and so the first of these."""
        return bool(self.spans) and self.spans[0][0] == 0 and self.spans[0][1] >= count

    def in_pass(self, number: int) -> Unit:
        """Return the same unit when all have had their turn so many times: whole tensors are what they are."""
        return self

    def runs(self, first: int, end: int) -> Iterator[tuple[int, slice | Places]]:
        """Yield where elements [first, end) of the unit are: at which of these each run begins, and the run.

        A vector can be read and written with a run as its index.
        """
        at = 0
        for start, stop in self.spans:
            low, high = max(first, at), min(end, at + stop - start)
            if low < high:
                yield low - first, slice(start + low - at, start + high - at)
            at += stop - start

    def take(self, vector: Vector, first: int = 0, end: int | None = None) -> Vector:
        """Return elements of the unit; in the memory of the whole vector where they lie together."""
        runs = [vector[run] for _, run in self.runs(first, self.size if end is None else end)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def put(self, vector: Vector, values: Vector, first: int = 0) -> None:
        """Write elements of the unit, from `first` on, into the whole vector."""
        for at, run in self.runs(first, first + values.size):
            vector[run] = values[at : at + length(run)]


class Scattered(Unit, frozen=True):
    """Elements by lot: those from `first` on in a random order of so many."""

    first: int
    of: int
    number: int = 0
    """Which order: of which pass."""

    @property
    def size(self) -> int:
        """Return how many elements it is."""
        return self.grid.size

    @property
    def reach(self) -> int:
        """Return how many elements there are: a model gives and takes single ones with all the others."""
        return self.of

    def in_pass(self, number: int) -> Unit:
        """Return the elements that have the same places in another order."""
        return replace(self, number=number)

    def runs(self, first: int, end: int) -> Iterator[tuple[int, slice | Places]]:
        """Yield the elements [first, end) of the unit, which are in the order of the vector."""
        yield 0, _places(self.number * self.of + self.first, self.grid.size, self.of)[first:end]


def length(run: slice | Places) -> int:
    """Return how many elements a run has."""
    return int(run.stop - run.start) if isinstance(run, slice) else run.size


@lru_cache(maxsize=4)
def _places(first: int, count: int, of: int) -> Places:
    """Return which of so many elements stand at some positions of their random orders, the lowest first."""
    return np.sort(indices_of(np.arange(first, first + count), of, LOT))


def whole(size: int, codec: Codec) -> Unit:
    """Return the unit that is all of a vector."""
    return Unit(((0, size),), grid_of(size, codec))


def units_of(when: When, layout: Mapping[str, int], codec: Codec, *, polar: bool = False) -> tuple[Unit, ...]:
    """Return the units of a model, in the order of their turns; raises `SpecError` where there are too many.

    `polar` says that the lengths of tensors travel too, after their directions (`sync.polar`).
    """
    units = _parts(when, layout, codec)
    if not polar:
        return units
    return tuple(replace(unit, grid=grid_of(unit.size + len(directed(unit, layout)), codec)) for unit in units)


def units_in(channel: Channel, layout: Mapping[str, int]) -> tuple[Unit, ...]:
    """Return the units of what a channel exchanges, of whose grids no chunk is too long in any form that it takes."""
    return units_of(channel.when, layout, longest(channel), polar=channel.polar)


def part_named(when: Named, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Return which part of a model the named tensors are; raises `SpecError` where they are none, or all of it."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    first, _ = units_of(when, sizes, FP32)
    return first.size / sum(sizes.values())


def longest(channel: Channel) -> Codec:
    """Return the form of contributions that has most bytes, of all that a channel has."""
    codecs = [channel.what.codec, *(form.codec for form in channel.finer)]
    return max(codecs, key=lambda codec: wire_bytes(codec, BLOCK_MAX))


def _parts(when: When, layout: Mapping[str, int], codec: Codec) -> tuple[Unit, ...]:
    match when:
        case Every() | TargetBatch():
            return (whole(sum(layout.values()), codec),)
        case Fragments(count=count, pattern="drawn"):
            return _scattered(sum(layout.values()), count, codec)
        case Fragments(count=count):
            homes = _homes(when, layout)
            if empty := sorted(set(range(count)) - set(homes.values())):
                raise SpecError(
                    f"recipe: when.count: of {count} fragments {len(empty)} would be empty in this model",
                    hint='choose fewer, or pattern = "packed", which takes tensors instead of layers',
                )
            parts = ({name for name, home in homes.items() if home == number} for number in range(count))
            return tuple(_unit(layout, part, codec) for part in parts)
        case Named(names=names):
            found = {name for name in layout if any(each in name for each in names)}
            if not found or len(found) == len(layout):
                lacking = "all others would be empty" if found else f"none is found among {', '.join(layout)}"
                raise SpecError(f"recipe: when.names: {lacking}", hint="name some of the model's tensors, not all")
            return _unit(layout, found, codec), _unit(layout, layout.keys() - found, codec)
        case Tensors(count=count):
            if count > len(layout):
                raise SpecError(
                    f"recipe: when.count: {count} exchanges in a period, but this model has {len(layout)} tensors",
                    hint="choose fewer: each exchange is of one tensor at least",
                )
            return tuple(_unit(layout, part, codec) for part in _turns(when, layout))
        case WithMoments():
            return _with_moments(when, layout, codec)


class Tensor(NamedTuple):
    """A tensor of a unit: its elements there, from the first to the one after the last."""

    name: str
    first: int
    end: int


def tensors_in(unit: Unit, layout: Mapping[str, int]) -> list[Tensor]:
    """Return the tensors of a unit, in order; each lies in it whole."""
    ends = list(accumulate(layout.values()))
    places = [(end - size, end, name) for (name, size), end in zip(layout.items(), ends, strict=True)]
    found: list[Tensor] = []
    at = 0
    for start, stop in unit.spans:
        shift = at - start
        found += [Tensor(name, a + shift, b + shift) for a, b, name in places if start <= a < b <= stop]
        at += stop - start
    assert sum(each.end - each.first for each in found) == unit.size, "units are whole tensors"
    return found


def directed(unit: Unit, layout: Mapping[str, int]) -> list[Tensor]:
    """Return those tensors of a unit that have a direction and a length: all but embeddings."""
    return [tensor for tensor in tensors_in(unit, layout) if not is_embedding(tensor.name)]


def is_embedding(name: str) -> bool:
    """Return whether a tensor embeds tokens."""
    return "embed" in name


Piece = tuple[int, int, int]
"""Elements of a chunk that are of one tensor: its number, their first, and the one after their last."""


def pieces_of(tensors: Sequence[Tensor], grid: Grid) -> list[list[Piece]]:
    """Return how each chunk is made of tensors."""
    pieces: list[list[Piece]] = [[] for _ in range(grid.chunks)]
    for number, tensor in enumerate(tensors):
        for index in range(tensor.first // grid.chunk, -(-tensor.end // grid.chunk)):
            first, end = grid.bounds(index)
            pieces[index].append((number, max(tensor.first, first) - first, min(tensor.end, end) - first))
    return pieces


def _unit(layout: Mapping[str, int], names: Container[str], codec: Codec) -> Unit:
    """Return one part: its tensors' places in the vector, joined where they touch."""
    spans: list[Span] = []
    for (name, size), end in zip(layout.items(), accumulate(layout.values()), strict=True):
        if name not in names:
            continue
        if spans and spans[-1][1] == end - size:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((end - size, end))
    return Unit(tuple(spans), grid_of(sum(end - first for first, end in spans), codec))


def _with_moments(when: WithMoments, layout: Mapping[str, int], codec: Codec) -> tuple[Unit, ...]:
    """Return the weights, and behind them those moments whose turn it is."""
    made: dict[tuple[bool, bool], Unit] = {}
    for due in map(when.due, range(1, when.count + 1)):
        if due not in made:
            first, second = due
            made[due] = _unit(layout, {name for name in layout if _travels(name, first, second)}, codec)
    return tuple(made[when.due(number)] for number in range(1, when.count + 1))


def _travels(name: str, first: bool, second: bool) -> bool:
    if is_weight(name):
        return True
    return first if name.startswith(FIRST) else second


def _scattered(size: int, count: int, codec: Codec) -> tuple[Unit, ...]:
    """Return fragments by lot, of the same size but for one element; all of a vector is no lot."""
    if count > size:
        raise SpecError(f"recipe: when.count: there are no {count} fragments of {size} elements", hint="choose fewer")
    if count == 1:
        return (whole(size, codec),)
    starts = [size * number // count for number in range(count + 1)]
    return tuple(Scattered((), grid_of(b - a, codec), a, size) for a, b in pairwise(starts))


def _homes(when: Fragments, layout: Mapping[str, int]) -> dict[str, int]:
    """Return the fragment of each tensor."""
    if when.pattern == "packed":
        return _packed(layout, when.count)
    layers = 1 + max((int(found[1]) for name in layout if (found := _LAYER.search(name))), default=0)

    def home(name: str) -> int:
        found = _LAYER.search(name)
        if found is None:
            return 0 if is_embedding(name) else when.count - 1
        layer = int(found[1])
        return layer % when.count if when.pattern == "strided" else layer * when.count // layers

    return {name: home(name) for name in layout}


def _turns(when: Tensors, layout: Mapping[str, int]) -> list[set[str]]:
    """Return the tensors of each turn, by a profile in which a tensor's work and its travel are as long as it is.

    Within a layer tensors go by their names, the last one first: what is between them matters little.
    """
    names = sorted(layout, key=_depth, reverse=True)
    total = sum(layout.values())
    shares = [layout[name] / total for name in names]
    found = turns(Profile(shares, [when.passes * share for share in shares]), when.count)
    return [{names[tensor] for tensor in turn} for turn in found]


def _depth(name: str) -> tuple[int, int, str]:
    """Return where a tensor is between what comes first in a forward pass and what comes last."""
    found = _LAYER.search(name)
    if found is None:
        return (0 if is_embedding(name) else 2), 0, name
    return 1, int(found[1]), name


def _packed(layout: Mapping[str, int], count: int) -> dict[str, int]:
    """Return fragments of about the same size: the largest tensor first, each into the smallest so far."""
    sizes = [0] * count
    homes: dict[str, int] = {}
    for name in sorted(layout, key=lambda name: (-layout[name], name)):
        homes[name] = sizes.index(min(sizes))
        sizes[homes[name]] += layout[name]
    return homes
