"""The log: what it adds up to, and that a file of it is either whole, cut at its torn tail, or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from
from msgspec.structs import replace

from atoll.errors import LocalError
from atoll.sim.retell import announcements, commits
from atoll.spec.axes.control import Knobs
from atoll.swarm.bits import places_of
from atoll.swarm.lease import Range, positions
from atoll.swarm.log import (
    BadLog,
    ClosedRound,
    CouncilChanged,
    CouncilReformed,
    Entry,
    EpochStarted,
    History,
    Key,
    KnobsTurned,
    Member,
    Record,
    RosterChanged,
    RoundAnnounced,
    RoundCommitted,
    RoundVoided,
    RunFinished,
    SettingsChanged,
    apply,
    from_bytes,
    knobs_of,
    to_bytes,
)

A, B, C = (bytes([x]) * 32 for x in (1, 2, 3))
MEMBERS = tuple(Member(peer, ("10.0.0.1:1", "[::1]:2"), "name") for peer in (A, B, C))

STORY: list[Record] = [
    EpochStarted(1, A),
    RosterChanged(1, MEMBERS),
    RoundAnnounced(Key("outer", 1), b"\x07", (4,), "base-0", 1),
    RoundCommitted(Key("outer", 1), b"\x05", "result-1"),
    RosterChanged(2, (), (C,)),
    RoundAnnounced(Key("outer", 2), b"\x03", (6, 2), "base-1", 2),
    RoundCommitted(Key("outer", 2), b"\x03", "result-2"),
    RoundAnnounced(Key("outer", 3), b"\x03", (4,), "base-2", 2),
    RoundVoided(Key("outer", 3)),
    EpochStarted(2, A),
    RunFinished(),
    CouncilChanged((A,)),
    CouncilChanged((A, B)),
    SettingsChanged(b"{}", b"signature"),
    CouncilReformed((B,), 1, b"signature"),
    RoundAnnounced(Key("outer", 3), b"\x03", (4,), "base-2", 2),
    RoundCommitted(Key("outer", 3), b"\x03", "result-3"),
    KnobsTurned("outer", 4, Knobs(rung=1, steps=20), "exchanges took too much"),
]
ENTRIES = [Entry(index, record) for index, record in enumerate(STORY)]
FILE = b"".join(to_bytes(entry) for entry in ENTRIES)
ENDS = [len(b"".join(to_bytes(entry) for entry in ENTRIES[:count])) for count in range(len(ENTRIES) + 1)]


def told(count: int) -> History:
    history = History()
    for entry in ENTRIES[:count]:
        history = apply(history, entry)
    return history


def test_every_kind_of_record_comes_back_from_its_bytes() -> None:
    assert from_bytes(FILE, "log") == (ENTRIES, len(FILE))
    assert {type(record) for record in STORY} == set(Record.__args__)


def test_an_empty_file_is_an_empty_log() -> None:
    assert from_bytes(b"", "log") == ([], 0)


def test_a_tail_torn_at_any_byte_is_cut_off() -> None:
    for length in range(len(FILE)):
        whole = max(count for count, end in enumerate(ENDS) if end <= length)
        assert from_bytes(FILE[:length], "log") == (ENTRIES[:whole], ENDS[whole]), f"torn at byte {length}"


@pytest.mark.parametrize("tail", [b"\0", bytes(11), bytes(64), b"\xff" * 40])
def test_a_tail_of_garbage_is_cut_off(tail: bytes) -> None:
    assert from_bytes(FILE + tail, "log") == (ENTRIES, len(FILE))


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_flipped_bit_anywhere_before_the_last_entry_is_damage_and_named(mask: int) -> None:
    for place in range(ENDS[-2]):
        damaged = bytearray(FILE)
        damaged[place] ^= mask
        start = max(end for end in ENDS if end <= place)
        with pytest.raises(LocalError, match=f"peer/log: the log is damaged at byte {start}$") as refused:
            from_bytes(bytes(damaged), "peer/log")
        assert "join again" in refused.value.hint


def test_a_flipped_bit_in_the_last_entry_leaves_that_entry_out() -> None:
    for place in range(ENDS[-2], len(FILE)):
        damaged = bytearray(FILE)
        damaged[place] ^= 0x10
        assert from_bytes(bytes(damaged), "log") == (ENTRIES[:-1], ENDS[-2])


def test_an_epoch_says_who_the_broker_is() -> None:
    assert (told(1).epoch, told(1).broker) == (1, A)
    assert told(10).epoch == 2


def test_a_roster_tells_who_came_and_who_left() -> None:
    assert (told(2).roster, sorted(told(2).members)) == (1, [A, B, C])
    assert (told(5).roster, sorted(told(5).members)) == (2, [A, B])
    assert told(2).members[B] == MEMBERS[1]


def test_a_council_is_founded_by_its_organiser_and_changes_by_one() -> None:
    assert (told(12).organiser, told(12).council) == (A, (A,))
    assert told(13).council == (A, B)
    for members in ((), (A, A), (C,), (A, B, C, bytes(32))):
        with pytest.raises(BadLog):
            apply(told(13), Entry(13, CouncilChanged(members)))


def test_a_re_formed_council_follows_the_one_before() -> None:
    assert (told(15).council, told(15).reforms, told(15).settings) == ((B,), 1, b"{}")
    with pytest.raises(BadLog):
        apply(told(15), Entry(15, CouncilReformed((A,), 1, b"")))


def test_a_later_entry_overrides_the_tail_it_contradicts() -> None:
    other = Entry(3, RoundVoided(Key("outer", 1)), 7)
    assert from_bytes(FILE + to_bytes(other), "log")[0] == [*ENTRIES[:3], other]


def test_an_announced_round_is_open_and_its_samples_are_leased() -> None:
    open_ = told(3).open
    assert open_ is not None
    assert (open_.key, open_.members, open_.quotas) == (Key("outer", 1), (A, B, C), (4, 4, 4))
    assert [open_.lease_of(peer) for peer in (A, B, C)] == [(Range(0, 4),), (Range(4, 4),), (Range(8, 4),)]
    assert told(3).fresh == 12
    assert told(3).version == 0


def test_a_commit_counts_the_contributors_samples_and_returns_the_others() -> None:
    history = told(4)
    assert (history.version, history.open, history.samples) == (1, None, 8)
    assert history.returned == (Range(4, 4),)
    assert history.last == ClosedRound(Key("outer", 1), (A, C), "result-1", (Range(4, 4),), stale=(0, 0))


def test_a_returned_lease_is_the_first_to_go_out_again() -> None:
    open_ = told(6).open
    assert open_ is not None
    assert [open_.lease_of(peer) for peer in (A, B)] == [(Range(4, 4), Range(12, 2)), (Range(14, 2),)]
    assert told(6).returned == ()
    assert told(6).fresh == 16
    assert told(7).samples == 16


def ahead_told(*records: Record) -> History:
    """Return the history after a first round whose members go on meanwhile, all of whom have contributed, and more."""
    story: list[Record] = [
        EpochStarted(1, A),
        RosterChanged(1, MEMBERS),
        RoundAnnounced(Key("outer", 1), b"\x07", (4,), "base-0", 1, ahead=True),
        *records,
    ]
    history = History()
    for index, record in enumerate(story):
        history = apply(history, Entry(index, record))
    return history


FIRST_DONE = RoundCommitted(Key("outer", 1), b"\x07", "result-1")


def leases(history: History) -> list[tuple[Range, ...]]:
    assert history.open is not None
    return [history.open.lease_of(peer) for peer in history.open.members]


def test_members_who_go_on_have_their_next_leases_with_the_announcement() -> None:
    history = ahead_told()
    assert history.open is not None
    apart = [((Range(12, 4),),), ((Range(16, 4),),), ((Range(20, 4),),)]
    assert [history.open.ahead_of(peer) for peer in (A, B, C)] == apart
    assert history.fresh == 24
    later = ahead_told(FIRST_DONE, RoundAnnounced(Key("outer", 2), b"\x07", (4,), "base-1", 1, ahead=True))
    assert leases(later) == [(Range(12, 4),), (Range(16, 4),), (Range(20, 4),)]
    assert later.fresh == 36


def test_who_is_not_in_the_next_round_gives_back_what_it_went_on_with_and_a_newcomer_gets_it() -> None:
    joined = Member(bytes([9]) * 32, ())
    records = (FIRST_DONE, RosterChanged(2, (joined,), (B,)))
    history = ahead_told(*records, RoundAnnounced(Key("outer", 2), b"\x07", (4,), "base-1", 2))
    assert leases(history) == [(Range(12, 4),), (Range(20, 4),), (Range(16, 4),)]
    assert (history.returned, history.fresh) == ((), 24)


def test_a_lost_contribution_gives_its_lease_back_but_not_what_its_peer_goes_on_with() -> None:
    records = (RoundCommitted(Key("outer", 1), b"\x05", "result-1"),)
    history = ahead_told(*records, RoundAnnounced(Key("outer", 2), b"\x07", (4,), "base-1", 1, ahead=True))
    assert leases(history) == [(Range(12, 4),), (Range(16, 4),), (Range(20, 4),)]
    assert history.open is not None
    assert history.open.ahead == (Range(4, 4), Range(24, 8)), "what came back is the first to go out again"


def test_leases_for_several_rounds_come_one_by_one_and_fewer_of_them_towards_the_end() -> None:
    def announced(version: int, ahead: int) -> RoundAnnounced:
        return RoundAnnounced(Key("outer", version), b"\x07", (4,), f"base-{version - 1}", 1, ahead=ahead)

    history = ahead_told(FIRST_DONE, announced(2, 3))
    assert leases(history) == [(Range(12, 4),), (Range(16, 4),), (Range(20, 4),)]
    assert history.open is not None
    assert history.open.ahead_of(B) == ((Range(28, 4),), (Range(40, 4),), (Range(52, 4),))
    third = (FIRST_DONE, announced(2, 3), RoundCommitted(Key("outer", 2), b"\x05", "result-2"))
    history = ahead_told(*third, announced(3, 3))
    assert leases(history) == [(Range(24, 4),), (Range(28, 4),), (Range(32, 4),)]
    assert history.open is not None
    assert history.open.ahead_of(B)[:2] == ((Range(40, 4),), (Range(52, 4),)), "though it missed a round"
    assert history.open.ahead_of(A)[2] == (Range(16, 4),), "what came back is the first to go out again"
    history = ahead_told(*third, announced(3, 1))
    assert history.open is not None
    assert history.open.ahead_of(B) == ((Range(40, 4),),)
    assert history.returned == (Range(16, 4), Range(48, 12)), "what nobody comes to any more"
    with pytest.raises(BadLog):
        ahead_told(FIRST_DONE, announced(2, 65))


def test_who_gets_another_quota_gives_back_what_it_went_on_with() -> None:
    history = ahead_told(FIRST_DONE, RoundAnnounced(Key("outer", 2), b"\x07", (4, 6, 4), "base-1", 1))
    assert leases(history) == [(Range(12, 4),), (Range(16, 4), Range(24, 2)), (Range(20, 4),)]


def test_a_round_that_is_given_up_takes_with_it_what_its_members_went_on_with() -> None:
    history = ahead_told(RoundVoided(Key("outer", 1)))
    assert (history.returned, history.kept) == ((Range(0, 24),), {})
    history = ahead_told(FIRST_DONE, RunFinished())
    assert (history.returned, history.kept, history.samples) == ((Range(12, 12),), {}, 12)


# work that outlasts a round


def carried(*records: Record, ahead: bool = False) -> History:
    """Return the history after a first round that two of three contributed to, and whose third works on; and more."""
    story: list[Record] = [
        EpochStarted(1, A),
        RosterChanged(1, MEMBERS),
        RoundAnnounced(Key("outer", 1), b"\x07", (4,), "base-0", 1, ahead=ahead, carry=True),
        RoundCommitted(Key("outer", 1), b"\x05", "result-1"),
        *records,
    ]
    history = History()
    for index, record in enumerate(story):
        history = apply(history, Entry(index, record))
    return history


def second(quotas: tuple[int, ...] = (4,), who: bytes = b"\x07", roster: int = 1, *, ahead: bool = False) -> Record:
    return RoundAnnounced(Key("outer", 2), who, quotas, "base-1", roster, ahead=ahead, carry=True)


def test_who_works_on_has_its_lease_in_the_next_round_too_and_the_others_get_new_ones() -> None:
    history = carried(second())
    assert leases(history) == [(Range(12, 4),), (Range(4, 4),), (Range(16, 4),)]
    assert (history.returned, history.samples) == ((), 8)
    closed = carried().last
    assert closed is not None
    assert (closed.carried, closed.returned) == ((B,), ())


def test_work_that_outlasted_rounds_is_counted_once_and_its_age_is_told() -> None:
    in_second = RoundCommitted(Key("outer", 2), b"\x01", "result-2")
    third = RoundAnnounced(Key("outer", 3), b"\x07", (4,), "base-2", 1, carry=True)
    in_third = RoundCommitted(Key("outer", 3), b"\x07", "result-3")
    history = carried(second(), in_second, third, in_third)
    assert history.last is not None
    assert history.last.stale == (0, 2, 1)
    assert history.last.pushes == 3
    assert (history.pushes, history.samples) == (6, 24)
    assert (history.returned, history.fresh, history.kept) == ((), 24, {})


def test_who_is_not_in_the_next_round_gives_back_what_it_worked_on_and_what_came_after() -> None:
    history = carried(RosterChanged(2, (), (B,)), second(who=b"\x03", roster=2))
    assert leases(history) == [(Range(4, 4),), (Range(12, 4),)]
    history = carried(RosterChanged(2, (), (B,)), second(who=b"\x03", roster=2), ahead=True)
    assert leases(history) == [(Range(12, 4),), (Range(20, 4),)], "what they went on with"
    assert history.returned == (Range(4, 4), Range(16, 4))


def test_who_works_on_keeps_what_is_set_apart_for_it_after_that() -> None:
    history = carried(second(ahead=True), ahead=True)
    assert history.open is not None
    assert leases(history) == [(Range(12, 4),), (Range(4, 4),), (Range(20, 4),)]
    assert [history.open.ahead_of(p) for p in (A, B, C)] == [((Range(24, 4),),), ((Range(16, 4),),), ((Range(28, 4),),)]
    last = carried(second(), ahead=True)
    assert last.returned == (Range(16, 4),), "after the last round nobody goes on"


def test_another_quota_takes_a_lease_away_from_who_works_on_it() -> None:
    history = carried(second((4, 6, 4)))
    assert leases(history) == [(Range(4, 4),), (Range(12, 6),), (Range(18, 4),)]


def test_a_round_that_is_given_up_takes_with_it_what_outlasted_the_one_before() -> None:
    assert carried(second(), RoundVoided(Key("outer", 2))).returned == (Range(4, 4), Range(12, 8))
    assert carried(RunFinished()).returned == (Range(4, 4),)


def test_samples_since_a_part_was_last_committed_add_up_over_the_rounds_about_others() -> None:
    story: list[Record] = [EpochStarted(1, A), RosterChanged(1, MEMBERS)]
    for version, who in enumerate((b"\x07", b"\x05", b"\x07", b"\x07"), 1):
        key = Key("outer", version, unit=f"fragment {version % 2}")
        story.append(RoundAnnounced(key, b"\x07", (4,), "base", 1, carry=True))
        story.append(RoundCommitted(key, who, f"result-{version}"))
    worked = []
    history = History()
    for index, record in enumerate(story):
        history = apply(history, Entry(index, record))
        if history.open is not None:
            worked.append(history.open.worked)
    assert worked == [(4, 4, 4), (8, 8, 8), (8, 4, 8), (8, 8, 8)]


def test_only_the_last_record_ends_the_run() -> None:
    end = STORY.index(RunFinished()) + 1
    assert [told(count).finished for count in range(end + 1)] == [False] * end + [True]


def test_a_gap_in_the_log_is_never_passed_over() -> None:
    with pytest.raises(BadLog, match="missing"):
        apply(told(1), ENTRIES[2])
    with pytest.raises(BadLog, match="missing"):
        apply(told(2), ENTRIES[1])


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(STORY[5], key=Key("outer", 3)),
        msgspec.structs.replace(STORY[5], key=Key("outer", 1)),
        msgspec.structs.replace(STORY[5], roster=1),
        msgspec.structs.replace(STORY[5], who=b"\x00"),
        msgspec.structs.replace(STORY[5], who=b"\x07"),
        msgspec.structs.replace(STORY[5], who=b"\x03\x00"),
        msgspec.structs.replace(STORY[5], quotas=()),
        msgspec.structs.replace(STORY[5], quotas=(4, 4, 4)),
        msgspec.structs.replace(STORY[5], quotas=(4, 0)),
    ],
)
def test_a_round_that_does_not_follow_from_the_log_is_refused(wrong: RoundAnnounced) -> None:
    with pytest.raises(BadLog):
        apply(told(5), Entry(5, wrong))


def test_only_the_open_round_can_be_committed() -> None:
    for count, record in ((2, STORY[3]), (3, STORY[6]), (4, STORY[3])):
        with pytest.raises(BadLog):
            apply(told(count), Entry(count, record))


def test_a_round_that_is_given_up_returns_all_its_leases() -> None:
    history = told(9)
    assert history.open is None
    assert (history.version, history.returned) == (2, (Range(16, 8),))


def test_knobs_hold_from_the_round_on_that_their_record_names() -> None:
    last = told(len(STORY))
    assert [knobs_of(last, version) for version in (1, 3, 4, 90)] == [None, None, *[Knobs(rung=1, steps=20)] * 2]
    after = apply(last, Entry(len(STORY), RoundAnnounced(Key("outer", 4), b"\x03", (4,), "base-3", 2)))
    after = apply(after, Entry(len(STORY) + 1, RoundCommitted(Key("outer", 4), b"\x03", "result-4")))
    after = apply(after, Entry(len(STORY) + 2, KnobsTurned("outer", 5, Knobs(rung=0, steps=10), "")))
    assert [knobs_of(after, version) for version in (4, 5)] == [Knobs(rung=1, steps=20), Knobs(rung=0, steps=10)]


@pytest.mark.parametrize(
    ("count", "version", "why", "problem"),
    [
        (3, 1, "", "while a round is open"),
        (4, 1, "", "out of turn"),
        (4, 3, "", "out of turn"),
        (9, 3, "", "announced before"),
        (len(STORY), 4, "", "twice"),
        (4, 2, "x" * 1001, "too many words"),
    ],
)
def test_knobs_that_are_turned_at_another_time_or_for_another_round_are_refused(
    count: int, version: int, why: str, problem: str
) -> None:
    with pytest.raises(BadLog, match=problem):
        apply(told(count), Entry(count, KnobsTurned("outer", version, Knobs(rung=0, steps=10), why)))


# two rounds of the same work


def held(*records: Record) -> History:
    """Return the history after a first round that holds what everybody works on; and more."""
    story: list[Record] = [
        EpochStarted(1, A),
        RosterChanged(1, MEMBERS),
        RoundAnnounced(Key("outer", 1, unit="directions"), b"\x07", (4,), "base-0", 1, holds=True),
        RoundCommitted(Key("outer", 1, unit="directions"), b"\x05", "result-1"),
        *records,
    ]
    history = History()
    for index, record in enumerate(story):
        history = apply(history, Entry(index, record))
    return history


SECOND = RoundAnnounced(Key("outer", 2), b"\x03", (4,), "base-1", 1)


def test_a_round_that_holds_leaves_everybody_its_lease_and_counts_nothing() -> None:
    history = held()
    assert (history.version, history.samples, history.pushes, history.returned) == (1, 0, 0, ())
    assert history.last is not None
    assert (history.last.contributors, history.last.carried, history.last.returned) == ((A, C), (A, B, C), ())


def test_the_round_after_one_that_holds_is_of_the_same_leases_and_counts_them() -> None:
    assert leases(held(SECOND)) == [(Range(0, 4),), (Range(4, 4),)]
    assert held(SECOND).returned == (Range(8, 4),), "who is not in it gives its lease back"
    history = held(SECOND, RoundCommitted(SECOND.key, b"\x03", "result-2"))
    assert (history.samples, history.pushes) == (8, 2)
    assert history.last is not None
    assert history.last.stale == (0, 0), "the anchor did not move in between"
    assert held(SECOND, RoundVoided(SECOND.key)).returned == (Range(0, 12),)


def test_nothing_is_set_apart_after_work_that_is_not_counted_yet() -> None:
    both = RoundAnnounced(Key("outer", 1), b"\x07", (4,), "base-0", 1, ahead=True, holds=True)
    history = apply(History(), Entry(0, EpochStarted(1, A)))
    history = apply(history, Entry(1, RosterChanged(1, MEMBERS)))
    with pytest.raises(BadLog, match="not counted yet"):
        apply(history, Entry(2, both))


# several rounds under way


def announced(version: int, quotas: tuple[int, ...] = (4,), who: bytes = b"\x07") -> RoundAnnounced:
    return RoundAnnounced(Key("outer", version), who, quotas, "base", 1)


def under_way(*records: Record) -> History:
    """Return the history after some records about rounds of three members."""
    history = History()
    for index, record in enumerate([EpochStarted(1, A), RosterChanged(1, MEMBERS), *records]):
        history = apply(history, Entry(index, record))
    return history


def test_rounds_are_announced_one_after_the_other_and_committed_in_that_order() -> None:
    history = under_way(announced(1), announced(2), announced(3))
    assert [each.ranges for each in history.under_way] == [(Range(0, 12),), (Range(12, 12),), (Range(24, 12),)]
    with pytest.raises(BadLog, match="before it"):
        apply(history, Entry(history.next_index, RoundCommitted(Key("outer", 2), b"\x07", "result")))
    with pytest.raises(BadLog, match="out of turn"):
        apply(history, Entry(history.next_index, announced(5)))
    history = under_way(announced(1), announced(2), RoundCommitted(Key("outer", 1), b"\x05", "result"), announced(3))
    assert [each.start for each in history.under_way] == [0, 1]
    assert (history.version, history.newest, history.samples) == (1, 3, 8)
    assert history.under_way[-1].ranges == (Range(4, 4), Range(24, 8)), "what came back is the first to go out again"


def test_a_round_that_is_given_up_takes_all_after_it_along() -> None:
    history = under_way(announced(1), announced(2), announced(3), RoundVoided(Key("outer", 2)))
    assert [each.key.version for each in history.under_way] == [1]
    assert history.returned == (Range(12, 24),)
    assert under_way(announced(1), announced(2), RoundVoided(Key("outer", 1))).under_way == ()


@pytest.mark.parametrize("how", [{"ahead": True}, {"carry": True}, {"holds": True}])
def test_where_something_goes_on_into_the_next_round_that_is_announced_after_it(how: dict[str, bool]) -> None:
    first, second = announced(1), announced(2)
    for one, other in ((replace(first, **how), second), (first, replace(second, **how))):
        with pytest.raises(BadLog, match="something goes on"):
            under_way(one, other)


def test_knobs_are_turned_when_no_round_is_open() -> None:
    turned = KnobsTurned("outer", 1, Knobs(rung=0, steps=1), "why")
    with pytest.raises(BadLog, match="while a round is open"):
        under_way(announced(1), turned)


@given(data())
def test_samples_are_handed_out_once_whatever_is_committed_or_given_up_in_whatever_order(draw: DataObject) -> None:
    records: list[Record] = [EpochStarted(1, A), RosterChanged(1, MEMBERS)]
    entries = [Entry(index, record) for index, record in enumerate(records)]
    history, counted = under_way(), list[int]()
    for _ in range(draw.draw(integers(1, 12))):
        what = draw.draw(sampled_from(("announce", "announce", "commit", "void")))
        if what == "announce" or not history.under_way:
            quotas = tuple(draw.draw(lists(integers(1, 5), min_size=2, max_size=2)))
            who = draw.draw(sampled_from((b"\x03", b"\x05", b"\x06")))
            entry = Entry(history.next_index, announced(history.newest + 1, quotas, who))
        elif what == "commit":
            first = history.under_way[0]
            who = draw.draw(sampled_from((b"\x01", b"\x02", b"\x03")))
            counted += [p for place in places_of(who, 2) for p in positions(first.lease_of(first.members[place]))]
            entry = Entry(history.next_index, RoundCommitted(first.key, who, "result"))
        else:
            entry = Entry(history.next_index, RoundVoided(draw.draw(sampled_from(history.under_way)).key))
        history, entries = apply(history, entry), [*entries, entry]
        out = [p for each in history.under_way for p in positions(each.ranges)]
        assert sorted([*counted, *out, *positions(history.returned)]) == list(range(history.fresh))
    assert history.samples == len(counted)
    assert [p for each in commits(entries) for p in each.positions] == counted, "as it is told again"
    told_again = {each.version: each.leases for each in announcements(entries)}
    for each in history.under_way:
        leases = {peer: list(positions(each.lease_of(peer))) for peer in each.members}
        assert told_again[each.key.version] == leases
