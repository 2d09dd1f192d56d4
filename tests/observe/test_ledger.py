"""The audit finds what it looks for, one test per kind of finding, and lets an honest history pass."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from atoll.cli.data import app
from atoll.errors import AtollError, LocalError, SpecError
from atoll.observe import spans
from atoll.observe.book import parse_book, read_book, read_train_tokens
from atoll.observe.ledger import Ledger, audit
from atoll.observe.verdict import epochs, summary, text

A, B, C = "aaaa1111", "bbbb2222", "cccc3333"
CONTEXT = 16
Event = dict[str, Any]
Story = list[Event]


def announced(version: int, *handed: tuple[int, int], members: tuple[str, ...] = (A, B, C)) -> Event:
    samples = sum(count for _, count in handed)
    return _round("announced", version, members=members, samples=samples, first=handed[0][0], handed=handed)


def committed(
    version: int, *counted: tuple[int, int], returned: tuple[tuple[int, int], ...] = (), who: tuple[str, ...] = (A, B)
) -> Event:
    samples = sum(count for _, count in counted)
    sums = {"samples": samples, "tokens": samples * CONTEXT}
    return _round(
        "committed", version, contributors=who, result=f"{version:064x}", counted=counted, returned=returned, **sums
    )


def _round(kind: str, version: int, **fields: Any) -> Event:
    return {"kind": f"round_{kind}", "channel": "outer", "version": version, **fields}


def voided(version: int, *returned: tuple[int, int]) -> Event:
    return _round("voided", version, returned=returned)


def lease(version: int, first: int, count: int) -> Event:
    return {"kind": "lease_taken", "channel": "outer", "version": version, "ranges": [(first, count)]}


START: Event = {"kind": "peer_started", "run": "83a6ec328b51"}


def honest() -> tuple[Story, Story]:
    """Return what A and B tell of five rounds.

    C misses the second, its lease is handed out again in the third; the fourth is voided once; the fifth is open.
    """
    log = {
        "a1": announced(1, (0, 12)),
        "c1": committed(1, (0, 12), who=(A, B, C)),
        "a2": announced(2, (12, 12)),
        "c2": committed(2, (12, 8), returned=((20, 4),)),
        "a3": announced(3, (20, 12)),
        "c3": committed(3, (20, 12), who=(A, B, C)),
        "a4": announced(4, (32, 12)),
        "v4": voided(4, (32, 12)),
        "b4": announced(4, (32, 8), members=(A, B)),
        "c4": committed(4, (32, 8)),
        "a5": announced(5, (40, 8), members=(A, B)),
    }
    one = [START, log["a1"], lease(1, 0, 4), log["c1"], log["a2"], lease(2, 12, 4), log["c2"], log["a3"]]
    one += [lease(3, 20, 4), log["c3"], log["a4"], lease(4, 32, 4), log["v4"], log["b4"], lease(4, 32, 4), log["c4"]]
    one += [log["a5"], lease(5, 40, 4)]
    other = [START, log["a1"], lease(1, 4, 4), log["c1"], log["a2"], lease(2, 16, 4), log["c2"], log["a3"]]
    other += [lease(3, 24, 4), log["c3"], log["a4"], log["v4"], log["b4"], lease(4, 36, 4), log["c4"], log["a5"]]
    return copy.deepcopy(one), copy.deepcopy(other)


def written(folder: Path, peer: str, story: Story) -> Path:
    path = folder / f"{peer}.jsonl"
    lines = [json.dumps({"at_s": float(i), "peer": peer, "event": event}) for i, event in enumerate(story)]
    path.write_text("".join(line.replace('{"at_s": ', '{"at_s":') + "\n" for line in lines))
    return path


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Ledger]:
    def run(one: Story, other: Story, train_tokens: int | None = None) -> Ledger:
        return audit(read_book(written(tmp_path, A, one)), read_book(written(tmp_path, B, other)), train_tokens)

    return run


Check = Callable[[Story, Story], Ledger]


def pick(story: Story, kind: str, version: int) -> Event:
    """Return the last event of a kind about a version."""
    return [each for each in story if each["kind"] == kind and each["version"] == version][-1]


def both(kind: str, version: int, **changed: Any) -> tuple[Story, Story]:
    """Return the honest stories with one event changed in both."""
    one, other = honest()
    for story in (one, other):
        pick(story, kind, version).update(changed)
    return one, other


def without(story: Story, *versions: int) -> Story:
    return [each for each in story if each.get("version") not in versions]


def kinds(ledger: Ledger) -> set[str]:
    return {finding.kind for finding in ledger.findings}


def said(ledger: Ledger) -> str:
    return " | ".join(finding.what for finding in ledger.findings)


# a history that adds up


def test_an_honest_history_is_sound_and_every_position_has_its_place(check: Check) -> None:
    ledger = check(*honest())
    assert ledger.findings == []
    assert ledger.notes == []
    assert summary(ledger)["rounds"] == {"committed": 4, "voided": 1, "open": 1}
    assert summary(ledger)["positions"] == {"handed": 48, "counted": 40, "waiting": 0, "open": 8}
    assert (ledger.tokens, ledger.context) == (40 * CONTEXT, CONTEXT)
    assert ledger.leases == {A: (4, 4), B: (4, 4)}
    assert "none was lost and none was counted twice" in text(ledger)


def going_on(ahead_of_second: tuple[int, int] = (28, 4)) -> tuple[Story, Story]:
    """Return what A and B tell of rounds whose members go on meanwhile; C leaves after the first, and gives back."""
    log: list[Event] = [
        announced(1, (0, 12)) | {"ahead": ((12, 12),)},
        committed(1, (0, 12), who=(A, B, C)),
        announced(2, (12, 8), members=(A, B)) | {"ahead": ((20, 4), ahead_of_second)},
        committed(2, (12, 8)),
    ]
    one = [START, log[0], lease(1, 0, 4), log[1], log[2], lease(2, 12, 4), log[3]]
    other = [START, log[0], lease(1, 4, 4), log[1], log[2], lease(2, 16, 4), log[3]]
    return copy.deepcopy(one), copy.deepcopy(other)


def test_what_is_set_apart_for_the_next_round_waits_for_it(check: Check) -> None:
    ledger = check(*going_on(ahead_of_second=(24, 4)))
    assert not ledger.findings
    assert summary(ledger)["positions"] == {"handed": 28, "counted": 20, "waiting": 8, "open": 0}


@pytest.mark.parametrize(
    ("ahead", "kind", "said"),
    [
        ((28, 4), "lost", "24-27"),
        ((4, 4), "handed", "4-7"),
        ((16, 4), "twice", "16-19"),
    ],
)
def test_what_is_set_apart_for_two_is_found_and_so_is_what_is_passed_over(
    check: Check, ahead: tuple[int, int], kind: str, said: str
) -> None:
    ledger = check(*going_on(ahead_of_second=ahead))
    assert any(found.kind == kind and said in found.what for found in ledger.findings), ledger.findings


def several() -> Story:
    """Return a log of rounds of which three are open at once; the second and third are given up with what they have.

    Then more members share the same samples: what the third had is in the second.
    """
    return [
        announced(1, (0, 8), members=(A, B)),
        announced(2, (8, 8), members=(A, B)),
        announced(3, (16, 8), members=(A, B)),
        committed(1, (0, 8)),
        voided(2, (8, 8)),
        voided(3, (16, 8)),
        announced(2, (8, 12)),
        announced(3, (20, 12)),
        committed(2, (8, 8), returned=((16, 4),)),
        announced(4, (16, 4), (32, 8)),
    ]


def test_rounds_that_are_open_at_once_and_given_up_together_are_followed_as_it_happened(check: Check) -> None:
    one = [START, *several(), lease(1, 0, 4), lease(2, 8, 4)]
    other = [START, *several(), lease(1, 4, 4), lease(2, 12, 4)]
    ledger = check(one, other)
    assert said(ledger) == ""
    assert summary(ledger)["rounds"] == {"committed": 2, "voided": 2, "open": 2}
    assert summary(ledger)["positions"] == {"handed": 40, "counted": 16, "waiting": 0, "open": 24}
    del one[5], other[2]  # what one of them missed the other tells
    assert check(one, other).findings == []


def test_what_an_open_round_has_is_found_in_another(check: Check) -> None:
    log = several()
    log[7] = announced(3, (16, 12))
    ledger = check([START, *log], [START, *log])
    assert "round 3 was given 16-19 again, which had not gone back" in said(ledger)


def test_what_went_back_and_was_not_handed_out_again_is_waiting(check: Check) -> None:
    one, other = honest()
    ledger = check(one[:7], other[:7])
    assert ledger.findings == []
    assert str(ledger.waiting) == "20-23"


def test_the_same_line_twice_is_no_finding(check: Check) -> None:
    one, other = honest()
    assert check(one + one, [each for each in other for _ in range(2)]).findings == []


def test_a_lease_of_a_voided_try_says_nothing_about_the_try_that_was_committed(check: Check) -> None:
    """The same positions are handed to others after a void: A died in between and had worked on some of them."""
    again = [voided(5, (40, 8)), announced(5, (40, 8), members=(B, C)), committed(5, (40, 8), who=(B, C))]
    one, other = honest()
    ledger = check([*one, one[-2], *again], [*other, *again[:2], lease(5, 40, 4), again[2]])
    assert said(ledger) == ""
    assert ledger.leases == {A: (4, 4), B: (5, 5)}
    assert check([START, *again[1:], *one[1:]], [*other, *again[:2], lease(5, 40, 4), again[2]]).findings == []


def test_a_gap_in_one_journal_is_filled_from_the_other_and_said(check: Check) -> None:
    one, other = honest()
    ledger = check(without(one, 2, 3), without(other, 5))
    assert ledger.findings == []
    assert ledger.notes == [
        f"{A} did not hear, or not to the end, of round 2-3 (away, asleep or killed): filled from {B}'s journal",
        f"{B} did not hear, or not to the end, of round 5 (away, asleep or killed): filled from {A}'s journal",
    ]


def test_positions_become_samples_of_epochs(check: Callable[..., Ledger]) -> None:
    ledger = check(*honest(), 30 * CONTEXT + 7)
    assert epochs(ledger) == (1, {1: 10})
    assert epochs(check(*honest(), 50 * CONTEXT + 7)) == (0, {0: 40})
    assert epochs(check(*honest(), 20 * CONTEXT + 1)) == (2, {})
    assert "1 whole, of 30 samples, each once" in text(ledger)
    assert "number 1: 10 of 30 samples counted, each once" in text(ledger)
    assert check(*honest(), 30 * CONTEXT + 1).epoch_samples == 30
    assert check(*honest(), 30 * CONTEXT).epoch_samples == 29
    assert kinds(check(*honest(), CONTEXT)) == {"data"}


# findings


@pytest.mark.parametrize(
    ("kind", "version", "changed"),
    [
        ("round_committed", 1, {"result": "f" * 64}),
        ("round_committed", 2, {"contributors": [A, C]}),
        ("round_committed", 3, {"counted": [(20, 11)], "samples": 11, "tokens": 11 * CONTEXT, "returned": [(31, 1)]}),
        ("round_committed", 2, {"returned": []}),
        ("round_announced", 3, {"handed": [(20, 13)], "samples": 13}),
        ("round_announced", 3, {"members": [A, B]}),
        ("round_voided", 4, {"returned": [(32, 11)]}),
    ],
)
def test_two_journals_that_differ_are_found(check: Check, kind: str, version: int, changed: Event) -> None:
    one, other = honest()
    pick(other, kind, version).update(changed)
    assert kinds(check(one, other)) & {"differ", "sums"}
    assert kinds(check(other, one)) & {"differ", "sums"}


def test_one_journal_that_contradicts_itself_is_found(check: Check) -> None:
    one, other = honest()
    ledger = check([*one, committed(1, (0, 12), who=(A, B))], other)
    assert kinds(ledger) == {"differ"}
    assert "contributors" in said(ledger)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"returned": [(20, 3)]}, "23 handed out, then neither counted nor returned"),
        ({"returned": [(20, 4), (99, 1)]}, "99 returned without having been handed out"),
        ({"returned": [(19, 5)]}, "19 both counted and returned"),
        ({"counted": [(12, 8), (50, 1)], "samples": 9, "tokens": 9 * CONTEXT}, "50 counted without having been handed"),
    ],
)
def test_a_round_that_does_not_add_up_is_found(check: Check, changed: Event, words: str) -> None:
    ledger = check(*both("round_committed", 2, **changed))
    assert "sums" in kinds(ledger)
    assert words in said(ledger)


def test_a_voided_round_that_keeps_something_back_is_found(check: Check) -> None:
    ledger = check(*both("round_voided", 4, returned=[(32, 11)]))
    assert "sums" in kinds(ledger)


def test_a_position_counted_in_two_versions_is_found(check: Check) -> None:
    one, other = honest()
    for story in (one, other):
        story += [committed(5, (40, 8)), announced(6, (0, 2), (48, 6)), committed(6, (0, 2), (48, 6))]
    other.insert(-2, lease(5, 44, 4))
    ledger = check([*one[:-1], lease(6, 0, 2), one[-1]], [*other[:-1], lease(6, 48, 2), other[-1]])
    assert kinds(ledger) == {"twice", "handed"}
    assert "0-1 counted in round 1 and again in round 6" in said(ledger)
    assert "each once" not in text(ledger)


def test_a_position_twice_in_one_round_is_found(check: Check) -> None:
    assert "twice" in kinds(check(*both("round_announced", 1, handed=[(0, 7), (5, 7)])))


def test_a_position_handed_again_without_having_gone_back_is_found(check: Check) -> None:
    changed = both("round_announced", 5, handed=[(8, 2), (40, 6)])
    ledger = check(*changed)
    assert kinds(ledger) == {"handed"}
    assert "round 5 was given 8-9 again" in said(ledger)


def test_positions_that_were_skipped_are_lost(check: Check) -> None:
    ledger = check(*both("round_announced", 5, handed=[(40, 4), (45, 4)]))
    assert kinds(ledger) == {"lost"}
    assert "1 positions were skipped: never handed out: 44" in said(ledger)


def test_positions_that_vanished_are_lost(check: Check) -> None:
    ledger = check(*both("round_committed", 4, counted=[(32, 7)], samples=7, tokens=7 * CONTEXT))
    assert {"lost", "sums"} <= kinds(ledger)
    assert "handed out, then gone: 39" in said(ledger)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("round_committed", {"samples": 13}),
        ("round_committed", {"tokens": 12 * CONTEXT + 1}),
        ("round_announced", {"samples": 11}),
    ],
)
def test_samples_or_tokens_that_are_not_those_of_the_positions_are_found(
    check: Check, kind: str, changed: Event
) -> None:
    assert "reported" in kinds(check(*both(kind, 3, **changed)))


def test_a_wrong_sum_at_the_end_is_found(check: Check) -> None:
    one, other = honest()
    end = {"kind": "run_finished", "version": 4, "samples": 40, "tokens": 40 * CONTEXT}
    assert check([*one, end], [*other, end]).findings == []
    assert kinds(check([*one, end | {"tokens": 39 * CONTEXT}], other)) == {"reported"}
    assert kinds(check(one, [*other, end | {"samples": 41}])) == {"reported"}


def test_a_lease_that_nobody_handed_out_is_found(check: Check) -> None:
    one, other = honest()
    pick(one, "lease_taken", 5)["ranges"] = [(46, 4)]
    ledger = check(one, other)
    assert kinds(ledger) == {"lease"}
    assert f"{A} worked on 46-49 for round 5, which were not handed to it" in said(ledger)


def test_a_contributor_whose_lease_is_not_counted_is_found(check: Check) -> None:
    one, other = honest()
    pick(other, "lease_taken", 2)["ranges"] = [(20, 4)]
    assert f"counts {B}, but not 20-23 of its lease" in said(check(one, other))


def test_a_counted_lease_of_somebody_who_is_no_contributor_is_found(check: Check) -> None:
    ledger = check(*both("round_committed", 2, contributors=[A, C]))
    assert kinds(ledger) == {"lease"}
    assert f"does not count {B}, but 16-19 of its lease is counted" in said(ledger)


def test_a_contributor_that_never_took_its_lease_is_found(check: Check) -> None:
    one, other = honest()
    other = [each for each in other if (each["kind"], each.get("version")) != ("lease_taken", 3)]
    assert f"round 3 counts {B}, which never took a lease" in said(check(one, other))


def test_two_contributors_with_the_same_positions_are_found(check: Check) -> None:
    one, other = honest()
    pick(other, "lease_taken", 3)["ranges"] = [(22, 4)]
    assert "both peers were counted with 22-23" in said(check(one, other))


def test_a_contributor_that_was_no_member_is_found(check: Check) -> None:
    ledger = check(*both("round_committed", 4, contributors=[A, B, C]))
    assert f"counts {C}, to whom it handed nothing" in said(ledger)


def test_a_version_in_neither_journal_is_found(check: Check) -> None:
    one, other = honest()
    ledger = check(without(one, 2), without(other, 2))
    assert {"missing", "lost"} <= kinds(ledger)
    assert "round 2 is in neither journal" in said(ledger)


def test_a_round_whose_end_is_in_neither_journal_is_found(check: Check) -> None:
    one, other = ([e for e in s if (e["kind"], e.get("version")) != ("round_committed", 1)] for s in honest())
    assert "round 1 has no end in either journal" in said(check(one, other))


# files


def test_a_line_cut_off_by_a_crash_is_passed_over_and_said(tmp_path: Path) -> None:
    one, other = honest()
    path = written(tmp_path, A, one)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:30] + b"".join(lines[3:]) + lines[-1][:50])
    ledger = audit(read_book(path), read_book(written(tmp_path, B, other)))
    assert ledger.findings == []
    assert ledger.notes == [f"{path}: cut off by a crash in line 4, {len(lines) + 1}"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"hello", "line 3: not a journal line: 'hello'"),
        (b"\xff\xfe", "line 3: not a journal line"),
        (b"[" * 100_000, "line 3: not a journal line"),
        (
            b'{"at_s":1,"peer":"aaaa1111","event":{"kind":"round_committed","channel":"outer"}}',
            "missing required field",
        ),
        (b'{"at_s":1,"peer":"bbbb2222","event":{"kind":"x"}}', "one peer's journal is needed"),
        (
            b'{"at_s":1,"peer":"aaaa1111","event":{"kind":"lease_taken","channel":"o","version":1,"ranges":[[-1,2]]}}',
            "line 3: lease_taken: Expected `int` >= 0",
        ),
        (
            b'{"at_s":1,"peer":"aaaa1111","event":{"kind":"round_announced","channel":"o","version":1,"members":[],'
            b'"samples":4,"first":0}}',
            "4 samples, but not which ones",
        ),
    ],
)
def test_a_damaged_journal_is_refused_by_file_and_line(tmp_path: Path, line: bytes, words: str) -> None:
    path = written(tmp_path, A, honest()[0])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    with pytest.raises(LocalError) as refused:
        read_book(path)
    assert str(path) in refused.value.what
    assert words in refused.value.what
    assert refused.value.hint


def test_two_journals_that_do_not_belong_together_are_refused(tmp_path: Path, check: Check) -> None:
    one, other = honest()
    book = read_book(written(tmp_path, A, one))
    with pytest.raises(SpecError, match="both of peer"):
        audit(book, book)
    with pytest.raises(SpecError, match="different runs"):
        check(one, [START | {"run": "another"}, *other[1:]])
    with pytest.raises(SpecError, match="no round at all"):
        check([START], [START])


def test_the_training_tokens_are_counted_from_the_manifest(tmp_path: Path) -> None:
    shards = [{"split": "train", "tokens": 100}, {"split": "held-out", "tokens": 7}, {"split": "train", "tokens": 11}]
    (tmp_path / "manifest.json").write_text(json.dumps({"shards": shards, "format": 1}))
    assert read_train_tokens(tmp_path) == read_train_tokens(tmp_path / "manifest.json") == 111
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(LocalError, match="not a data manifest"):
        read_train_tokens(tmp_path)


# the command


def _ledger(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ledger", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_command_prints_a_verdict_and_exits_with_one_on_findings(tmp_path: Path) -> None:
    one, other = honest()
    good = written(tmp_path, A, one), written(tmp_path, B, other)
    code, shown = _ledger(*good)
    assert code == 0
    assert "\nverdict    sound: of 48 samples handed out none was lost" in shown
    pick(other, "round_committed", 1)["result"] = "e" * 64
    code, shown = _ledger(good[0], written(tmp_path, B, other))
    assert code == 1
    assert "finding    round 1 was committed in two ways: result" in shown
    code, shown = _ledger(*good, "--json")
    assert code == 1
    told = json.loads(shown)
    assert told["ok"] is False
    assert [finding["kind"] for finding in told["findings"]] == ["differ"]


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="no such file"):
        _ledger(tmp_path / "none.jsonl", tmp_path / "none.jsonl")


# sets of positions

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=6)


@given(RANGES, RANGES)
def test_spans_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def plain(ranges: list[tuple[int, int]]) -> set[int]:
        return {at for first, count in ranges for at in range(first, first + count)}

    def listed(some: spans.Spans) -> set[int]:
        found = [at for start, end in some.pairs for at in range(start, end)]
        assert len(found) == len(set(found)) == len(some)
        assert sorted(found) == found
        return set(found)

    x, y = spans.from_ranges(one), spans.from_ranges(other)
    assert listed(x | y) == plain(one) | plain(other)
    assert listed(x & y) == plain(one) & plain(other)
    assert listed(x - y) == plain(one) - plain(other)
    assert (x == y) == (plain(one) == plain(other))


def test_the_audit_knows_nothing_of_those_it_judges() -> None:
    rooms = Path(spans.__file__).parent
    names = {"atoll.errors", *(f"atoll.observe.{name}" for name in ("spans", "book", "ledger"))}
    for file in ("spans.py", "book.py", "ledger.py", "verdict.py"):
        said = re.findall(r"^(?:from|import) (atoll\S*)", (rooms / file).read_text("utf-8"), re.MULTILINE)
        assert set(said) <= names


@given(RANGES, st.integers(1, 12))
def test_epochs_are_counted_as_one_would_by_hand(ranges: list[tuple[int, int]], size: int) -> None:
    counted = {at for first, count in ranges for at in range(first, first + count)}
    book = parse_book(b'{"peer":"a","event":{}}', Path("a"))
    by_hand = Counter(position // size for position in counted)
    ledger = Ledger((book, book), counted=spans.from_ranges(ranges), epoch_samples=size)
    whole = [epoch for epoch, count in by_hand.items() if count == size]
    assert epochs(ledger) == (len(whole), {e: c for e, c in sorted(by_hand.items()) if c != size})
