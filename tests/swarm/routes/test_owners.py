"""Who owns what in a round: by measured rates, not by noise; and only who can be reached by everybody."""

from __future__ import annotations

from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.whom import All, AllGather, Butterfly, Route, Star
from atoll.swarm.broker import step
from atoll.swarm.log import Member
from atoll.swarm.messages import Reduced, Standing, Stuck
from atoll.swarm.routes.owners import without
from atoll.swarm.routes.shares import Bulk, chunks_of, owners_of
from atoll.swarm.state import Arrived
from tests.swarm.table import BULK, A, B, C, D, Table, small_run

MB = 1_000_000


def measured(table: Table, **rates: int | tuple[int, int]) -> None:
    """Let members report what they measured of their lines, in MB/s up and down."""
    version = table.broker.history.version
    for name, rate in rates.items():
        up, down = rate if isinstance(rate, tuple) else (rate, rate)
        table.say({"a": A, "b": B, "c": C, "d": D}[name], Standing(version, f"anchor-{version}", up * MB, down * MB))


def big(*peers: bytes, members: int = 3) -> Table:
    """Return a table where a contribution has 60 MB."""
    table = Table(small_run(start_with=members, rounds=50))
    table.broker = replace(table.broker, bulks={"outer": (Bulk(BULK.chunks, MB),)})
    table.join(*peers)
    return table


def owned(table: Table) -> dict[bytes, int]:
    return {peer: len(chunks_of(table.round.shards, peer)) for peer in table.round.announced.members}


def round_with(table: Table, **rates: int | tuple[int, int]) -> dict[bytes, int]:
    """Report rates, finish the open round, and return who owns how many chunks of the next one."""
    measured(table, **rates)
    peers = [p for p in table.round.announced.members if p in table.broker.present]
    table.contribute(*peers)
    table.reduce(*table.round.owners)
    table.hold(*peers)
    measured(table, **rates)
    return owned(table)


def test_while_nothing_is_measured_everybody_owns_alike_and_nothing_is_said() -> None:
    table = big(A, B, C)
    assert owned(table) == {A: 20, B: 20, C: 20}
    assert round_with(table, a=0, b=0, c=0) == {A: 20, B: 20, C: 20}
    assert table.notes(journal.SharesChanged) == []


def test_a_slow_member_owns_nothing_and_the_journal_says_why() -> None:
    table = big(A, B, C)
    assert round_with(table, a=10, b=10, c=1) == {A: 30, B: 30, C: 0}
    (changed,) = table.notes(journal.SharesChanged)
    assert changed.shares == {A.hex()[:8]: 0.5, B.hex()[:8]: 0.5, C.hex()[:8]: 0.0}
    assert "80.0 s" in changed.why
    assert "60.0 s" in changed.why


def test_the_slower_direction_counts() -> None:
    assert round_with(big(A, B, C), a=10, b=10, c=(100, 1)) == {A: 30, B: 30, C: 0}
    assert round_with(big(A, B, C), a=10, b=10, c=(1, 100)) == {A: 30, B: 30, C: 0}


def test_who_has_not_measured_anything_counts_as_the_median() -> None:
    assert round_with(big(A, B, C), a=10, b=0, c=10) == {A: 20, B: 20, C: 20}


def test_noise_changes_nothing() -> None:
    table = big(A, B, C)
    first = round_with(table, a=100, b=50, c=80)
    for a, b, c in ((95, 53, 82), (106, 48, 78), (99, 51, 80), (100, 50, 80)):
        assert round_with(table, a=a, b=b, c=c) == first
    assert len(table.notes(journal.SharesChanged)) == 1


def test_a_line_that_becomes_slow_loses_its_share_in_the_next_round() -> None:
    table = big(A, B, C)
    round_with(table, a=10, b=10, c=10)
    assert round_with(table, a=10, b=10, c=1)[C] == 0
    assert round_with(table, a=10, b=10, c=10) == {A: 20, B: 20, C: 20}


EQUAL = {A: 20, B: 20, C: 20}
UNEQUAL = {A: 30, B: 30, C: 0}


def slow_round(table: Table, took_s: float) -> dict[bytes, int]:
    """Let a round take so long in which C's line looks slow, and return who owns how many chunks of the next one."""
    table.now_s += took_s
    return round_with(table, a=10, b=10, c=1)


def test_shares_that_make_a_round_longer_are_taken_back_and_rates_are_not_listened_to_for_a_while() -> None:
    table = big(A, B, C)
    assert slow_round(table, 40.0) == UNEQUAL
    assert slow_round(table, 50.0) == EQUAL
    assert "took 50.0 s with the others, 40.0 s" in table.notes(journal.SharesChanged)[-1].why
    assert [slow_round(table, 40.0) for _ in range(4)] == [EQUAL, EQUAL, EQUAL, UNEQUAL]
    assert [slow_round(table, 50.0)] + [slow_round(table, 40.0) for _ in range(8)] == [EQUAL] * 8 + [UNEQUAL]


