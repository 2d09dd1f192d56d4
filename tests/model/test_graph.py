"""A recorded step is the step: the same numbers as without recording, whatever the optimizer and the micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from atoll.model.compute import Step, Vector
from atoll.model.engine import TorchEngine, build_engine
from atoll.model.moments import weights_in
from atoll.spec.axes.optimizer import AdamW, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.when import WithMoments
from atoll.spec.run import Run
from tests.model.toys import ToyData, toy_run

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="steps are recorded on CUDA only"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # of its compiler's own parts
]

ADAMW = AdamW(lr=3e-3)
MUON = Muon(lr=0.02, momentum=0.9, nesterov=False, adamw=ADAMW)
NORMUON = Muon(lr=0.02, beta2=0.95, adamw=ADAMW)
LAMB = Lamb(lr=0.02)
MOMENTUM = Sgd(lr=0.1, momentum=0.9)
STEPS = [Step(samples=tuple(range(8 * at, 8 * at + 8)), rate=1 / (1 + at)) for at in range(6)]
ALIKE = 1e-3
"""Of how far training moved a model: kernels that add up in any order make it no less."""


def make(run: Run, *, record: bool, compile: bool = False, recompute: bool = False) -> TorchEngine:
    return build_engine(run, ToyData(), device="cuda", compile=compile, recompute=recompute, record=record)


def apart(one: Vector, other: Vector, start: Vector) -> float:
    """Return how far two models are from each other, as a part of how far they moved."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(one - start))


@pytest.mark.parametrize("micro_batch", [0, 3])
@pytest.mark.parametrize("inner", [ADAMW, Sgd(lr=0.1, momentum=0.9, nesterov=True), LAMB, MUON, NORMUON])
def test_a_recorded_step_moves_the_model_as_any_other(inner: Inner, micro_batch: int) -> None:
    run = toy_run(inner=inner, batch=8, micro_batch=micro_batch, clip=0.5)
    plain, recorded = make(run, record=False), make(run, record=True)
    start = plain.weights()
    for steps in (STEPS[:2], STEPS[2:]):
        one, other = plain.train(steps), recorded.train(steps)
        assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-4)
        assert apart(plain.weights(), recorded.weights(), start) < ALIKE


@pytest.mark.parametrize("also", [{"compile": True}, {"recompute": True}])
def test_what_is_compiled_or_done_again_can_be_recorded(also: dict[str, bool]) -> None:
    run = toy_run(inner=ADAMW, batch=8, clip=0.5)
    plain, recorded = make(run, record=False, **also), make(run, record=True, **also)
    start = plain.weights()
    plain.train(STEPS)
    recorded.train(STEPS)
    assert apart(plain.weights(), recorded.weights(), start) < ALIKE


def test_a_short_step_between_recorded_ones_counts_its_own_samples() -> None:
    run = toy_run(inner=ADAMW, batch=8, micro_batch=3)
    short = [STEPS[0], STEPS[1], Step(samples=(40, 41)), STEPS[2]]
    plain, recorded = make(run, record=False), make(run, record=True)
    start = plain.weights()
    assert plain.train(short).loss_sum == pytest.approx(recorded.train(short).loss_sum, rel=1e-4)
    assert apart(plain.weights(), recorded.weights(), start) < ALIKE


def test_a_recorded_gradient_is_the_gradient_and_moves_nothing() -> None:
    run = toy_run(inner=ADAMW, batch=8, micro_batch=3, clip=0.5)
    plain, recorded = make(run, record=False), make(run, record=True)
    for steps in (STEPS[:1], STEPS[1:4], STEPS[4:]):
        (one, mean), (other, again) = plain.gradient(steps), recorded.gradient(steps)
        assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-4)
        assert float(np.abs(mean - again).max()) < ALIKE * float(np.abs(mean).max())
    assert np.array_equal(plain.weights(), recorded.weights())


@pytest.mark.parametrize("inner", [ADAMW, LAMB])
def test_new_weights_and_restored_state_are_those_that_recorded_steps_go_on_with(inner: Inner) -> None:
    run = toy_run(inner=inner, batch=8, clip=0.5)
    plain, recorded = make(run, record=False), make(run, record=True)
    start = plain.weights()
    for engine in (plain, recorded):
        engine.train(STEPS[:3])
        kept, weights = engine.private(), engine.weights()
        engine.train(STEPS[3:])
        engine.restore(kept)
        engine.assign(weights)
        engine.evaluate(0, 10)
        engine.train(STEPS[2:])
    assert apart(plain.weights(), recorded.weights(), start) < ALIKE


@pytest.mark.parametrize("inner", [ADAMW, LAMB, MUON, NORMUON, MOMENTUM])
def test_moments_that_others_remembered_are_those_that_recorded_steps_go_on_with(inner: Inner) -> None:
    run = toy_run(inner=inner, batch=8, clip=0.5)
    when = WithMoments(steps=3, first=1, second=0 if inner in (MUON, MOMENTUM) else 1)
    channel = replace(run.recipe.channel["outer"], when=when)
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    plain, recorded = make(run, record=False), make(run, record=True)
    own = weights_in(plain.layout)
    assert plain.size > own
    start = plain.weights()
    for engine in (plain, recorded):
        engine.train(STEPS[:3])
        before = engine.weights()
        engine.train(STEPS[3:])
        engine.assign(np.float32(0.5) * (before + engine.weights()))
        engine.train(STEPS[2:])
    one, other = plain.weights(), recorded.weights()
    for part in (slice(own), slice(own, None)):
        assert apart(one[part], other[part], start[part]) < ALIKE


def test_engines_that_share_a_device_do_not_disturb_each_other() -> None:
    run = toy_run(inner=ADAMW, batch=8, micro_batch=3, clip=0.5)
    alone, *others = (make(run, record=True) for _ in range(3))
    start = alone.weights()
    alone.train(STEPS)
    for step in STEPS:
        for other in others:
            other.train([step])
    for other in others:
        assert apart(alone.weights(), other.weights(), start) < ALIKE
