"""Codecs on a device make the bytes that they make on the processor, to the bit, and leave the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.model import codec as there
from atoll.model import encoder as encoder_module
from atoll.model.codec import OnDevice, on_device
from atoll.model.compute import Portion, Start, Vector
from atoll.model.encoder import Began, TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import (
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    Sign,
    Significance,
    Stochastic,
    Threshold,
    TopK,
)
from atoll.spec.axes.what import Feedback, Forget, Hold, Residual
from atoll.sync import codec as here
from atoll.sync.feedback import encode_fed_back

FORMS: list[OnDevice] = [
    Fp16(),
    Bf16(),
    Int8(),
    Int8(block=100),
    Buckets(),
    Buckets(bits=1),
    Buckets(bits=2, width=6.0),
    Buckets(bits=5),
    E3m0(),
    Sign(block=32),
    Sign(block=100),
    TopK(keep=4, block=64),
    TopK(keep=30, block=32, values=Fp16()),
    TopK(keep=64, block=4096, values=Buckets(bits=2, width=6.0)),
    TopK(keep=3, block=512, values=Int8(block=16)),
    TopK(keep=16, block=16, values=Sign(block=16)),
]
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
COUNTS = [1, 65, 4096, 9001]
anything = arrays(
    np.float32,
    some.tuples(some.integers(1, 3), some.integers(1, 300)),
    elements=some.floats(width=32, allow_nan=False, allow_infinity=False),
)


def bell(shape: tuple[int, int], seed: int = 0) -> Vector:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sparse(shape: tuple[int, int]) -> Vector:
    """Return mostly zeros, as gradients of embeddings are, and some whole rows of them."""
    values = bell(shape) * (np.random.default_rng(1).random(shape, np.float32) < 0.01)
    values[0] = 0.0
    return values


KINDS: dict[str, Callable[[tuple[int, int]], Vector]] = {
    "bell": bell,
    "with a mean": lambda shape: bell(shape) * np.float32(1e-3) + np.float32(7.0),
    "equal": lambda shape: np.full(shape, -0.37, np.float32),
    "zeros": lambda shape: np.zeros(shape, np.float32),
    "zeros of either sign": lambda shape: np.where(bell(shape) > 0, np.float32(0.0), np.float32(-0.0)),
    "few values": lambda shape: np.round(bell(shape)).astype(np.float32),
    "sparse": sparse,
    "denormal": lambda shape: bell(shape) * np.float32(1e-40),
    "tiny": lambda shape: bell(shape) * np.float32(1e-30),
    "huge": lambda shape: np.clip(bell(shape), -3, 3) * np.float32(1e38),
    "of all sizes": lambda shape: bell(shape) * np.exp(8 * bell(shape, 1)).astype(np.float32),
}


def same(codec: OnDevice, values: Vector, device: str) -> bool:
    """Return whether bytes, their number, and what arrives of chunks that nobody refuses are the processor's."""
    count = values.shape[1]
    wire = there.encode(codec, torch.from_numpy(values).to(device))
    expected = [bytes(here.encode(codec, row)) for row in values]
    arrived = there.decoded(codec, wire, count).cpu().numpy()
    return (
        wire.shape[1] == there.wire_bytes(codec, count) == here.wire_bytes(codec, count)
        and [row.tobytes() for row in wire.cpu().numpy()] == expected
        and all(
            row.tobytes() == here.decoded(codec, chunk, count).tobytes()
            for row, chunk in zip(arrived, expected, strict=True)
            if sound(codec, chunk, count)
        )
    )


def sound(codec: OnDevice, chunk: bytes, count: int) -> bool:
    try:
        here.check(codec, chunk, count)
    except here.BadChunk:
        return False
    return True


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("codec", FORMS, ids=str)
def test_the_bytes_are_those_of_the_processor(codec: OnDevice, device: str) -> None:
    for kind, made in KINDS.items():
        for count in COUNTS:
            assert same(codec, made((2, count)), device), f"{count} values: {kind}"


@pytest.mark.parametrize("device", ["cpu", CUDA])
@settings(max_examples=50)
@given(values=anything, codec=some.sampled_from(FORMS))
def test_the_bytes_of_any_finite_values_are_the_processors(device: str, values: Vector, codec: OnDevice) -> None:
    assert same(codec, values, device)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_chunk_of_the_largest_size_has_the_same_bytes(device: str) -> None:
    """Sums of as many whole numbers as there can be: were one of them rounded, it would show here."""
    values = np.full((1, 2**21), 1.0 - 2.0**-24, np.float32)
    values[0, ::3] = -values[0, ::3]
    for codec in (Buckets(), Buckets(bits=2, width=6.0)):
        assert same(codec, values, device)


