"""Memory by formula: bytes per parameter, what is kept for the way back, how many micro-batches are under way."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.cost.flops import of_gpt
from atoll.plan.cost.memory import (
    PRECISIONS,
    Schedule,
    largest_model,
    layer_kept_bytes,
    live_micro_batches,
    stage_kept_bytes,
    stages_needed,
    state_bytes,
)


def test_bytes_per_parameter_are_the_usual_ones() -> None:
    assert [each.total for each in PRECISIONS.values()] == [16, 16, 18, 10, 8, 6, 0.7]


@pytest.mark.parametrize(
    ("memory_gb", "billions"),
    [(8, (0.39, 0.62, 0.78, 1.03)), (24, (1.29, 2.06, 2.58, 3.43)), (80, (4.4, 7.1, 8.9, 11.8))],
)
def test_the_largest_model_on_a_card_is_what_was_derived(memory_gb: int, billions: tuple[float, ...]) -> None:
    found = largest_model(np.full(4, memory_gb * 1e9), np.array([16.0, 10.0, 8.0, 6.0])) / 1e9
    assert found == pytest.approx(billions, abs=0.05 if memory_gb == 80 else 0.006)


def test_stages_of_models_too_large_for_one_card() -> None:
    assert [stages_needed(size, 24e9) for size in (7e9, 70e9, 405e9)] == [6, 59, 338]
    assert [stages_needed(size, 80e9) for size in (7e9, 70e9, 405e9)] == [2, 18, 102]


def test_what_replicas_share_out_is_held_once() -> None:
    mixed = PRECISIONS["mixed adam"]
    assert [state_bytes(100.0, mixed, replicas=4, zero=stage) for stage in (0, 1, 2, 3)] == [1600, 700, 550, 400]
    assert state_bytes(100.0, mixed, tensor=4) == 400


def test_a_layer_keeps_what_korthikanti_counts() -> None:
    decoder = of_gpt(96, 12288, 51200, 2048, heads=96)
    tokens = 2048 * 12288
    assert layer_kept_bytes(decoder, 1) == tokens * (34 + 5 * 96 * 2048 / 12288)
    assert layer_kept_bytes(decoder, 1, "selective") == tokens * 34
    assert layer_kept_bytes(decoder, 1, tensor=8) == tokens * (10 + 24 / 8 + 5 * 96 * 2048 / 12288 / 8)
    assert layer_kept_bytes(decoder, 1, tensor=8, sequence=True) == layer_kept_bytes(decoder, 1) / 8
    again = stage_kept_bytes(decoder, 12, 1, 4, "full")
    assert again == 4 * 12 * 2 * tokens + layer_kept_bytes(decoder, 1)


@pytest.mark.parametrize(
    ("schedule", "live"),
    [("gpipe", [12] * 4), ("1f1b", [4, 3, 2, 1]), ("interleaved", [5.5, 4.5, 3.5, 2.5]), ("zb-h2", [7] * 4)],
)
def test_schedules_keep_so_many_micro_batches(schedule: Schedule, live: list[float]) -> None:
    assert [live_micro_batches(schedule, stage, 4, 12) for stage in range(4)] == live
