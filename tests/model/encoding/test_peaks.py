"""What is near the largest of its tensor, on a device: the processor's N, chunks and residuals, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.errors import LocalError
from atoll.model.compute import Mean, Near, Portion, Source, Vector
from atoll.model.encoding import encoder as encoder_module
from atoll.model.encoding import near as near_module
from atoll.model.encoding import peaks as there
from atoll.model.encoding.above import Limits
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.encoding.wanted import Ends, as_it_is
from atoll.model.held import Held
from atoll.peer.mesh import Given, Link, encoded, over_link
from atoll.peer.train import Gradients
from atoll.spec.axes.codec import Bf16, Fp16, Fp32, Int8, MaxN, Stochastic
from atoll.spec.axes.what import Feedback, Forget, Grad, Residual
from atoll.sync import peaks as here
from atoll.sync.codec import encode
from atoll.sync.grid import Grid
from atoll.sync.units import Tensor, Unit
from tests.few import few_of
from tests.model.child import said_by

SIZES = (1200, 300, 4500, 96, 904)
TENSORS = [Tensor("", first, end) for first, end in pairwise(accumulate(SIZES, initial=0))]
SIZE = sum(SIZES)
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
SEEDS = range(12)


def bell(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def uneven(seed: int) -> Vector:
    """Return tensors of very different sizes, one of them nothing."""
    return bell(seed) * np.repeat(np.array([1e-6, 1.0, 300.0, 0.0, 1e20], np.float32), SIZES)


def smallest(seed: int) -> Vector:
    """Return numbers that have lost digits, in two tensors next to nothing but their largest."""
    values = bell(seed) * np.float32(1e-41)
    values[1200:1500], values[1300] = 1e-45, 3e38
    values[6000:6096] = -0.0
    return values


KINDS: dict[str, Callable[[int], Vector]] = {
    "bell": bell,
    "of many sizes": uneven,
    "equal": lambda seed: np.full(SIZE, -0.37 * (seed + 1), np.float32),
    "few values": lambda seed: np.round(bell(seed)),
    "zeros of either sign": lambda seed: np.where(bell(seed) > 0, np.float32(0.0), np.float32(-0.0)),
    "mostly zeros": lambda seed: bell(seed) * (bell(seed + 1000) > 2.3),
    "smallest": smallest,
    "of all sizes": lambda seed: bell(seed) * np.exp(9 * bell(seed + 1000)),
}
KEEPS = (None, 0, 1, 2, 70, SIZE // 3, SIZE - 1, SIZE, 10 * SIZE)


OPEN = MaxN(least=0.0)


def least_on(device: str, codec: MaxN, near: Near, *unit: Ends) -> Vector:
    """Return how large values must be by a device."""
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    least, values = there.least_of(codec, near, unit, bad), torch.empty(sum(near.sizes), device=device)
    assert not bad
    return (least.each(values) if isinstance(least, Limits) else values.fill_(least)).cpu().numpy()


def least_here(codec: MaxN, values: Vector, tensors: list[Tensor], keep: int | None) -> Vector:
    """Return likewise by the processor."""
    peak = here.peaks(values, tensors)
    return here.limits(codec.most if keep is None else here.fitting(codec, values, peak, keep), peak)


def chunks(values: Vector, device: str, width: int = SIZE) -> Ends:
    return as_it_is(torch.from_numpy(values).to(device).view(-1, width))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", few_of(KINDS, ("of many sizes", "few values", "smallest")))
def test_values_must_be_as_large_as_on_the_processor(kind: str, device: str) -> None:
    for seed in SEEDS:
        values = KINDS[kind](seed)
        for codec in (OPEN, MaxN(), MaxN(least=5.0, most=60.0)):
            for keep in KEEPS:
                found = least_on(device, codec, Near(SIZES, keep), chunks(values, device))
                assert found.tobytes() == least_here(codec, values, TENSORS, keep).tobytes(), (seed, keep)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", KINDS)
def test_of_very_many_some_tell_the_same_on_any_device(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_module, "LOOKED_AT", 400)
    assert near_module.looked_at(SIZE, 70) == (17, 5)
    other = 0
    for seed in SEEDS:
        values = KINDS[kind](seed)
        for keep in (1, 70, SIZE // 3, SIZE - 1):
            found = least_on(device, OPEN, Near(SIZES, keep), chunks(values, device))
            assert found.tobytes() == least_here(OPEN, values, TENSORS, keep).tobytes(), (seed, keep)
            monkeypatch.setattr(near_module, "LOOKED_AT", 2**18)
            other += found.tobytes() != least_here(OPEN, values, TENSORS, keep).tobytes()
            monkeypatch.setattr(near_module, "LOOKED_AT", 400)
    assert other or kind in ("equal", "zeros of either sign", "few values"), "it is not by all of them"


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("looked_at", [100, 700, 2**18])
def test_of_a_unit_in_parts_it_is_that_of_the_whole(
    device: str, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parts of any length, of chunks of several, and of what is made of a mean and of what was left out before."""
    monkeypatch.setattr(near_module, "LOOKED_AT", looked_at)
    total, left = bell(1), uneven(2)
    values = left * np.float32(0.9) + total / np.float32(3)
    rows = [torch.from_numpy(each).to(device) for each in (total, left)]
    for cuts in ((4000, 3000), (3500, 3500), (8, 992, 6000), (6999, 1)):
        unit, at = [], 0
        for size in cuts:
            base, before = (each[at : at + size].view(-1, 500 if size % 500 == 0 else size) for each in rows)
            unit.append(Ends(base, None, 3, before, 0.9))
            at += size
        for keep in KEEPS:
            found = least_on(device, OPEN, Near(SIZES, keep), *unit)
            assert found.tobytes() == least_here(OPEN, values, TENSORS, keep).tobytes(), (cuts, keep)


