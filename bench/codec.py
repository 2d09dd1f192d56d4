"""How fast codecs are: ours beside what plain torch does for the same, and memory; and what that is of a round's work.

    python -m bench.codec                           every codec and recipe on one thread of the processor
    python -m bench.codec --device cuda             on a device
    python -m bench.codec --only 'top-k*'           codecs with such names, and no recipes
    python -m bench.codec --recipes 'sparse*'       recipes with such names, and no codecs
    python -m bench.codec --torch                   a device's forms, on the processor
    python -m bench.codec --device cuda --compiled  what torch.compile would make of them, and whether to the same bits

A vector is encoded and decoded as a peer does it: on the processor chunk by chunk, in seconds of processor time, on a
device many chunks at once. Rates are in fp32 bytes of the vector. The bound is a copy of it in the same memory, the
least that any codec has to do that reads and writes. For int8 and top-k the same is done by torch in its plainest form
(no packing of places, no values in fewer bits, which ours does on top). Ours, torch and the copy take turns, and the
best of the turns counts: a machine is only ever held up. Of a device's codecs it is checked that contributions of three
rounds have the processor's bytes and leave the same (OTHER BITS: they do not). Of codecs that go by size, and of cache
lines, about one value in a hundred is sent, unless a name says otherwise; what goes by size is decoded on the processor
only. `from host` is the whole way of a contribution as a peer makes it, where what work began from comes out of the
host's memory, page-locked from the second time on, and the bytes go back there; `kept there` the same where the device
has kept that. Of `dct` and `low-rank` (of rank 4, in both of a step's rounds, with a residual) the two ways are the
transform alone, of a vector as matrices of 1,024 columns: see `bench.transforms`.

Recipes: see `bench.phases`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
import torch
from bench import meshed, transforms
from bench.show import asked_for, parser_of, show
from torch import Tensor

from atoll.model.compute import Large, PartOf, Portion, Start, Vector
from atoll.model.encoding import codec as there
from atoll.model.encoding import fused, sieve, sparse
from atoll.model.encoding.above import Kept, Least, Limits
from atoll.model.encoding.codec import OnDevice
from atoll.model.encoding.encoder import Began, TorchEncoder
from atoll.model.encoding.wanted import Ends, as_it_is
from atoll.model.held import Held
from atoll.spec.axes.codec import (
    Above,
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Quaternary,
    Sign,
    Significance,
    Stochastic,
    Ternary,
    Threshold,
    TopK,
    TurnedSign,
)
from atoll.spec.axes.what import Feedback, Forget, Hold, LowRank, Residual
from atoll.sync.codec import decode, decoded, encode
from atoll.sync.feedback import encode_fed_back
from atoll.sync.grid import Grid, grid_of

ELEMENTS, DEVICE_VECTOR = 2**24, 2**27
TURNS = 5
DECAY = 0.95
FED = Feedback(decay=DECAY)
"""With which bytes are compared."""
WEIGHED = Feedback(decay=0.0)
"""With which it is timed: read, weighed with nothing and written. The same values fed back turn after turn would grow
until most were large enough."""
SAME_CHUNKS = 4
"""Whose bytes and residuals are compared with the processor's."""
HUNDREDTH, HUNDREDTH_OF_WEIGHT = 2.5758, 63.66
"""What one value in a hundred exceeds, of a bell; and which multiple of another."""
TWO_BITS = Buckets(bits=2, width=6.0)
CODECS: dict[str, Codec] = {
    "fp32": Fp32(),
    "fp16": Fp16(),
    "bf16": Bf16(),
    "int8": Int8(),
    "buckets-8": Buckets(),
    "buckets-2": TWO_BITS,
    "e3m0": E3m0(),
    "sign": Sign(),
    "ternary": Ternary(),
    "quaternary": Quaternary(),
    "turned-sign": TurnedSign(),
    "stochastic-4": Stochastic(bits=4),
    "top-k": TopK(),
    "top-k-2bit": TopK(values=TWO_BITS),
    "threshold-1%": Threshold(least=HUNDREDTH),
    "threshold-50%": Threshold(least=0.6745),
    "significance": Significance(least=HUNDREDTH_OF_WEIGHT, shrinks=False),
    "max-n": MaxN(),
    "cache-lines": CacheLines(),
}
FED_BACK = ("fp16", "int8", "top-k-2bit", "stochastic-4", "threshold-1%", "significance", "cache-lines")
"""Those that are also measured with a residual."""
Ways = dict[str, Callable[[], object]]


