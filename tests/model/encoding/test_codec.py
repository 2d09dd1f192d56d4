"""Codecs on a device make the bytes that they make on the processor, to the bit, and leave the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.model.compute import PartOf, Portion, Start, Vector
from atoll.model.encoding import codec as there
from atoll.model.encoding import encoder as encoder_module
from atoll.model.encoding.above import Least, Limits
from atoll.model.encoding.chance import keys_of
from atoll.model.encoding.codec import Asked, Even, OnDevice
from atoll.model.encoding.encoder import Began, TorchEncoder
from atoll.model.encoding.pieces import pieces_of
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
from atoll.spec.axes.what import Feedback, Forget, Hold, Residual
from atoll.sync import codec as here
from atoll.sync.feedback import encode_fed_back
from tests.few import few_of

FORMS: list[Even] = [
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
    Ternary(block=32),
    Quaternary(block=32),
    Ternary(block=100),
    Quaternary(block=100),
    TurnedSign(block=32),
    TurnedSign(block=512),
    TopK(keep=4, block=64),
    TopK(keep=30, block=32, values=Fp16()),
    TopK(keep=64, block=4096, values=Buckets(bits=2, width=6.0)),
    TopK(keep=3, block=512, values=Int8(block=16)),
    TopK(keep=16, block=16, values=Sign(block=16)),
    Stochastic(),
    Stochastic(bits=2),
    Stochastic(bits=3, block=100),
    Stochastic(bits=12, block=32),
    TopK(keep=8, block=64, values=Stochastic(bits=4, block=64)),
    Fp32(),
    CacheLines(),
    CacheLines(keep=0.3, line=5, values=Int8(block=16)),
    CacheLines(keep=1.0, line=4, values=Stochastic(bits=4, block=32)),
]
LARGE: list[Above] = [
    Threshold(least=1.0),
    Threshold(least=0.0),
    Threshold(least=2.5, values=Fp16()),
    Threshold(least=0.5, values=Bf16()),
    Threshold(least=1.5, values=Buckets(bits=2, width=6.0)),
    Threshold(least=1.0, values=Stochastic(bits=3, block=32)),
    Significance(values=E3m0()),
    MaxN(),
]
"""How long these are depends on values."""
SEED = 2**100 + 77
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


def same(codec: Even, values: Vector, device: str) -> bool:
    """Return whether bytes, their number, and what arrives of chunks that nobody refuses are the processor's."""
    count = values.shape[1]
    keys = torch.tensor([keys_of(SEED + nth) for nth in range(len(values))], device=device)
    wire = there.encode(codec, torch.from_numpy(values).to(device), Asked(keys))
    expected = [bytes(here.encode(codec, row, SEED + nth)) for nth, row in enumerate(values)]
    arrived = there.decoded(codec, wire, count).cpu().numpy()
    left = torch.empty(values.shape, device=device)
    there.encode(codec, torch.from_numpy(values).to(device), Asked(keys), left)
    return (
        wire.shape[1] == there.wire_bytes(codec, count) == here.wire_bytes(codec, count)
        and [row.tobytes() for row in wire.cpu().numpy()] == expected
        and all(
            row.tobytes() == here.decoded(codec, chunk, count).tobytes()
            and rest.tobytes() == (sent - here.decoded(codec, chunk, count)).tobytes()
            for row, rest, sent, chunk in zip(arrived, left.cpu().numpy(), values, expected, strict=True)
            if sound(codec, chunk, count)
        )
    )


