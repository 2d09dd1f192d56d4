"""Rings: who is in one and in which order, how it closes over who is gone, late or out of reach, and when it cannot."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.whom import GROUP_MAX, All, Ring
from atoll.spec.run import Run
from atoll.swarm.log import RoundCommitted
from atoll.swarm.messages import Plan, Refused, Standing, trip_name
from atoll.swarm.policy.patience import BUSY_S
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.ring import length, tour
from atoll.swarm.routes.shares import Shard
from tests.swarm.table import A, B, C, D, Table, small_run


def ring_run(*, start_with: int = 4, contributors_min: int = 1, patience_s_max: float = 60.0) -> Run:
    run = small_run(start_with=start_with, contributors_min=contributors_min, patience_s_max=patience_s_max)
    channel = replace(run.recipe.channel["outer"], whom=All(route=Ring()))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def seated(*peers: bytes, contributors_min: int = 1) -> Table:
    table = Table(ring_run(start_with=len(peers), contributors_min=contributors_min))
    table.join(*peers)
    return table


def two_regions(count: int, near_s: float = 0.01, far_s: float = 0.15) -> list[list[float]]:
    """Return round trips among peers every other of which is on the other side of an ocean."""
    return [[0.0 if a == b else far_s if (a + b) % 2 else near_s for b in range(count)] for a in range(count)]


# order


def test_a_tour_of_two_regions_crosses_between_them_twice_and_no_hop_is_slower_than_in_any_other_order() -> None:
    costs = two_regions(10)
    order = tour(costs)
    hops = [costs[order[at - 1]][place] for at, place in enumerate(order)]
    assert sorted(order) == list(range(10))
    assert hops.count(0.15) == 2
    rng = Random(0)
    for _ in range(100):
        other = rng.sample(range(10), 10)
        assert max(hops) <= max(costs[other[at - 1]][place] for at, place in enumerate(other))
        assert length(costs, order) <= length(costs, other) + 1e-9


@settings(max_examples=60)
@given(some.lists(some.tuples(some.floats(0, 1), some.floats(0, 1)), min_size=1, max_size=7))
def test_a_tour_visits_everybody_once_and_is_hardly_longer_than_the_shortest(places: list[tuple[float, float]]) -> None:
    costs = [[((a - c) ** 2 + (b - d) ** 2) ** 0.5 for c, d in places] for a, b in places]
    order = tour(costs)
    assert sorted(order) == list(range(len(places)))
    shortest = min(length(costs, [0, *rest]) for rest in permutations(range(1, len(places))))
    assert length(costs, order) <= 1.3 * shortest + 1e-6


def test_where_all_are_alike_the_order_is_the_canonical_one() -> None:
    assert tour([[0.0 if a == b else 0.05 for b in range(6)] for a in range(6)]) == list(range(6))
    assert seated(D, B, A, C).round.owners == (A, B, C, D)


def test_the_order_follows_what_members_measure_of_each_other_if_that_is_clearly_shorter() -> None:
    table = seated(A, B, C, D)
    table.finish_round(A, B, C, D)
    assert table.round.owners == (A, B, C, D)
    told(table, far_ms=20)
    finish_but_stand(table)
    told(table, far_ms=20)
    assert table.round.owners == (A, B, C, D), "80 ms would not be much"
    finish_but_stand(table)
    told(table, far_ms=200)
    finish_but_stand(table)
    told(table, far_ms=200)
    assert crossings(table.round.owners) == 2, "A and C are near, B and D too"


def told(table: Table, far_ms: int) -> None:
    """Let members stand with what they measured: A and C are far from B and D."""
    peers, version = [A, B, C, D], table.broker.history.version
    for at, peer in enumerate(peers):
        trips = tuple(
            (trip_name(other), far_ms if (at + to) % 2 else 1) for to, other in enumerate(peers) if other != peer
        )
        table.say(peer, Standing(version, f"anchor-{version}", trips_ms=trips))


def finish_but_stand(table: Table) -> None:
    table.contribute(A, B, C, D)
    table.reduce(*table.round.owners)
    table.hold(A, B, C, D)


def crossings(order: tuple[bytes, ...]) -> int:
    return sum((peer in (A, C)) != (order[at - 1] in (A, C)) for at, peer in enumerate(order))


# routes


@given(some.integers(1, 9), some.integers(1, 20))
def test_every_sum_goes_round_all_members_and_ends_where_its_result_is_returned_from(count: int, chunks: int) -> None:
    peers = [bytes([i]) * 32 for i in range(count)]
    late = b"\xff" * 32
    layout = Layout([Shard(p, 0, chunks, i) for i, p in enumerate(peers)], [*peers, late], ring=True)
    for index in range(chunks):
        chain = [peers[place] for place in layout.way_of[index].upwards]
        assert sorted(chain) == peers
        assert layout.roots(chain[-1]).count((0, index)) == 1, "its root is the last to add"
        for peer, following in pairwise(chain):
            assert (peers.index(peer), index) in layout.sums(peer)[following]
    sent = sum(len(units) for peer in peers for units in layout.sums(peer).values())
    assert sent == (count - 1) * chunks
    for peer in peers:
        assert not any(layout.parts(owner, peer) for owner in peers if owner != peer), "contributions stay at home"
        got = [cell for owner in peers for cell in layout.returned(owner, peer)] + layout.roots(peer)
        assert sorted(got) == [(0, index) for index in range(chunks)]
    assert sum(len(layout.returned(owner, late)) for owner in peers) == chunks, "who is not in it gets the result too"


def test_sums_and_results_of_another_order_have_other_names() -> None:
    members = (A, B, C, D)
    orders = [(A, B, C, D), (A, C, B, D), (A, D, C, B)]
    layouts = [Layout([Shard(p, 0, 8, i) for i, p in enumerate(order)], members, ring=True) for order in orders]
    plain = Layout([Shard(A, 0, 8)], members)
    names = {layout.set_of([1, 1, 1, 1], (0, 0)) for layout in (*layouts, plain)}
    assert len(names) == 4
    alone, owner = Layout([Shard(A, 0, 8)], [A], ring=True), Layout([Shard(A, 0, 8)], [A])
    assert alone.set_of([1], (0, 0)) != owner.set_of([1], (0, 0)), "in a ring of one nothing is rounded before the end"
    assert len({name for layout in layouts for name in layout.sums_along([1, 1, 1, 1], layout.ways[0])}) >= 7


# who is in it


def test_a_ring_is_settled_on_all_who_are_in_it_and_the_log_tells_the_order() -> None:
    table = seated(A, B, C, D)
    assert table.plan_of(B).ring
    table.finish_round(A, B, C, D)
    (committed,) = table.records(RoundCommitted)
    assert committed.ring == (0, 1, 2, 3)
    assert table.committed()[0].ring == (A, B, C, D)


def test_who_is_late_is_left_out_and_the_others_go_round_without_it() -> None:
    table = seated(A, B, C, D)
    table.contribute(A, B, C)
    table.tick(70.0)
    assert table.round.owners == (A, B, C)
    assert table.round.settled is None, "it is settled once they have heard of the new ring"
    table.contribute(A, B, C)
    assert table.settled_of(B) == [A, B, C]
    table.contribute(D)
    assert table.settled_of(B) == [A, B, C]


def test_who_dies_in_mid_round_takes_its_contribution_along() -> None:
    table = seated(A, B, C, D)
    table.contribute(A, B, C, D)
    assert table.settled_of(A) == [A, B, C, D]
    table.go(C)
    assert table.round.owners == (A, B, D)
    table.contribute(A, B, D)
    table.reduce(A, B, D)
    table.hold(A, B, D)
    assert [each.contributors for each in table.committed()] == [(A, B, D)]


def test_who_is_back_before_the_ring_is_settled_is_in_again() -> None:
    table = seated(A, B, C, D)
    table.contribute(A, B)
    table.go(C)
    assert list(table.round.owners) == [A, B, D]
    table.join(C)
    assert list(table.round.owners) == [A, B, C, D]
    table.contribute(A, B, C, D)
    assert table.settled_of(A) == [A, B, C, D]


def test_who_was_in_a_broken_ring_and_says_nothing_is_not_waited_for_as_long_as_for_its_work() -> None:
    table = seated(A, B, C, D)
    table.contribute(A, B, C, D)
    table.arrive(C)  # before it was missed: perhaps it started anew
    assert table.round.settled is None
    table.contribute(A, B, D)
    table.tick(BUSY_S + 1.0)
    assert table.round.owners == (A, B, D)


def test_two_that_do_not_reach_each_other_are_not_put_side_by_side() -> None:
    table = seated(A, B, C, D)
    table.contribute(A, B, C, D)
    table.stuck(B, C)
    order = table.round.owners
    assert sorted(order) == [A, B, C, D]
    assert {frozenset((order[at - 1], peer)) for at, peer in enumerate(order)}.isdisjoint({frozenset((B, C))})


def test_where_no_ring_is_possible_the_broker_adds_everything_up() -> None:
    table = seated(A, B, C)
    table.contribute(A, B, C)
    table.stuck(B, C)
    assert (table.round.owners, table.round.ring) == ((A,), False)
    table.finish_round(A, B, C)
    (committed,) = table.records(RoundCommitted)
    assert committed.ring == ()
    assert table.round.ring, "the next round tries a ring again"


def test_a_ring_in_which_nothing_moves_has_twice_the_time_once_and_is_given_up_for_the_broker_then() -> None:
    table = seated(A, B, C)
    for stall_s in (31.0, 61.0):
        assert list(table.round.owners) == [A, B, C]
        table.contribute(A, B, C)
        table.tick(0.5)
        table.tick(stall_s - 2.0)
        assert table.round.settled is not None
        table.tick(2.0)
        assert table.round.settled is None
    assert (list(table.round.owners), table.round.ring) == ([A], False)


def test_who_is_late_is_waited_for_again_where_too_few_are_left_without() -> None:
    table = seated(A, B, C, contributors_min=2)
    table.contribute(A, B)
    table.tick(70.0)
    assert table.round.owners == (A, B)
    table.go(B)
    assert table.round.owners == (A, C)
    table.contribute(A, C)
    assert table.settled_of(A) == [A, C]


def test_a_new_broker_goes_on_with_the_same_ring() -> None:
    table = seated(A, B, C, D)
    plan = table.plan_of(A)
    again = Table(table.broker.run, table.log, table.now_s + 1.0, plan=plan)
    again.join(A, B, C, D)
    again.tick(2.0)
    assert again.round.ring
    assert again.round.shards == plan.shards
    assert isinstance(again.plan_of(B), Plan)


def test_a_ring_has_no_place_for_more_than_it_can_carry() -> None:
    table = Table(ring_run(start_with=1000))
    table.join(A)
    peers = [bytes([2, i]) + b"\x02" * 30 for i in range(GROUP_MAX)]
    table.join(*peers)
    (refused,) = table.told(peers[-1], Refused)
    assert "butterfly" in refused.hint
    assert len(table.roster()) == GROUP_MAX
    assert len(table.notes(journal.JoinRefused)) == 1
