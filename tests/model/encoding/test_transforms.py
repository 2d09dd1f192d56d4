"""Transforms on a device make the bits that they make on the processor; a contributor's own products are near those."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.model.compute import Mean, Portion, Start, Vector
from atoll.model.encoding import encoder as encoder_module
from atoll.model.encoding.encoder import Began, TorchEncoder
from atoll.model.encoding.products import stacks
from atoll.model.encoding.transforms import TorchTransforms
from atoll.model.held import Held
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.what import Dct, Feedback, Forget, LowRank
from atoll.sync.factors import Factors
from atoll.sync.feedback import encode_fed_back
from atoll.sync.frequencies import Frequencies
from atoll.sync.units import whole

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
on_devices = pytest.mark.parametrize("device", ["cpu", CUDA])
SHAPES: dict[str, tuple[int, ...]] = {
    "head": (6, 64),
    "layers.0.norm": (48,),
    "layers.0.weight": (128, 64),
    "layers.1.norm": (48,),
    "layers.1.weight": (128, 64),
    "odd": (35, 7),
    "scalar": (1,),
    "tall": (64, 5),
    "wide": (64, 192),
}
SIZE = sum(map(math.prod, SHAPES.values()))


def bell(size: int = SIZE, seed: int = 0) -> Vector:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


KINDS: dict[str, Callable[[int], Vector]] = {
    "bell": bell,
    "zeros of either sign": lambda size: np.where(bell(size) > 0, np.float32(0.0), np.float32(-0.0)),
    "denormal": lambda size: bell(size) * np.float32(1e-40),
    "huge": lambda size: bell(size) * np.float32(1e36),
    "of all sizes": lambda size: bell(size) * np.exp(8 * bell(size, 1)).astype(np.float32),
}


def transforms(device: str, weights: Vector | None = None) -> TorchTransforms:
    return TorchTransforms(torch.from_numpy(bell() if weights is None else weights).to(device), Began())


def held(values: Vector) -> Held:
    made = Held(values.size)
    made.write()[:] = values
    return made


# cosines


@on_devices
@pytest.mark.parametrize("tile", [2, 12, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_the_way_back_are_those_of_the_processor(kind: str, tile: int, device: str) -> None:
    here, values = Frequencies(Dct(tile=tile), whole(SIZE, Fp32()), SHAPES), KINDS[kind](SIZE)
    there = transforms(device).cosines(here.tiles)
    made = there.of(Portion((slice(0, SIZE),), values), None).values.read()
    assert made.tobytes() == here.of(values).tobytes()
    assert there.back([(0, made[:7]), (7, made[7:])]).tobytes() == here.back(made).tobytes()


@on_devices
@settings(max_examples=30, deadline=None)
@given(rows=some.integers(1, 130), columns=some.integers(1, 130), tile=some.integers(2, 70))
def test_tiles_of_any_sides_have_the_same_bits(rows: int, columns: int, tile: int, device: str) -> None:
    here = Frequencies(Dct(tile=tile), whole(rows * columns, Fp32()), {"weight": (rows, columns)})
    values = bell(rows * columns)
    there = transforms(device, values).cosines(here.tiles)
    made = there.of(Portion((slice(0, values.size),), values), None).values.read()
    assert made.tobytes() == here.of(values).tobytes()
    assert there.back([(0, made[:7]), (7, made[7:])]).tobytes() == here.back(made).tobytes()


@on_devices
@pytest.mark.parametrize("room", [False, True], ids=["host", "moved"])
def test_frequencies_are_fed_back_as_on_the_processor(room: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks that cut tiles, of a mean of gradients, three times."""
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: room)
    codec, rule, chunk = TopK(keep=4, block=256), Feedback(decay=0.9), 5000
    here, weights = Frequencies(Dct(), whole(SIZE, codec), SHAPES), torch.from_numpy(bell()).to(device)
    there, encoder = TorchTransforms(weights, Began()).cosines(here.tiles), TorchEncoder(codec, weights)
    ours, theirs = Held(SIZE), np.zeros(SIZE, np.float32)
    for number in range(3):
        gradient = bell(seed=number)
        made = there.of(Portion((slice(0, SIZE),)), Mean(held(gradient), 3))
        runs = [slice(first, min(first + chunk, SIZE)) for first in range(0, SIZE, chunk)]
        chunks = encoder.encode([Portion((run,), None, run.start) for run in runs], made, rule, ours)
        spectrum = here.of(gradient / np.float32(3))
        for run, data in zip(runs, chunks, strict=True):
            assert bytes(data) == bytes(encode_fed_back(codec, spectrum[run], theirs[run], rule.decay))
        assert ours.read().tobytes() == theirs.tobytes()
    assert theirs.any()


