"""Closed forms agree with what is played, where they claim to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.cost.pipeline import closed
from atoll.plan.cost.pipeline.events import play
from atoll.plan.cost.pipeline.orders import one_forward_one_backward
from atoll.plan.cost.pipeline.parts import straight

STAGES = st.lists(st.floats(0.2, 2), min_size=1, max_size=6)


def test_all_forms_are_one_where_stages_are_equal_and_lines_free() -> None:
    nothing = [0.0] * 4
    assert closed.chain_s([3.0] * 4, nothing, 8) == closed.even_s(4, 8, 1, 2)
    assert closed.overlapped_s([3.0] * 4, nothing, 8) == closed.even_s(4, 8, 1, 2)
    assert closed.chain_s([3.0] * 4, nothing, 8, 0.5) == closed.even_s(4, 8, 1, 2) + 0.5


@given(STAGES, st.integers(1, 16))
def test_the_chain_is_never_less_than_what_is_played_and_little_more(stage_s: list[float], micro: int) -> None:
    played = play(
        straight([each / 3 for each in stage_s], [2 * each / 3 for each in stage_s]),
        one_forward_one_backward(len(stage_s), micro),
    ).finish_s
    said = closed.chain_s(stage_s, [0.0] * len(stage_s), micro)
    assert played <= said * (1 + 1e-9)
    assert said <= 1.34 * played


def test_hidden_sends_cost_less_than_open_ones() -> None:
    assert closed.overlapped_s([1.0, 2.0], [0.5, 0.5], 10) == 3 + 1 + 9 * 2
    assert closed.chain_s([1.0, 2.0], [0.5, 0.5], 10) == 4 + 9 * 2.5
    assert closed.overlapped_s([1.0, 2.0], [5.0, 0.0], 10) == 3 + 5 + 9 * 5


def test_zero_bubbles_are_a_third_and_none() -> None:
    whole = 7 * 3
    assert closed.zero_bubble_idle_s(8, 1.0, 1.0, 1.0) == whole / 3
    assert closed.zero_bubble_idle_s(8, 1.0, 1.0, 1.0, doubled=True) == 0


def test_home_lines_are_too_slow_for_a_boundary() -> None:
    """Cards of 165.2 TFLOP/s at 0.35, 7, 70 and 405 billion parameters: 0.54, 1.07 and 2.1 gigabits each way."""
    stages, size, hidden = np.array([6, 59, 338]), np.array([7e9, 70e9, 405e9]), np.array([4096, 8192, 16384])
    wanted = closed.boundary_rate_bytes_s(165.2e12 * 0.35, stages, size, hidden) * 8
    assert wanted == pytest.approx([541e6, 1.07e9, 2.1e9], rel=0.01)
    assert 20e6 / wanted == pytest.approx([0.037, 0.019, 0.009], abs=0.001)
