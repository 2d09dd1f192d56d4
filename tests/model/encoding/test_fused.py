"""Kernels make the bits of the plain forms: in Triton's interpreter, and in what its compiler makes for a device.

On a machine with a GPU `test_codec.py` says the same of the kernels as they run there. Triton comes with torch for CUDA
on Linux; where it is missing (`pip install triton`) these tests have nothing to look at.
"""

from __future__ import annotations

import re

import pytest

from tests.model.child import said_by

triton = pytest.importorskip("triton")

INTERPRETED = """
import torch
from atoll.model.encoding import fused, sieve
from atoll.spec.axes.codec import Bf16, Fp16, Fp32
here = torch.device("cpu")
for name in {names}:
    print(getattr(fused, name)(here))
for bits in {bits}:
    print(fused.same_stochastic(here, bits))
for lines in {lines}:
    print(fused.same_choices(here, *lines))
for kind, sieve.ROWS, sieve.WORDS in ((Fp32, 64, 256), (Fp16, 128, 512), (Bf16, 256, 1024)):
    print(sieve.same_above(here, kind))
"""
ALIKE = [
    "same_largest",
    "same_int8",
    "same_e3m0",
    "same_buckets",
    "same_short",
    "same_lines",
    "same_ratios",
    "same_wanted",
]
BITS = [2, 3, 4, 7, 8, 10, 12]
LINES = [(5003, 1), (5003, 77), (5003, 5003), (8192, 82)]
ENCODED = """
import numpy as np
import torch
from atoll.model.encoding import fused, sieve
from atoll.model.compute import Made, Mean, PartOf, Portion, Start
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import Bf16, CacheLines, Fp16, Int8, Significance, Stochastic, Threshold
from atoll.spec.axes.what import Feedback, Forget, Hold

start, moved = np.random.default_rng(0).standard_normal((2, 90_000), np.float32)
weights = torch.from_numpy(start - moved)
sums = Held(start.size)
sums.write()[:] = moved

def made(codec, rule, trusted, there, large=None):
    fused.trusted = sieve.trusted = lambda *asked: trusted
    left, firsts = Held(start.size), (0, 40_000, 80_000)
    known = [np.zeros(2, np.float32) if isinstance(codec, CacheLines) else None for _ in range(3)]
    runs = [(slice(0, 40_000),), (slice(40_000, 80_000),), (slice(80_000, 84_000), slice(86_000, 90_000))]
    portions = [Portion(*each) for each in zip(runs, [None] * 3, firsts, range(3), known)]
    encoder = TorchEncoder(codec, weights)
    chunks = [bytes(each) for _ in range(2) for each in encoder.encode(portions, there, rule, left, large)]
    return chunks, left.read().tobytes(), [each if each is None else each.tobytes() for each in known]

def same(*given):
    print(made(*given[:2], True, *given[2:]) == made(*given[:2], False, *given[2:]))

for codec in (Fp16(), Bf16(), Int8(), Stochastic(bits=4), CacheLines(), Threshold(least=2.0)):
    for rule in (Feedback(decay=0.9), Hold()):
        same(codec, rule, Start(start))
for rule in (Feedback(decay=0.9), Hold(), Forget()):
    same(Significance(values=Fp16()), rule, Start(start), PartOf(Start(start), 3.0))
    same(Significance(), rule, Start(start), PartOf(Start(start.copy()), 3.0))
same(Threshold(least=0.5), Feedback(), Mean(sums, 3), 0.5)
for there in (Mean(sums, 3), Made(sums)):
    same(Int8(), Feedback(), there)
"""
REFUSED = """
import numpy as np
import torch
from atoll.model.encoding import fused, sieve
from atoll.model.compute import Portion, Start
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import Threshold
from atoll.spec.axes.what import Feedback

fused.trusted = sieve.trusted = lambda *asked: True
start, weights = np.random.default_rng(0).standard_normal((2, 80_000), np.float32)
weights[50_000] = np.nan
left = Held.of(start)
portions = [Portion((slice(0, 40_000),)), Portion((slice(40_000, 80_000),))]
try:
    TorchEncoder(Threshold(least=2.0), torch.from_numpy(weights)).encode(portions, Start(start), Feedback(), left)
except FloatingPointError as error:
    print(error)
print(np.isfinite(left.read()).all())
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from atoll.model.encoding import kernels, sieves
from atoll.model.encoding.fused import CONSTANTS, TO_WHOLE
some = {
    kernels.largest: ({"rows": "*fp32", "places": "*i64", "keep": "i32"}, {"WIDTH": 4096}),
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
        {"WAY": False, "MEAN": True, "FED": True, "MAKES": True, "LIMITED": True, "OF_BASE": False, "ROWS": 64},
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
    kernels.ratio_counts: (
        {"values": "*fp32", "limits": "*fp32", "counts": "*i64", "size": "i32", "bits": "i32"},
        {"SHIFT": 8, "TILE": 4096, "TILES": 8},
    ),
    kernels.line_scores: (
        {"values": "*fp32", "scores": "*fp32", "lines": "i32"},
        {"LINE": 16, "HALVINGS": 4, "MANY": 256},
    ),
    kernels.line_choice: (
        {"scores": "*fp32", "limits": "*fp32", "places": "*i64", "many": "*i32", "lowest": "*fp32"}
        | {"lines": "i32", "keep": "i32"},
        {"TILE": 4096, "TILES": 2},
    ),
}
for kernel, (given, constants) in some.items():
    source = ASTSource(fn=kernel, signature=given | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    print(made.asm["ptx"])
"""


def test_kernels_make_the_same_bits() -> None:
    program = INTERPRETED.format(names=ALIKE, bits=BITS, lines=LINES)
    assert said_by(program, TRITON_INTERPRET="1").split() == ["True"] * (len(ALIKE) + len(BITS) + len(LINES) + 3)


def test_contributions_made_by_kernels_are_those_made_without() -> None:
    assert said_by(ENCODED, TRITON_INTERPRET="1").split() == ["True"] * 21


def test_values_that_are_not_finite_are_refused_and_never_left() -> None:
    assert said_by(REFUSED, TRITON_INTERPRET="1").splitlines() == ["some values are not finite", "True"]


def test_what_is_compiled_rounds_each_operation_by_itself() -> None:
    code = said_by(COMPILED)
    assert set(re.findall(r"\bdiv\.r\S+|\bdiv\.\S*f\d+", code)) == {"div.rn.f32", "div.rn.f64"}, "exact divisions only"
    assert set(re.findall(r"\bsqrt\.\S+", code)) == {"sqrt.rn.f64"}, "the exact root only"
    assert not re.findall(r"\bfma\.|\.ftz\b", code), "nothing is fused, and no small number becomes zero"