@pytest.mark.parametrize("keep", [2_000, 20_000, 150_000])
def test_about_as_many_are_sent_as_some_tell_of(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matrices of which few columns are large: all of them take turns to be looked at."""
    monkeypatch.setattr(near_module, "LOOKED_AT", 20_000)
    columns = np.ones(768, np.float32)
    columns[[1, 100, 400, 601]] = 6.0
    size = 1326 * 768
    assert size // 20_000 % 3 == 2, "every 51st would meet a third of the columns only, and none of these"
    values, tensors = bell(5, size) * np.tile(columns, 1326), [Tensor("", 0, size)]
    peak = here.peaks(values, tensors)
    least = here.limits(here.fitting(OPEN, values, peak, keep), peak)
    assert np.count_nonzero(np.abs(values) >= least) == pytest.approx(keep, rel=0.25 if keep == 2_000 else 0.05)


def test_of_many_values_enough_are_looked_at() -> None:
    for size in [*range(1, 10**7, 77_777), *range(10**7, 10**9, 7_777_777)]:
        stride, some = near_module.looked_at(size, size // 2)
        assert size / stride >= 0.8 * min(size, near_module.LOOKED_AT)
        assert size / stride <= 17 * near_module.LOOKED_AT
        assert (stride % 2 and stride % 3 and stride % 5 and stride % 7) or stride == 1
        assert 1 <= some <= -(-size // stride) or size == 1


@pytest.mark.parametrize("device", ["cpu", CUDA])
@settings(max_examples=60)
@given(
    values=arrays(np.float32, 200, elements=some.floats(width=32, allow_nan=False, allow_infinity=False)),
    cut=some.integers(1, 199),
    keep=some.integers(1, 200),
)
def test_of_any_finite_values_it_is_the_processors(device: str, values: Vector, cut: int, keep: int) -> None:
    tensors = [Tensor("", 0, cut), Tensor("", cut, 200)]
    found = least_on(device, OPEN, Near((cut, 200 - cut), keep), chunks(values, device, 200))
    assert found.tobytes() == least_here(OPEN, values, tensors, keep).tobytes()


# over links


UNITS = {
    "whole": Unit(((0, SIZE),), Grid(SIZE, 1024)),
    "in runs": Unit(((10, 1510), (1600, 6196), (7000, 7904)), Grid(SIZE, 1024)),
}
MODEL = 8000
CODECS = [
    MaxN(),
    MaxN(values=Fp16()),
    MaxN(least=10.0, most=70.0, values=Bf16()),
    MaxN(least=100.0),
    MaxN(values=Int8(block=32)),
    MaxN(values=Stochastic(bits=4, block=32)),
]
RULES: list[Residual] = [Feedback(), Feedback(decay=0.9), Forget()]


def portions(unit: Unit, values: Vector | None) -> list[Portion]:
    made = []
    for first, end in map(unit.grid.bounds, range(unit.grid.each)):
        runs = tuple(run for _, run in unit.runs(first, end) if isinstance(run, slice))
        made.append(Portion(runs, None if values is None else values[first:end], first))
    return made


def expected(codec: MaxN, unit: Unit, values: Vector, rule: Residual, left: Vector, keep: int | None) -> list[bytes]:
    """Return the processor's chunks; what is left out of them is written where it is kept."""
    wanted = unit.take(left) * np.float32(rule.decay) + values if isinstance(rule, Feedback) else values
    chunks, left_now = over_link(codec, unit.grid, wanted, TENSORS, [0] * unit.grid.each, keep)
    if isinstance(rule, Feedback):
        unit.put(left, left_now)
    return [bytes(chunk) for chunk in chunks]


@pytest.mark.parametrize(
    "room", [pytest.param(False, marks=pytest.mark.long, id="host"), pytest.param(True, id="moved")]
)
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("of", UNITS)
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_chunks_and_what_is_left_on_a_link_are_the_processors(
    codec: MaxN, of: str, rule: Residual, device: str, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: room)
    monkeypatch.setattr(encoder_module, "FEW_ELEMENTS", 2048)
    monkeypatch.setattr(encoder_module, "MANY_ELEMENTS", 2048)
    monkeypatch.setattr(near_module, "LOOKED_AT", 300 if room else 2**18)
    unit, encoder = UNITS[of], TorchEncoder(codec, torch.zeros(MODEL, device=device))
    ours, theirs = Held(MODEL), np.zeros(MODEL, np.float32)
    lengths, left = set(), False
    for number, (keep, kind) in enumerate(zip(KEEPS, KINDS, strict=False)):
        total, steps = np.zeros(MODEL, np.float32), number + 1
        unit.put(total, KINDS[kind](number) / np.float32(64.0))
        values = unit.take(total) / np.float32(steps)
        given: Source | None = None if number % 3 == 2 else Mean(Held.of(total), steps)
        residual = ours if isinstance(rule, Feedback) else None
        chunks = encoder.encode(
            portions(unit, values if given is None else None), given, rule, residual, Near(SIZES, keep)
        )
        made = expected(codec, unit, values, rule, theirs, keep)
        assert [bytes(chunk) for chunk in chunks] == made, (kind, keep)
        assert ours.read().tobytes() == theirs.tobytes(), (kind, keep)
        lengths.add(sum(map(len, made)))
        left = left or bool(theirs.any())
    everything = codec == MaxN(least=100.0)
    assert (len(lengths) > 1) != everything, "budgets made a difference"
    assert left == (isinstance(rule, Feedback) and not everything)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("codec", [MaxN(), Fp32()], ids=str)
def test_what_one_keeps_of_its_own_is_everything(codec: MaxN | Fp32, device: str) -> None:
    unit, values = UNITS["whole"], bell(1)
    encoder = TorchEncoder(codec, torch.zeros(SIZE, device=device))
    chunks = encoder.encode(portions(unit, None), Mean(Held.of(values), 1), Forget(), None)
    runs = [slice(*unit.grid.bounds(index)) for index in range(unit.grid.each)]
    assert [bytes(chunk) for chunk in chunks] == [bytes(encode(codec, values[run])) for run in runs]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("in_residual", [False, True])
def test_of_values_that_are_not_finite_nothing_is_sent_and_nothing_is_left(
    in_residual: bool, bad: float, device: str
) -> None:
    values, left = bell(0), bell(1)
    (left if in_residual else values)[4321] = bad
    before, residual = left.tobytes(), Held.of(left)
    encoder, unit = TorchEncoder(MaxN(), torch.zeros(SIZE, device=device)), UNITS["whole"]
    with pytest.raises(FloatingPointError):
        encoder.encode(portions(unit, None), Mean(Held.of(values), 1), Feedback(), residual, Near(SIZES, 70))
    assert residual.read().tobytes() == before


@pytest.mark.parametrize("device", [None, "cpu", CUDA])
@pytest.mark.parametrize("in_residual", [False, True])
def test_a_peer_that_has_diverged_sends_nothing_and_keeps_what_it_had_left(
    in_residual: bool, device: str | None
) -> None:
    """On the processor (no device) as on one."""
    values, left = bell(0), bell(1)
    (left if in_residual else values)[4321] = np.inf
    residual, codec = Held.of(left), MaxN()
    what = Grad(codec=codec, residual=Feedback(), result=Fp32())
    given = Given(b"me", 7, what, UNITS["whole"], TENSORS, Gradients(Held.of(values), 1))
    encoder = None if device is None else TorchEncoder(codec, torch.zeros(SIZE, device=device))

    def contribute() -> None:
        made = encoded(given, encoder)
        made(None)
        made(Link(70, residual))

    with pytest.raises(LocalError, match="diverged in round 7"):
        contribute()
    assert residual.read().tobytes() == left.tobytes()


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("keep", [None, 500])
def test_chance_on_links_is_of_the_round_and_of_who_sends_and_the_same_on_any_device(
    keep: int | None, device: str
) -> None:
    codec = MaxN(values=Stochastic(bits=2))
    what = Grad(codec=codec, residual=Feedback(), result=Fp32())
    encoder = TorchEncoder(codec, torch.zeros(SIZE, device=device))

    def sent(me: bytes, version: int, encoder: TorchEncoder | None) -> bytes:
        given = Given(me, version, what, UNITS["whole"], TENSORS, Gradients(Held.of(bell(0)), 1))
        return b"".join(encoded(given, encoder)(Link(keep, Held.of(bell(1)))))

    assert sent(b"me", 7, encoder) == sent(b"me", 7, None)
    assert len({sent(me, version, None) for me in (b"me", b"you") for version in (7, 8)}) == 4


# kernels


ENCODED = """
import numpy as np
import torch
from atoll.model.encoding import fused, sieve
from atoll.model.compute import Mean, Near, Portion
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.held import Held
from atoll.spec.axes.codec import Bf16, Fp16, Fp32, MaxN
from atoll.spec.axes.what import Feedback

sizes = (640, 8, 1024, 400)
values = np.random.default_rng(0).standard_normal(sum(sizes), np.float32)
values[640:648], values[::7] = 0.0, 0.5
weights = torch.zeros(values.size)

def made(codec, keep, trusted):
    fused.trusted = sieve.trusted = lambda *asked: trusted
    left = Held(values.size)
    portions = [Portion((slice(at, min(at + 256, values.size)),), first=at) for at in range(0, values.size, 256)]
    encoder, near = TorchEncoder(codec, weights), Near(sizes, keep)
    given = (portions, Mean(Held.of(values), 3), Feedback(decay=0.9), left, near)
    chunks = [bytes(each) for _ in range(2) for each in encoder.encode(*given)]
    return chunks, left.read().tobytes()

some = [(MaxN(), None), (MaxN(), 21), (MaxN(), 1600), (MaxN(values=Fp16()), 21), (MaxN(most=50.0, values=Bf16()), 1600)]
for codec, keep in some:
    print(made(codec, keep, True) == made(codec, keep, False))
"""


def test_what_kernels_make_of_a_link_is_what_is_made_without() -> None:
    pytest.importorskip("triton")
    assert said_by(ENCODED, TRITON_INTERPRET="1").split() == ["True"] * 5
