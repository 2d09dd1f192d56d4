"""Sums in trees, as the broker plans them: by what members measured, again when that pays, and whoever dies."""

from __future__ import annotations

from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.whom import All, Rings, Route, Trees
from atoll.swarm.log import RoundCommitted
from atoll.swarm.messages import Carrying, Standing, trip_name
from atoll.swarm.routes.shares import Bulk
from atoll.swarm.routes.tree import is_tree
from atoll.swarm.state import Note
from tests.swarm.table import BULK, A, B, C, D, E, Table, small_run

FIVE = (A, B, C, D, E)
MB = 1_000_000
Rates = dict[frozenset[bytes], float]


def seated(*peers: bytes, route: Route | None = None) -> Table:
    run = small_run(start_with=len(peers))
    channel = replace(run.recipe.channel["outer"], whom=All(route=route or Trees()))
    table = Table(replace(run, recipe=replace(run.recipe, channel={"outer": channel})))
    table.broker = replace(table.broker, bulks={"outer": (Bulk(BULK.chunks, MB),)})
    table.join(*peers)
    return table


def rates(fast: float = 10.0, **slow: float) -> Rates:
    """Return what links carry in MB/s: all the same but for those named by two letters."""
    found = {frozenset((a, b)): fast for a in FIVE for b in FIVE if a != b}
    letters = dict(zip("ABCDE", FIVE, strict=True))
    return found | {frozenset(letters[each] for each in pair): rate for pair, rate in slow.items()}


def stand(table: Table, known: Rates, *, trip_ms: int = 10) -> None:
    """Let members hold the newest anchor, and say what they measured."""
    version = table.broker.history.version
    for peer in FIVE:
        others = [other for other in FIVE if other != peer]
        trips = tuple((trip_name(other), trip_ms) for other in others)
        told = tuple((trip_name(other), round(known[frozenset((peer, other))] * MB)) for other in others)
        table.say(peer, Standing(version, f"anchor-{version}", trips_ms=trips, rates_bytes_s=told))


def finish(table: Table, known: Rates) -> None:
    """Finish two rounds, after which everybody stands with what it measured: the second is planned by the first's."""
    for _ in range(2):
        table.contribute(*FIVE)
        table.reduce(*table.round.owners)
        table.hold(*FIVE)
        stand(table, known)


def carried(table: Table, one: bytes, other: bytes) -> int:
    """Return the chunks that go over a link in the open round."""
    members = table.round.announced.members
    a, b = members.index(one), members.index(other)
    return sum(tree.chunks for tree in table.round.trees if tree.up[a] == b or tree.up[b] == a)


def told(table: Table) -> list[journal.TreesChanged]:
    notes = [action.event for action in table.did if isinstance(action, Note)]
    return [event for event in notes if isinstance(event, journal.TreesChanged)]


def test_trees_are_of_all_and_the_log_names_those_of_every_round() -> None:
    table = seated(*FIVE)
    assert sum(tree.chunks for tree in table.plan_of(B).trees) == BULK.chunks
    assert all(is_tree(tree, [True] * 5) for tree in table.plan_of(B).trees)
    trees = table.round.trees
    finish(table, rates())
    assert table.records(RoundCommitted)[0].trees == trees
    retold = table.committed()[0]
    assert sum(chunks for chunks, _ in retold.trees) == BULK.chunks
    assert all(set(above) == set(FIVE) for _, above in retold.trees)


def test_a_slow_link_is_left_out_once_it_is_known_and_trees_stay_while_nothing_changes() -> None:
    table = seated(*FIVE)
    finish(table, rates(AB=0.5))
    assert carried(table, A, B) == 0
    trees, changes = table.round.trees, len(told(table))
    for _ in range(3):
        finish(table, rates(AB=0.5))
        assert table.round.trees == trees
    assert len(told(table)) == changes