@dataclass
class Row:
    """One codec."""

    codec: str
    where: str
    """The kind of device that it is done on."""
    bits: float
    """Of an element on the wire."""
    encode_gb_s: float
    decode_gb_s: float | None
    copy_gb_s: float
    torch_gb_s: float | None = None
    """Encoding, in torch's plainest form."""
    from_host_gb_s: float | None = None
    """Encoding on a device, from the host's memory and back."""
    contribute_gb_s: float | None = None
    """Likewise, if the device has kept where work began."""
    same_bits: bool = True
    """Whether the bytes are the processor's."""


@cache
def _normal(seed: int, size: int) -> Vector:
    """Return values as a bell has them: of large vectors they take longer to make than anything that is measured."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)


# on the processor


def on_processor(name: str, codec: Codec, values: Vector, rule: Residual) -> Row:
    """Return a codec's row."""
    grid = grid_of(values.size, codec)
    residual = np.zeros_like(values)
    target, others = np.empty_like(values), values[::-1]

    def encoded(first: int, end: int) -> memoryview:
        least = np.abs(others[first:end]) * np.float32(codec.least) if isinstance(codec, Significance) else None
        limit = HUNDREDTH if isinstance(codec, MaxN) else least
        some, left = values[first:end], residual[first:end]
        if isinstance(rule, Feedback):
            return encode_fed_back(codec, some, left, rule.decay, 0, limit)
        data = encode(codec, some, 0, limit)
        if isinstance(rule, Hold):
            np.subtract(some, decoded(codec, data, end - first), out=left)
        return data

    chunks = [bytes(encoded(first, end)) for first, end in _bounds(grid)]
    plain = _torch(codec)
    data = torch.from_numpy(values)
    ways: Ways = {
        "encode": lambda: [encoded(first, end) for first, end in _bounds(grid)],
        "decode": lambda: [decode(codec, c, e - f) for c, (f, e) in zip(chunks, _bounds(grid), strict=True)],
        "copy": lambda: [_copied(target[f:e], values[f:e]) for f, e in _bounds(grid)],
    }
    if plain is not None:
        ways["torch"] = lambda: [plain(data[f:e]) for f, e in _bounds(grid)]
    rates = _rates(values.size, ways, time.process_time)
    bits = 8 * sum(map(len, chunks)) / values.size
    return Row(name, "cpu", bits, rates["encode"], rates["decode"], rates["copy"], rates.get("torch"))


def _copied(target: Vector, values: Vector) -> Vector:
    np.copyto(target, values)
    return target


def _bounds(grid: Grid) -> Iterator[tuple[int, int]]:
    return map(grid.bounds, range(grid.chunks))


# on a device


