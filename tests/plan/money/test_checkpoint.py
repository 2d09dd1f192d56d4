"""When to save: the rule of thumb, the exact optimum, and failures that really happen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.plan.money.checkpoint import (
    best_interval_s,
    is_trusted,
    lost,
    mtbf_h,
    saving,
    wall_h,
    young_interval_s,
    young_lost,
)

LLAMA_MTBF_H = 54 * 24 / 419


def test_interruptions_of_sixteen_thousand_devices_come_every_three_hours() -> None:
    """419 in 54 days on 16,384 (Llama 3's report); the intervals are our own arithmetic."""
    assert pytest.approx(3.09, abs=0.005) == LLAMA_MTBF_H
    assert pytest.approx(2.0e-5, rel=0.02) == 1 / (LLAMA_MTBF_H * 16384)
    assert mtbf_h(16384, 1 / 50_700) == pytest.approx(LLAMA_MTBF_H, rel=0.002)
    found = [saving(save_s, LLAMA_MTBF_H * 3600) for save_s in (30, 60, 600)]
    assert [each.young_s / 60 for each in found] == pytest.approx([13.6, 19.3, 61], abs=0.1)
    assert [each.young_lost for each in found] == pytest.approx([0.073, 0.104, 0.33], abs=0.005)


@settings(max_examples=40)
@given(st.floats(1e-6, 20), st.floats(0, 5))
def test_no_other_interval_loses_less_than_the_best(save: float, restart: float) -> None:
    best = best_interval_s(save, 1.0)
    least = lost(best, save, 1.0, restart)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert lost(best * factor, save, 1.0, restart) >= least * (1 - 1e-9)
    assert best < young_interval_s(save, 1.0)


def test_the_best_interval_is_the_one_that_a_search_finds() -> None:
    tries_s = np.geomspace(1, 60_000, 200_001)
    for save_s in (1.0, 30.0, 600.0, 20_000.0):
        found_s = tries_s[np.argmin(lost(tries_s, save_s, 11_000.0))]  # type: ignore[arg-type]
        assert best_interval_s(save_s, 11_000.0) == pytest.approx(found_s, rel=1e-3)


def test_what_is_lost_is_what_failures_at_random_cost() -> None:
    rng = np.random.default_rng(7)
    for save, restart in ((0.02, 0.0), (0.1, 0.05), (0.5, 0.3)):
        interval = best_interval_s(save, 1.0)
        times = [_stretch(interval + save, restart, rng) for _ in range(6000)]
        error = np.std(times) / np.sqrt(len(times)) / interval
        assert np.mean(times) / interval - 1 == pytest.approx(lost(interval, save, 1.0, restart), abs=4 * error)


def _stretch(length: float, restart: float, rng: np.random.Generator) -> float:
    """Return how long a stretch took: failures come at rate 1, also while restarting."""
    total, needed = 0.0, length
    while (failure := rng.exponential()) < needed:
        total, needed = total + failure, restart + length
    return total + needed


def test_the_rule_of_thumb_holds_where_failures_are_rare_and_not_elsewhere() -> None:
    rare, often = 1e-4, 0.2
    near = young_interval_s(rare, 1.0)
    assert is_trusted(near, 1.0)
    assert young_lost(near, rare, 1.0) == pytest.approx(lost(near, rare, 1.0), rel=0.02)
    far = young_interval_s(often, 1.0)
    assert not is_trusted(far, 1.0)
    assert lost(far, often, 1.0) > 1.3 * young_lost(far, often, 1.0)


def test_savings_go_through_arrays_elementwise() -> None:
    saves = np.array([30.0, 60.0, 600.0])
    together = saving(saves, 11_000.0)  # type: ignore[arg-type]
    alone = [saving(float(each), 11_000.0) for each in saves]
    assert np.allclose(together.best_s, [each.best_s for each in alone])
    assert np.allclose(together.kept, [each.kept for each in alone])


@pytest.mark.parametrize(("save_s", "mtbf_s", "restart_s"), [(0, 1, 0), (1, 0, 0), (1, np.inf, 0), (1, 1, np.nan)])
def test_saves_that_take_no_time_and_machines_that_never_fail_have_no_best_interval(
    save_s: float, mtbf_s: float, restart_s: float
) -> None:
    with pytest.raises(SpecError, match="is out of range"):
        saving(save_s, mtbf_s, restart_s)


def test_interruptions_go_on_during_what_they_cost() -> None:
    assert wall_h(100, 0.1, 0.5) == pytest.approx(100 / 0.95)
    assert wall_h(100, 2.0, 0.5) == np.inf
    rng = np.random.default_rng(3)
    drawn = [100 + 0.5 * _count(100, 0.2, 0.5, rng) for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx(wall_h(100, 0.2, 0.5), rel=0.01)


def _count(work_h: float, rate: float, each_h: float, rng: np.random.Generator) -> int:
    """Return how many interruptions there were until the work was done, each adding to what is still to come."""
    due, time, count = work_h, rng.exponential(1 / rate), 0
    while time < due:
        due, time, count = due + each_h, time + rng.exponential(1 / rate), count + 1
    return count
