"""The council keeps its promises in every storm, and gets on with it when the storm is over."""

from __future__ import annotations

from collections import Counter

import pytest

from atoll.swarm.log import BadLog, CouncilChanged, Entry, EpochStarted, Record, RosterChanged, RunFinished
from atoll.swarm.raft import (
    SILENT_TICKS_MIN,
    Action,
    Ask,
    Commit,
    Follow,
    FromCouncil,
    Heard,
    Keep,
    Lead,
    Learned,
    Log,
    Lost,
    Propose,
    Raft,
    Received,
    Replicate,
    Replicated,
    Role,
    Save,
    Send,
    Tick,
    Vote,
    patience_of,
    recall,
    sound,
    step,
)
from tests.few import few_of
from tests.swarm.assembly import Assembly, Seat, storm

A, B, C, D = (bytes([ord(x)]) * 32 for x in "ABCD")
CLOCKS = 1.2
"""A calm peer's tick takes at most so many ticks of the assembly's time."""
STORMS = 300
STORMS_LONG = 20_000
BLOCKS = 10
RARE = ("elected", "down", "write lost", "member added", "member removed", "leader removed", "hold", "split")


# storms


def weather(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen.update(storm(seed))
    return seen


@pytest.mark.parametrize("block", few_of(range(BLOCKS), range(0, BLOCKS, 4)))
def test_the_council_keeps_its_promises_in_a_storm_and_recovers_after_it(block: int) -> None:
    size = STORMS // BLOCKS
    seen = weather(range(block * size, (block + 1) * size))
    assert all(seen[what] > 0 for what in RARE), f"these storms are too mild: {dict(seen)}"


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_council_keeps_its_promises_in_a_great_many_storms(block: int) -> None:
    size = STORMS_LONG // BLOCKS
    seen = weather(range(STORMS + block * size, STORMS + (block + 1) * size))
    assert all(seen[what] > 0 for what in RARE), f"these storms are too mild: {dict(seen)}"


# leading and following in a calm


def seats(assembly: Assembly) -> list[Seat]:
    return list(assembly.seats.values())


def others(assembly: Assembly, *but: Seat) -> list[Seat]:
    return [seat for seat in seats(assembly) if seat not in but]


def without(leader: Seat, gone: bytes) -> CouncilChanged:
    return CouncilChanged(tuple(p for p in leader.now.council if p != gone))


@pytest.mark.parametrize("council", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("seed", range(5))
def test_a_fresh_council_elects_a_leader_and_commits(council: int, seed: int) -> None:
    assembly = Assembly(council + 1, council, seed)
    leader = assembly.elect(ticks=4 * SILENT_TICKS_MIN * CLOCKS)
    entry = assembly.commit(leader, ticks=3)
    assembly.settle(ticks=5)
    assert all(seat.now.committed >= entry.index for seat in seats(assembly))


def test_a_lone_council_leads_within_one_tick() -> None:
    assembly = Assembly(3, 1)
    leader = assembly.elect(ticks=1)
    entry = assembly.commit(leader, ticks=0)
    assembly.crash(leader)
    assembly.start(leader)
    assert assembly.elect(ticks=1) is leader and leader.now.committed > entry.index


@pytest.mark.parametrize("council", [3, 5])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_member_back_from_behind_a_cut_deposes_nobody(council: int, both: bool, seed: int) -> None:
    assembly = Assembly(council, council, seed)
    leader = assembly.elect()
    term, lost = leader.now.term, others(assembly, leader)[0]
    assembly.cut(others(assembly, lost), [lost], both=both)
    for _ in range(10):
        assembly.run(10)
        assembly.commit(leader)
    assert lost.now.role is Role.CANDIDATE and lost.now.term == term, "it asks, but only on trial"
    assembly.cuts.clear()
    assembly.settle(ticks=10)
    assembly.run(50)
    assert leader.leads and all(seat.now.term == term for seat in seats(assembly))


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_cut_off_from_the_majority_steps_down_and_the_others_go_on(seed: int) -> None:
    assembly = Assembly(5, 5, seed)
    old = assembly.elect()
    side = [old, others(assembly, old)[0]]
    assembly.cut(side, others(assembly, *side))
    assembly.propose(old, stray := assembly.record())
    assert assembly.run((SILENT_TICKS_MIN + 1) * CLOCKS, lambda: not old.leads), "it does not lead for long"
    new = assembly.elect(ticks=4 * SILENT_TICKS_MIN * CLOCKS)
    assert new not in side
    assembly.commit(new)
    assembly.heal()
    assembly.settle(ticks=10)
    assert new.leads, "the healed side follows"
    assert stray not in [e.record for e in assembly.watch.final], "what never had a majority is gone everywhere"


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_is_heard_but_hears_nobody_steps_down(seed: int) -> None:
    assembly = Assembly(3, 3, seed)
    old = assembly.elect()
    assembly.cut(others(assembly, old), [old], both=False)
    assert assembly.run((SILENT_TICKS_MIN + 1) * CLOCKS, lambda: not old.leads)
    new = assembly.elect(ticks=6 * SILENT_TICKS_MIN * CLOCKS)
    assert new is not old
    assembly.commit(new)


@pytest.mark.parametrize("seed", range(5))
def test_a_split_in_halves_commits_nothing_and_heals_into_one_history(seed: int) -> None:
    assembly = Assembly(4, 4, seed)
    leader = assembly.elect()
    side = [leader, others(assembly, leader)[0]]
    assembly.cut(side, others(assembly, *side))
    final = len(assembly.watch.final)
    assembly.propose(leader, assembly.record())
    assembly.run(60)
    assert assembly.leader is None and len(assembly.watch.final) == final
    assembly.heal()
    assembly.settle(ticks=60)


@pytest.mark.parametrize("seed", range(5))
def test_everybody_restarts_from_disk_and_nothing_final_is_lost(seed: int) -> None:
    assembly = Assembly(6, 5, seed)
    leader = assembly.elect()
    entries = [assembly.commit(leader) for _ in range(10)]
    for seat in seats(assembly):
        assembly.crash(seat)
    assembly.heal()
    assembly.settle(ticks=60)
    assert all(seat.now.log[entry.index] == entry for seat in seats(assembly) for entry in entries)


def test_a_peer_that_was_held_up_itself_does_not_take_the_leader_for_dead() -> None:
    assembly = Assembly(3, 3)
    leader = assembly.elect()
    slow = others(assembly, leader)[0]
    slow.held_until = assembly.now + 100
    assembly.run(150)
    assert leader.leads and slow.now.leader == leader.peer


# changes of the council


@pytest.mark.parametrize("seed", range(5))
def test_a_council_grows_and_shrinks_one_by_one(seed: int) -> None:
    assembly = Assembly(5, 1, seed)
    for peer in list(assembly.seats)[1:]:
        leader = assembly.elect()
        assembly.commit(leader, CouncilChanged((*leader.now.council, peer)))
    for peer in list(assembly.seats)[:-1]:
        leader = assembly.elect()
        assembly.commit(leader, without(leader, peer))
    assembly.settle()
    assert {seat.now.council for seat in seats(assembly)} == {(list(assembly.seats)[-1],)}


@pytest.mark.parametrize("council", [2, 3, 5])
def test_a_leader_that_removes_itself_leads_until_that_is_final_and_then_others_do(council: int) -> None:
    assembly = Assembly(council, council)
    old = assembly.elect()
    assembly.commit(old, without(old, old.peer))
    assert not old.leads
    new = assembly.elect(ticks=4 * SILENT_TICKS_MIN * CLOCKS)
    assert new is not old and old.peer not in new.now.council
    assembly.settle(ticks=10)


@pytest.mark.parametrize("council", [2, 4])
def test_a_leader_that_removed_itself_unheard_is_still_there_to_finish_it(council: int) -> None:
    assembly = Assembly(council, council)
    old = assembly.elect()
    assembly.settle()
    assembly.cut([old], others(assembly, old))
    assembly.propose(old, without(old, old.peer))
    assembly.crash(old)
    assembly.run(1)
    assembly.heal()
    for seat in others(assembly, old)[1 : council // 2]:
        assembly.crash(seat)  # without the old leader there is no majority
    new = assembly.elect(ticks=100)
    assert old.peer not in new.now.council and new is not old


def test_a_member_that_does_not_know_of_its_seat_yet_votes_when_the_leader_dies() -> None:
    assembly = Assembly(4, 3)
    leader = assembly.elect()
    new = seats(assembly)[3]
    assembly.settle()
    assembly.propose(leader, CouncilChanged((*leader.now.council, new.peer)))
    heartbeat = Replicate(leader.now.term, 9, leader.now.term, (), 0)
    assembly.hear(new, Received(leader.peer, heartbeat))  # it hears who leads, not yet of its seat
    assembly.cut([leader], [new])
    assembly.run(1)
    assembly.crash(leader)
    assert new.now.leader == leader.peer and new.peer not in new.now.council
    assembly.elect(ticks=6 * SILENT_TICKS_MIN * CLOCKS)


# single steps


FIRST = Entry(0, CouncilChanged((A, B, C)))


def member(me: bytes = A, term: int = 1, vote: bytes = b"", entries: tuple[Entry, ...] = (FIRST,)) -> Raft:
    return recall(me, term, vote, entries, committed=1)


def hear(raft: Raft, *heard: Heard) -> tuple[Raft, list[Action]]:
    done: list[Action] = []
    for one in heard:
        raft, actions = step(raft, one, 0.0)
        done += actions
    return raft, done


def candidate(entries: tuple[Entry, ...] = (FIRST,)) -> Raft:
    """Return A campaigning for real in term 2."""
    raft, _ = hear(member(entries=entries), *[Tick()] * SILENT_TICKS_MIN)
    voters = raft.others[: len(raft.council) // 2]
    raft, actions = hear(raft, *(Received(p, Vote(2, True, True)) for p in voters))
    assert raft.role is Role.CANDIDATE and not raft.trial and actions[0] == Save(2, A)
    return raft


def leader() -> Raft:
    raft, actions = hear(candidate(), Received(B, Vote(2, True, False)))
    assert raft.leads and Lead(2) in actions
    return raft


def sent(actions: list[Action]) -> list[FromCouncil]:
    return [action.message for action in actions if isinstance(action, Send)]


def test_a_vote_is_on_disk_before_it_is_given_and_is_given_once() -> None:
    raft, actions = hear(member(), Received(B, Ask(2, 0, 0, False)))
    assert actions[-2:] == [Save(2, B), Send(B, Vote(2, True, False))]
    back = recall(A, 2, B, (FIRST,))
    for voter in (raft, back):
        assert sent(hear(voter, Received(C, Ask(2, 0, 0, False)))[1]) == [Vote(2, False, False)]
        assert sent(hear(voter, Received(B, Ask(2, 0, 0, False)))[1]) == [Vote(2, True, False)]


def test_a_vote_of_an_older_term_is_forgotten() -> None:
    assert recall(A, 1, B, (FIRST, Entry(1, RunFinished(), 3))).vote == b""
    assert recall(A, 3, B, (FIRST, Entry(1, RunFinished(), 3))).vote == B


def test_a_trial_changes_nothing_for_whoever_answers() -> None:
    before = member()
    raft, actions = hear(before, Received(B, Ask(2, 0, 0, True)))
    assert raft == before and sent(actions) == [Vote(2, True, True)]


def test_nobody_votes_for_one_who_knows_less() -> None:
    knows = (FIRST, Entry(1, RunFinished(), 1))
    less = [Ask(2, 0, 0, True), Ask(2, 0, 0, False), Ask(2, 5, 0, True), Ask(2, 5, 0, False)]
    for ask in less:
        _, actions = hear(member(entries=knows), Received(B, ask))
        assert [vote.granted for vote in sent(actions) if isinstance(vote, Vote)] == [False]


def test_a_vote_counts_once_and_only_from_a_member() -> None:
    five = Entry(0, CouncilChanged((A, B, C, D, D[:31])))
    vote = Vote(2, True, False)
    raft, _ = hear(candidate((five,)), Received(B, vote), Received(B, vote), Received(b"E" * 32, vote))
    assert raft.role is Role.CANDIDATE
    assert hear(raft, Received(C, vote))[0].leads


def test_what_was_said_in_an_older_term_counts_no_more() -> None:
    raft, _ = hear(candidate(), Received(B, Vote(1, True, False)))
    assert raft.role is Role.CANDIDATE
    raft, _ = hear(leader(), Propose(EpochStarted(2, A)), Received(B, Replicated(1, True, 1)))
    assert raft.committed == 1
    newer = member(term=3)
    after, actions = hear(newer, Received(B, Replicate(2, 0, 0, (Entry(1, RunFinished(), 2),), 2)))
    assert after == newer and actions == [Send(B, Replicated(3, False, 0))]


def test_a_candidate_that_learns_of_a_new_council_counts_no_old_votes() -> None:
    four = Entry(0, CouncilChanged((A, B, C, D)))
    raft, _ = hear(candidate((four,)), Received(B, Vote(2, True, False)))
    removed = Entry(1, CouncilChanged((B, C, D)), 1)
    raft, _ = hear(raft, Learned((removed,)), Received(B, Vote(2, True, False)))
    assert raft.role is Role.FOLLOWER and raft.council == (B, C, D)


def test_a_broken_link_to_the_leader_needs_no_long_silence() -> None:
    raft, _ = hear(member(), Received(B, Replicate(1, 0, 0, (), 1)))
    raft, actions = hear(raft, Lost(B))
    assert Follow(b"") in actions
    assert Ask(2, 0, 0, True) in sent(hear(raft, Tick())[1])


def test_a_broken_link_to_anybody_else_means_nothing() -> None:
    raft, _ = hear(member(), Received(B, Replicate(1, 0, 0, (), 1)))
    assert hear(raft, Lost(C)) == (raft, [])


def test_who_hears_the_leader_follows_nobody_else() -> None:
    raft, _ = hear(member(), Received(B, Replicate(1, 0, 0, (), 1)))
    for trial in (True, False):
        after, actions = hear(raft, Received(C, Ask(9, 9, 9, trial)))
        assert after == raft and sent(actions) == [Vote(1, False, trial)]


def test_an_entry_of_an_older_term_is_not_final_before_one_of_this_term_is() -> None:
    old = Entry(1, RunFinished(), 1)
    raft, _ = hear(candidate((FIRST, old)), Received(B, Vote(2, True, False)))
    raft, actions = hear(raft, Received(B, Replicated(2, True, 1)))
    assert raft.committed == 1 and not any(isinstance(a, Commit) for a in actions)
    raft, _ = hear(raft, Propose(EpochStarted(2, A)))
    raft, actions = hear(raft, Received(B, Replicated(2, True, 2)))
    assert Commit((old, Entry(2, EpochStarted(2, A), 2))) in actions


def test_entries_are_on_disk_before_they_are_acknowledged() -> None:
    entry = Entry(1, RunFinished(), 1)
    _, actions = hear(member(), Received(B, Replicate(1, 0, 0, (entry,), 2)))
    at = [type(action) for action in actions]
    assert at.index(Keep) < at.index(Send) < at.index(Commit)
    assert Send(B, Replicated(1, True, 1)) in actions
    _, actions = hear(leader(), Propose(RunFinished()))
    assert [type(action) for action in actions] == [Keep, Send, Send]


def test_what_a_message_does_not_vouch_for_is_not_final() -> None:
    stray = Entry(1, RunFinished(), 1)
    raft, _ = hear(member(entries=(FIRST, stray)), Received(B, Replicate(2, 0, 0, (), 99)))
    assert raft.committed == 1, "ours may not be theirs"


def test_an_entry_that_contradicts_a_final_one_is_an_error_and_changes_nothing() -> None:
    raft = member(entries=(FIRST,))
    other = Entry(0, CouncilChanged((B, C)), 3)
    with pytest.raises(BadLog) as caught:
        hear(raft, Received(B, Replicate(3, -1, 0, (other,), 1)))
    assert caught.value.hint


def test_what_is_learned_beyond_a_gap_is_left() -> None:
    stray, later = Entry(1, RunFinished(), 1), Entry(2, RunFinished(), 2)
    raft = member(entries=(FIRST, stray))
    assert hear(raft, Learned((later,))) == (raft, [])
    true = Entry(1, EpochStarted(2, B), 2)
    raft, actions = hear(raft, Learned((true, later)))
    assert raft.log.slice(0) == (FIRST, true, later) and Commit((true, later)) in actions
    assert raft.term == 2, "whoever committed it leads in a newer term"


def test_a_follower_that_lags_far_behind_catches_up_in_batches() -> None:
    many = tuple(Entry(i, RosterChanged(i, ()), 1) for i in range(1, 200))
    raft, _ = hear(candidate((FIRST, *many)), Received(B, Vote(2, True, False)))
    raft, _ = hear(raft, Propose(EpochStarted(2, A)))
    slow = member(B)
    said: list[FromCouncil] = sent(hear(raft, Tick())[1])[:1]
    for _ in range(8):
        slow, answers = hear(slow, *(Received(A, message) for message in said))
        raft, more = hear(raft, *(Received(B, message) for message in sent(answers)))
        said = sent(more)
    assert slow.log.slice(0) == raft.log.slice(0) and raft.committed == 201


def test_only_a_leader_proposes() -> None:
    raft = member()
    assert hear(raft, Propose(RunFinished())) == (raft, [])


def test_a_leader_that_is_not_in_the_council_does_not_answer_to_itself() -> None:
    raft, _ = hear(leader(), Propose(EpochStarted(2, A)), Received(B, Replicated(2, True, 1)))
    raft, _ = hear(raft, Propose(CouncilChanged((B, C))))
    for _ in range(SILENT_TICKS_MIN):
        raft, _ = hear(raft, Received(B, Replicated(2, True, 1)), Tick())
    assert not raft.leads, "one of two is no majority"


def test_patience_grows_with_the_silences_survived_and_has_a_limit() -> None:
    assert patience_of(0.0, 0.0) == SILENT_TICKS_MIN < patience_of(4.0, 0.0) < patience_of(1e9, 0.0) < 50
    assert patience_of(0.0, 0.99) > patience_of(0.0, 0.0)


def test_what_no_member_would_say_is_not_sound() -> None:
    entry = Entry(5, RunFinished(), 1)
    for bad in (Replicate(1, 3, 1, (entry,), 0), Replicate(1, -2, 0, (), 0), Replicate(1, 4, 1, (entry,), -1)):
        assert not sound(bad)
    assert not sound(Ask(-1, 0, 0, False)) and sound(Replicate(1, 4, 1, (entry,), 0))


def test_a_log_is_a_value() -> None:
    def entry(index: int, record: Record | None = None, term: int = 0) -> Entry:
        return Entry(index, record or RosterChanged(index, ()), term)

    log = Log([FIRST, entry(1), entry(2)])
    longer = log.with_([entry(3, CouncilChanged((A, B)))])
    other = log.with_([entry(3, term=7)])
    shorter = longer.with_([entry(1, term=9)])
    assert [len(x) for x in (log, longer, other, shorter)] == [3, 4, 4, 2]
    assert (longer.council, other.council, shorter.council) == ((A, B), (A, B, C), (A, B, C))
    assert (longer[3].term, other[3].term, shorter.last) == (0, 7, (9, 1))
    assert log.slice(0) == (FIRST, entry(1), entry(2)) and log.slice(1, 99) == (entry(1), entry(2))
    assert longer.seated(C, 3) and not longer.seated(C, 4), "a seat is gone when its end is final"
