"""Operations and parameters are counted as the model has them."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.model.shape import Shape, elements, shapes, train_cost
from atoll.plan.cost.flops import (
    Decoder,
    active_parameters,
    attention_weights,
    compute_s,
    expert_weights,
    layer_backward_flop,
    layer_forward_flop,
    of_gpt,
    of_size,
    parameters,
    six_n_d,
    train_flop,
)
from atoll.spec.run import SIZES, Size


@pytest.mark.parametrize("size", [*SIZES.values(), Size(dim=64, layers=3, heads=4, kv_heads=1, ffn=96, tied=False)])
def test_parameters_of_a_run_are_those_of_its_layout(size: Size) -> None:
    assert parameters(of_size(size, 1000, 64)) == elements(shapes(size, 1000))


@pytest.mark.parametrize("name", ["1m", "60m", "1b"])
def test_training_costs_what_the_simulator_says_up_to_the_norms(name: str) -> None:
    decoder, size = of_size(SIZES[name], 32000, 512), SIZES[name]
    said = train_cost(Shape(size=size, vocab=32000, context=512), 3).flop
    assert train_flop(decoder, 3 * 512.0) == pytest.approx(said, rel=2e-3)


def test_a_gpt_layer_is_24_h_squared_and_4_s_h_per_token() -> None:
    h, s = 1024, 2048
    decoder = of_gpt(24, h, 50257, s)
    assert layer_forward_flop(decoder, 1.0) == 24 * h**2 + 4 * s * h
    assert layer_backward_flop(decoder, 1.0) == 2 * (24 * h**2 + 4 * s * h)
    assert layer_backward_flop(decoder, 1.0, "full") == 3 * (24 * h**2 + 4 * s * h)
    assert layer_backward_flop(decoder, 1.0, "selective") == 2 * (24 * h**2 + 4 * s * h) + 4 * s * h


def test_known_models_have_as_many_parameters_as_their_names_say() -> None:
    assert parameters(of_gpt(12, 768, 50257, 1024)) == 124_439_808  # GPT-2
    assert parameters(of_gpt(96, 12288, 50257, 2048)) == pytest.approx(175e9, rel=0.01)
    assert parameters(of_size(SIZES["1b"], 128256, 2048)) == 1_235_814_400  # Llama 3.2 1B


def test_of_experts_only_those_met_compute() -> None:
    mixtral = Decoder(
        layers=32, hidden=4096, heads=32, kv_hidden=1024, ffn=14336, matrices=3, vocab=32000, context=4096,
        tied=False, experts=8, met=2,
    )  # fmt: skip
    assert parameters(mixtral) == pytest.approx(46.7e9, rel=0.005)
    assert active_parameters(mixtral) == pytest.approx(12.9e9, rel=0.01)
    weights = attention_weights(mixtral) + 2 * expert_weights(mixtral)
    assert layer_forward_flop(mixtral, 1.0) == 2 * weights + 2 * 4096 * 4096


def test_six_n_d_and_the_exact_count_agree_where_attention_is_small() -> None:
    decoder = of_gpt(96, 12288, 50257, 2048)
    assert train_flop(decoder, 1.0) == pytest.approx(six_n_d(parameters(decoder), 1.0), rel=0.05)


def test_draws_pass_through() -> None:
    speeds = np.array([1e12, 2e12])
    assert compute_s(4e12, speeds, np.array([0.5, 0.25])).tolist() == [8.0, 8.0]
    assert train_flop(of_gpt(2, 64, 100, 16), np.array([1.0, 2.0])).shape == (2,)