class Chunks:
    """A vector on a device in whole chunks, and how they are encoded there."""

    def __init__(self, device: torch.device, codec: OnDevice, values: Vector, *, compiled: bool) -> None:
        grid = grid_of(values.size, codec)
        self.codec, self.count, chunks = codec, grid.chunk, values.size // grid.chunk
        self.rows = torch.from_numpy(values[: chunks * self.count]).to(device).view(chunks, self.count)
        self.start = _normal(1, values.size)[: self.rows.numel()].copy()
        self.weights = torch.from_numpy(self.start).to(device) - self.rows.view(-1)
        """Where work has come to, from a start that is as far from it as values are large."""
        self.make = torch.compile(there.encode) if compiled else there.encode
        self._bad = torch.zeros(1, dtype=torch.int32, device=device)
        self._others = torch.from_numpy(self.start).to(device).view(self.rows.shape)

    def encoded(self, few: int, left: Tensor, rule: Residual) -> list[Tensor | Kept]:
        """Return chunks of all rows, so many at once; what they leave out is written down, unless it is forgotten."""
        leaves = not isinstance(rule, Forget)
        pairs = [
            (Ends(some, None, 1, before, rule.decay) if isinstance(rule, Feedback) else as_it_is(some), before)
            for some, before in zip(torch.split(self.rows, few), torch.split(left, few), strict=True)
        ]
        each = [(ends, before if leaves else None) for ends, before in pairs]
        if isinstance(self.codec, Threshold | Significance | MaxN):
            return list(self._sized(self.codec, each))
        return [self._even(self.codec, ends, before) for ends, before in each]

    def _even(self, codec: there.Even, ends: Ends, left: Tensor | None) -> Tensor:
        wanted, scores = (ends.base, None) if ends.is_made else self._wanted(ends, left)
        return self.make(codec, wanted, there.Asked(scores=scores), left=left)

    def _wanted(self, ends: Ends, left: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what is to be sent, as a peer makes it: of what sends some values only, where the rest of it stays."""
        if isinstance(self.codec, CacheLines):
            return sparse.wanted_lines(self.codec, ends, self._bad, left)
        return fused.wanted(ends, self._bad, left if isinstance(self.codec, TopK) else None), None

    def _sized(self, codec: Above, each: Sequence[tuple[Ends, Tensor | None]]) -> Iterator[Kept]:
        """Yield chunks of what is large enough, as a peer makes them: of all it is asked at once how long they are."""
        leasts = [self.least_of(ends.base) for ends, _ in each]
        made = [
            sieve.sifted(type(codec.values), ends, least, left, self._bad)
            for (ends, left), least in zip(each, leasts, strict=True)
        ]
        keeps = [sifted.keeps for sifted in made if sifted is not None]
        told = iter(torch.split(torch.cat(keeps).cpu(), [len(some) for some in keeps]) if keeps else ())
        for (ends, left), least, sifted in zip(each, leasts, made, strict=True):
            if sifted is not None:
                yield sifted.kept(next(told).numpy())
            else:
                values = ends.base if ends.is_made else self._wanted(ends, left)[0]
                yield there.encode_above(codec, values, least, left=left)

    def least_of(self, some: Tensor) -> Least:
        """Return how large is large: where that hangs on weights, such a part of some."""
        least = least_in(self.codec)
        return Limits(self._others[: len(some)], least) if isinstance(self.codec, Significance) else least

    def large(self, start: Start) -> Large | None:
        """Return likewise as a peer says it."""
        if not isinstance(self.codec, Threshold | Significance | MaxN):
            return None
        least = least_in(self.codec)
        return PartOf(start, least) if isinstance(self.codec, Significance) else least

    def decoded(self, made: Tensor | Kept) -> Tensor | None:
        """Return what arrives; None: nobody decodes these on a device."""
        if isinstance(made, Kept) or isinstance(self.codec, Threshold | Significance | MaxN):
            return None
        return there.decoded(self.codec, made, self.count)


def least_in(codec: OnDevice) -> float:
    """Return how large is large by a codec; where it says that of each tensor, so that it is one in a hundred."""
    return HUNDREDTH if isinstance(codec, MaxN) else float(getattr(codec, "least", 0.0))


def there_on(
    device: torch.device, name: str, codec: OnDevice, values: Vector, rule: Residual, *, compiled: bool
) -> Row:
    """Return a codec's row on a device, of the whole chunks of a vector."""
    chunks = Chunks(device, codec, values, compiled=compiled)
    rows, residual = chunks.rows, torch.zeros_like(chunks.rows)
    began, target = Began(), torch.empty_like(rows)
    encoder = TorchEncoder(codec, chunks.weights, began)
    few = max(1, encoder.elements // chunks.count)

    plain, wires = _torch(codec), chunks.encoded(few, residual, rule)
    ways: Ways = {
        "encode": lambda: chunks.encoded(few, residual, rule),
        "contribute": _contributes(encoder, began, chunks, few, rule),
        "decode": lambda: [chunks.decoded(wire) for wire in wires],
        "copy": lambda: target.copy_(rows),
        "from host": _contributes(encoder, None, chunks, few, rule),
    }
    if plain is not None:
        ways["torch"] = lambda: [plain(some.flatten()) for some in torch.split(rows, few)]
    rates = _rates(rows.numel(), ways, lambda: _device_s(device))
    return Row(
        codec=name,
        where=device.type,
        bits=8 * sum(map(_size_bytes, wires)) / rows.numel(),
        encode_gb_s=rates["encode"],
        decode_gb_s=None if isinstance(wires[0], Kept) else rates["decode"],
        copy_gb_s=rates["copy"],
        torch_gb_s=rates.get("torch"),
        from_host_gb_s=rates["from host"],
        contribute_gb_s=rates["contribute"],
        same_bits=_same(encoder, chunks),
    )


def _size_bytes(wire: Tensor | Kept) -> int:
    return int(wire.lengths.sum()) if isinstance(wire, Kept) else wire.numel()


def _contributes(
    encoder: TorchEncoder, began: Began | None, chunks: Chunks, few: int, rule: Residual
) -> Callable[[], object]:
    """Return how a peer makes a contribution of such values, from where work began to bytes.

    What the device keeps of where work began is kept anew each time, as in every round.
    """
    size = chunks.rows.numel()
    start = Start(chunks.start, None if began is None else object())
    there = torch.from_numpy(chunks.start).to(chunks.rows.device) if began is not None else None
    residual = None if isinstance(rule, Forget) else Held(size)
    portions = _portions(chunks, size)
    parts = [portions[first : first + few] for first in range(0, len(portions), few)]

    def contribute() -> None:
        if began is not None and there is not None:
            began.keep(start.name, there)
        for part in parts:
            encoder.encode(part, start, rule, residual, chunks.large(start))

    return contribute


def _portions(chunks: Chunks, size: int) -> list[Portion]:
    """Return where chunks are, with a threshold for each that its codec may remember."""
    remembers = isinstance(chunks.codec, CacheLines) and chunks.codec.remember
    firsts = range(0, size, chunks.count)
    known = [np.zeros(2, np.float32) if remembers else None for _ in firsts]
    return [
        Portion((slice(first, first + chunks.count),), seed=first, known=each)
        for first, each in zip(firsts, known, strict=True)
    ]


def _same(encoder: TorchEncoder, chunks: Chunks) -> bool:
    """Return whether the first chunks are the bytes that the processor makes, three rounds long, and leave the same."""
    size = min(SAME_CHUNKS, len(chunks.rows)) * chunks.count
    start, portions, ours = Start(chunks.start), _portions(chunks, size), Held(chunks.rows.numel())
    delta = chunks.start[:size] - chunks.weights[:size].cpu().numpy()
    theirs, known = np.zeros(size, np.float32), _portions(chunks, size)
    for _ in range(3):
        made = encoder.encode(portions, start, FED, ours, chunks.large(start))
        for nth, (chunk, portion) in enumerate(zip(made, known, strict=True)):
            run = slice(nth * chunks.count, (nth + 1) * chunks.count)
            least: float | Vector | None = portion.known
            match chunks.large(start):
                case PartOf(part=part):
                    least = np.abs(chunks.start[run]) * np.float32(part)
                case float() as large:
                    least = large
            expected = encode_fed_back(chunks.codec, delta[run], theirs[run], DECAY, portion.seed, least)
            if bytes(chunk) != bytes(expected):
                return False
    return ours.read()[:size].tobytes() == theirs.tobytes()


def _device_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _rates(elements: int, ways: Ways, now_s: Callable[[], float]) -> dict[str, float]:
    """Return the GB/s of each way at its best; they take turns."""
    best_s = dict.fromkeys(ways, float("inf"))
    for _ in range(TURNS):
        for name, way in ways.items():
            began_s = now_s()
            way()
            best_s[name] = min(best_s[name], now_s() - began_s)
    return {name: 4e-9 * elements / took_s for name, took_s in best_s.items()}


# torch, in its plainest form


def _torch(codec: Codec) -> Callable[[Tensor], object] | None:
    """Return how torch encodes some elements, where there is something to compare with."""
    match codec:
        case Int8(block=block):
            return lambda values: _torch_absmax(values.view(-1, block))
        case TopK(keep=keep, block=block):
            return lambda values: _torch_largest(values.view(-1, block), keep)
        case _:
            return None


def _torch_absmax(rows: Tensor) -> tuple[Tensor, Tensor]:
    steps = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / steps).round().to(torch.int8), steps


def _torch_largest(rows: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    places = rows.abs().topk(keep, dim=1, sorted=False).indices
    return rows.gather(1, places), places


# all of them


class Bench:
    """Measures codecs where a peer on a device would do them."""

    def __init__(self, device: torch.device, elements: int, *, forms: bool, compiled: bool) -> None:
        self.device, self._forms, self._compiled = device, forms, compiled  # forms: those of a device
        self._values = _normal(0, elements)

    def row(self, name: str, codec: Codec, rule: Residual) -> Row:
        """Return a codec's row."""
        rule = WEIGHED if isinstance(rule, Feedback) else rule
        if not self._forms:
            return on_processor(name, codec, self._values[:ELEMENTS], rule)
        return there_on(self.device, name, codec, self._values, rule, compiled=self._compiled)

    def usual(self, codec: Codec) -> Codec:
        """Return a recipe's codec; one that goes by size such that it sends about one in a hundred of these values."""
        match codec:
            case Threshold(values=values):
                return Threshold(least=HUNDREDTH, values=values)
            case Significance(values=values):
                return Significance(least=HUNDREDTH_OF_WEIGHT, shrinks=False, values=values)
            case _:
                return codec

    def linked(self, codec: MaxN, count: int) -> Row:
        """Return the row of what goes over so many links by itself."""
        values = meshed.in_chunks(codec, self._values if self._forms else self._values[:ELEMENTS])
        measure = meshed.there(self.device, codec, values, count) if self._forms else meshed.here(codec, values, count)
        return self._measured("max-n, per link", values, measure)

    def dct(self) -> Row:
        """Return the row of the cosine transform."""
        if self._forms:
            return self._measured("dct", self._values, transforms.dct_there(self.device, self._values))
        return self._measured("dct", self._values[:ELEMENTS], transforms.dct_here(self._values[:ELEMENTS]))

    def low_rank(self, low: LowRank, shapes: transforms.Shapes) -> Row:
        """Return the row of matrices of such shapes as factors."""
        size = sum(math.prod(shape) for shape in shapes.values())
        values = np.resize(self._values, size)
        if self._forms:
            return self._measured("low-rank", values, transforms.low_rank_there(self.device, low, shapes, values))
        return self._measured("low-rank", values, transforms.low_rank_here(low, shapes, values))

    def _measured(self, name: str, values: Vector, measure: transforms.Measure) -> Row:
        """Return the row of what says itself in which ways it is to be measured."""
        there = torch.from_numpy(values).to(self.device)
        target = torch.zeros_like(there)
        ways = measure.ways | {"copy": lambda: target.copy_(there)}
        # Of this thread: a library's own threads, which spin while they wait, would count as the processor's time too.
        rates = _rates(values.size, ways, (lambda: _device_s(self.device)) if self._forms else time.thread_time)
        return Row(
            codec=name,
            where=self.device.type if self._forms else "cpu",
            bits=measure.bits,
            encode_gb_s=rates["encode"],
            decode_gb_s=rates.get("decode"),
            copy_gb_s=rates["copy"],
            from_host_gb_s=rates.get("from host"),
            contribute_gb_s=rates.get("contribute"),
            same_bits=measure.same_bits,
        )

    def rows(self, only: str) -> Iterator[Row]:
        """Yield the rows of codecs with such names."""
        for name, codec in CODECS.items():
            if asked_for(name, only):
                yield self.row(name, codec, Forget())
        for name in FED_BACK:
            if asked_for(name, only):
                yield self.row(f"{name}, fed back", CODECS[name], FED)
        if asked_for("dct", only):
            yield self.dct()
        if asked_for("low-rank", only):
            elements = DEVICE_VECTOR if self.device.type == "cuda" else ELEMENTS
            yield self.low_rank(LowRank(), transforms.matrices(elements))


def main() -> int:
    from bench.phases import Share, share_text, shares

    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--only", help="codecs with such names: int8, top-k*, ...")
    parser.add_argument("--recipes", help="recipes with such names")
    parser.add_argument("--elements", type=int, help="of the vector; a multiple of 4096")
    parser.add_argument("--torch", action="store_true", help="the forms for devices, also on the processor")
    parser.add_argument("--compiled", action="store_true", help="those through torch.compile; no recipes")
    parser.add_argument("--size", help="the model whose steps recipes take: 5m, 125m, ...")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    elements = options.elements or (ELEMENTS if device.type == "cpu" else DEVICE_VECTOR)
    forms = device.type != "cpu" or options.torch or options.compiled
    bench = Bench(device, elements, forms=forms, compiled=options.compiled)
    every = options.only is options.recipes is None
    codecs, recipes = ("*", "" if options.compiled else "*") if every else (options.only or "", options.recipes or "")
    rows: Iterator[Row | Share] = chain(bench.rows(codecs), shares(bench, recipes, options.size))
    show(rows, lambda row: _text(row) if isinstance(row, Row) else share_text(row), as_json=options.json)
    return 0


def _text(row: Row) -> str:
    beside = f", {row.encode_gb_s / row.torch_gb_s:.2f} of torch's {row.torch_gb_s:.2f}" if row.torch_gb_s else ""
    encodes, decodes = (_beside(rate, row.copy_gb_s) for rate in (row.encode_gb_s, row.decode_gb_s))
    ways = (("from host", row.from_host_gb_s), ("kept there", row.contribute_gb_s))
    host = "".join(f"   {way} {rate:.2f}" for way, rate in ways if rate)
    wrong = "" if row.same_bits else "   OTHER BITS"
    name = f"{row.codec:<24}{row.where:<6}{row.bits:6.2f} bits"
    return f"{name}   encodes {encodes}{beside})   decodes {decodes}){host}{wrong}"


def _beside(rate_gb_s: float | None, copy_gb_s: float) -> str:
    return "  (here" if rate_gb_s is None else f"{rate_gb_s:7.2f} GB/s ({rate_gb_s / copy_gb_s:.2f} of a copy"


if __name__ == "__main__":
    sys.exit(main())
