"""Regions with states of their own: who tells when, what crosses, and what a region holds whoever dies or comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.errors import SpecError
from atoll.net.identity import short
from atoll.plan.lines import Line
from atoll.plan.traffic import Traffic, traffic
from atoll.sim.check import violations
from atoll.sim.faults import Crash, Fault, Partition, SlowCompute
from atoll.sim.homes import walked
from atoll.sim.retell import Committed, commits
from atoll.sim.scenario import Entrance, Outcome
from atoll.spec.axes.whom import All
from atoll.spec.axes.work import Same
from atoll.spec.load import decode_run
from atoll.spec.run import Run, canonical
from atoll.swarm.log import ALL
from tests.peer.world import anchor_of, assert_sound, counting_run, events, log_of, round_bytes, sized
from tests.peer.world import play as world_play

SIZE, PARAMETERS = 640, 100_000
K = 4
TWOS = ("east", "west", "west", "east")
LONG = pytest.mark.long


def run_of(recipe: str = "halos", *, peers: int, rounds: int, pushes: int = K) -> Run:
    """Return a run of a shipped recipe that tells more often, and in which all take as many steps."""
    run = counting_run(recipe, rounds=rounds, start_with=peers, checkpoint_every=1, patience_s_max=60.0)
    channel = run.recipe.channel["outer"]
    if channel.regional is not None:
        channel = replace(channel, home=replace(channel.regional, pushes=pushes))
    work = replace(run.recipe.work, quota=Same())
    return replace(run, recipe=replace(run.recipe, work=work, channel={"outer": channel}))


def uneven(peers: int, factor: float = 40.0) -> list[Fault]:
    """Return what makes all machines slow, and each slower than the one before: so that they are done one by one."""
    return [SlowCompute(at_s=0.0, peer=peer, for_s=1e6, factor=factor * 1.37**peer) for peer in range(peers)]


def play(
    run: Run,
    places: Sequence[str] = TWOS,
    *,
    size: int = SIZE,
    faults: Sequence[Fault] = (),
    entrances: Sequence[Entrance] = (),
) -> Outcome:
    world = {"faults": [*uneven(len(places)), *faults], "entrances": entrances, "places": places}
    return world_play(run, len(places), build=sized(size), rate_bytes_s=1e9, seed=1, **world)  # type: ignore[arg-type]


def rounds_of(outcome: Outcome) -> list[Committed]:
    return commits(log_of(outcome))


# who tells when


def test_a_region_tells_when_it_has_had_enough_and_all_do_in_the_end() -> None:
    run = run_of(peers=len(TWOS), rounds=30)
    outcome = play(run)
    assert_sound(run, outcome, version=30)
    untold: dict[tuple[int, int], int] = {}
    told = []
    for each, where in walked(log_of(outcome)):
        if not isinstance(each, Committed):
            continue
        for peer in each.contributors:
            untold[where[peer]] = untold.get(where[peer], 0) + 1
        assert (each.announced.key.scope == ALL) == (each.announced.tells is not None)
        if each.announced.tells is not None:
            told += [untold.pop(where[peer]) - 1 for peer in each.contributors if each.announced.tells]
    assert len(told) >= 4
    assert all(K <= had <= K + 2 for had in told), "as soon as it has had as many, or a few at once"
    anew = [each.version for each in rounds_of(outcome) if each.announced.tells == ()]
    assert len(anew) == 2 and anew[-1] == 30, "when regions are found, and in the end"


def test_members_of_a_region_hold_one_state_and_those_of_another_another() -> None:
    run = run_of(peers=len(TWOS), rounds=20)
    outcome = play(run)
    version = next(each.version for each in rounds_of(outcome)[10:] if each.announced.tells)
    applied = ((line.peer, line.event) for line in outcome.lines if isinstance(line.event, journal.RoundApplied))
    held = {peer: event.anchor for peer, event in applied if event.version == version}
    assert len(held) == len(TWOS)
    assert len({*held.values()}) == 2


# what crosses


class Counted(NamedTuple):
    """What some rounds moved, in all and between regions; and what for."""

    sent: float
    crossed: float
    came: int
    """Contributions."""
    made: int
    """Results of a region."""
    telling: int
    """Rounds in which some told."""

    def less(self, other: Counted) -> Counted:
        return Counted(*(one - two for one, two in zip(self, other, strict=True)))  # type: ignore[arg-type]


@cache
def counted(recipe: str, rounds: int, pushes: int) -> Counted:
    """Return what a run moved, without what members told in vain at the same moment as another of their region."""
    outcome = play(run_of(recipe, peers=len(TWOS), rounds=rounds, pushes=pushes), size=PARAMETERS)
    sent = sum(round_bytes(outcome))
    told = {each.version: {*map(short, each.contributors)} for each in rounds_of(outcome) if _tells(each)}
    for line in outcome.lines:
        match line.event:
            case journal.ContributionSent(version=version) as event if line.peer not in told.get(version, {line.peer}):
                sent -= event.sent_bytes
    taken_in = [each for each in rounds_of(outcome) if not _tells(each)]
    made = [group for each in taken_in for group in each.announced.groups if {*group}.intersection(each.contributors)]
    return Counted(sent, outcome.crossed_bytes, sum(len(each.contributors) for each in taken_in), len(made), len(told))


def _tells(each: Committed) -> bool:
    return each.announced.tells is not None


def more(recipe: str, pushes: int = K) -> Counted:
    """Return what rounds add that come after those in which all meet; the last is in both."""
    return counted(recipe, 60, pushes).less(counted(recipe, 20, pushes))


def predicted(pushes: int) -> Traffic:
    recipe = run_of(peers=len(TWOS), rounds=1, pushes=pushes).recipe
    return traffic(recipe, PARAMETERS, [Line(region=place) for place in TWOS])


@LONG
def test_predicted_bytes_are_those_counted_where_no_region_tells() -> None:
    found, each_round = more("halos", pushes=10**9), sum(each.sent_bytes for each in predicted(10**9).moved)
    assert found.came == found.made == 40
    assert found.telling == 0
    assert found.sent == pytest.approx(found.came * each_round, rel=0.02)


@LONG
def test_predicted_bytes_are_those_counted() -> None:
    """Rounds in which a region takes something in, and those in which it tells: where one tells never, or always.

    More than 2 % only for what two of a region tell at the same moment, of which one is for nothing: how far that one
    comes before it hears so depends on when they are done, so it is bounded, by one contribution for each telling.
    """
    found, never, always = more("halos"), predicted(10**9), predicted(1)
    part, result = 4 * PARAMETERS / 2, 4 * PARAMETERS  # of two members in a region
    push = sum(each.sent_bytes for each in never.moved)
    assert push == pytest.approx(part + result, rel=1e-3)
    tell = 2 * sum(each.sent_bytes for each in always.moved) - push
    assert found.telling >= 4
    expected = found.came * part + found.made * result + found.telling * tell
    vain = found.telling * part  # of who tells at the same moment as its mate, as far as it comes: within a region
    assert 0.98 * expected <= found.sent <= 1.02 * (expected + vain)
    assert found.crossed == pytest.approx(found.telling * 2 * always.between_bytes, rel=0.06), "and some words"


@LONG
def test_what_crosses_falls_by_about_the_members_of_a_region_times_k() -> None:
    """Beside asynchronous local SGD among all N, for each contribution: by K (N + 1) / (R + 1), in R regions."""
    by_region, flat = more("halos"), more("async-local-sgd")
    told_every = by_region.came / by_region.telling
    assert told_every == pytest.approx(K, rel=0.2)
    falls = (flat.crossed / flat.came) / (by_region.crossed / by_region.came)
    assert falls == pytest.approx(told_every * (len(TWOS) + 1) / (len({*TWOS}) + 1), rel=0.1)


# who may die, and who comes


@pytest.mark.parametrize("at_s", [3.0, pytest.param(9.0, marks=LONG), pytest.param(15.0, marks=LONG)])
@pytest.mark.parametrize("peer", [1, pytest.param(0, marks=LONG)])
def test_what_a_region_holds_outlives_each_of_its_members(peer: int, at_s: float) -> None:
    run = run_of(peers=len(TWOS), rounds=24)
    outcome = play(run, faults=[Crash(at_s=at_s, peer=peer, restart_after_s=None)])
    assert violations(run, outcome) == []
    alive = [host for host in outcome.hosts if not host.gone]
    assert len(alive) == len(TWOS) - 1
    assert {anchor_of(host.disk).version for host in alive} == {24}
    assert len({anchor_of(host.disk).digest() for host in alive}) == 1
    assert not events(outcome, journal.RegionBegun), "nobody had to begin from the state above"


@LONG
def test_a_region_that_was_cut_off_goes_on_from_what_it_had() -> None:
    """Long enough for what the others told meanwhile to be gone: what is above comes from anybody."""
    run = run_of(peers=len(TWOS), rounds=80, pushes=1)
    outcome = play(run, faults=[Partition(at_s=8.0, side=(1, 2), for_s=25.0)])
    assert_sound(run, outcome, version=80)
    away = {short(outcome.hosts[place].peer) for place in (1, 2)}
    fetched = [line for line in outcome.lines if line.peer in away and isinstance(line.event, journal.StateFetched)]
    assert fetched
    assert not events(outcome, journal.RegionBegun)


def newcomer_in(place: str, *, rounds: int) -> tuple[Outcome, bytes]:
    """Play a run that one more peer joins in the tenth round, in some place; return what happened, and who it is."""
    run = run_of(peers=len(TWOS), rounds=rounds)
    outcome = play(run, (*TWOS, place), entrances=[Entrance(peer=len(TWOS), round=10)])
    assert_sound(run, outcome, version=rounds)
    return outcome, bytes(outcome.hosts[-1].peer)


def test_who_comes_late_takes_the_state_of_the_region_that_it_is_near_to() -> None:
    outcome, late = newcomer_in("west", rounds=30)
    groups = [group for each in rounds_of(outcome) for group in each.announced.groups if late in group]
    assert {len(group) for group in groups if len(group) < len(TWOS)} == {3}, "with those of the west"
    assert any(late in each.contributors for each in rounds_of(outcome)), "and it brings something in"


@LONG
def test_a_region_of_newcomers_begins_from_the_state_above() -> None:
    outcome, late = newcomer_in("south", rounds=40)
    assert events(outcome, journal.RegionBegun, peer=4)
    assert any(late in each.contributors and each.announced.tells for each in rounds_of(outcome)), "and tells"


@LONG
def test_one_slow_region_does_not_slow_the_others() -> None:
    """Slow in its work: as many rounds of the fast one in the same time, whatever the other does."""

    def east(factor: float) -> float:
        slow = [SlowCompute(at_s=0.0, peer=peer, for_s=1e6, factor=factor) for peer in (1, 2)]
        outcome = play(run_of(peers=len(TWOS), rounds=60), faults=slow)
        fast = {bytes(outcome.hosts[place].peer) for place in (0, 3)}
        return sum(len(fast.intersection(each.contributors)) for each in rounds_of(outcome)) / outcome.took_s

    assert east(400.0) == pytest.approx(east(40.0), rel=0.15)


def test_a_run_without_regions_to_hold_states_is_refused() -> None:
    run = run_of(peers=len(TWOS), rounds=8)
    channel = replace(run.recipe.channel["outer"], whom=All())
    with pytest.raises(SpecError, match="needs regions"):
        decode_run(canonical(replace(run, recipe=replace(run.recipe, channel={"outer": channel}))))
