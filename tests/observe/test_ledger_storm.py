"""The audit on journals that peers wrote in simulated storms: any two tell it all, whoever crashed or slept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from atoll.observe.book import Book, Committed, Started, Voided, parse_book
from atoll.observe.ledger import audit
from atoll.observe.verdict import text
from atoll.sim.faults import Fault, Leave, SlowCompute, storm
from atoll.sim.scenario import Outcome
from atoll.spec.axes.pace import RoundsLate
from tests.peer.world import counting_run, play

PEERS = 5
ROUNDS = 24
STORM_S = 80.0


def books(outcome: Outcome) -> list[Book]:
    """Return every peer's journal as its file would have it."""
    journals: dict[str, bytes] = {}
    for line in outcome.lines:
        journals[line.peer] = journals.get(line.peer, b"") + msgspec.json.encode(line) + b"\n"
    return [parse_book(data, Path(peer)) for peer, data in journals.items()]


def stormy(seed: int, recipe: str = "diloco", rounds: int = ROUNDS, more: Sequence[Fault] = ()) -> list[Book]:
    run = counting_run(recipe, rounds=rounds, steps=40, start_with=3, patience_s_max=30.0)
    return books(play(run, PEERS, faults=[*storm(seed, PEERS, STORM_S), *more], seed=seed))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_any_two_journals_of_a_storm_show_that_no_sample_was_lost_or_counted_twice(seed: int) -> None:
    journals = stormy(seed)
    assert any(len(book.all(Started)) > 1 for book in journals), "nobody crashed: this shows little"
    for one, other in combinations(journals, 2):
        ledger = audit(one, other)
        assert ledger.findings == [], text(ledger)
        assert ledger.committed == ROUNDS
        assert len(ledger.counted | ledger.waiting) == ledger.handed


@pytest.mark.long
@pytest.mark.parametrize("recipe", [pytest.param("async-local-sgd", marks=pytest.mark.long), "decoupled"])
def test_work_that_outlasts_rounds_is_accounted_for_by_any_two_journals(recipe: str) -> None:
    slow = SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=3.0)
    journals = stormy(1, recipe, rounds=60, more=[slow])
    assert any(commit.carried for book in journals for commit in book.all(Committed))
    for one, other in combinations(journals, 2):
        ledger = audit(one, other)
        assert ledger.findings == [], text(ledger)
        assert len(ledger.counted | ledger.waiting) == ledger.handed


def test_rounds_that_were_open_at_once_and_given_up_are_accounted_for_by_any_two_journals() -> None:
    run = counting_run("ddp", rounds=ROUNDS, start_with=3, contributors_min=3)
    ((name, channel),) = run.recipe.channel.items()
    late = msgspec.structs.replace(channel, overlap=RoundsLate(rounds=3))
    run = msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, channel={name: late}))
    journals = books(play(run, 3, faults=[Leave(at_s=0.7, peer=2, restart_after_s=2.0)]))
    assert max(len(book.all(Voided)) for book in journals) > 1
    for one, other in combinations(journals, 2):
        ledger = audit(one, other)
        assert ledger.findings == [], text(ledger)
        assert ledger.committed == ROUNDS
        assert len(ledger.counted | ledger.waiting) == ledger.handed


def test_a_sample_counted_twice_in_a_storm_is_seen_in_any_two_journals() -> None:
    journals = [_with_a_double(book) for book in stormy(1)]
    for one, other in combinations(journals, 2):
        assert "twice" in {finding.kind for finding in audit(one, other).findings}


def _with_a_double(book: Book) -> Book:
    """Return a journal in which the last round counts a position of the first again."""
    last = max(commit.version for commit in book.all(Committed))
    told = [
        msgspec.structs.replace(each, counted=(*each.counted, (0, 1)))
        if isinstance(each, Committed) and each.version == last
        else each
        for each in book.told
    ]
    return replace(book, told=tuple(told))


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_many_storms_lose_no_sample_and_count_none_twice(first: int) -> None:
    for seed in range(first, first + 20):
        for one, other in combinations(stormy(seed), 2):
            assert audit(one, other).findings == [], (seed, one.peer, other.peer)
