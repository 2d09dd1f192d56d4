"""What layers are given: second moments of it as a forward pass by hand has them, and nothing changed by looking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from atoll.model.compute import Vector
from atoll.model.engine import TorchEngine, build_engine
from atoll.model.shape import shapes
from atoll.spec.run import Fresh
from tests.model.toys import GROUPED, VOCAB, ToyData, same, toy_run, toy_steps

HEAD = "model.embed_tokens.weight"
FIRST = "model.layers.0.self_attn.q_proj.weight"
SAMPLES = (3, 1, 4)


def make(*, tied: bool = True) -> TorchEngine:
    run = toy_run()
    assert isinstance(run.model, Fresh)
    return build_engine(replace(run, model=Fresh(size=replace(GROUPED, tied=tied))), ToyData(), device="cpu")


def moments(rows: torch.Tensor) -> Vector:
    flat = rows.detach().flatten(0, -2).double()
    found: Vector = (flat.T @ flat / len(flat)).float().numpy()
    return found


def test_they_are_those_of_a_forward_pass_by_hand() -> None:
    engine = make()
    found = engine.inputs(engine.layout, SAMPLES)
    tokens = torch.tensor(ToyData().batch(SAMPLES)[:, :-1])
    inside = engine.model.model
    normed = engine.model.get_submodule("model.layers.0.input_layernorm")
    assert np.allclose(found[FIRST], moments(normed(inside.embed_tokens(tokens))), atol=1e-5)
    assert np.allclose(found[HEAD], moments(inside(tokens, None)), atol=1e-5)
    for name in ("k_proj", "v_proj"):
        assert same(found[FIRST.replace("q_proj", name)], found[FIRST]), "which are given the same"


def test_of_every_matrix_and_of_no_vector() -> None:
    engine = make()
    wide = {name: shape[1] for name, shape in shapes(GROUPED, VOCAB).items() if len(shape) == 2}
    found = engine.inputs(engine.layout, SAMPLES)
    assert {name: len(each) for name, each in found.items()} == wide
    assert all(each.shape == each.T.shape and np.array_equal(each, each.T) for each in found.values())
    assert set(engine.inputs([FIRST], SAMPLES)) == {FIRST}, "of those that were asked for"


def test_an_embedding_that_is_not_the_head_is_given_nothing() -> None:
    assert HEAD not in make(tied=False).inputs(make(tied=False).layout, SAMPLES)


@pytest.mark.parametrize("often", [0, 3])
def test_looking_changes_nothing(often: int) -> None:
    engine, other = make(), make()
    for _ in range(2):
        engine.train(toy_steps(2))
        other.train(toy_steps(2))
        for _ in range(often):
            engine.inputs(engine.layout, SAMPLES)
    assert same(engine.weights(), other.weights())
    assert engine.private() == other.private()
