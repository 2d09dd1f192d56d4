"""Kernels make the bits of the plain forms: in Triton's interpreter, and in what its compiler makes for a device.

On a machine with a GPU `test_codec.py` says the same of the kernels as they run there. Triton comes with torch for CUDA
on Linux; where it is missing (`pip install triton`) these tests have nothing to look at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.model.child import said_by

triton = pytest.importorskip("triton")

INTERPRETED = """
import torch
from atoll.model.encoding import fused, lines, sieve, sparse
from atoll.model.encoding.trials import trial
from atoll.spec.axes import codec
here = torch.device("cpu")
for name in {names}:
    print(getattr(fused, name)(here))
for bits in {bits}:
    print(fused.same_stochastic(here, bits))
for bits in {place_bits}:
    print(sparse.same_packed(here, bits))
for rows in {rows}:
    print(sparse.same_largest(here, *rows))
for line in {line}:
    print(sparse.same_wanted_lines(here, line))
for some in {lines}:
    print(sparse.same_lines(here, *some))
for kind, shapes in {above}:
    print(sieve.same_above(here, getattr(codec, kind), shapes))
many = trial((3, 9_001), here).abs()  # in more than one tile of those that one program counts
many[1] = 7.0
many[2, 9:] = torch.inf  # which is what the largest values add up to
known = torch.tensor([[0.0, 0.0], [7.0, 5.0], [0.0, 0.0]])
moved = known.clone()
print(torch.equal(sparse._line_places(many, 90, known).long(), lines.chosen(many, 90, moved)))
print(torch.equal(known, moved))
"""
ALIKE = [
    "same_int8",
    "same_e3m0",
    "same_buckets",
    "same_short",
    "same_peaks",
    "same_wanted",
]
BITS = [2, 3, 4, 8, 12]
PLACE_BITS = [1, 3, 8, 12, 16, 17]
ROWS = [(32, 3), (512, 1), (1024, 1000)]
LINES = [(4_101, 2, 0.25), (320, 16, 0.1, [1.0, 0.5]), (900, 16, 1.0, [1.0]), (900, 16, 1e-9, [1.0, 0.5])]
"""Elements of a chunk, of a line, and the part that is kept: of whole lines and others, of all and of one."""
ABOVE = [("Fp32", [(3, 200), (1, 33_001)]), ("Fp16", [(3, 200)]), ("Bf16", [(3, 200)])]
"""Values, and chunks of so many elements: of places in one byte, and in two."""
TRIED = """
import torch
from atoll.model.encoding import cosines, fused, sieve, sparse
from atoll.spec.axes.codec import Bf16, Fp16, Fp32
here = torch.device("cpu")
print(cosines.same_columns(here), sparse.same_largest(here, 4096, 64))
print(*(sieve.same_above(here, kind) for kind in (Fp32, Fp16, Bf16)))
print(*(sparse.same_lines(here, 2**18, 16, keep) for keep in (0.01, 0.25)))
print(*(fused.same_stochastic(here, bits) for bits in (7, 10)))
"""
ENCODED = """
import numpy as np
import torch
from atoll.model.encoding import fused, sieve, sparse
from atoll.model.compute import Made, Mean, PartOf, Portion, Start
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import (
    Bf16, Buckets, CacheLines, Fp16, Fp32, Int8, Significance, Stochastic, Threshold, TopK
)
from atoll.spec.axes.what import Feedback, Forget, Hold

start, moved = np.random.default_rng(0).standard_normal((2, 70_000), np.float32)
weights = torch.from_numpy(start - moved)
sums = Held(start.size)
sums.write()[:] = moved

def made(codec, rule, trusted, width, there, large=None):
    fused.trusted = sieve.trusted = sparse.trusted = lambda *asked: trusted
    left, firsts = Held(start.size), (0, width, 2 * width)
    known = [np.zeros(2, np.float32) if isinstance(codec, CacheLines) else None for _ in range(3)]
    # Two chunks are a piece; one that lies in two places passes through memory of its own.
    apart = (slice(2 * width, 2 * width + 100), slice(2 * width + 150, 2 * width + 200))
    runs = [(slice(0, width),), (slice(width, 2 * width),), apart]
    portions = [Portion(*each) for each in zip(runs, [None] * 3, firsts, range(3), known)]
    encoder = TorchEncoder(codec, weights)
    chunks = [bytes(each) for _ in range(2) for each in encoder.encode(portions, there, rule, left, large)]
    return chunks, left.read().tobytes(), [each if each is None else each.tobytes() for each in known]

