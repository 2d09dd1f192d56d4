"""No recipe without its bytes: each is in a test that holds what is predicted to what is counted at the transport."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

from atoll.spec.load import recipe_names
from tests.peer import test_homes, test_mesh, test_regions, test_ways
from tests.plan import test_traffic

TESTS: list[object] = [
    test_traffic.test_predicted_bytes_are_those_counted_within_two_percent,
    test_traffic.test_wherever_a_policy_turns_the_knobs_bytes_are_those_predicted,
    test_traffic.test_where_each_peer_has_bits_of_its_own_bytes_are_those_predicted,
    test_traffic.test_of_two_channels_each_moves_its_own_bytes_in_its_own_rounds,
    test_traffic.test_parts_by_lot_move_their_own_bytes_and_in_the_end_those_of_all,
    test_traffic.test_factors_are_the_rank_times_both_sides_of_each_matrix_and_the_rest_is_whole,
    test_traffic.test_a_period_of_tensors_in_turn_moves_what_its_turns_add_up_to,
    test_traffic.test_in_circles_bytes_are_those_of_the_circles_and_in_the_end_of_one_round_of_all,
    test_traffic.test_rounds_of_all_now_and_then_are_in_the_mean,
    test_traffic.test_where_what_is_sent_depends_on_values_the_prediction_is_the_most,
    test_traffic.test_a_part_that_all_are_in_time_for_moves_as_much_as_where_all_are_waited_for,
    test_traffic.test_where_each_contributes_alone_results_go_to_all_and_contributions_to_owners_once,
    test_homes.test_predicted_bytes_are_those_counted,
    test_homes.test_predicted_bytes_are_those_counted_where_no_region_tells,
    test_mesh.test_predicted_bytes_are_those_that_are_sent,
    test_regions.test_predicted_bytes_are_those_counted,
    test_ways.test_all_together_move_what_was_predicted,
]
"""Each within 2 %, but for what `halos` tells for nothing, as it says."""


def test_every_recipe_is_held_to_its_predicted_bytes() -> None:
    named = [{*_named(test)} & {*recipe_names()} for test in TESTS]
    assert all(named), "each test is about some recipe"
    assert set().union(*named) == {*recipe_names()}


def _named(test: object) -> Iterator[str]:
    """Return what a test has as parameters, says itself, and has said by the functions beside it that it calls."""
    assert isinstance(test, FunctionType)
    yield from _words([mark.args for mark in getattr(test, "pytestmark", [])])
    beside = [test.__globals__.get(name) for name in test.__code__.co_names]
    for each in (test, *beside):
        if isinstance(each, FunctionType) and each.__module__ == test.__module__:
            yield from _words(each.__code__.co_consts)


def _words(said: object) -> Iterator[str]:
    """Return the words in something, however deep."""
    if isinstance(said, str):
        yield said
    if isinstance(said, tuple | list):
        for each in said:
            yield from _words(each)
