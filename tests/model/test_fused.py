"""Kernels make the bits of the plain forms: in Triton's interpreter, and in what its compiler makes for a device.

On a machine with a GPU `test_codec.py` says the same of the kernels as they run there. Triton comes with torch for CUDA
on Linux; where it is missing (`pip install triton`) these tests have nothing to look at.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

INTERPRETED = """
import torch
from atoll.model.fused import same_buckets, same_e3m0, same_int8, same_largest
here = torch.device("cpu")
print(same_largest(here), same_int8(here), same_e3m0(here), same_buckets(here))
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from atoll.model import kernels
from atoll.model.fused import CONSTANTS, TO_WHOLE
some = {
    kernels.largest: ({"rows": "*fp32", "places": "*i64", "keep": "i32"}, {"WIDTH": 4096}),
    kernels.int8: (
        {"values": "*fp32", "scales": "*fp32", "codes": "*i8", "count": "i32", "blocks": "i32"},
        {"BLOCK": 256, "MANY": 8, **CONSTANTS},
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
}
for kernel, (given, constants) in some.items():
    source = ASTSource(fn=kernel, signature=given | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    print(made.asm["ptx"])
"""


def said_by(program: str, **environment: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_kernels_make_the_same_bits() -> None:
    assert said_by(INTERPRETED, TRITON_INTERPRET="1").split() == ["True"] * 4


def test_what_is_compiled_rounds_each_operation_by_itself() -> None:
    code = said_by(COMPILED)
    assert set(re.findall(r"\bdiv\.\S+", code)) == {"div.rn.f32"}, "no division but the exact one"
    assert not re.findall(r"\bfma\.|\.ftz\b", code), "nothing is fused, and no small number becomes zero"
