"""No recipe without its bytes: what holds those predicted of each to those counted at the transport, within 2 %."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from atoll.spec.load import recipe_names
from tests.peer import test_homes, test_mesh, test_regions, test_ways
from tests.plan import test_traffic as traffic

OF_MANY: list[Callable[..., None]] = [
    traffic.test_predicted_bytes_are_those_counted_within_two_percent,
    traffic.test_in_circles_bytes_are_those_of_the_circles_and_in_the_end_of_one_round_of_all,
    traffic.test_rounds_of_all_now_and_then_are_in_the_mean,
    traffic.test_where_what_is_sent_depends_on_values_the_prediction_is_the_most,
]
"""Their first parameter is a recipe."""
OF_ONE: dict[str, Callable[..., None]] = {
    "async-local-sgd": traffic.test_where_each_contributes_alone_results_go_to_all_and_contributions_to_owners_once,
    "decoupled": traffic.test_a_part_that_all_are_in_time_for_moves_as_much_as_where_all_are_waited_for,
    "desloc": traffic.test_moments_move_their_own_bytes_when_it_is_their_turn,
    "dlion": test_mesh.test_predicted_bytes_are_those_that_are_sent,
    "dreamddp": traffic.test_a_period_of_tensors_in_turn_moves_what_its_turns_add_up_to,
    "halos": test_homes.test_predicted_bytes_are_those_counted_where_no_region_tells,
    "hfa": test_regions.test_predicted_bytes_are_those_counted,
    "hips": test_regions.test_predicted_bytes_are_those_counted,
    "netstorm": test_ways.test_all_together_move_what_was_predicted,
    "powersgd": traffic.test_factors_are_the_rank_times_both_sides_of_each_matrix_and_the_rest_is_whole,
    "ravnest": test_ways.test_all_together_move_what_was_predicted,
    "sparta": traffic.test_parts_by_lot_move_their_own_bytes_and_in_the_end_those_of_all,
    "sparta-diloco": traffic.test_of_two_channels_each_moves_its_own_bytes_in_its_own_rounds,
}


def test_every_recipe_is_held_to_its_predicted_bytes() -> None:
    assert {*OF_ONE, *(name for test in OF_MANY for name in _named(test))} == {*recipe_names()}


def _named(test: Callable[..., None]) -> Iterator[str]:
    """Return the recipes among a test's parameters."""
    marks: list[pytest.Mark] = test.pytestmark  # type: ignore[attr-defined]
    for mark in marks:
        for case in mark.args[1] if mark.name == "parametrize" else ():
            values = getattr(case, "values", case)
            yield values if isinstance(values, str) else values[0]
