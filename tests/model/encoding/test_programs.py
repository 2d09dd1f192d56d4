"""Kernels of transforms make the bits of the plain forms: in Triton's interpreter, and in what its compiler makes.

As `test_fused.py` says of those of codecs; on a machine with a GPU `test_transforms.py` says it of the kernels there.
"""

from __future__ import annotations

import re

import pytest

from tests.model.child import said_by

triton = pytest.importorskip("triton")

INTERPRETED = """
import torch
from atoll.model.encoding.cosines import same_columns, same_cosines
from atoll.model.encoding.products import same_products
here = torch.device("cpu")
print(same_cosines(here), same_products(here), same_columns(here, 16))
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from atoll.model.encoding import columns, programs
tables = {"places_high": "*i32", "factors_high": "*fp64", "places_wide": "*i32", "factors_wide": "*fp64"}
vectors = {"given": "*fp32", "made": "*fp32", "firsts": "*i64", "steps": "*i64", "ats": "*i64"}
line = {"places": "*i32", "factors": "*fp64"}
factors = dict.fromkeys(("lefts", "rights", "wanted", "made"), "*fp32")
sizes = dict.fromkeys(("rows", "columns", "left_step", "right_step", "step"), "i32")
tile = {"HIGH": 64, "HIGH_LEVELS": 6, "WIDE": 64, "WIDE_LEVELS": 6}
some = [
    (programs.cosine, vectors | tables, tile | {"FORWARD": True}, 8),
    (programs.cosine, vectors | tables, tile | {"FORWARD": False}, 8),
    (programs.cosine_line, vectors | line, {"WIDE": 64, "LEVELS": 6, "FORWARD": True}, 1),
    (columns.kernel_of(16, forward=True), vectors | {"own": "*fp64", "count": "i32"}, {}, 1),
    (columns.kernel_of(16, forward=False), vectors | {"own": "*fp64", "count": "i32"}, {}, 1),
    (programs.outer, factors | sizes, {"RANK": 4, "MINUS": True, "HIGH": 16, "WIDE": 128}, 4),
]
for kernel, given, constants, warps in some:
    source = ASTSource(fn=kernel, signature=given | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    options = {"enable_fp_fusion": False, "num_warps": warps}
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
"""


def test_kernels_make_the_same_bits() -> None:
    assert said_by(INTERPRETED, TRITON_INTERPRET="1").split() == ["True"] * 3


def test_what_is_compiled_rounds_each_operation_by_itself() -> None:
    code = said_by(COMPILED)
    assert len(re.findall(r"\bmul\.rn\.f64", code)) > 100, "the transform is there, in fp64"
    assert not re.findall(r"\bfma\.|\.ftz\b", code), "nothing is fused, and no small number becomes zero"
