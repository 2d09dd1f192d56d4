"""A model on given devices: times, memory, boundaries."""

from __future__ import annotations

import pytest

from atoll.plan.cost.flops import layer_parameters, of_gpt, of_size, parameters, train_flop
from atoll.plan.cost.memory import PRECISIONS, layer_kept_bytes
from atoll.plan.cost.pipeline.events import play
from atoll.plan.cost.pipeline.orders import one_forward_one_backward
from atoll.plan.cost.pipeline.staged import room_bytes, stage_parameters, staged
from atoll.spec.run import SIZES

GPT = of_gpt(24, 1024, 50257, 2048)
FAST = (0.0, 1e15)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_together_do_what_the_model_costs(recompute: str) -> None:
    pipeline = staged(GPT, [6, 6, 6, 6], [1e12] * 4, 2, [FAST] * 3, recompute=recompute)  # type: ignore[arg-type]
    work_s = sum(part.forward_s + part.backward_s + part.weights_s for part in pipeline.parts)
    assert work_s == pytest.approx(train_flop(GPT, 2 * 2048, recompute) / 1e12)  # type: ignore[arg-type]


def test_half_as_fast_takes_twice_as_long() -> None:
    pipeline = staged(GPT, [8, 8, 8], [2e12, 1e12, 1e12], 1, [FAST] * 2)
    first, second, last = pipeline.parts
    assert second.forward_s == pytest.approx(2 * first.forward_s)
    assert last.forward_s > second.forward_s
    assert first.kept == 8 * layer_kept_bytes(GPT, 1)


def test_stages_hold_the_model_and_a_copy_of_a_tied_head() -> None:
    held = stage_parameters(GPT, [12, 12])
    assert sum(held) == parameters(GPT) + 50257 * 1024
    assert stage_parameters(GPT, [24]) == [parameters(GPT)]
    untied = of_size(SIZES["1b"], 1000, 64)
    assert sum(stage_parameters(untied, [8, 8])) == parameters(untied) + 1000 * 2048


def test_what_is_left_is_for_what_is_kept() -> None:
    room = room_bytes(GPT, [12, 12], [24e9, 1e9], PRECISIONS["mixed adam"])
    assert room[0] == pytest.approx(0.9 * 24e9 - 16 * stage_parameters(GPT, [12, 12])[0])
    assert room[1] < 0


def test_fifty_small_cards_are_as_fast_as_four_large_ones_until_their_lines_are_slow() -> None:
    """FusionAI's parity: 50 x 59.5 against 4 x 756 TFLOP/s, in the limit of many micro-batches and fast lines."""
    deep = of_gpt(100, 4096, 100, 2048)  # of a head hardly anything is left: stages are equal
    small = [59.5e12 * 0.35] * 50
    large = [756e12 * 0.35] * 4

    def per_second(layers: list[int], speeds: list[float], rate_bytes_s: float) -> float:
        pipeline = staged(deep, layers, speeds, 1, [(0.0, rate_bytes_s)] * (len(layers) - 1))
        return 200 / play(pipeline, one_forward_one_backward(len(layers), 200)).finish_s

    central = per_second([25] * 4, large, 1e12)
    fills = (200 + 4 - 1) / (200 + 50 - 1)  # what deeper pipelines lose to filling up
    assert per_second([2] * 50, small, 1e13) / central == pytest.approx(0.984 * fills, abs=0.005)
    assert per_second([2] * 50, small, 2.5e6) / central < 0.1


def test_a_layer_is_counted_once() -> None:
    assert stage_parameters(GPT, [1, 23])[1] - stage_parameters(GPT, [2, 22])[1] == layer_parameters(GPT)