def same_above(codec: Above, values: Vector, least: float | Vector, device: str) -> bool:
    """Return likewise of what is as long as its values make it."""
    count, limits = values.shape[1], np.broadcast_to(np.float32(least), values.shape)
    keys = torch.tensor([keys_of(SEED + nth) for nth in range(len(values))], device=device)
    limit: Least = least if isinstance(least, float) else Limits(torch.from_numpy(least).to(device), 1.0)
    kept = there.encode_above(codec, torch.from_numpy(values).to(device), limit, Asked(keys))
    each = zip(values, limits, strict=True)
    expected = [bytes(here.encode(codec, row, SEED + nth, limit)) for nth, (row, limit) in enumerate(each)]
    data = kept.wire.cpu().numpy().tobytes()
    made = [data[start : start + length] for start, length in zip(kept.starts, kept.lengths, strict=True)]
    left = torch.empty(values.shape, device=device)
    there.encode_above(codec, torch.from_numpy(values).to(device), limit, Asked(keys), left)
    return (
        made == expected
        and max(map(len, made)) <= there.wire_bytes(codec, count) == here.wire_bytes(codec, count)
        and all(
            row.tobytes() == (sent - here.decoded(codec, chunk, count)).tobytes()
            for row, sent, chunk in zip(left.cpu().numpy(), values, expected, strict=True)
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
def test_the_bytes_are_those_of_the_processor(codec: Even, device: str) -> None:
    for kind, made in KINDS.items():
        for count in COUNTS:
            assert same(codec, made((2, count)), device), f"{count} values: {kind}"


def test_a_scale_that_is_no_number_is_the_same_bytes_everywhere() -> None:
    """Infinity, as each processor has its own way to write what is no number: they do not even agree on its sign."""
    codec, values = TurnedSign(block=32), KINDS["huge"]((1, 64))
    words = np.frombuffer(here.encode(codec, values[0], SEED), np.float32, 2, offset=8)
    assert np.isinf(words).all()
    assert same(codec, values, "cpu")


@pytest.mark.parametrize("device", ["cpu", CUDA])
@settings(max_examples=50)
@given(values=anything, codec=some.sampled_from(FORMS))
def test_the_bytes_of_any_finite_values_are_the_processors(device: str, values: Vector, codec: Even) -> None:
    assert same(codec, values, device)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_chunk_of_the_largest_size_has_the_same_bytes(device: str) -> None:
    """Sums of as many whole numbers as there can be: were one of them rounded, it would show here."""
    values = np.full((1, 2**21), 1.0 - 2.0**-24, np.float32)
    values[0, ::3] = -values[0, ::3]
    for codec in (Buckets(), Buckets(bits=2, width=6.0), Stochastic(), CacheLines()):
        assert same(codec, values, device)


def test_of_equals_the_first_are_kept() -> None:
    values = np.array([[1.0, -2.0, 2.0, 2.0, -1.0] + 59 * [1.0]], np.float32)
    for codec, kept in ((TopK(keep=2, block=64), [1, 2]), (TopK(keep=5, block=64), [0, 1, 2, 3, 4])):
        assert np.flatnonzero(here.decoded(codec, here.encode(codec, values[0]), 64)).tolist() == kept
        assert same(codec, values, "cpu")


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("codec", few_of(LARGE, (MaxN(),)), ids=str)
def test_what_is_large_enough_has_the_bytes_of_the_processor(codec: Above, device: str) -> None:
    for kind, made in KINDS.items():
        for count in (*COUNTS, 65536):
            values = made((3, count))
            for least in (0.0, 0.7, 2.5, 1e30, np.abs(bell(values.shape, 5)), np.abs(values)[:, ::-1].copy()):
                assert same_above(codec, values, least, device), f"{count} values: {kind}"


@pytest.mark.parametrize("device", ["cpu", CUDA])
@settings(max_examples=50)
@given(values=anything, codec=some.sampled_from(LARGE), nth=some.integers(0, 2**20))
def test_what_is_as_large_as_any_of_the_values_is_sent(device: str, values: Vector, codec: Above, nth: int) -> None:
    """An element that is just as large as it must be is large."""
    assert same_above(codec, values, float(np.abs(values).flat[nth % values.size]), device)


def drifting(shape: tuple[int, int], rounds: int) -> list[Vector]:
    """Return values of which each is much like the one before, some of them of few sizes."""
    vectors = [bell(shape)]
    for number in range(rounds):
        vectors.append((0.9 * vectors[-1] + 0.4 * bell(shape, number + 1)).astype(np.float32))
    return [np.round(each) if number % 3 == 2 else each for number, each in enumerate(vectors)]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("codec", [CacheLines(), CacheLines(keep=0.2, line=4, values=Fp16())], ids=str)
def test_remembered_thresholds_choose_and_move_as_on_the_processor(codec: CacheLines, device: str) -> None:
    shape = (3, 20_011)
    ours, theirs = torch.zeros((3, 2), device=device), np.zeros((3, 2), np.float32)
    ways = set()
    for values in drifting(shape, 12):
        before = theirs.copy()
        wire = there.encode(codec, torch.from_numpy(values).to(device), Asked(known=ours)).cpu().numpy()
        expected = [bytes(here.encode(codec, row, 0, known)) for row, known in zip(values, theirs, strict=True)]
        assert [row.tobytes() for row in wire] == expected
        assert ours.cpu().numpy().tobytes() == theirs.tobytes()
        ways |= set(np.sign(theirs[:, 0] - before[:, 0]))
    assert {-1.0, 1.0} <= ways, "thresholds have fallen and risen"


# contributions


RUNS = [slice(0, 5000), slice(7000, 9000), slice(10_000, 13_000)]
CHUNKS = [
    Portion((slice(0, 4096),)),
    Portion((slice(4096, 5000), slice(7000, 9000), slice(10_000, 11_192))),
    Portion((slice(11_192, 13_000),)),
]
"""The runs, cut into chunks of 4096."""
RULES: list[Residual] = [Forget(), Feedback(), Feedback(decay=0.95), Hold()]


def on_the_processor(
    codec: Codec, portion: Portion, rule: Residual, residual: Vector, least: float | Vector | None
) -> memoryview:
    assert portion.values is not None
    if isinstance(rule, Feedback):
        return encode_fed_back(codec, portion.values, residual, rule.decay, portion.seed, least)
    data = here.encode(codec, portion.values, portion.seed, least)
    if isinstance(rule, Hold):
        residual[:] = portion.values - here.decoded(codec, data, residual.size)
    return data


def of(vector: Vector, portion: Portion) -> Vector:
    return np.concatenate([vector[run] for run in portion.runs])


def least_of(large: float | PartOf | None, portion: Portion, known: dict[int, Vector]) -> float | Vector | None:
    match large:
        case PartOf(start=start, part=part):
            return np.abs(of(start.weights, portion)) * np.float32(part)
        case None:
            return known.get(portion.runs[0].start)
        case _:
            return large


CONTRIBUTED: list[OnDevice] = [
    Fp16(),
    Int8(),
    E3m0(),
    TopK(keep=8, block=512, values=Buckets(bits=2, width=6.0)),
    Stochastic(bits=4),
    TurnedSign(block=64),
    CacheLines(keep=0.1),
    Threshold(least=0.01),
    Significance(values=Fp16()),
]


@pytest.mark.parametrize("room", [False, True], ids=["host", "moved"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["way", "values"])
@pytest.mark.parametrize("codec", CONTRIBUTED)
def test_contributions_and_residuals_are_those_of_the_processor(
    codec: OnDevice, given: bool, rule: Residual, device: str, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: room)
    monkeypatch.setattr(encoder_module, "PIECE_BYTES", 6000)
    start, size = bell((1, 14_000), 3)[0], 14_000
    ours, theirs = Held(size), np.zeros(size, np.float32)
    remembers = isinstance(codec, CacheLines)
    known = {each.runs[0].start: np.zeros(2, np.float32) for each in CHUNKS if remembers}
    moved = {first: each.copy() for first, each in known.items()}
    for number in range(3):
        weights = start + 0.01 * bell((1, size), number)[0]
        began = Began()
        began.keep(number, torch.from_numpy(start).to(device))
        encoder = TorchEncoder(codec, torch.from_numpy(weights).to(device), began)
        from_there = Start(np.full_like(start, np.nan) if room else start, number)
        large: float | PartOf | None = 0.013 if isinstance(codec, Threshold) and number else None
        if isinstance(codec, Significance):
            large = PartOf(from_there, 0.02)
        expected = PartOf(Start(start), 0.02) if isinstance(large, PartOf) else large
        delta = start - weights
        portions = [
            Portion(each.runs, of(delta, each) if given else None, 0, SEED + nth, known.get(each.runs[0].start))
            for nth, each in enumerate(CHUNKS)
        ]
        made = encoder.encode(portions, None if given else from_there, rule, ours, large)
        for portion, chunk in zip(portions, made, strict=True):
            portion, left = portion._replace(values=of(delta, portion)), of(theirs, portion)
            least = least_of(expected, portion, moved)
            assert bytes(chunk) == bytes(on_the_processor(codec, portion, rule, left, least))
            at = 0
            for run in portion.runs:
                theirs[run] = left[at : at + run.stop - run.start]
                at += run.stop - run.start
        assert ours.read().tobytes() == theirs.tobytes()
        assert all(known[first].tobytes() == each.tobytes() for first, each in moved.items())
    assert ours.read().any() == (not isinstance(rule, Forget))


def test_chunks_that_lie_together_are_encoded_together_up_to_a_size() -> None:
    portions = [Portion((slice(at, at + 64),)) for at in (0, 64, 128, 192, 256, 1024, 1088)]
    apart, short = Portion((slice(2000, 2032), slice(2100, 2132))), Portion((slice(2132, 2164),))
    pieces = pieces_of([*portions, apart, short], lambda count: 3)
    starts = [[each.runs[0].start for each in piece.portions] for piece in pieces]
    assert starts == [[0, 64, 128], [192, 256], [1024, 1088], [2000], [2132]]
    assert pieces[1].runs == [slice(192, 320)]
    assert [piece.width for piece in pieces] == [64, 64, 64, 64, 32]
    assert pieces_of([], lambda count: 3) == []


def test_what_was_made_of_a_unit_lies_together_though_its_chunks_do_not() -> None:
    apart = [((slice(0, 32), slice(50, 82)), 0), ((slice(200, 232), slice(250, 282)), 64)]
    portions = [Portion(runs, first=first) for runs, first in apart]
    pieces = pieces_of([*portions, Portion((slice(282, 346),), first=128)], lambda count: 3)
    assert [piece.in_unit().runs for piece in pieces] == [[slice(0, 64)], [slice(64, 128)], [slice(128, 192)]]
    (together,) = pieces_of([Portion((slice(at, at + 64),), first=at - 100) for at in (100, 164)], lambda count: 3)
    assert together.in_unit().runs == [slice(0, 128)]


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