def test_of_equals_the_first_are_kept() -> None:
    values = np.array([[1.0, -2.0, 2.0, 2.0, -1.0] + 59 * [1.0]], np.float32)
    for codec, kept in ((TopK(keep=2, block=64), [1, 2]), (TopK(keep=5, block=64), [0, 1, 2, 3, 4])):
        assert np.flatnonzero(here.decoded(codec, here.encode(codec, values[0]), 64)).tolist() == kept
        assert same(codec, values, "cpu")


# what has no form


@pytest.mark.parametrize(
    "codec",
    [
        Fp32(),
        Stochastic(),
        Threshold(least=1.0),
        Significance(),
        CacheLines(),
        TopK(values=Stochastic(bits=4)),
    ],
)
def test_what_has_no_form_on_a_device_stays_on_the_processor(codec: Codec) -> None:
    assert on_device(codec) is None


# contributions


RUNS = [slice(0, 5000), slice(7000, 9000), slice(10_000, 13_000)]
CHUNKS = [
    Portion((slice(0, 4096),)),
    Portion((slice(4096, 5000), slice(7000, 9000), slice(10_000, 11_192))),
    Portion((slice(11_192, 13_000),)),
]
"""The runs, cut into chunks of 4096."""
RULES: list[Residual] = [Forget(), Feedback(), Feedback(decay=0.95), Hold()]


def on_the_processor(codec: Codec, values: Vector, rule: Residual, residual: Vector) -> memoryview:
    if isinstance(rule, Feedback):
        return encode_fed_back(codec, values, residual, rule.decay)
    data = here.encode(codec, values)
    if isinstance(rule, Hold):
        residual[:] = values - here.decoded(codec, data, values.size)
    return data


@pytest.mark.parametrize("room", [False, True], ids=["host", "moved"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["way", "values"])
@pytest.mark.parametrize("codec", [Fp16(), Int8(), E3m0(), TopK(keep=8, block=512, values=Buckets(bits=2, width=6.0))])
def test_contributions_and_residuals_are_those_of_the_processor(
    codec: OnDevice, given: bool, rule: Residual, device: str, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: room)
    start, size = bell((1, 14_000), 3)[0], 14_000
    ours, theirs = Held(size), np.zeros(size, np.float32)
    for number in range(3):
        weights = start + 0.01 * bell((1, size), number)[0]
        began = Began()
        began.keep(number, torch.from_numpy(start).to(device))
        encoder = TorchEncoder(codec, torch.from_numpy(weights).to(device), began)
        from_there = Start(np.full_like(start, np.nan) if room else start, number)
        delta = start - weights
        portions = [Portion(each.runs, np.concatenate([delta[run] for run in each.runs])) for each in CHUNKS]
        made = encoder.encode(portions, None, rule, ours) if given else encoder.encode(CHUNKS, from_there, rule, ours)
        for portion, chunk in zip(portions, made, strict=True):
            assert portion.values is not None
            left = np.concatenate([theirs[run] for run in portion.runs])
            assert bytes(chunk) == bytes(on_the_processor(codec, portion.values, rule, left))
            at = 0
            for run in portion.runs:
                theirs[run] = left[at : at + run.stop - run.start]
                at += run.stop - run.start
        assert ours.read().tobytes() == theirs.tobytes()
    assert ours.read().any() == (not isinstance(rule, Forget))


def test_weights_of_another_name_come_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: True)
    began, weights = Began(), np.zeros(64, np.float32)
    began.keep("before", torch.ones(64))
    encoder = TorchEncoder(Fp16(), torch.from_numpy(weights), began)
    for name in ("now", None):
        (chunk,) = encoder.encode([Portion((slice(0, 64),))], Start(weights + 2.0, name), Forget(), None)
        assert set(np.frombuffer(chunk, np.float16)) == {2.0}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_encoded(bad: float, device: str) -> None:
    weights = np.ones(100, np.float32)
    weights[57] = bad
    encoder = TorchEncoder(Int8(), torch.from_numpy(weights).to(device))
    with pytest.raises(FloatingPointError):
        encoder.encode([Portion((slice(0, 100),))], Start(np.zeros(100, np.float32)), Forget(), None)
