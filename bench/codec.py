"""How fast codecs are: ours beside what plain torch does for the same, and the machine's memory.

    python -m bench.codec                     every codec, one thread
    python -m bench.codec --only 'top-k*'     those with such names

A vector is encoded and decoded chunk by chunk, as a peer does it; times are in fp32 bytes of the vector per second of
processor time. The bound is a copy of it in memory, chunk by chunk too, the least that any codec has to do that reads
and writes. For int8 and top-k the same is done by torch in its plainest form (no packing of places, no values in fewer
bits, which ours does on top). Ours, torch and the copy take turns, and the best of the turns counts: a machine is only
ever held up. Of `dct` the two ways are the transform alone, of a vector as a matrix of 1,024 columns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain

import numpy as np
import torch
from bench.show import parser_of, show
from torch import Tensor

from atoll.model.compute import Vector
from atoll.spec.recipe import Bf16, Buckets, Codec, Dct, E3m0, Fp16, Fp32, Int8, Sign, Stochastic, Threshold, TopK
from atoll.sync.codec import decode, encode
from atoll.sync.feedback import encode_fed_back
from atoll.sync.frequencies import Frequencies
from atoll.sync.grid import Grid, grid_of
from atoll.sync.units import whole

ELEMENTS = 2**24
TURNS = 5
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
    "stochastic-4": Stochastic(bits=4),
    "top-k": TopK(),
    "top-k-2bit": TopK(values=TWO_BITS),
    "threshold-1%": Threshold(least=2.5758),
    "threshold-50%": Threshold(least=0.6745),
}
FED_BACK = ("int8", "top-k-2bit")
"""Those that are also measured with a residual."""


@dataclass
class Row:
    """One codec."""

    name: str
    bits: float
    """Of an element on the wire."""
    encode_gb_s: float
    decode_gb_s: float
    copy_gb_s: float
    torch_gb_s: float | None
    """Encoding, in torch's plainest form."""


def measured(name: str, codec: Codec, values: Vector, *, fed_back: bool) -> Row:
    """Return a codec's row."""
    grid = grid_of(values.size, codec)
    residual = np.zeros_like(values)
    target = np.empty_like(values)

    def encoded(first: int, end: int) -> memoryview:
        if fed_back:
            return encode_fed_back(codec, values[first:end], residual[first:end], 0.95)
        return encode(codec, values[first:end])

    chunks = [bytes(encoded(first, end)) for first, end in _bounds(grid)]
    plain = _torch(codec, values)
    ways: dict[str, Callable[[], object]] = {
        "encode": lambda: [encoded(first, end) for first, end in _bounds(grid)],
        "decode": lambda: [decode(codec, c, e - f) for c, (f, e) in zip(chunks, _bounds(grid), strict=True)],
        "copy": lambda: [_copied(target[f:e], values[f:e]) for f, e in _bounds(grid)],
        **({"torch": lambda: [plain(f, e) for f, e in _bounds(grid)]} if plain is not None else {}),
    }
    took_s = _best_of_turns(ways)
    rates = {way: 4e-9 * values.size / best_s for way, best_s in took_s.items()}
    bits = 8 * sum(map(len, chunks)) / values.size
    return Row(name, bits, rates["encode"], rates["decode"], rates["copy"], rates.get("torch"))


def transformed(values: Vector) -> Row:
    """Return the row of the cosine transform: to frequencies, and back."""
    tiles = Frequencies(Dct(), whole(values.size, Fp32()), {"weight": (values.size // 1024, 1024)})
    there, target = tiles.of(values), np.empty_like(values)
    ways: dict[str, Callable[[], object]] = {
        "encode": lambda: tiles.of(values),
        "decode": lambda: tiles.back(there),
        "copy": lambda: _copied(target, values),
    }
    rates = {way: 4e-9 * values.size / best_s for way, best_s in _best_of_turns(ways).items()}
    return Row("dct", 32.0, rates["encode"], rates["decode"], rates["copy"], None)


def _copied(target: Vector, values: Vector) -> Vector:
    np.copyto(target, values)
    return target


def _bounds(grid: Grid) -> Iterator[tuple[int, int]]:
    return map(grid.bounds, range(grid.chunks))


def _best_of_turns(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each way, which take turns."""
    best_s = dict.fromkeys(ways, float("inf"))
    for _ in range(TURNS):
        for name, way in ways.items():
            began_s = time.process_time()
            way()
            best_s[name] = min(best_s[name], time.process_time() - began_s)
    return best_s


def _torch(codec: Codec, values: Vector) -> Callable[[int, int], object] | None:
    """Return how torch encodes a chunk in its plainest form, where there is one to compare with."""
    whole = torch.from_numpy(values)
    match codec:
        case Int8(block=block):
            return lambda first, end: _torch_absmax(whole[first:end].view(-1, block))
        case TopK(keep=keep, block=block):
            return lambda first, end: _torch_largest(whole[first:end].view(-1, block), keep)
        case _:
            return None


def _torch_absmax(rows: Tensor) -> tuple[Tensor, Tensor]:
    steps = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / steps).round().to(torch.int8), steps


def _torch_largest(rows: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    places = rows.abs().topk(keep, dim=1, sorted=False).indices
    return rows.gather(1, places), places


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="*", help="codecs with such names: int8, top-k*, ...")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="of the vector; a multiple of 4096")
    options = parser.parse_args()
    torch.set_num_threads(1)
    values = np.random.default_rng(0).standard_normal(options.elements, np.float32)
    names = [(name, False) for name in CODECS] + [(name, True) for name in FED_BACK]
    rows = (
        measured(f"{name}{', fed back' if fed_back else ''}", CODECS[name], values, fed_back=fed_back)
        for name, fed_back in names
        if fnmatch(name, options.only)
    )
    more = [transformed(values)] if fnmatch("dct", options.only) else []
    show(chain(rows, more), _text, as_json=options.json)
    return 0


def _text(row: Row) -> str:
    beside = f", {row.encode_gb_s / row.torch_gb_s:.2f} of torch's {row.torch_gb_s:.2f}" if row.torch_gb_s else ""
    both = (row.encode_gb_s, row.decode_gb_s)
    encodes, decodes = (f"{rate:5.2f} GB/s ({rate / row.copy_gb_s:.2f} of a copy" for rate in both)
    return f"{row.name:<22}{row.bits:6.2f} bits   encodes {encodes}{beside})   decodes {decodes})"


if __name__ == "__main__":
    sys.exit(main())