def test_rounds_of_another_kind_say_nothing_of_shares() -> None:
    table = big(A, B, C)
    assert slow_round(table, 40.0) == UNEQUAL
    others = {
        ("outer", f"part {number}"): (version, 99.0)
        for number, (version, _) in enumerate([*table.broker.took.values()])
    }
    assert table.broker.trial is not None
    table.broker = replace(table.broker, trial=replace(table.broker.trial, took=others))
    assert slow_round(table, 50.0) == UNEQUAL, "what is twice as long may have twice as much to send"
    assert table.broker.trial is not None, "and is still to be judged"


def test_shares_that_make_a_round_shorter_stay() -> None:
    table = big(A, B, C)
    assert [slow_round(table, took_s) for took_s in (40.0, 30.0, 50.0, 50.0)] == [UNEQUAL] * 4


def test_who_comes_or_goes_ends_a_trial() -> None:
    table = big(A, B, C)
    assert slow_round(table, 40.0) == UNEQUAL
    table.join(D)
    table.now_s += 50.0
    assert round_with(table, a=10, b=10, c=10, d=10) == {A: 15, B: 15, C: 15, D: 15}


def test_a_gain_too_small_to_notice_changes_nothing() -> None:
    table = Table(small_run(start_with=3))
    table.join(A, B, C)
    table.broker = replace(table.broker, bulks={"outer": (Bulk(BULK.chunks, 1000),)})
    assert round_with(table, a=10, b=10, c=1) == {A: 20, B: 20, C: 20}, "60 kB: nobody would notice"


def test_a_member_with_little_memory_owns_no_more_than_fits() -> None:
    table = big(A, B, C)
    table.say(C, Standing(0, "anchor-0", 10 * MB, 10 * MB, 150 * MB))
    table.finish_round(A, B, C)
    assert owned(table)[C] == 15, "150 MB: two contributions of 60 MB, and a quarter of two others'"


def test_a_newcomer_shares_and_that_is_said() -> None:
    table = big(A, B, C)
    table.join(D)
    assert round_with(table, a=10, b=10, c=10, d=10) == {A: 15, B: 15, C: 15, D: 15}
    assert f"{D.hex()[:8]} came" in table.notes(journal.SharesChanged)[-1].why


# reachability


def never(table: Table, by: bytes, owner: bytes) -> None:
    table.say(by, Stuck(*table.plan_id(), owner, True))


def test_who_cannot_be_reached_by_a_member_owns_nothing_from_then_on_and_nothing_is_planned_twice() -> None:
    table = big(A, B, C)
    never(table, C, B)
    never(table, B, C)
    assert owned(table) == {A: 60, B: 0, C: 0}
    told = [(note.by, note.who) for note in table.notes(journal.PeerUnreachable)]
    assert told == [(C.hex()[:8], B.hex()[:8]), (B.hex()[:8], C.hex()[:8])]
    assert "has never reached" in table.notes(journal.PeerUnreachable)[0].why
    for _ in range(3):
        assert round_with(table, a=10, b=10, c=10) == {A: 60, B: 0, C: 0}
    assert len(table.notes(journal.RoundReplanned)) == 2, "only in the round where it was found out"


def test_a_link_that_broke_is_held_against_an_owner_for_one_round_only() -> None:
    table = big(A, B, C)
    table.stuck(C, B)
    assert owned(table)[B] == 0
    assert table.notes(journal.PeerUnreachable) == []
    assert round_with(table, a=0, b=0, c=0)[B] == 20


def test_a_link_that_breaks_in_a_second_round_too_is_held_against_an_owner_as_one_that_never_worked() -> None:
    table = big(A, B, C)
    table.stuck(C, B)
    round_with(table, a=0, b=0, c=0)
    table.stuck(C, B)
    assert "as in round 1" in table.notes(journal.PeerUnreachable)[0].why
    assert round_with(table, a=0, b=0, c=0)[B] == 0
    assert len(table.notes(journal.RoundReplanned)) == 2


def test_who_comes_again_is_tried_again() -> None:
    table = big(A, B, C)
    never(table, C, B)
    table.go(B)
    table.join(B)
    table.contribute(A, B, C)
    table.reduce(*table.round.owners)
    table.hold(A, C)
    table.stand(A, C, B)
    assert owned(table)[B] == 20