def test_trees_change_when_a_round_becomes_shorter_by_more_than_a_tenth_and_not_for_less() -> None:
    table = seated(*FIVE)
    finish(table, rates())
    trees = table.round.trees
    finish(table, rates(10.3, AB=9.8, CD=10.6))
    assert table.round.trees == trees, "that is noise"
    used = max(((a, b) for a in FIVE for b in FIVE if a < b), key=lambda pair: carried(table, *pair))
    before, slower = carried(table, *used), rates() | {frozenset(used): 1.0}
    finish(table, slower)
    assert table.round.trees != trees
    assert carried(table, *used) < 0.2 * before, "a tenth of the rate"
    event = told(table)[-1]
    assert event.version == table.round.key.version, "as soon as it is known"
    assert event.forecast_s < 0.9 * event.before_s
    assert sum(event.roots.values()) == 1
    assert len(event.roots) <= 4


def test_a_policy_that_asks_for_more_gain_keeps_its_trees() -> None:
    table = seated(*FIVE, route=Trees(gain=0.95))
    finish(table, rates())
    trees = table.round.trees
    finish(table, rates(AB=1.0, CD=1.0, AE=1.0))
    assert table.round.trees == trees


def test_a_round_stands_still_only_when_nobody_says_that_it_goes_on() -> None:
    table = seated(*FIVE)
    table.contribute(*FIVE)
    for done in range(1, 8):
        table.tick(20.0)
        table.say(C, Carrying(*table.plan_id(), done))
        assert table.round.settled is not None, "far longer than the half minute that it may stand still"
    table.tick(20.0)
    table.say(C, Carrying(*table.plan_id(), 7))
    table.tick(0.5)
    assert table.round.settled is not None
    table.tick(20.0)
    assert table.round.settled is None, "who says the same again goes on with nothing"


def test_who_dies_is_left_out_and_the_others_go_other_ways() -> None:
    table = seated(*FIVE)
    finish(table, rates())
    table.contribute(*FIVE)
    assert table.settled_of(A) == list(FIVE)
    table.go(C)
    assert table.round.owners == (A, B, D, E)
    assert all(is_tree(tree, [True, True, False, True, True]) for tree in table.round.trees)
    table.contribute(A, B, D, E)
    table.reduce(*table.round.owners)
    table.hold(A, B, D, E)
    assert table.committed()[-1].contributors == (A, B, D, E)


def test_two_that_do_not_reach_each_other_are_not_put_next_to_each_other() -> None:
    table = seated(*FIVE)
    table.contribute(*FIVE)
    table.stuck(B, C)
    assert table.round.trees
    assert carried(table, B, C) == 0


def test_where_no_tree_is_possible_the_broker_adds_everything_up_and_the_next_round_tries_again() -> None:
    table = seated(A, B, C)
    for one, other in ((A, B), (A, C), (B, C)):
        table.contribute(A, B, C)
        table.stuck(one, other)
    assert (table.round.owners, table.round.trees) == ((A,), ())
    table.finish_round(A, B, C)
    assert table.records(RoundCommitted)[-1].trees == ()
    assert table.round.trees


def test_where_nobody_is_left_the_round_waits_with_the_broker_that_leaves() -> None:
    table = seated(*FIVE)
    table.leave(A)
    table.go(*FIVE[1:])
    table.tick(after_s=1000.0)
    assert table.round.owners == (A,)
    assert not table.round.trees


def test_clusters_are_of_who_is_near_and_every_segment_has_one_owner_in_each() -> None:
    table = seated(*FIVE, route=Rings(clusters=2))
    assert table.plan_of(B).ring, "nobody has met anybody"
    finish(table, rates())
    trees = table.plan_of(B).trees
    assert sum(tree.chunks for tree in trees) == BULK.chunks
    assert all(is_tree(tree, [True] * 5) for tree in trees)
    finish(table, rates())
    assert table.records(RoundCommitted)[-1].trees == trees
