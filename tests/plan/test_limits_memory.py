"""Memory: what fits where, what cutting a model over peers asks of their lines, and tensors really laid out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.limits import memory as m
from atoll.plan.limits.tandem import pipeline_s, run_s

CARD = 165.2e12 * 0.35


@pytest.mark.parametrize(
    ("gigabytes", "billions"),
    [
        (8, (0.39, 0.62, 0.78, 1.03)), (12, (0.61, 0.98, 1.23, 1.63)), (16, (0.84, 1.34, 1.68, 2.23)),
        (24, (1.29, 2.06, 2.58, 3.43)), (32, (1.74, 2.78, 3.48, 4.63)), (80, (4.4, 7.1, 8.9, 11.8)),
    ],
)  # fmt: skip
def test_a_memory_trains_so_many_parameters_alone(gigabytes: float, billions: tuple[float, ...]) -> None:
    found = [float(m.most_parameters(gigabytes * 1e9, form)) / 1e9 for form in (16, 10, 8, 6)]
    assert found == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize(
    ("parameters", "hidden", "cards", "servers", "mbit", "on_cable"),
    [(7e9, 4096, 6, 2, 541, 0.037), (70e9, 8192, 59, 18, 1065, 0.019), (405e9, 16384, 338, 102, 2110, 0.0095)],
)
def test_larger_models_need_so_many_peers_in_line_and_such_lines(
    parameters: float, hidden: int, cards: int, servers: int, mbit: float, on_cable: float
) -> None:
    assert int(m.stages(parameters, 24e9)) == cards
    assert int(m.stages(parameters, 80e9)) == servers
    line = float(m.busy_line_bits_s(CARD, parameters, cards, hidden))
    assert line / 1e6 == pytest.approx(mbit, rel=0.01)
    assert 20e6 / line == pytest.approx(on_cable, rel=0.03)


def test_adapters_alone_fit_far_larger_models() -> None:
    found = [float(m.most_parameters(size * 1e9, m.ADAPTERS[1])) / 1e9 for size in (8, 12, 16, 24, 32, 80)]
    assert found == pytest.approx([8.9, 14, 19, 29, 40, 101], rel=0.025)


def test_activations_grow_with_the_square_of_the_context_in_the_end() -> None:
    short, long = (m.activation_bytes(context, 4096, 32, 32) for context in (100_000, 200_000))
    assert 3.5 < long / short < 4


def test_a_long_pipeline_is_seldom_there_as_a_whole() -> None:
    assert [float(m.all_there(0.99, stages)) for stages in (59, 338)] == pytest.approx([0.55, 0.033], abs=0.005)


def test_tensors_really_laid_out_take_sixteen_bytes_a_parameter() -> None:
    count, total = m.inventory_bytes(256, 3)
    assert total == 16 * count


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=8), st.integers(1, 40))
def test_a_pipeline_played_is_never_slower_than_its_formula_and_as_slow_where_the_slowest_is_met(
    stages: list[tuple[float, float]], batches: int
) -> None:
    compute, send = zip(*stages, strict=True)
    assert run_s(compute, send, batches) == pytest.approx(pipeline_s(compute, send, batches))
