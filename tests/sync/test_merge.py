"""Merging: a mean in a fixed order, and outer steps that equal those of the optimizers people know."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.model.compute import Vector
from atoll.spec.axes.optimizer import AdamW, Assign, DelayedNesterov, Lamb, Outer, Sgd
from atoll.sync.merge import Anchor, Pushes, advance, finish, first_anchor, outer_names, weighed_mean

OUTERS: list[Outer] = [Assign(), Sgd(lr=0.1), Sgd(lr=0.7, momentum=0.9, nesterov=True), AdamW(lr=1e-2)]


def draw(seed: int, size: int = 50) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@settings(max_examples=50)
@given(some.lists(some.integers(1, 1000), min_size=1, max_size=8))
def test_contributions_are_added_one_after_the_other_each_sum_rounded(weights: list[int]) -> None:
    parts = [draw(i) for i in range(len(weights))]
    merged = weighed_mean(parts, [float(w) for w in weights])
    for place in range(0, 50, 7):
        total = np.float32(0)
        for part, weight in zip(parts, weights, strict=True):
            total = np.float32(total + np.float32(part[place] * np.float32(weight)))
        assert merged[place] == np.float32(total / np.float32(sum(weights)))
    assert merged.dtype == np.float32


def test_the_order_of_contributions_decides_the_bits_and_is_kept() -> None:
    one, two, three = (np.array([x], np.float32) for x in (1e8, -1e8, 1.0))
    assert weighed_mean([one, two, three], [1, 1, 1]).tolist() == pytest.approx([1 / 3])
    assert weighed_mean([one, three, two], [1, 1, 1]).tolist() == [0.0]


def test_a_contribution_weighs_what_its_weight_says() -> None:
    assert weighed_mean([np.array([1.0], np.float32), np.array([5.0], np.float32)], [3.0, 1.0]).tolist() == [2.0]


def test_one_contribution_alone_is_the_mean() -> None:
    assert weighed_mean([draw(3)], [1.0]).tobytes() == draw(3).tobytes()


def test_assign_moves_the_anchor_by_the_whole_delta() -> None:
    start = first_anchor(Assign(), draw(1))
    moved = advance(Assign(), start, draw(2))
    assert moved.version == 1
    assert moved.weights.tobytes() == (draw(1) - draw(2)).tobytes()
    assert moved.outer == {}


@pytest.mark.parametrize(
    "outer",
    [
        Sgd(lr=0.7, momentum=0.9, nesterov=True),
        Sgd(lr=0.3, momentum=0.5),
        Sgd(lr=0.3),
        AdamW(lr=1e-2, weight_decay=0.1),
        AdamW(lr=3e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.0),
    ],
)
@pytest.mark.parametrize("rates", [[1.0] * 12, [0.1 * i for i in range(1, 13)]])
def test_an_outer_step_equals_that_of_torch(outer: Sgd | AdamW, rates: list[float]) -> None:
    parameter = torch.nn.Parameter(torch.from_numpy(draw(0).copy()))
    reference: torch.optim.Optimizer
    if isinstance(outer, Sgd):
        reference = torch.optim.SGD(
            [parameter], lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov and outer.momentum > 0
        )
    else:
        reference = torch.optim.AdamW(
            [parameter], lr=outer.lr, betas=outer.betas, eps=outer.eps, weight_decay=outer.weight_decay
        )
    anchor = first_anchor(outer, draw(0))
    for round_, rate in enumerate(rates, 1):
        merged = draw(round_)
        anchor = advance(outer, anchor, merged, rate)
        parameter.grad = torch.from_numpy(merged.copy())
        reference.param_groups[0]["lr"] = outer.lr * rate
        reference.step()
        assert np.abs(anchor.weights - parameter.detach().numpy()).max() < 1e-6 * max(1, np.abs(anchor.weights).max())
        assert anchor.version == round_


@pytest.mark.parametrize("outer", OUTERS)
def test_an_outer_step_takes_no_memory_but_that_of_the_anchor_before_it(outer: Outer) -> None:
    start = advance(outer, first_anchor(outer, draw(0)), draw(1))
    before = {name: vector.ctypes.data for name, vector in start.vectors().items()}
    after = advance(outer, start, draw(2))
    assert {name: vector.ctypes.data for name, vector in after.vectors().items()} == before


@pytest.mark.parametrize("outer", OUTERS)
def test_an_anchor_that_is_stepped_in_parts_is_the_same_to_the_bit(outer: Outer) -> None:
    start = advance(outer, first_anchor(outer, draw(0)), draw(1))
    whole = advance(outer, start.copy(), draw(2), 0.37)
    for first in range(0, 50, 7):
        advance(outer, start.part(first, first + 7), draw(2)[first : first + 7], 0.37)
    assert Anchor(2, start.weights, start.outer).digest() == whole.digest()


@pytest.mark.parametrize("outer", OUTERS)
def test_every_vector_of_the_anchor_stays_fp32_and_has_the_names_the_optimizer_keeps(outer: Outer) -> None:
    anchor = advance(outer, first_anchor(outer, draw(0)), draw(1), 0.37)
    assert tuple(anchor.vectors()) == ("weights", *outer_names(outer))
    assert all(v.dtype == np.float32 for v in anchor.vectors().values())


def test_the_digest_sees_every_bit_that_peers_must_agree_on() -> None:
    anchor = Anchor(3, draw(1), {"momentum": draw(2)})
    flipped = draw(2)
    flipped.view(np.uint32)[-1] ^= 1
    others = [
        Anchor(4, draw(1), {"momentum": draw(2)}),
        Anchor(3, draw(1), {"momentum": flipped}),
        Anchor(3, draw(1), {"velocity": draw(2)}),
        Anchor(3, draw(1), {}),
        Anchor(3, -draw(1), {"momentum": draw(2)}),
    ]
    digests = {anchor.digest(), *(other.digest() for other in others)}
    assert len(digests) == 1 + len(others)
    assert Anchor(3, draw(1), {"momentum": draw(2)}).digest() == anchor.digest()


def test_the_digest_does_not_care_in_which_order_state_was_named() -> None:
    one = Anchor(1, draw(1), {"a": draw(2), "b": draw(3)})
    other = Anchor(1, draw(1), {"b": draw(3), "a": draw(2)})
    assert one.digest() == other.digest()


# LAMB


def test_lamb_steps_each_tensor_by_its_own_length() -> None:
    """Beside the algorithm as its paper writes it, in float64."""
    outer, layout = Lamb(lr=0.02, weight_decay=0.1), {"a": 20, "b": 29, "c": 1}
    anchor = first_anchor(outer, draw(0))
    weights = draw(0).astype(np.float64)
    first, second = np.zeros(50), np.zeros(50)
    for step in range(1, 6):
        gradient, rate = draw(step), 0.5 + 0.1 * step
        anchor = advance(outer, anchor, gradient, rate)
        finish(outer, anchor, layout, rate)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient.astype(np.float64) ** 2
        update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-6) + 0.1 * weights
        for low, high in ((0, 20), (20, 49), (49, 50)):
            trust = np.linalg.norm(weights[low:high]) / np.linalg.norm(update[low:high])
            weights[low:high] -= 0.02 * rate * trust * update[low:high]
    np.testing.assert_allclose(anchor.weights, weights, rtol=2e-5, atol=1e-6)


def test_a_tensor_of_zeros_is_stepped_as_adam_steps_it() -> None:
    outer = Lamb(lr=0.1, weight_decay=0.0)
    anchor = advance(outer, first_anchor(outer, np.zeros(4, np.float32)), np.ones(4, np.float32))
    finish(outer, anchor, {"a": 4})
    np.testing.assert_allclose(anchor.weights, -0.1, rtol=1e-4)


@given(some.integers(1, 3000))
def test_lengths_are_added_up_by_halves_whatever_the_machine(size: int) -> None:
    values = draw(size, size)
    squares = [float(np.float64(x) * np.float64(x)) for x in values]
    while len(squares) > 1:
        half = -(-len(squares) // 2)
        squares = [a + (squares[half + i] if half + i < len(squares) else 0.0) for i, a in enumerate(squares[:half])]
    outer = Lamb(lr=1.0, weight_decay=1.0)
    anchor = advance(outer, first_anchor(outer, values.copy()), np.zeros(size, np.float32))
    finish(outer, anchor, {"a": size})
    assert (anchor.weights == 0.0).all(), "decay alone, as long as the tensor is, takes all of it"
    assert np.isclose(np.sqrt(squares[0]), np.linalg.norm(values.astype(np.float64)))


# Delayed Nesterov

NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)


def pushed(outer: Outer, rounds: list[list[Vector]]) -> Anchor:
    """Return what an outer optimizer makes of rounds that merge some contributions each."""
    anchor, before = first_anchor(outer, draw(0)), 0
    for parts in rounds:
        merged = weighed_mean(parts, [1.0] * len(parts))
        anchor = advance(outer, anchor, merged, 1.0, Pushes(len(parts), before))
        before += len(parts)
    return anchor


def test_momentum_from_every_single_contribution_is_nesterov_to_the_bit() -> None:
    rounds = [[draw(i)] for i in range(1, 6)]
    delayed = pushed(DelayedNesterov(lr=0.7, momentum=0.9, every=1), rounds)
    plain = pushed(NESTEROV, rounds)
    assert delayed.weights.tobytes() == plain.weights.tobytes()
    assert delayed.outer["momentum"].tobytes() == plain.outer["momentum"].tobytes()


def test_momentum_from_all_contributions_of_a_round_is_nesterov_to_the_bit() -> None:
    rounds = [[draw(10 * r + i) for i in range(3)] for r in range(1, 6)]
    delayed = pushed(DelayedNesterov(lr=0.7, momentum=0.9, every=3), rounds)
    assert delayed.weights.tobytes() == pushed(NESTEROV, rounds).weights.tobytes()
    assert not delayed.outer["buffer"].any()


@pytest.mark.parametrize("every", [2, 5])
def test_so_many_contributions_one_by_one_are_one_nesterov_step_on_their_mean(every: int) -> None:
    rounds = [[draw(10 * r + i) for i in range(every)] for r in range(1, 4)]
    one_by_one = [[part] for parts in rounds for part in parts]
    delayed = pushed(DelayedNesterov(lr=0.7, momentum=0.9, every=every), one_by_one)
    assert np.abs(delayed.weights - pushed(NESTEROV, rounds).weights).max() < 2e-6


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.25])
def test_delayed_nesterov_is_the_formula_contribution_by_contribution(spread: float) -> None:
    every, outer = 4, DelayedNesterov(lr=0.5, momentum=0.8, every=4, spread=spread)
    rounds = [[draw(10 * r + i) for i in range(count)] for r, count in enumerate([1, 2, 4, 1, 9, 3])]
    weights, momentum, buffer = draw(0).astype(np.float64), np.zeros(50), np.zeros(50)
    index = 0
    for parts in rounds:
        push = weighed_mean(parts, [1.0] * len(parts)).astype(np.float64)  # each of a round's contributions: alike
        for _ in parts:
            buffer = buffer + push
            index += 1
            if index % every == 0:
                momentum = 0.8 * momentum + buffer / every
                weights = weights - 0.5 * ((1 - spread * every + spread) * 0.8 * momentum + push / every)
                buffer = np.zeros(50)
            else:
                weights = weights - 0.5 * (spread * 0.8 * momentum + push / every)
    assert np.abs(pushed(outer, rounds).weights - weights).max() < 1e-5


def test_how_a_vector_is_cut_does_not_change_a_delayed_step() -> None:
    outer = DelayedNesterov(lr=0.7, every=3, spread=0.1)
    start, pushes = pushed(outer, [[draw(1)], [draw(2)]]), Pushes(5, 2)
    whole = advance(outer, start.copy(), draw(3), 0.37, pushes)
    for first in range(0, 50, 7):
        advance(outer, start.part(first, first + 7), draw(3)[first : first + 7], 0.37, pushes)
    assert start.weights.tobytes() == whole.weights.tobytes()
    assert all(start.outer[name].tobytes() == whole.outer[name].tobytes() for name in outer_names(outer))