def same(*given):
    print(made(*given[:2], True, *given[2:]) == made(*given[:2], False, *given[2:]))

for codec in (
    Fp32(), Fp16(), Bf16(), Int8(), Stochastic(bits=4), CacheLines(), CacheLines(keep=0.1, line=64, values=Int8()),
    TopK(keep=3, block=1000), TopK(keep=8, block=512), TopK(keep=32, block=1024, values=Buckets(bits=2)),
):
    for rule in (Feedback(decay=0.9), Hold()):
        same(codec, rule, 4096, Start(start))
same(TopK(keep=8, block=512), Feedback(), 1300, Start(start))  # of blocks one is short
for there in (Mean(sums, 3), Made(sums)):
    same(Int8(), Feedback(), 4096, there)
# Places in one byte, in two, and in bits that no kernel has.
for width in (200, 33_000, 600):
    same(Threshold(least=2.0), Feedback(decay=0.9), width, Start(start))
for rule in (Feedback(decay=0.9), Hold(), Forget()):
    same(Significance(values=Fp16()), rule, 200, Start(start), PartOf(Start(start), 3.0))
    same(Significance(), rule, 200, Start(start), PartOf(Start(start.copy()), 3.0))
same(Threshold(least=0.5), Feedback(), 200, Mean(sums, 3), 0.5)
"""
REFUSED = """
import numpy as np
import torch
from atoll.model.encoding import fused, sieve, sparse
from atoll.model.compute import Portion, Start
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import CacheLines, Int8, Threshold, TopK
from atoll.spec.axes.what import Feedback, Hold

fused.trusted = sieve.trusted = sparse.trusted = lambda *asked: True
start, weights = np.random.default_rng(0).standard_normal((2, 8192), np.float32)
weights[300] = np.nan
for codec in (Threshold(least=2.0), CacheLines(), TopK(keep=8, block=512), Int8()):
    width = 256 if isinstance(codec, Threshold) else 4096
    for rule in (Feedback(), Hold()):
        left = Held.of(start)
        portions = [Portion((slice(at, at + width),)) for at in (0, width)]
        try:
            TorchEncoder(codec, torch.from_numpy(weights)).encode(portions, Start(start), rule, left)
        except FloatingPointError as error:
            print(error, np.isfinite(left.read()).all())
"""
UNTOUCHED = """
import numpy as np
import torch
from atoll.model.encoding import encoder, fused, sieve
from atoll.model.compute import Mean, Near, Portion
from atoll.model.held import Held
from atoll.spec.axes.codec import MaxN
from atoll.spec.axes.what import Feedback