def test_what_is_made_of_a_part_lies_elsewhere_in_it_than_in_the_model() -> None:
    """A fragment of two runs: its frequencies lie one after the other; what is left goes where its values are."""
    runs, codec = (slice(100, 164), slice(300, 364)), TopK(keep=1, block=64)
    start, weights, ours = bell(400), bell(400, 1), Held(400)
    here = Frequencies(Dct(), whole(128, codec), {"a": (64,), "b": (64,)})
    spectrum = here.of(np.concatenate([(start - weights)[run] for run in runs]))
    there = transforms("cpu", weights).cosines(here.tiles).of(Portion(runs), Start(start))
    assert there.values.read().tobytes() == spectrum.tobytes()
    portion = Portion((slice(300, 364),), None, 64)
    TorchEncoder(codec, torch.from_numpy(weights)).encode([portion], there, Feedback(), ours)
    assert np.count_nonzero(ours.read()[300:364] != spectrum[64:]) == 1, "all but what was sent"
    assert not ours.read()[:300].any()


@on_devices
def test_what_is_not_finite_does_not_become_frequencies(device: str) -> None:
    here, values = Frequencies(Dct(), whole(SIZE, Fp32()), SHAPES), bell()
    values[17] = np.inf
    with pytest.raises(FloatingPointError):
        transforms(device).cosines(here.tiles).of(Portion((slice(0, SIZE),)), Mean(held(values), 1))


# factors


def factors(rank: int = 3) -> Factors:
    return Factors(LowRank(rank=rank, least=0.0), SHAPES, seed=7)


def near(one: Vector, other: Vector) -> bool:
    return bool(np.abs(one - other).max() <= 1e-5 * np.abs(other).max())


def test_matrices_that_layers_have_alike_are_one_stack() -> None:
    found = {stack.one.name: stack.many for stack in stacks(factors().form)}
    assert found["layers.0.weight"] == 2
    assert "layers.1.weight" not in found
    shapes = {"a.0": (32, 32), "a.1": (32, 32), "b": (64, 64), "a.2": (32, 32)}
    uneven = Factors(LowRank(rank=2), shapes, seed=0).form
    assert [stack.many for stack in stacks(uneven)] == [1, 1, 1, 1]


@on_devices
@pytest.mark.parametrize("rank", [1, 4, 64])
def test_what_everybody_makes_of_factors_is_what_the_processor_makes(rank: int, device: str) -> None:
    here = factors(rank)
    there = transforms(device).restored(here.form)
    directions = here.directions(bell(), here.first_basis())
    directions[here.form.matrices[0].lefts] = 0.0  # directions that there are not
    basis = there.orthonormal(directions)
    assert basis.tobytes() == here.orthonormal(directions).tobytes()
    merged = here.along(bell(seed=1), here.orthonormal(here.directions(bell(), here.first_basis())))
    assert there.values(merged, basis).tobytes() == here.values(merged, basis).tobytes()
    following = there.unit_columns(merged[: here.basis_size])
    assert following is not None and following.tobytes() == here.next_basis(merged, 2).tobytes()


@on_devices
def test_directions_that_must_be_drawn_are_left_to_the_processor(device: str) -> None:
    here = factors()
    assert transforms(device).restored(here.form).unit_columns(np.zeros(here.basis_size, np.float32)) is None


@on_devices
@pytest.mark.parametrize("decay", [1.0, 0.5])
@pytest.mark.parametrize("room", [False, True], ids=["host", "moved"])
def test_what_a_contributor_sends_as_factors_and_what_it_leaves(
    room: bool, decay: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "_has_room", lambda device, size_bytes: room)
    here, portion, residual, left = factors(), Portion((slice(0, SIZE),)), Held(SIZE), np.zeros(SIZE, np.float32)
    there, basis = transforms(device).products(here.form), here.first_basis()
    for number in range(3):
        gradient = bell(seed=number)
        wanted = gradient / np.float32(2) + left * np.float32(decay)
        made = there.wanted(portion, Mean(held(gradient), 2), Feedback(decay=decay), residual)
        assert made.read().tobytes() == wanted.tobytes()
        directions = there.directions(made, basis)
        assert near(directions, here.directions(wanted, basis))
        left_factors = here.orthonormal(directions)
        arrives = there.along(made, left_factors)
        assert near(arrives, here.along(wanted, left_factors))
        there.leave(made, arrives, left_factors, residual)
        left = wanted - here.values(arrives, left_factors)
        assert residual.read().tobytes() == left.tobytes(), "whatever was sent, all the rest is kept"


@on_devices
def test_what_is_not_finite_does_not_become_factors(device: str) -> None:
    gradient = bell()
    gradient[17] = np.nan
    with pytest.raises(FloatingPointError):
        transforms(device).products(factors().form).wanted(
            Portion((slice(0, SIZE),)), Mean(held(gradient), 1), Forget(), None
        )
