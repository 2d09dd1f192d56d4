"""Predicted bytes beside bytes counted: the formula is held to what the same peers move in the simulated world."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.plan.traffic import Line, every_step_fp32, lines_of, traffic
from atoll.sim.faults import SlowCompute
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import AllGather, Butterfly, Recipe
from tests.peer.world import counting_run, events, once, play, sized

OVERHEAD = 0.02
ROUNDS = 3
"""As many as a model may have fragments here: they are not of the same size."""


def with_group(recipe: Recipe, group: int) -> Recipe:
    """Return a recipe whose members exchange directly in groups of at most so many."""
    channel = recipe.channel["outer"]
    route = Butterfly(group=group)
    return replace(recipe, channel={"outer": replace(channel, whom=replace(channel.whom, route=route))})


@pytest.mark.parametrize(
    ("name", "parameters", "peers"),
    [
        ("ddp", 300_000, 4),
        ("diloco", 300_000, 3),
        ("opendiloco", 600_000, 3),
        pytest.param("muloco", 2_000_000, 3, marks=pytest.mark.long),
        pytest.param("sparseloco", 4_000_000, 3, marks=pytest.mark.long),
        ("sparse-butterfly", 8_000_000, 3),
        pytest.param("eager", 300_000, 3, marks=pytest.mark.long),
        ("streaming", 3_000_000, 3),
    ],
)
def test_predicted_bytes_are_those_counted_within_two_percent(name: str, parameters: int, peers: int) -> None:
    run = counting_run(name, rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1] for peer in range(peers)]
    sent = max(each.round_sent_bytes for each in counted) / ROUNDS
    control = sum(each.sent_bytes - each.round_sent_bytes for each in counted)
    received = (sum(each.received_bytes for each in counted) - control) / ROUNDS
    assert predicted.worst.sent_bytes == pytest.approx(sent, rel=OVERHEAD)
    assert sum(each.received_bytes for each in predicted.moved) == pytest.approx(received, rel=OVERHEAD)


def test_a_part_that_all_are_in_time_for_moves_as_much_as_where_all_are_waited_for() -> None:
    parameters, peers, rounds = 3_000_000, 3, 16
    run = counting_run("decoupled", rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes for peer in range(peers)]
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert sum(each.sent_bytes for each in predicted.moved) * rounds == pytest.approx(sum(counted), rel=OVERHEAD)


def test_where_each_contributes_alone_results_go_to_all_and_contributions_to_owners_once() -> None:
    """However many are at work: each sends its own once for N results that it receives."""
    parameters, peers, rounds = 300_000, 3, 24
    run = counting_run("async-local-sgd", rounds=rounds, steps=8, start_with=peers, checkpoint_every=100)
    faults = [SlowCompute(at_s=0.0, peer=place, for_s=1e6, factor=factor) for place, factor in ((1, 1.3), (2, 1.7))]
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9, faults=faults)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes for peer in range(peers)]
    pushes = sum(len(event.contributors) for _, event in once(outcome, journal.RoundCommitted))
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert predicted.steps == 8 / peers
    part = (peers - 1) / peers * 4 * parameters  # what a contribution more than one in a round adds
    total = sum(each.sent_bytes for each in predicted.moved) * rounds + (pushes - rounds) * part
    assert total == pytest.approx(sum(counted), rel=3 * OVERHEAD)


def test_with_groups_the_sum_over_all_members_is_the_one_counted() -> None:
    parameters, peers = 300_000, 6
    run = counting_run("diloco", rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    run = replace(run, recipe=with_group(run.recipe, 3))
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes for peer in range(peers)]
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert sum(each.sent_bytes for each in predicted.moved) == pytest.approx(sum(counted) / ROUNDS, rel=OVERHEAD)


@pytest.mark.parametrize("name", recipe_names())
def test_what_all_members_send_all_members_receive(name: str) -> None:
    moved = traffic(load_recipe(name), 1_000_000, lines_of(expand(load_fleet("town")))).moved
    assert sum(each.sent_bytes for each in moved) == sum(each.received_bytes for each in moved) > 0


def test_ddp_by_the_codec_is_ddp_by_the_formula() -> None:
    peers, parameters = 8, 64 * 8 * 1000
    found = traffic(load_recipe("ddp"), parameters, [Line()] * peers)
    assert found.step_bytes == every_step_fp32(parameters, peers)


def test_owners_that_choose_again_keep_the_bytes_of_a_peer_where_they_are_however_many_there_are() -> None:
    """The figures of the recipe's header."""
    parameters = 4096 * 64 * 80
    less = [
        every_step_fp32(parameters, peers) / traffic(load_recipe(name), parameters, [Line()] * peers).step_bytes
        for peers in (8, 16)
        for name in ("sparse-butterfly", "sparseloco")
    ]
    assert less == pytest.approx([4389, 1097, 4389, 549], rel=0.01)


def test_who_gathers_all_receives_more_the_more_peers_there_are() -> None:
    recipe = load_recipe("sparseloco")
    assert isinstance(recipe.channel["outer"].whom.route, AllGather)
    few, many = (traffic(recipe, 1_000_000, [Line()] * peers).worst.received_bytes for peers in (3, 9))
    assert many == 4 * few


def test_shares_follow_lines_and_the_slowest_line_bounds_the_round() -> None:
    fast, slow = (
        Line(name="fast", up_bytes_s=1e9, down_bytes_s=1e9),
        Line(name="slow", up_bytes_s=1e6, down_bytes_s=1e7),
    )
    found = traffic(load_recipe("diloco"), 1_000_000, [fast, fast, slow])
    by_name = {each.line.name: each for each in found.moved}
    assert by_name["slow"].sent_bytes == 4_000_000, "it owns nothing: only its own contribution goes out"
    assert found.slowest.line.name == "slow"
    assert found.slowest.least_s == pytest.approx(4.0)
    assert found.worst.line.name == "fast"


def test_who_cannot_be_called_owns_nothing() -> None:
    found = traffic(load_recipe("diloco"), 1_000_000, [Line(), Line(), Line(reached=False)])
    assert found.moved[2].sent_bytes == found.moved[2].received_bytes == 4_000_000


def test_alone_nothing_moves() -> None:
    for name in ("diloco", "sparseloco"):
        assert traffic(load_recipe(name), 1000, [Line()]).worst.total_bytes == 0
