"""Who is in which region: found from round trips, and kept while these come and go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.what import Params
from atoll.spec.axes.whom import All, Circles, Regions
from atoll.swarm.log import ALL, CIRCLES
from atoll.swarm.messages import Standing, trip_name
from atoll.swarm.policy.regions import STAY, Trips, regions_of
from atoll.swarm.routes.shares import numbered
from tests.swarm.table import A, B, C, D, Table, small_run

NEAR_MS = 10.0


def apart(places: list[int], near_ms: int = 1, far_ms: int = 90) -> list[list[int | None]]:
    """Return round trips between members who are in these regions."""
    return [
        [0 if a == b else near_ms if p == q else far_ms for b, q in enumerate(places)] for a, p in enumerate(places)
    ]


def first(trips_ms: Trips) -> tuple[int, ...]:
    """Return the regions of members who were in none before."""
    return regions_of(trips_ms, NEAR_MS, [None] * len(trips_ms))


def test_members_are_with_those_near_them_wherever_they_stand_in_the_list() -> None:
    assert first(apart([0, 1, 2, 0, 1, 0])) == (0, 1, 2, 0, 1, 0)
    assert first(apart([0, 0, 0])) == (0, 0, 0)
    assert first(apart([0, 1, 2])) == (0, 1, 2), "who is near to nobody is a region alone"


def test_neighbours_of_neighbours_are_not_all_one_region() -> None:
    """Six along a road, 8 ms from each to the next: the ends are 40 ms apart."""
    road: list[list[int | None]] = [[8 * abs(a - b) for b in range(6)] for a in range(6)]
    assert first(road) == (0, 0, 1, 1, 2, 2)


def test_round_trips_that_grow_for_a_while_move_nobody() -> None:
    home = first(apart([0, 0, 1, 1]))
    for near_ms in (2, 15, int(STAY * NEAR_MS)):
        assert regions_of(apart([0, 0, 1, 1], near_ms), NEAR_MS, home) == home
    assert regions_of(apart([0, 0, 1, 1], int(STAY * NEAR_MS) + 1), NEAR_MS, home) == (0, 1, 2, 3)


def test_regions_that_come_nearer_become_one_only_where_they_are_near() -> None:
    for far_ms, wanted in ((29, (0, 0, 1, 1)), (11, (0, 0, 1, 1)), (10, (0, 0, 0, 0))):
        assert regions_of(apart([0, 0, 1, 1], far_ms=far_ms), NEAR_MS, (0, 0, 1, 1)) == wanted


def test_one_who_moved_is_with_those_it_is_near_now() -> None:
    assert regions_of(apart([0, 0, 1, 1, 1]), NEAR_MS, (0, 0, 0, 1, 1)) == (0, 0, 1, 1, 1)


def test_a_newcomer_is_placed_by_whom_it_has_met() -> None:
    trips_ms = apart([0, 0, 1, 1, 1])
    for other in range(3):
        trips_ms[4][other] = trips_ms[other][4] = None
    assert regions_of(trips_ms, NEAR_MS, (0, 0, 1, 1, None)) == (0, 0, 1, 1, 1), "by the one it knows of there"
    trips_ms[4][3] = trips_ms[3][4] = None
    assert regions_of(trips_ms, NEAR_MS, (0, 0, 1, 1, None)) == (0, 0, 1, 1, 2), "it has met nobody"
    assert regions_of(trips_ms, NEAR_MS, (0, 0, 1, 1, 1)) == (0, 0, 1, 1, 1), "who was there stays: nothing is known"


@settings(max_examples=60)
@given(some.integers(1, 8), some.data())
def test_whatever_was_measured_everybody_is_in_one_region_and_the_next_round_changes_little(
    count: int, data: some.DataObject
) -> None:
    trip = some.one_of(some.none(), some.integers(0, 60))
    trips_ms: list[list[int | None]] = [[0] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            trips_ms[a][b] = trips_ms[b][a] = data.draw(trip)
    before = data.draw(some.lists(some.one_of(some.none(), some.integers(0, 3)), min_size=count, max_size=count))
    found = regions_of(trips_ms, NEAR_MS, before)
    assert found == numbered(found)
    again = found
    for _ in range(count):
        found, again = again, regions_of(trips_ms, NEAR_MS, again)
    assert found == again, "of the same round trips they come to rest"


# at the broker's table


def table(whom: All | Circles, places: dict[bytes, int]) -> Table:
    """Return a broker whose members stand there, having met each other or, where they have no place, nobody."""
    run = small_run(start_with=len(places))
    channel = replace(run.recipe.channel["outer"], whom=whom, what=Params())
    found = Table(replace(run, recipe=replace(run.recipe, channel={"outer": channel})))
    found.arrive(*places)
    for peer in places:
        found.say(peer, stands(peer, places))
    return found


def stands(peer: bytes, places: dict[bytes, int], version: int = 0) -> Standing:
    met = [other for other in places if other != peer and places[peer] >= 0 and places[other] >= 0]
    trips_ms = tuple((trip_name(other), 1 if places[peer] == places[other] else 90) for other in met)
    return Standing(version, f"anchor-{version}", trips_ms=trips_ms)


def test_the_announcement_names_regions_and_circles_are_these() -> None:
    found = table(Circles(pattern=Regions()), {A: 0, B: 1, C: 0, D: 1})
    (announced,) = found.announced()
    assert (announced.key.scope, announced.regions) == (CIRCLES, (0, 1, 0, 1))
    assert [circle.givers for circle in found.round.circles] == [(A, C), (B, D)]
    assert {shard.owner for shard in found.round.shards if shard.group == 1} == {B, D}
    (changed,) = found.notes(journal.RegionsChanged)
    assert [len(region) for region in changed.regions] == [2, 2]


def test_until_they_have_met_rounds_are_of_all_in_one_group() -> None:
    found = table(Circles(pattern=Regions()), {A: -1, B: -1, C: -1, D: -1})
    (announced,) = found.announced()
    assert (announced.key.scope, announced.regions) == (ALL, ())
    assert {shard.group for shard in found.round.shards} == {0}
    assert found.notes(journal.RegionsChanged) == []


def test_where_all_exchange_with_all_groups_are_regions() -> None:
    found = table(All(route=Regions()), {A: 0, B: 1, C: 0, D: 1})
    (announced,) = found.announced()
    assert (announced.key.scope, announced.regions) == (ALL, (0, 1, 0, 1))
    owners = [{shard.owner for shard in found.round.shards if shard.group == group} for group in (0, 1)]
    assert owners == [{A, C}, {B, D}]


def test_what_a_dead_owner_owned_stays_in_its_region() -> None:
    found = table(All(route=Regions()), {A: 0, B: 1, C: 0, D: 1})
    found.go(D)
    assert {shard.owner for shard in found.round.shards if shard.group == 1} == {B}
    found.go(B)
    assert {shard.owner for shard in found.round.shards if shard.group == 1} <= {A, C}, "nobody of it is left"


def test_a_new_broker_goes_on_with_the_regions_of_the_log() -> None:
    places = {A: 0, B: 1, C: 0, D: 1}
    found = table(All(route=Regions()), places)
    assert found.restarted().broker.history.regions == places


def test_a_region_of_which_nobody_is_back_is_served_by_the_others_beside_their_own() -> None:
    """Whatever these own there says nothing about their own region, in which a slow line alone owns everything."""
    places = {A: 0, B: 1, C: 2}
    found = table(All(route=Regions()), places).restarted()
    found.arrive(A, B)
    for peer, rate in ((A, 10**9), (B, 10)):
        found.say(peer, replace(stands(peer, places), up_bytes_s=rate, down_bytes_s=rate))
    found.tick(20.0)
    owners = [{shard.owner for shard in found.round.shards if shard.group == group} for group in range(3)]
    assert owners == [{A}, {B}, {A}]
