"""Members in regions: who averages with whom, what crosses from region to region, and who may die."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.plan.lines import Line
from atoll.plan.traffic import traffic
from atoll.sim.faults import Crash, Fault, Partition
from atoll.sim.retell import Committed, commits
from atoll.sim.scenario import Entrance, Outcome
from atoll.spec.axes.whom import All, Butterfly, Circles, Route
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from atoll.swarm.log import ALL, CIRCLES
from tests.peer.world import assert_sound, counting_run, events, log_of, round_bytes, sized
from tests.peer.world import play as world_play

SIZE = 640
PARAMETERS = 100_000
K2 = 3
TWOS, THREES = ("east", "west", "west", "east"), ("east", "west", "south") * 3
LONG = pytest.mark.long


def run_of(recipe: str, peers: int, *, rounds: int, route: Route | None = None) -> Run:
    """Return a run of a shipped recipe with a mean of all every third round, or by another route."""
    run = counting_run(recipe, rounds=rounds, start_with=peers, checkpoint_every=1)
    channel = run.recipe.channel["outer"]
    if isinstance(channel.whom, Circles):
        channel = replace(channel, whom=replace(channel.whom, all_every=K2))
    if route is not None:
        channel = replace(channel, whom=All(route=route))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def play(
    run: Run,
    places: Sequence[str],
    *,
    size: int = SIZE,
    faults: Sequence[Fault] = (),
    entrances: Sequence[Entrance] = (),
) -> Outcome:
    """Play a run of peers in these regions."""
    world = {"faults": faults, "entrances": entrances, "places": places}
    return world_play(run, len(places), build=sized(size), rate_bytes_s=1e9, seed=1, **world)  # type: ignore[arg-type]


def named(outcome: Outcome, committed: Committed, places: Sequence[str]) -> list[set[str]]:
    """Return where the machines of each region that the log names are."""
    place = {bytes(host.peer): where for host, where in zip(outcome.hosts, places, strict=True)}
    return [{place[peer] for peer in group} for group in committed.announced.groups]


# who averages with whom


@pytest.mark.parametrize("places", [TWOS, pytest.param(THREES, marks=LONG)])
def test_once_they_have_met_regions_average_and_every_k2_rounds_all_do(places: tuple[str, ...]) -> None:
    run = run_of("hfa", len(places), rounds=3 * K2)
    outcome = play(run, places)
    assert_sound(run, outcome, version=3 * K2)
    rounds = commits(log_of(outcome))
    met = [each for each in rounds if each.announced.regions]
    assert len(met) >= 2 * K2, "in the first they meet"
    assert all(each.announced.key.scope == ALL for each in rounds if each not in met)
    for each in met:
        assert each.announced.key.scope == (ALL if each.version % K2 == 0 else CIRCLES)
        assert len(each.announced.groups) == len({*places})
        assert all(len(where) == 1 for where in named(outcome, each, places)), "as they are in the world"
    assert len(events(outcome, journal.RegionsChanged)) == 1


def test_gradients_of_every_step_are_added_up_by_region() -> None:
    run = run_of("hips", len(TWOS), rounds=4)
    outcome = play(run, TWOS)
    assert_sound(run, outcome, version=4)
    assert [len(each.announced.groups) for each in commits(log_of(outcome))][-2:] == [2, 2]


# what crosses


@cache
def played(recipe: str, places: tuple[str, ...], route: Route | None = None, rounds: int = 2 * K2) -> Outcome:
    return play(run_of(recipe, len(places), rounds=rounds, route=route), places, size=PARAMETERS)


def crossing(outcome: Outcome, places: tuple[str, ...]) -> int:
    """Return what should have crossed: before they have met of everybody, then a sum and a result of each region."""
    members, others = len(places) // len({*places}), len({*places}) - 1
    met = [each for each in commits(log_of(outcome)) if each.announced.regions]
    flat = len(commits(log_of(outcome))) - len(met)
    of_all = sum(each.announced.key.scope == ALL for each in met)
    assert of_all, "some of both kinds are looked at"
    return 2 * others * 4 * PARAMETERS * (flat * members + of_all)


@pytest.mark.parametrize(
    ("name", "places"),
    [("hfa", TWOS), *(pytest.param(*each, marks=LONG) for each in (("hips", TWOS), ("hfa", THREES), ("hips", THREES)))],
)
def test_what_crosses_is_a_sum_and_a_result_for_each_region_but_one(name: str, places: tuple[str, ...]) -> None:
    outcome = played(name, places)
    assert outcome.crossed_bytes == pytest.approx(crossing(outcome, places), rel=0.02)


@LONG
@pytest.mark.parametrize("places", [TWOS, THREES])
def test_what_crosses_falls_by_the_members_of_a_region_times_k2(places: tuple[str, ...]) -> None:
    """Without the first rounds, in which they meet: what as many rounds more add."""

    def more(recipe: str, route: Route | None) -> int:
        few, many = (played(recipe, places, route, rounds).crossed_bytes for rounds in (2 * K2, 3 * K2))
        return many - few

    members = len(places) // len({*places})
    assert more("hfa", Butterfly()) / more("hfa", None) == pytest.approx(members * K2, rel=0.02)
    assert more("hips", Butterfly()) / more("hips", None) == pytest.approx(members, rel=0.02)


@pytest.mark.parametrize("name", ["hfa", pytest.param("hips", marks=LONG)])
def test_predicted_bytes_are_those_counted(name: str) -> None:
    """Rounds in which they meet are flat, in place of those of a region alone."""
    outcome = played(name, TWOS)
    meeting = sum(not each.announced.regions for each in commits(log_of(outcome)))
    counted = round_bytes(outcome)
    recipe = run_of(name, len(TWOS), rounds=1).recipe
    flat = run_of(name, len(TWOS), rounds=1, route=Butterfly()).recipe
    predicted = 2 * K2 * sent(recipe) + meeting * (sent(flat) - sent(without_rounds_of_all(recipe)))
    assert sum(counted) == pytest.approx(predicted, rel=0.02)


def sent(recipe: Recipe) -> int:
    """Return what all members send in a round of a recipe, as predicted."""
    return sum(each.sent_bytes for each in traffic(recipe, PARAMETERS, [Line(region=place) for place in TWOS]).moved)


def without_rounds_of_all(recipe: Recipe) -> Recipe:
    channel = recipe.channel["outer"]
    if isinstance(channel.whom, Circles):
        channel = replace(channel, whom=replace(channel.whom, all_every=0))
    return replace(recipe, channel={"outer": channel})


def test_prediction_is_the_formula_however_many_members_a_region_has() -> None:
    def between(recipe: Recipe, members: int) -> float:
        return traffic(recipe, PARAMETERS, [Line(region=place) for place in "abc" * members]).between_bytes

    hfa, flat = (run_of("hfa", 9, rounds=1, route=route).recipe for route in (None, Butterfly()))
    assert between(hfa, 1) == between(hfa, 3) == between(hfa, 8) == pytest.approx(4 * 4 * PARAMETERS / K2)
    for members in (1, 3, 8):
        assert between(flat, members) / between(hfa, members) == pytest.approx(members * K2, rel=0.01)


# who comes, goes and dies


@LONG
@pytest.mark.parametrize(
    "faults",
    [
        [Crash(at_s=2.5, peer=1, restart_after_s=2.0), Crash(at_s=2.5, peer=2, restart_after_s=2.0)],
        [Crash(at_s=2.5, peer=0, restart_after_s=2.0)],
        [Partition(at_s=2.0, side=(0, 3), others=(1, 2), for_s=3.0)],
    ],
)
@pytest.mark.parametrize("name", ["hfa", "hips"])
def test_a_region_that_dies_or_is_cut_off_comes_back_and_all_end_with_one_model(name: str, faults: list[Fault]) -> None:
    run = run_of(name, len(TWOS), rounds=8 * K2)
    outcome = play(run, TWOS, faults=faults)
    assert_sound(run, outcome, version=8 * K2)
    last = commits(log_of(outcome))[-1]
    assert len(last.contributors) == len(TWOS)
    assert sorted(map(sorted, named(outcome, last, TWOS))) == [["east"], ["west"]]


@LONG
def test_one_who_joins_later_comes_to_its_region() -> None:
    run = run_of("hfa", 4, rounds=8 * K2)
    run = replace(run, membership=replace(run.membership, start_with=3))
    outcome = play(run, TWOS, entrances=[Entrance(peer=3, round=K2)])
    assert_sound(run, outcome, version=8 * K2)
    last = commits(log_of(outcome))[-1]
    assert len(last.announced.members) == 4
    assert sorted(map(sorted, named(outcome, last, TWOS))) == [["east"], ["west"]]