fused.trusted = sieve.trusted = lambda *asked: True
encoder.FEW_ELEMENTS = encoder.MANY_ELEMENTS = 512
total, left = np.random.default_rng(0).standard_normal((2, 2048), np.float32)
portions = [Portion((slice(at, at + 256),), first=at) for at in range(0, 2048, 256)]
for at, odd in ((3, np.nan), (1000, np.inf), (2047, -np.inf), (None, 0.0)):
    values, before = total.copy(), Held.of(left.copy())
    if at is not None:
        values[at] = odd
    made = encoder.TorchEncoder(MaxN(), torch.zeros(2048))
    try:
        made.encode(portions, Mean(Held.of(values), 3), Feedback(), before, Near((1024, 1024), 40))
    except FloatingPointError as error:
        print(error, end=" ")
    print(before.read().tobytes() == left.tobytes())
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from atoll.model.encoding import kernels, picks, sieves
from atoll.model.encoding.fused import CONSTANTS, TO_WHOLE
some = {
    picks.largest: (
        {"rows": "*fp32", "places": "*i32", "chosen": "*fp32", "left": "*fp32"}
        | {"keep": "i32", "blocks": "i32", "step": "i32"},
        {"WIDTH": 4096, "TEAMS": 32, "TAKES": True, "LEAVES": True, "EMPTIES": True},
    ),
    kernels.int8: (
        {"values": "*fp32", "scales": "*fp32", "codes": "*i8", "left": "*fp32", "count": "i32", "blocks": "i32"},
        {"BLOCK": 256, "MANY": 8, "LEAVES": True, **CONSTANTS},
    ),
    kernels.e3m0: (
        {"values": "*fp32", "scales": "*fp32", "codes": "*u8", "count": "i32", "blocks": "i32"},
        {"HALF": 32, "MANY": 32, "SCALE_MIN": CONSTANTS["SCALE_MIN"], "OCTAVES": 7},
    ),
    kernels.bin_total: (
        {"values": "*fp32", "units": "*fp32", "totals": "*i64", "count": "i32"},
        {"TILE": 2048},
    ),
    kernels.bin_squares: (
        {"values": "*fp32", "centres": "*fp32", "units": "*fp32", "totals": "*i64", "count": "i32"},
        {"TILE": 2048, "TO_WHOLE": TO_WHOLE},
    ),
    kernels.bin_codes: (
        {name: "*fp32" for name in ("values", "centres", "per_steps", "units")}
        | {"codes": "*u8", "sums": "*i64", "counts": "*i64", "count": "i32", "row_bytes": "i32"},
        {"BITS": 2, "GROUP": 4, "GROUPS": 512, "TO_WHOLE": TO_WHOLE},
    ),
    kernels.wanted: (
        {name: "*fp32" for name in ("base", "weights", "before", "made")}
        | {"bad": "*i32", "size": "i32", "steps": "fp32", "decay": "fp32"},
        {"WAY": False, "FED": True, "TILE": 2048},
    ),
    kernels.row_peaks: (
        {name: "*fp32" for name in ("base", "weights", "before", "peaks")}
        | {"bad": "*i32", "rows": "i32", "steps": "fp32", "decay": "fp32"},
        {"WAY": False, "FED": True, "WIDTH": 256, "ROWS": 8},
    ),
    kernels.halves: (
        {"values": "*fp32", "wire": "*i16", "left": "*fp32", "size": "i32"},
        {"UPPER": False, "HALF_MAX": 65504.0, "LEAVES": True, "TILE": 2048},
    ),
    kernels.stochastic: (
        {"values": "*fp32", "scales": "*fp32", "codes": "*u8", "keys": "*i64", "left": "*fp32"}
        | {"count": "i32", "blocks": "i32", "row_bytes": "i32"},
        {"EIGHTHS": 64, "MANY": 4, "BITS": 12, "LEVELS": 2047, "NORM_BITS": 15, "SCALE_MIN": 2.0**-120, "LEAVES": True},
    ),
    sieves.sift: (
        {name: "*fp32" for name in ("base", "weights", "before", "limits", "made")}
        | {"maps": "*i32", "many": "*i32", "bad": "*i32", "count": "i32", "tiles": "i32"}
        | {"steps": "fp32", "decay": "fp32", "least": "fp32", "part": "fp32"},
        {"WAY": False, "MEAN": True, "FED": True, "MAKES": True, "LIMITED": True, "OF_BASE": False}
        | {"WIDTH": 256, "ROWS": 64},
    ),
    sieves.lay_out: (
        {"keeps": "*i32", "starts": "*i64", "chunks": "i32", "map_bytes": "i32"},
        {"VALUE_BYTES": 4, "PLACE_BYTES": 2, "ALIGN_BYTES": 4, "CHUNKS": 1024},
    ),
    sieves.put_together: (
        {"made": "*fp32", "maps": "*i32", "many": "*i32", "starts": "*i64", "wire": "*u8"}
        | {"count": "i32", "tiles": "i32", "blocks": "i32", "map_bytes": "i32"},
        {"KIND": 2, "HALF_MAX": 3e38, "PLACE_BYTES": 2, "LEAVES": True, "ROWS": 64}
        | {"TILES": 32, "WORDS": 256, "FEW": 8},
    ),
    picks.line_scores: (
        {"values": "*fp32", "scores": "*fp32", "count": "i32", "lines": "i32"},
        {"LINE": 16, "HALVINGS": 4, "MANY": 256},
    ),
    picks.line_wanted: (
        {name: "*fp32" for name in ("base", "weights", "before", "made", "scores")}
        | {"bad": "*i32", "count": "i32", "lines": "i32", "steps": "fp32", "decay": "fp32"},
        {"WAY": False, "FED": True, "LINE": 16, "HALVINGS": 4, "MANY": 256},
    ),
    picks.line_counts: (
        {"scores": "*fp32", "known": "*fp32", "counts": "*i32", "lines": "i32", "keep": "i32"},
        {"KNOWN": True, "SECOND": True, "TILE": 2048, "TILES": 4},
    ),
    picks.line_rivals: (
        {"scores": "*fp32", "known": "*fp32", "counts": "*i32", "rivals": "*i32", "lines": "i32", "keep": "i32"},
        {"KNOWN": True, "TILE": 2048},
    ),
    picks.line_least: (
        {"known": "*fp32", "counts": "*i32", "rivals": "*i32", "found": "*i32", "lines": "i32", "keep": "i32"},
        {"KNOWN": True, "FALL": 0.99, "RISE": 0.01, "TILE": 2048},
    ),
    picks.line_tiles: (
        {"scores": "*fp32", "found": "*i32", "tiles": "*i32", "lines": "i32"},
        {"TILE": 2048},
    ),
    picks.line_places: (
        {"scores": "*fp32", "found": "*i32", "tiles": "*i32", "places": "*i32", "lines": "i32", "keep": "i32"},
        {"TILE": 2048, "TILES": 64},
    ),
    picks.line_values: (
        {"values": "*fp32", "places": "*i32", "chosen": "*fp32", "count": "i32", "keep": "i32", "step": "i32"},
        {"LINE": 16, "EMPTIES": True, "MANY": 64},
    ),
    picks.packed: (
        {"numbers": "*i32", "wire": "*u8", "count": "i32", "step": "i32"},
        {"BITS": 17, "EIGHTS": 128},
    ),
}
for kernel, (given, constants) in some.items():
    source = ASTSource(fn=kernel, signature=given | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    print(made.asm["ptx"])
"""


def test_kernels_make_the_same_bits() -> None:
    tried: dict[str, Sequence[object]] = {
        "names": ALIKE,
        "bits": BITS,
        "place_bits": PLACE_BITS,
        "rows": ROWS,
        "line": [2, 16],
        "lines": LINES,
        "above": ABOVE,
    }
    said = said_by(INTERPRETED.format(**tried), TRITON_INTERPRET="1").split()
    assert said == ["True"] * (sum(map(len, tried.values())) + 2)


@pytest.mark.long
def test_all_that_a_device_is_tried_with_is_the_same() -> None:
    assert said_by(TRIED, TRITON_INTERPRET="1").split() == ["True"] * 9


def test_contributions_made_by_kernels_are_those_made_without() -> None:
    assert said_by(ENCODED, TRITON_INTERPRET="1").split() == ["True"] * 33


def test_values_that_are_not_finite_are_refused_and_never_left() -> None:
    assert said_by(REFUSED, TRITON_INTERPRET="1").splitlines() == ["some values are not finite True"] * 8


def test_kernels_leave_what_was_left_on_a_link_as_it_was_if_any_of_many_pieces_is_not_finite() -> None:
    pytest.importorskip("triton")
    said = said_by(UNTOUCHED, TRITON_INTERPRET="1").splitlines()
    assert said == ["some values are not finite True"] * 3 + ["False"], "and write it where all are"


def test_what_is_compiled_rounds_each_operation_by_itself() -> None:
    code = said_by(COMPILED)
    assert set(re.findall(r"\bdiv\.r\S+|\bdiv\.\S*f\d+", code)) == {"div.rn.f32", "div.rn.f64"}, "exact divisions only"
    assert set(re.findall(r"\bsqrt\.\S+", code)) == {"sqrt.rn.f64"}, "the exact root only"
    assert not re.findall(r"\bfma\.|\.ftz\b", code), "nothing is fused, and no small number becomes zero"
