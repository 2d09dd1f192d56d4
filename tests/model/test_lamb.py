"""LAMB inside is the algorithm, and the common LAMB on the same gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.model.engine import build_engine
from atoll.model.lamb import LambOptimizer, scales
from atoll.spec.axes.optimizer import Lamb
from atoll.sync.merge import advance, finish, first_anchor
from tests.model.toys import ToyData, toy_run, toy_steps


def test_lamb_steps_tensors_as_a_loop_by_hand_does() -> None:
    """Each by its own length, where it has one; what is zero starts as Adam would, and everything decays."""
    torch.manual_seed(0)
    lr, beta1, beta2, eps, decay = 0.05, 0.8, 0.95, 1e-3, 0.03
    starts = [50 * torch.randn(24, 16), 1e-3 * torch.randn(40, 3), torch.zeros(5, 7), torch.ones(16), torch.randn(9)]
    tensors = [torch.nn.Parameter(start.clone()) for start in starts]
    optimizer = LambOptimizer([{"params": tensors}], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    expected = [start.double() for start in starts]
    first, second = ([torch.zeros_like(each) for each in expected] for _ in range(2))
    for step in range(1, 7):
        gradients = [torch.randn_like(start) * step for start in starts[:-1]] + [torch.zeros(9)]
        rate = lr / step
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        for at, gradient in enumerate(each.double() for each in gradients):
            first[at] = beta1 * first[at] + (1 - beta1) * gradient
            second[at] = beta2 * second[at] + (1 - beta2) * gradient**2
            update = first[at] / (1 - beta1**step) / ((second[at] / (1 - beta2**step)) ** 0.5 + eps)
            update = update + decay * expected[at]
            length = float((expected[at] ** 2).sum() ** 0.5)
            trust = length / float((update**2).sum() ** 0.5) if length else 1.0
            assert at != 2 or (trust == 1.0) == (step == 1), "the one of zeros has a length from then on"
            expected[at] = expected[at] - rate * trust * update
    for tensor, wanted, start in zip(tensors, expected, starts, strict=True):
        assert float((tensor.detach() - wanted).norm() / (wanted - start).norm()) < 2e-6


def test_lamb_moves_nothing_without_a_gradient_and_by_decay_alone_as_far_as_a_tensor_is_long() -> None:
    start = torch.arange(16.0).view(4, 4)
    still, gone, zero = (torch.nn.Parameter(each) for each in (start.clone(), start.clone(), torch.zeros(4, 4)))
    optimizer = LambOptimizer([{"params": [still, gone, zero]}], lr=1.0, betas=(0.0, 0.9), eps=1e-6, weight_decay=0.5)
    gone.grad, zero.grad = torch.zeros(4, 4), torch.zeros(4, 4)
    optimizer.step()
    assert torch.equal(still.detach(), start)
    assert float(gone.detach().abs().max()) < 1e-5
    assert not zero.any()


def test_lambs_lengths_are_those_of_tensors_of_any_size() -> None:
    """Added up one by one in fp32 the squares of so many values lose a hundred times what is allowed here."""
    large = torch.rand(3000, 1000, generator=torch.Generator().manual_seed(0))
    (scale,) = scales([large], [torch.ones_like(large)]).tolist()
    assert scale == pytest.approx(float(large.double().norm()) / 3e6**0.5, rel=1e-6)


def test_lamb_inside_is_the_common_lamb_on_the_same_gradients() -> None:
    """To rounding, not to the bit: the common one adds up squares in fp64, and never joins two roundings into one."""
    lamb = Lamb(lr=0.02, weight_decay=0.1)
    run = toy_run(inner=lamb, clip=1.0)
    engine, looks = (build_engine(run, ToyData(), device="cpu", threads=1) for _ in range(2))
    start = engine.weights()
    anchor = first_anchor(lamb, start.copy())
    for step in toy_steps(5):
        looks.assign(engine.weights())
        _, gradient = looks.gradient([step])
        anchor = advance(lamb, anchor, gradient, step.rate)
        finish(lamb, anchor, engine.layout, step.rate)
        engine.train([step])
    assert float(np.abs(anchor.weights - start).max()) > 1e-2
    assert float(np.abs(engine.weights() - anchor.weights).max()) < 1e-6
