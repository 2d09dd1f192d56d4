"""What the broker decides, situation by situation."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import Identity
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import Carry, Discard, Late, Quorum, Seconds, Slack
from atoll.spec.axes.what import Params
from atoll.spec.axes.whom import Circles, Drawn
from atoll.spec.run import AllowList, Budget, Membership, canonical, identity
from atoll.swarm.broker import CROWD, GONE_S_MAX, RESUME_S, step, take_office
from atoll.swarm.lease import Range
from atoll.swarm.log import (
    ALL,
    CIRCLES,
    CouncilChanged,
    Entry,
    EpochStarted,
    History,
    Key,
    Member,
    RosterChanged,
    RoundVoided,
    RunFinished,
    SettingsChanged,
    to_sign,
)
from atoll.swarm.messages import (
    Append,
    Contributed,
    Farewell,
    Hello,
    Holding,
    Plan,
    Reduced,
    Refused,
    Settings,
    Spoiled,
    Standing,
    Stuck,
    Welcome,
)
from atoll.swarm.policy.patience import LINKS_S, STALL_S
from atoll.swarm.routes.shares import Shard
from atoll.swarm.state import REUNION_S, Arrived, Catch, Gone, Logged, Said, Tell, Tick, Wake, Write
from tests.swarm.table import BULK, A, B, C, D, E, Table, alike, small_run


def three(**kwargs) -> Table:  # type: ignore[no-untyped-def]
    """Return a table with three members and the first round announced."""
    table = Table(small_run(start_with=3, **kwargs))
    table.join(A, B, C)
    return table


# coming in


def test_taking_office_is_the_first_record() -> None:
    assert [entry.record for entry in Table().log[1:]] == [EpochStarted(1, A)]


def test_a_newcomer_is_welcomed_with_the_run_and_sent_the_log_from_where_it_stops() -> None:
    table = three()
    actions = table.hear(Arrived(Member(D, ("d:1",)), 2))
    assert actions[0] == Tell(D, Welcome(canonical(table.broker.run)))
    assert actions[1] == Catch(D, 2)
    assert actions[2] == Tell(D, Plan(Key("outer", 1), 1, 0, alike(A, B, C)))


def test_nobody_is_on_the_roster_before_it_stands() -> None:
    table = Table()
    table.arrive(A, B)
    assert table.roster() == []
    table.stand(B)
    assert table.roster() == [B]
    assert [note.who for note in table.notes(journal.PeerJoined)] == [B.hex()[:8]]


def test_no_round_is_announced_before_as_many_stand_as_the_run_starts_with() -> None:
    table = Table(small_run(start_with=3))
    table.join(A, B)
    table.arrive(C)
    table.tick(100.0)
    assert table.announced() == []
    table.stand(C)
    assert [round_.members for round_ in table.announced()] == [(A, B, C)]


def test_a_round_names_members_in_canonical_order_with_a_lease_each_and_the_anchor_it_starts_from() -> None:
    table = Table(small_run(start_with=3))
    table.join(C, A, B)
    (announced,) = table.announced()
    assert announced.version == 1
    assert announced.members == (A, B, C)
    assert announced.leases == {A: [0, 1, 2, 3], B: [4, 5, 6, 7], C: [8, 9, 10, 11]}
    assert announced.base == "anchor-0"


def test_after_the_first_round_fewer_than_start_with_may_go_on() -> None:
    table = three()
    table.finish_round(A, B, C)
    table.go(B, C)
    table.finish_round(A)
    assert table.announced()[-1].members == (A,)


def test_a_round_waits_for_as_many_contributors_as_the_run_wants() -> None:
    table = Table(small_run(start_with=2, contributors_min=2))
    table.join(A, B)
    table.contribute(A)
    table.go(B)
    table.tick(10_000.0)
    assert table.plan_of(A).settled is None
    table.arrive(B)
    table.stand(B, version=0)
    table.contribute(A, B)
    assert table.settled_of(A) == [A, B]


def test_a_peer_that_is_not_listed_is_refused_with_what_to_do_about_it() -> None:
    table = Table(small_run(membership=Membership(who=AllowList(peers=(B.hex(),)))))
    table.join(A, B, C)
    assert table.roster() == [A, B], "the organiser need not list itself"
    (refused,) = table.told(C, Refused)
    assert C.hex() in refused.hint
    assert table.told(C, Welcome) == []
    assert [note.who for note in table.notes(journal.JoinRefused)] == [C.hex()[:8]]


def test_what_a_peer_says_that_is_not_present_is_ignored() -> None:
    table = three()
    before = table.broker
    table.say(D, Standing(0, "anchor-0"))
    table.say(D, Contributed(*table.plan_id(), 1))
    table.go(D)
    assert table.broker == before


def test_a_joiner_in_the_middle_of_a_round_is_counted_from_the_next_one() -> None:
    table = three()
    table.join(D)
    assert table.roster() == [A, B, C, D]
    assert len(table.announced()) == 1
    table.say(D, Contributed(*table.plan_id(), 1))
    table.finish_round(A, B, C)
    assert table.committed()[0].contributors == (A, B, C)
    assert table.announced()[1].members == (A, B, C, D)


def test_who_lags_a_little_is_counted_in_and_who_lags_more_is_not() -> None:
    table = three()
    for _ in range(4):
        table.finish_round(A, B, C)
    table.arrive(D, E)
    table.stand(D, version=1)
    table.stand(E, version=0)
    table.finish_round(A, B, C)
    # Standing is heard anew only when it changes: now version 5 is out, D is four behind.
    assert table.announced()[-1].members == (A, B, C)
    table.stand(D, version=2)
    table.finish_round(A, B, C)
    assert table.announced()[-1].members == (A, B, C)
    table.stand(D, version=4)
    table.finish_round(A, B, C)
    assert table.announced()[-1].members == (A, B, C, D)


def test_a_round_starts_from_the_anchor_that_most_members_hold() -> None:
    table = Table(small_run(start_with=3))
    table.arrive(A, B, C)
    table.stand(A, anchor="odd")
    table.stand(B, C, anchor="common")
    assert table.announced()[0].base == "common"


def test_where_opinions_are_even_the_brokers_own_anchor_counts() -> None:
    for odd in ("aaaa", "zzzz"):
        table = Table(small_run(start_with=2))
        table.arrive(A, B)
        table.stand(B, anchor=odd)
        table.stand(A, anchor="mine")
        assert table.announced()[0].base == "mine"


def test_nothing_is_announced_while_nobody_holds_the_newest_anchor() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A, B, C)
    assert len(table.committed()) == 1
    table.tick(100.0)
    assert len(table.announced()) == 1
    table.stand(B)
    assert len(table.announced()) == 1, "one report is no majority"
    table.stand(C)
    assert len(table.announced()) == 2


# the course of a round


def test_everybody_present_owns_a_share_of_the_first_plan() -> None:
    table = three()
    for peer in (A, B, C):
        assert table.plan_of(peer) == Plan(Key("outer", 1), 1, 0, alike(A, B, C))


def test_a_round_settles_when_everybody_present_has_contributed() -> None:
    table = three()
    table.contribute(A, B)
    assert table.plan_of(A).settled is None
    table.contribute(C, serial=7)
    assert [table.plan_of(p).settled for p in (A, B, C)] == [(1, 1, 7)] * 3
    assert table.plan_of(A).attempt == 0, "settling does not make it another plan"
    assert [note.why for note in table.notes(journal.RoundSettled)] == ["everybody present contributed"]


def test_a_member_that_is_gone_is_not_waited_for() -> None:
    table = three()
    table.contribute(A, B)
    table.go(C)
    table.contribute(A, B)
    assert table.settled_of(A) == [A, B]


@pytest.mark.parametrize("holders", [(A, B), (B, C), (A, C)])
def test_a_round_commits_when_two_hold_its_result_and_not_before(holders: tuple[bytes, bytes]) -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(holders[0])
    assert table.committed() == []
    table.hold(holders[1])
    (committed,) = table.committed()
    assert committed.contributors == (A, B, C)
    assert table.broker.history.samples == 12


def test_a_round_does_not_commit_before_every_owner_has_reported() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B)
    table.hold(A, B, C)
    assert table.committed() == []
    table.reduce(C)
    assert len(table.committed()) == 1


def test_who_holds_another_result_does_not_count_as_a_holder() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A)
    table.hold(B, C, result="something else")
    assert table.committed() == []
    table.hold(B)
    assert table.committed()[0].result == table.told(A, Append)[-1].entries[0].record.result  # type: ignore[union-attr]


def test_a_lone_member_is_holder_enough() -> None:
    table = Table()
    table.join(A)
    table.finish_round(A)
    assert [c.contributors for c in table.committed()] == [(A,)]


def test_a_result_is_the_digest_root_of_all_shards_in_the_order_of_the_owners() -> None:
    table = three()
    table.contribute(A, B, C)
    root = table.root()
    table.reduce(C, B, A)
    table.hold(A, B)
    assert table.committed()[0].result == root


def test_an_owner_that_dies_is_replaced_and_the_attempt_grows() -> None:
    table = three()
    table.contribute(A, B)
    table.go(B)
    plan = table.plan_of(A)
    assert (plan.owners, plan.attempt, plan.settled) == ((A, C), 1, None)
    assert table.told(B, Plan)[-1].attempt == 0, "nobody tells the dead"
    assert "is gone" in table.notes(journal.RoundReplanned)[0].why
    table.contribute(A, C)
    table.reduce(A, C)
    table.hold(A, C)
    assert table.committed()[0].contributors == (A, C)


def test_an_owner_that_dies_after_everybody_settled_is_replaced_too() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A)
    table.go(B)
    assert (table.plan_of(C).owners, table.plan_of(C).attempt, table.plan_of(C).settled) == ((A, C), 1, None)


def test_an_owner_that_dies_after_its_result_is_held_is_not_missed() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A)
    table.hear(Gone(B, "its link died"))
    assert table.plan_of(A).attempt == 1, "one holder is not enough: it has to be done again"
    table.contribute(A, C)
    table.reduce(A, C)
    table.hold(A, C)
    table.go(C)
    assert len(table.committed()) == 1


def test_when_every_owner_is_gone_the_broker_owns_all() -> None:
    table = three()
    table.go(A, B, C)
    assert table.round.owners == (A,)


def test_an_owner_that_restarts_before_its_death_was_noticed_makes_a_new_plan() -> None:
    table = three()
    table.contribute(A, B, C)
    table.arrive(B)
    plan = table.plan_of(B)
    assert (plan.owners, plan.attempt, plan.settled) == ((A, B, C), 1, None)
    assert "restarted" in table.notes(journal.RoundReplanned)[0].why


def test_a_member_that_comes_back_is_told_the_present_plan() -> None:
    table = three()
    table.go(C)
    table.arrive(C)
    assert table.plan_of(C).attempt == table.round.attempt == 1


def test_a_new_broker_waits_for_the_members_of_the_open_round_before_it_plans_but_not_for_long() -> None:
    again = three().restarted()
    again.join(A, B)
    assert again.broker.round is None, "C may be about to come"
    again.join(C)
    assert again.plan_of(C).owners == (A, B, C)
    late = three().restarted()
    late.join(A, B)
    late.tick(RESUME_S)
    assert late.plan_of(A).owners == (A, B)


def test_a_new_broker_leaves_shards_where_they_are_and_spreads_those_of_who_is_gone() -> None:
    table = three()
    plan = replace(table.plan_of(A), shards=(Shard(B, 0, 1), Shard(C, 1, BULK.chunks - 1)))
    kept = Table(table.broker.run, table.log, table.now_s + 1.0, plan=plan)
    kept.join(A, B, C)
    assert kept.plan_of(A).shards == plan.shards
    spread = Table(table.broker.run, table.log, table.now_s + 1.0, plan=plan)
    spread.join(A, B)
    spread.tick(RESUME_S)
    assert spread.plan_of(A).owners == (B,)


def test_in_a_crowd_the_roster_changes_between_rounds_unless_a_member_of_the_round_moves() -> None:
    crowd = [bytes([9, place]) * 16 for place in range(CROWD + 1)]
    table = Table(small_run(start_with=len(crowd) + 1))
    table.join(A, *crowd)
    roster = table.broker.history.roster
    table.join(bytes(32))
    table.leave(crowd[5])
    assert table.broker.history.roster == roster
    table.go(crowd[7])
    table.hear(Arrived(Member(crowd[7], ("elsewhere:1",)), 0))
    table.stand(crowd[7], version=0)
    assert table.broker.history.roster == roster + 1
    assert table.broker.history.members[crowd[7]].addresses == ("elsewhere:1",)
    assert bytes(32) not in table.broker.history.members
    table.finish_round(*(peer for peer in (A, *crowd) if peer != crowd[5]))
    assert bytes(32) in table.broker.history.members
    assert crowd[5] not in table.broker.history.members


def test_a_contribution_that_comes_or_is_computed_anew_after_settling_changes_nothing() -> None:
    table = three()
    table.go(C)
    table.contribute(A, B)
    assert (table.round.attempt, table.plan_of(A).settled) == (1, (1, 1, None))
    table.arrive(C)
    table.contribute(C)
    table.contribute(B, serial=2)
    assert (table.round.attempt, table.plan_of(A).settled) == (1, (1, 1, None))


def test_a_new_plan_takes_the_contribution_that_was_computed_anew() -> None:
    table = three()
    table.contribute(A, B, C)
    table.go(B)
    table.contribute(A)
    table.contribute(C, serial=2)
    assert (table.round.attempt, table.plan_of(A).settled) == (1, (1, None, 2))


def test_saying_the_same_contribution_twice_changes_nothing() -> None:
    table = three()
    table.contribute(A, B, C)
    table.contribute(C)
    assert table.plan_of(A).attempt == 0
    assert table.plan_of(A).settled is not None


def test_a_spoiled_contribution_is_left_out_and_its_maker_misses_the_round() -> None:
    table = three()
    table.contribute(A, B, C)
    table.spoil(A, B)
    assert (table.plan_of(A).attempt, table.plan_of(A).settled) == (1, None)
    assert "not finite" in table.notes(journal.RoundReplanned)[0].why
    table.contribute(A, B, C)
    assert table.settled_of(A) == [A, C]
    table.reduce(A, B, C)
    table.hold(A, C)
    assert table.committed()[0].contributors == (A, C)
    assert table.broker.history.returned == (Range(4, 4),)


def test_a_contribution_is_spoiled_once_and_only_by_an_owner() -> None:
    table = three()
    table.go(C)
    assert table.round.owners == (A, B)
    table.arrive(C)
    attempt = table.round.attempt
    table.spoil(C, B)
    assert table.round.attempt == attempt, "C owns nothing of this plan"
    table.spoil(A, D)
    assert table.round.attempt == attempt, "D is not in the round"
    table.spoil(A, B)
    table.spoil(A, B)
    assert table.round.attempt == attempt + 1


def test_an_owner_that_somebody_cannot_reach_is_left_out() -> None:
    table = three()
    table.contribute(A)
    table.stuck(C, B)
    plan = table.plan_of(C)
    assert (plan.owners, plan.attempt) == ((A, C), 1)
    table.stuck(C, A)
    table.stuck(A, C)
    assert table.plan_of(A).owners == (A,)
    table.stuck(C, A)
    assert table.plan_of(A).owners == (A,), "in the end the broker owns all"


def test_once_settled_being_stuck_makes_no_difference() -> None:
    table = three()
    table.contribute(A, B, C)
    table.stuck(C, B)
    assert table.round.attempt == 0


def test_a_settled_round_that_nothing_moves_is_planned_anew_around_the_broker() -> None:
    table = three()
    table.contribute(A, B, C)
    table.tick(STALL_S)
    assert table.round.attempt == 0
    table.reduce(A)
    table.tick(STALL_S)
    assert table.round.attempt == 0, "a report is movement"
    table.tick(1.0)
    assert (table.round.attempt, table.round.owners) == (1, (A,))


def test_where_contributions_took_long_results_may_too() -> None:
    table = three()
    table.tick(100.0)
    table.contribute(A, B, C)
    table.tick(4 * 100.0 + 10)
    assert table.round.attempt == 0
    table.tick(1.0)
    assert table.round.attempt == 1


def test_every_plan_that_is_given_up_is_followed_by_one_with_twice_the_time() -> None:
    table = three()
    for attempt in range(4):
        table.contribute(A, B, C)
        table.tick(STALL_S * 2**attempt)
        assert table.round.attempt == attempt
        table.tick(1.0)
        assert table.round.attempt == attempt + 1


# patience


def test_a_slow_member_is_waited_for_four_times_the_median_and_a_while() -> None:
    table = three()
    table.tick(5.0)
    table.contribute(A)
    table.tick(2.0)
    table.contribute(B)
    table.tick(4 * 6.0 + LINKS_S - 7.0 - 0.5)
    assert table.plan_of(A).settled is None
    table.tick(0.5)
    assert table.settled_of(A) == [A, B]
    assert "median" in table.notes(journal.RoundSettled)[0].why


def test_until_half_have_contributed_only_the_ceiling_ends_the_wait_counted_from_the_first() -> None:
    table = three(patience_s_max=500.0)
    table.tick(5000.0)
    table.contribute(A)
    table.tick(499.0)
    assert table.plan_of(A).settled is None
    table.tick(1.0)
    assert table.settled_of(A) == [A]
    assert "fewer than half" in table.notes(journal.RoundSettled)[0].why


def test_nobody_is_settled_without_a_contribution() -> None:
    table = three(patience_s_max=20.0)
    table.tick(10_000.0)
    assert table.plan_of(A).settled is None


def test_a_member_that_had_contributed_before_a_new_plan_is_waited_for_until_nothing_moves() -> None:
    table = three(patience_s_max=20.0)
    table.tick(15.0)
    table.contribute(B, C)
    table.stuck(C, A)
    table.contribute(B)
    table.tick(STALL_S)
    assert table.plan_of(A).settled is None, "C only has to send again"
    table.tick(0.1)
    assert table.settled_of(A) == [B]


def missed_by_c() -> Table:
    """Return a table of three whose first round ended without C."""
    table = three(patience_s_max=20.0)
    table.contribute(A, B)
    table.tick(20.0)
    table.reduce(A, B, C)
    table.hold(A, B)
    return table


def test_a_member_that_missed_a_round_is_left_out_until_it_holds_it() -> None:
    table = missed_by_c()
    assert table.committed()[0].contributors == (A, B)
    table.stand(C, version=0)
    table.stand(A, B)
    assert table.announced()[1].members == (A, B)
    table.stand(C)
    table.finish_round(A, B)
    assert table.announced()[2].members == (A, B, C)


def test_a_member_that_missed_a_round_and_stands_in_time_is_in_the_next_one() -> None:
    table = missed_by_c()
    table.stand(C)
    table.stand(A)
    assert table.announced()[1].members == (A, B, C)


# going


def test_who_says_that_it_leaves_is_off_the_roster_at_once() -> None:
    table = three()
    table.tick(17.3)
    table.leave(C)
    table.tick(0.001)
    assert table.roster() == [A, B]
    assert [note.who for note in table.notes(journal.PeerLeft)] == [C.hex()[:8]]
    assert table.round.owners == (A, B)


def test_who_left_may_come_again() -> None:
    table = three()
    table.leave(C)
    table.tick(1.0)
    table.join(C)
    assert table.roster() == [A, B, C]


def test_who_is_gone_too_long_is_off_the_roster() -> None:
    table = three()
    table.go(C)
    table.tick(GONE_S_MAX - 1)
    assert table.roster() == [A, B, C]
    table.tick(1.0)
    assert table.roster() == [A, B]


def test_a_lost_link_is_noted_with_its_reason() -> None:
    table = three()
    table.go(C, why="no sign of life for 5 s")
    assert [(n.who, n.why) for n in table.notes(journal.PeerLost)] == [(C.hex()[:8], "no sign of life for 5 s")]


def test_a_new_address_changes_the_roster() -> None:
    table = three()
    table.hear(Arrived(Member(C, ("elsewhere:9",)), 0))
    table.stand(C)
    assert table.records(RosterChanged)[-1].joined == (Member(C, ("elsewhere:9",)),)
    assert table.broker.history.members[C].addresses == ("elsewhere:9",)


# starting again


def committed_and_restarted() -> Table:
    """Return the table of a broker that died between two rounds."""
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A, B, C)
    return table.restarted()


def test_a_restart_is_a_new_epoch() -> None:
    again = committed_and_restarted()
    assert again.records(EpochStarted) == [EpochStarted(1, A), EpochStarted(2, A)]
    assert again.broker.epoch == 2


def test_after_a_restart_known_members_are_awaited_for_a_while() -> None:
    again = committed_and_restarted()
    again.join(A, B)
    again.tick(REUNION_S - 0.6)
    assert len(again.announced()) == 1, "C is still expected"
    again.tick(0.2)
    assert again.announced()[1].members == (A, B)


def test_who_was_here_after_the_restart_and_went_is_not_awaited() -> None:
    table = Table()
    table.join(A, B, C)
    table.finish_round(A)
    again = table.restarted()
    again.arrive(A, B, C)
    again.go(C)
    again.stand(A, B)
    again.finish_round(A, B)
    assert again.announced()[-1].members == (A, B)
    assert again.now_s - again.broker.started_s < REUNION_S


def test_who_is_back_is_awaited_until_it_says_where_it_stands() -> None:
    again = committed_and_restarted()
    again.arrive(A, B, C)
    again.stand(A, C)
    assert len(again.announced()) == 1
    again.stand(B)
    assert again.announced()[1].members == (A, B, C)


def test_after_a_restart_as_many_as_the_run_starts_with_are_awaited_for_a_while() -> None:
    table = three()
    table.finish_round(A, B, C)
    table.leave(C)
    table.contribute(A, B)
    table.reduce(A, B)
    table.hold(A, B)
    again = table.restarted()
    again.join(A, B)
    assert len(again.announced()) == 2
    again.tick(REUNION_S)
    assert again.announced()[-1].members == (A, B)


def test_when_everybody_is_back_nothing_is_waited_for() -> None:
    again = committed_and_restarted()
    again.join(A, B, C)
    assert again.now_s - again.broker.started_s < REUNION_S
    assert len(again.announced()) == 2


def test_an_open_round_goes_on_after_a_restart_in_a_new_epoch() -> None:
    table = three()
    table.contribute(A, B, C)
    again = table.restarted()
    again.join(A, B, C)
    assert again.announced() == table.announced()
    assert (again.plan_of(B).epoch, again.plan_of(B).attempt) == (2, 0)
    again.finish_round(A, B, C)
    assert [c.contributors for c in again.committed()] == [(A, B, C)]


def test_who_does_not_come_back_after_a_restart_owns_nothing_and_is_waited_for_a_while() -> None:
    again = three().restarted()
    again.join(A, B)
    again.tick(RESUME_S)
    assert again.plan_of(A).owners == (A, B)
    again.contribute(A, B)
    again.tick(REUNION_S - RESUME_S - 0.6)
    assert again.plan_of(A).settled is None, "C may still contribute"
    again.tick(0.2)
    assert again.settled_of(A) == [A, B]
    again.reduce(A, B)
    again.hold(A, B)
    assert again.committed()[0].contributors == (A, B)


def test_a_finished_run_stays_finished_after_a_restart() -> None:
    table = Table(small_run(rounds=1))
    table.join(A)
    table.finish_round(A)
    again = table.restarted()
    again.arrive(A)
    again.stand(A)
    assert len(again.announced()) == 1
    assert again.told(A, Farewell) == [Farewell()]


# the end


@pytest.mark.parametrize("budget", [{"rounds": 2}, {"tokens": 2 * 3 * 4 * 10}, {"tokens": 3 * 4 * 10 + 1}])
def test_the_run_is_finished_when_its_budget_is_spent(budget: dict[str, int]) -> None:
    table = three(**budget)
    table.finish_round(A, B, C)
    assert table.records(RunFinished) == []
    table.finish_round(A, B, C)
    assert len(table.records(RunFinished)) == 1
    assert (table.broker.history.version, table.broker.history.samples) == (2, 24)


def test_a_run_in_circles_whose_budget_is_cut_short_ends_with_one_round_more_of_all() -> None:
    run = small_run(start_with=3, rounds=9)
    ((name, channel),) = run.recipe.channel.items()
    own = replace(channel, what=Params(), whom=Circles(pattern=Drawn()), merge=Merge(outer=Assign()))
    run = replace(run, recipe=replace(run.recipe, channel={name: own}))
    table = Table(run)
    table.join(A, B, C)
    assert table.round.key.scope == CIRCLES
    table.broker = replace(table.broker, run=replace(run, budget=Budget(rounds=1)))
    table.finish_round(A, B, C)
    assert table.records(RunFinished) == []
    assert table.round.key.scope == ALL, "without it there would be no model"
    table.finish_round(A, B, C)
    assert len(table.records(RunFinished)) == 1


def test_farewell_is_said_only_when_everybody_stands_at_the_last_version() -> None:
    table = three(rounds=1)
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A, B)
    table.stand(A, B)
    table.tick(5.0)
    assert table.broker.history.finished
    assert table.told(A, Farewell) == []
    table.stand(C)
    assert [len(table.told(p, Farewell)) for p in (A, B, C)] == [1, 1, 1]
    table.tick(5.0)
    assert len(table.told(A, Farewell)) == 1


def test_farewell_does_not_wait_for_who_is_gone() -> None:
    table = three(rounds=1)
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A, B)
    table.stand(A, B)
    table.go(C)
    assert [len(table.told(p, Farewell)) for p in (A, B)] == [1, 1]


# what is out of date


OLD_PLANS = [("attempt", 5), ("attempt", 1), ("epoch", 0), ("epoch", 2), ("key", Key("outer", 2)), ("key", Key("x", 1))]


@pytest.mark.parametrize(("field", "value"), OLD_PLANS)
def test_messages_about_another_plan_are_ignored(field: str, value: object) -> None:
    table = three()
    key, epoch, attempt = table.plan_id()
    for message in (
        Contributed(key, epoch, attempt, 1),
        Reduced(key, epoch, attempt, (b"x" * 32,)),
        Holding(key, epoch, attempt, "root"),
        Stuck(key, epoch, attempt, B),
    ):
        before = table.broker
        assert table.say(C, msgspec.structs.replace(message, **{field: value})) == []
        assert table.broker == before


def test_a_complaint_about_an_earlier_round_is_ignored() -> None:
    table = three()
    table.finish_round(A, B, C)
    before = table.broker
    table.say(A, Spoiled(Key("outer", 1), B, "not finite"))
    assert table.broker == before


def test_a_greeting_in_the_middle_is_ignored() -> None:
    table = three()
    before = table.broker
    assert table.say(B, Hello("run", 1, 0, 0, ())) == []
    assert table.broker == before


def test_nothing_is_decided_while_a_record_is_on_its_way_into_the_log() -> None:
    table = Table(small_run(start_with=2))
    table.join(A)
    table.arrive(B)
    broker, actions = step(table.broker, Said(B, Standing(0, "anchor-0")), 1.0)
    assert [type(action) for action in actions] == [Write]
    for heard in (Tick(), Said(A, Standing(0, "anchor-0")), Gone(B, "died"), Arrived(Member(C, ()), 0)):
        broker, actions = step(broker, heard, 2.0)
        assert not any(isinstance(action, Write) for action in actions)


def test_every_record_is_passed_on_to_everybody_present_once_it_is_durable() -> None:
    table = three()
    table.finish_round(A, B, C)
    for peer in (A, B, C):
        entries = [entry for append in table.told(peer, Append) for entry in append.entries]
        assert entries == table.log[entries[0].index :]
    assert [entry.index for entry in table.log] == list(range(len(table.log)))


# what a critical reader found


def test_a_broker_that_is_not_in_the_round_can_own_it() -> None:
    table = Table(small_run(start_with=3, patience_s_max=20.0))
    table.join(A, B, C)
    table.contribute(B, C)
    table.tick(20.0)
    table.reduce(A, B, C)
    table.hold(B, C)
    table.stand(B, C)
    assert table.announced()[1].members == (B, C), "the broker missed the round before"
    table.contribute(B, C)
    table.tick(4000.0)
    assert table.round.owners == (A,)
    assert table.told(A, Plan)[-1].attempt == table.round.attempt
    table.contribute(B, C)
    table.reduce(A)
    table.hold(B, C)
    assert table.committed()[-1].version == 2


def test_nobody_can_stand_at_a_version_that_is_not_committed() -> None:
    table = three()
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.stand(C, version=1, anchor="garbage")
    table.hold(A, B)
    assert len(table.announced()) == 1, "one early report is no base for a round"
    table.stand(C, anchor="garbage")
    table.stand(A)
    assert table.announced()[1].base == "anchor-1"


def test_a_round_that_too_few_are_left_for_is_given_up_and_its_leases_go_back() -> None:
    table = Table(small_run(start_with=2, contributors_min=2))
    table.join(A, B)
    table.contribute(A)
    table.leave(B)
    table.join(C)
    table.tick(1.0)
    assert [type(entry.record) for entry in table.log].count(RoundVoided) == 1
    assert table.announced()[1].members == (A, C)
    handed = [sorted(p for lease in each.leases.values() for p in lease) for each in table.announced()]
    assert handed[1] == handed[0], "the same samples are handed out again"


def test_a_broker_whose_own_member_leaves_with_the_others_leaves_the_round_open() -> None:
    table = three()
    for peer in (C, B, A):
        table.leave(peer)
        table.tick(0.1)
    table.tick(1.0)
    assert table.records(RoundVoided) == []
    assert table.broker.history.open is not None, "it goes on when everybody is back"


def test_a_member_that_is_away_for_a_moment_does_not_void_the_round() -> None:
    table = Table(small_run(start_with=2, contributors_min=2))
    table.join(A, B)
    table.contribute(A)
    table.go(B)
    table.tick(STALL_S / 2)
    table.arrive(B)
    table.contribute(A, B)
    assert table.round.settled is not None


def test_a_report_of_a_voided_round_does_not_count_in_the_next() -> None:
    table = Table(small_run(start_with=2, contributors_min=2))
    table.join(A, B)
    late = Contributed(*table.plan_id(), 1)
    table.leave(B)
    table.join(C)
    table.tick(1.0)
    table.say(A, late)
    assert table.round.serials == {}


def test_a_member_whose_contribution_was_refused_cannot_hold_the_round_up_by_contributing_again() -> None:
    table = three()
    table.contribute(A, B, C)
    table.spoil(A, C)
    table.contribute(A, B)
    attempt = table.round.attempt
    assert table.round.settled is not None
    table.contribute(C, serial=9)
    assert table.round.attempt == attempt


def test_settings_that_come_before_the_log_names_the_organiser_are_looked_at_later() -> None:
    organiser = Identity.from_seed(bytes(32))
    run = small_run(rounds=5)
    wanted = SettingsChanged(canonical(small_run(rounds=7)), b"")
    signed = Settings(wanted.run, organiser.sign(to_sign(wanted, identity(run))))
    broker, _ = take_office(A, 3, run, 10, History(), 0.0)
    broker, _ = step(broker, Arrived(Member(B, ()), 0), 0.0)
    broker, done = step(broker, Said(B, signed), 0.0)
    assert done == []
    for entry in (Entry(0, CouncilChanged((organiser.peer,))), Entry(1, EpochStarted(3, A), 3)):
        broker, done = step(broker, Logged(entry), 0.0)
    assert [action.record.run for action in done if isinstance(action, Write)] == [wanted.run]  # type: ignore[union-attr]


def test_settings_that_the_organiser_did_not_sign_are_refused_and_named() -> None:
    table = Table()
    table.arrive(A, B)
    table.say(B, Settings(canonical(small_run(rounds=7)), bytes(64)))
    assert table.records(SettingsChanged) == []
    (refused,) = table.notes(journal.MessageRefused)
    assert (refused.who, refused.why) == (B.hex()[:8], "settings: the organiser did not sign it")


# rounds that wait for nobody beyond a quorum


def hasty(barrier: Quorum, *, carry: bool = True, patience_s_max: float = 3600.0) -> Table:
    """Return a table with three members, and a first round that ends with a quorum."""
    run = small_run(start_with=3, patience_s_max=patience_s_max)
    late: Late = Carry() if carry else Discard()
    channel = replace(run.recipe.channel["outer"], barrier=barrier, late=late)
    table = Table(replace(run, recipe=replace(run.recipe, channel={"outer": channel})))
    table.join(A, B, C)
    return table


def test_a_round_ends_with_the_first_contribution_where_one_is_enough() -> None:
    table = hasty(Quorum())
    table.contribute(B)
    assert table.settled_of(A) == [B]
    assert table.notes(journal.RoundSettled)[-1].why == "1 contributed"


def test_a_grace_lets_more_in_and_is_looked_at_when_it_is_over() -> None:
    table = hasty(Quorum(contributors=2, grace=Seconds(s=3.0)))
    table.contribute(B)
    table.tick(100.0)
    assert table.plan_of(A).settled is None, "one is not enough"
    table.contribute(A)
    assert Wake(table.now_s + 3.0) in table.did
    table.tick(2.9)
    assert table.plan_of(A).settled is None
    table.tick(0.1)
    assert table.settled_of(A) == [A, B]


def test_who_comes_within_the_grace_is_in() -> None:
    table = hasty(Quorum(grace=Seconds(s=3.0)))
    table.contribute(B)
    table.tick(1.0)
    table.contribute(A, C)
    assert table.settled_of(A) == [A, B, C], "nobody is left to wait for"


def test_of_a_quorum_that_is_never_full_patience_ends_the_wait() -> None:
    table = hasty(Quorum(contributors=3), patience_s_max=50.0)
    table.contribute(A)
    table.tick(49.0)
    assert table.plan_of(A).settled is None
    table.tick(2.0)
    assert table.settled_of(A) == [A]


def test_a_slack_is_measured_from_the_rounds_before() -> None:
    table = hasty(Quorum(grace=Slack(part=0.5)))
    for number in range(3):
        table.tick(14.0)
        table.contribute(B)
        if number < 2:
            assert table.plan_of(A).settled is None, "what is not known yet is not cut short"
        table.finish_round(A, B, C)
    table.contribute(B)
    assert table.plan_of(A).settled is None
    table.tick(6.9)
    assert table.plan_of(A).settled is None, "a round came every 14 s: half of that"
    table.tick(0.2)
    assert table.settled_of(A) == [B]


def test_who_works_on_is_in_the_next_round_though_it_is_far_behind() -> None:
    table = hasty(Quorum())
    for _ in range(6):
        table.contribute(A)
        table.reduce(*table.round.owners)
        table.hold(A, B)
        table.stand(A)
    last = table.announced()[-1]
    assert last.members == (A, B, C)
    assert (last.leases[B], last.leases[C]) == ([4, 5, 6, 7], [8, 9, 10, 11]), "they have had them from the beginning"
    assert (last.since[B], last.version) == (1, 7)


def test_where_nothing_is_carried_who_missed_a_round_is_in_again_once_it_holds_it() -> None:
    table = hasty(Quorum(), carry=False)
    table.contribute(A)
    table.reduce(*table.round.owners)
    table.hold(A, B)
    table.stand(A)
    assert table.announced()[-1].members == (A,)


def with_a_late_one() -> Table:
    """Return a table at which A is in the second round, and B has had its contribution ready since the first."""
    table = hasty(Quorum())
    table.contribute(A)
    table.reduce(*table.round.owners)
    table.hold(A, B)
    table.say(B, Standing(1, "anchor-1", waits=True))
    table.stand(A)
    table.contribute(A, serial=2)
    return table


def test_who_was_late_and_has_nothing_else_to_do_is_waited_for() -> None:
    table = with_a_late_one()
    assert table.plan_of(A).settled is None
    table.contribute(B)
    assert table.settled_of(A) == [A, B]
    table.finish_round(A, B)
    table.contribute(A, serial=3)
    assert table.settled_of(A) == [A], "what it had is in"


def test_who_is_late_and_does_not_come_is_not_waited_for_for_long() -> None:
    table = with_a_late_one()
    table.tick(STALL_S + 0.1)
    assert table.settled_of(A) == [A]
