"""Other routes to the same result: groups with sums passed up, and everybody gathering everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.peer.results import sound_result
from atoll.sim.faults import Crash, Fault, Partition
from atoll.sim.scenario import Build, Outcome
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.whom import All, AllGather, Butterfly, Route
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import anchor_of, assert_sound, counting_run, events, play, sized

SIZE = 640
"""Elements of the model: ten chunks."""
CRASHES_S = (0.3, 0.45, 0.52, 0.6, 0.75, 0.9)


def routed(route: Route, peers: int, *, rounds: int = 5) -> Run:
    run = counting_run(rounds=rounds, start_with=peers, codec=Fp32())
    ((channel, how),) = run.recipe.channel.items()
    whom = All(route=route)
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, whom=whom)}))


def played(route: Route, peers: int, *, faults: Sequence[Fault] = (), build: Build | None = None) -> Outcome:
    run = routed(route, peers)
    outcome = play(run, peers, faults=faults, build=build or sized(SIZE))
    assert_sound(run, outcome, version=5)
    return outcome


# groups


@pytest.mark.parametrize(("peers", "group"), few_of([(4, 2), (5, 2), (7, 3), (9, 2)], ((5, 2), (7, 3))))
def test_groups_that_pass_sums_up_keep_every_promise(peers: int, group: int) -> None:
    outcome = played(Butterfly(group=group), peers)
    committed = events(outcome, journal.RoundCommitted, peer=0)
    assert all(len(event.contributors) == peers for event in committed)
    assert events(outcome, journal.RoundReplanned) == []


def test_groups_bring_everybody_the_same_bits_and_those_of_a_plain_exchange_where_sums_are_exact() -> None:
    plain, grouped = (first_result(played(Butterfly(group=group), 6)) for group in (64, 2))
    assert np.array_equal(plain[::2], grouped[::2]), "every other element moves by whole counts"
    assert not np.array_equal(plain, grouped), "the others do not, and groups add up in another order"


def first_result(outcome: Outcome) -> Vector:
    """Return the result of the first round, of which all disks that have it have the same."""
    results = [sound_result(data) for data in outcome.held[1]]
    (whole,) = {b"".join(result.chunks) for result in results if result is not None}
    return np.frombuffer(whole, "<f4")


@pytest.mark.parametrize("peer", few_of((1, 3, 5), (1,)))
def test_whoever_dies_of_a_group_owner_or_root_the_others_go_on(peer: int) -> None:
    for at_s in CRASHES_S:
        played(Butterfly(group=2), 6, faults=[Crash(at_s=at_s, peer=peer, restart_after_s=1.5)])


def test_a_whole_group_may_die() -> None:
    run = routed(Butterfly(group=2), 6)
    dead = [Crash(at_s=0.5, peer=peer, restart_after_s=4.0) for peer in (1, 2)]
    outcome = play(run, 6, faults=dead, build=sized(640))
    assert_sound(run, outcome, version=5)


# gathering


@pytest.mark.parametrize("peers", [1, 2, 4])
def test_who_gathers_everything_makes_the_same_result_as_everybody_else(peers: int) -> None:
    outcome = played(AllGather(), peers)
    assert events(outcome, journal.RoundReplanned) == []
    assert all(len(event.contributors) == peers for event in events(outcome, journal.RoundCommitted, peer=0))


@pytest.mark.parametrize("peer", [1, pytest.param(2, marks=pytest.mark.long)])
def test_whoever_dies_while_all_gather_the_others_go_on(peer: int) -> None:
    for at_s in CRASHES_S:
        played(AllGather(), 4, faults=[Crash(at_s=at_s, peer=peer, restart_after_s=1.5)])


def test_who_cannot_be_reached_gathers_nothing_and_still_contributes() -> None:
    outcome = played(AllGather(), 4, faults=[Partition(at_s=0.0, side=(1,), others=(2,), for_s=1e6)])
    assert all(len(event.contributors) == 4 for event in events(outcome, journal.RoundCommitted, peer=0))


def test_a_round_is_the_same_as_by_the_butterfly() -> None:
    one, other = played(Butterfly(), 3), played(AllGather(), 3)
    assert {anchor_of(h.disk).digest() for h in one.hosts} == {anchor_of(h.disk).digest() for h in other.hosts}