def test_a_member_that_is_not_in_the_round_keeps_nobody_from_owning() -> None:
    table = big(A, B, C, members=3)
    never(table, C, B)
    table.leave(C)
    assert round_with(table, a=0, b=0)[B] == 30


def test_nobody_can_say_that_it_never_reached_the_broker() -> None:
    table = big(A, B, C)
    never(table, C, A)
    assert table.notes(journal.PeerUnreachable) == []
    assert round_with(table, a=0, b=0, c=0)[A] == 20


def test_where_nobody_is_reached_by_all_the_broker_owns_everything() -> None:
    table = Table(small_run(start_with=3, rounds=50))
    table.join(B, C, D)
    for by, owner in ((C, B), (D, C), (B, D)):
        never(table, by, owner)
    assert table.round.owners == (A,)
    broker, _ = step(table.broker, Arrived(Member(A, ()), 0), table.now_s)
    assert broker.round is not None
    assert broker.round.owners == (A,)


# everybody gathers everything


def by(route: Route) -> Table:
    run = small_run(start_with=3, rounds=50)
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(channel, whom=All(route=route))
    table = Table(replace(run, recipe=replace(run.recipe, channel={name: channel})))
    table.join(A, B, C)
    return table


def test_who_gathers_owns_everything_and_the_commit_waits_for_everybody_here() -> None:
    table = by(AllGather())
    assert table.plan_of(A).gather
    assert owned(table) == {A: 60, B: 60, C: 60}
    table.contribute(A, B, C)
    table.hold(A, B)
    assert table.committed() == []
    table.hold(C)
    assert len(table.committed()) == 1


def test_who_makes_another_result_than_most_is_named_and_the_others_commit_theirs() -> None:
    table = by(AllGather())
    table.contribute(A, B, C)
    table.hold(B, result="odd")
    table.hold(A, C, result="common")
    assert [c.result for c in table.committed()] == ["common"]
    assert [(note.who, "another result" in note.why) for note in table.notes(journal.MessageRefused)] == [
        (B.hex()[:8], True)
    ]


def test_who_dies_while_all_gather_is_left_out_and_a_lone_one_returns_what_it_made() -> None:
    table = by(AllGather())
    table.contribute(A, B, C)
    table.go(C)
    assert list(table.round.owners) == [A, B]
    table.go(B)
    assert list(table.round.owners) == [A]
    assert not table.plan_of(A).gather
    table.contribute(A)
    table.reduce(A)
    table.hold(A)
    assert len(table.committed()) == 1


def test_digests_of_the_wrong_number_of_chunks_are_refused() -> None:
    table = big(A, B, C)
    table.contribute(A, B, C)
    table.say(B, Reduced(*table.plan_id(), (b"d" * 32,)))
    assert [note.who for note in table.notes(journal.MessageRefused)] == [B.hex()[:8]]
    assert B not in table.round.reduced


# groups


def test_members_beyond_a_group_are_cut_into_groups_that_each_own_the_grid() -> None:
    run = small_run(start_with=4, rounds=50)
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(channel, whom=All(route=Butterfly(group=2)))
    table = Table(replace(run, recipe=replace(run.recipe, channel={name: channel})))
    table.join(A, B, C, D)
    assert [(s.owner, s.group, s.count) for s in table.round.shards] == [(A, 0, 30), (B, 0, 30), (C, 1, 30), (D, 1, 30)]
    table.go(D)
    assert [(s.owner, s.group, s.count) for s in table.round.shards] == [(A, 0, 30), (B, 0, 30), (C, 1, 60)]
    table.go(C)
    assert {s.owner for s in table.round.shards if s.group == 1} == {A, B}, "others serve a group that has nobody left"
    table.finish_round(A, B)
    assert len(table.committed()) == 1


# one for all


def test_in_a_star_whoever_leads_owns_everything_whatever_lines_carry() -> None:
    table = by(Star())
    assert table.broker.me == A
    assert owned(table) == {A: 60, B: 0, C: 0}
    assert round_with(table, a=1, b=10, c=10) == {A: 60, B: 0, C: 0}
    assert table.notes(journal.SharesChanged) == []


def test_in_a_star_who_only_trains_can_go_without_another_plan() -> None:
    table = by(Star())
    attempt = table.round.attempt
    table.contribute(A, B)
    table.leave(C)
    assert table.round.attempt == attempt
    table.reduce(A)
    table.hold(A, B)
    assert len(table.committed()) == 1


def test_in_a_star_a_new_leader_takes_over_from_one_that_is_gone() -> None:
    table = by(Star())
    left = replace(table.broker, me=B, present={p: each for p, each in table.broker.present.items() if p != A})
    assert owners_of(without(left, table.round, [A])) == (B,)
