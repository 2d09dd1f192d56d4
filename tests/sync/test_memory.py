"""Chunks are made in memory that is used again: the kernel is asked for fresh pages once, not in every round."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from atoll.spec.axes.codec import Codec, Int8
from atoll.sync.codec import decode, encode
from atoll.sync.codec.memory import keep_freed

resource = pytest.importorskip("resource", reason="nobody counts pages here")

CHUNK, CHUNKS = 2**18, 16
PAGES = 5 * CHUNK * CHUNKS // resource.getpagesize()
"""Of a round's chunks, encoded and decoded."""


def rounds(codec: Codec, count: int) -> list[int]:
    """Return how many pages were touched for the first time in each of so many rounds of encoding and decoding."""
    values = np.random.default_rng(0).standard_normal(CHUNK, np.float32)
    touched = []
    for _ in range(count):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        chunks = [encode(codec, values) for _ in range(CHUNKS)]
        decoded = [decode(codec, chunk, CHUNK) for chunk in chunks]
        del chunks, decoded
        touched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return touched


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other C libraries are left as they are")
def test_from_the_second_round_on_chunks_lie_where_others_lay() -> None:
    if not keep_freed():
        pytest.skip("not glibc")
    assert min(rounds(Int8(), 3)[1:]) < 0.1 * PAGES
