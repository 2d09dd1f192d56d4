"""Predicted bytes beside bytes counted: the formula is held to what the same peers move in the simulated world."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.plan.traffic import Line, every_step_fp32, lines_of, traffic
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import All, AllGather, Butterfly, Recipe
from tests.peer.world import counting_run, events, play, sized

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
        ("intellect-1", 1_000_000, 4),
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


@pytest.mark.parametrize(("name", "peers"), [("noloco", 4), ("moshpit", 6), ("gossip", 5)])
def test_in_circles_bytes_are_those_of_the_circles_and_in_the_end_of_one_round_of_all(name: str, peers: int) -> None:
    parameters, rounds = 300_000, 5
    run = counting_run(name, rounds=rounds, start_with=peers, checkpoint_every=100)
    (channel,) = run.recipe.channel.values()
    together = replace(run.recipe, channel={"outer": replace(channel, whom=All())})
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes for peer in range(peers)]
    circles, all_ = (traffic(recipe, parameters, [Line()] * peers).moved for recipe in (run.recipe, together))
    predicted = sum((rounds - 1) * one.sent_bytes + other.sent_bytes for one, other in zip(circles, all_, strict=True))
    assert predicted == pytest.approx(sum(counted), rel=OVERHEAD)


def test_what_a_pair_moves_does_not_depend_on_how_many_there_are() -> None:
    recipe = load_recipe("noloco")
    few, many = (traffic(recipe, 1_000_000, [Line()] * peers).worst.total_bytes for peers in (4, 64))
    assert few == many == 2 * 4_000_000


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


def test_a_ring_moves_what_every_all_reduce_does_in_the_form_of_a_contribution() -> None:
    peers, chunks = 8, 64
    parameters = chunks * 65536
    found = traffic(load_recipe("intellect-1"), parameters, [Line()] * peers)
    table_bytes = 1024
    each_way = 2 * (peers - 1) / peers * chunks * (65536 + table_bytes)
    assert {(one.sent_bytes, one.received_bytes) for one in found.moved} == {(each_way, each_way)}
    less = every_step_fp32(parameters, peers) / found.step_bytes
    assert less == pytest.approx(400, rel=0.02), "as its header says"


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
