"""Granularity: work beside everything else in a round, by round, by peer and for a run."""

from __future__ import annotations

from typing import Any

import pytest

from atoll import journal
from atoll.journal import Line
from atoll.observe.granularity import MOST, doubled, of_peer, of_rounds, of_run, say_granularity
from atoll.observe.progress import Progress
from atoll.observe.report import report, text


def told(rounds: list[tuple[float, dict[str, float]]], contributors: list[str]) -> Progress:
    """Return what journals tell of rounds, each of so many seconds and of so much work by each peer."""
    progress, at_s = Progress(), 100.0
    for version, (took_s, worked_s) in enumerate(rounds, start=1):
        of: Any = {"channel": "outer", "version": version}
        progress.add(Line(at_s, "aa", journal.RoundAnnounced(**of, members=list(worked_s), samples=2, first=0)))
        for peer, work_s in worked_s.items():
            for half in (1, 2):  # work comes in slices
                work = journal.WorkProgressed(**of, steps=half, steps_of=2, loss=1.0, tokens=1, took_s=work_s / 2)
                progress.add(Line(at_s + half * work_s / 2, peer, work))
        done = journal.RoundCommitted(**of, contributors=contributors, samples=2, tokens=2, result="")
        progress.add(Line(at_s + 0.9 * took_s, "aa", done))
        at_s += took_s
    return progress


def test_a_round_lasts_until_the_next_is_announced_and_works_as_long_as_its_slowest() -> None:
    progress = told([(10.0, {"aa": 4.0, "bb": 8.0}), (10.0, {"aa": 5.0, "bb": 1.0})], ["aa", "bb"])
    assert of_rounds(progress) == pytest.approx({1: 4.0, 2: 5.0 / 4.0})  # the last one ends with its commit
    assert of_run(progress) == pytest.approx(13.0 / 6.0)
    assert of_peer(progress, "aa") == pytest.approx(9.0 / 10.0)
    assert of_peer(progress, "bb") == pytest.approx(9.0 / 10.0)


def test_whoever_was_not_in_a_round_does_not_count_in_it() -> None:
    progress = told([(10.0, {"aa": 4.0, "bb": 8.0})] * 2, ["aa"])
    assert of_rounds(progress)[1] == pytest.approx(4.0 / 6.0)
    assert of_peer(progress, "bb") is None


def test_work_that_hides_everything_else_has_a_largest_granularity() -> None:
    progress = told([(10.0, {"aa": 12.0, "bb": 12.0})] * 2, ["aa", "bb"])
    assert of_run(progress) == MOST


def test_what_no_journal_tells_is_not_told() -> None:
    assert of_run(Progress()) is None
    assert say_granularity(None) == "-"
    assert say_granularity(1.2e-5) == "< 0.001", "and nobody reads the rest"


@pytest.mark.parametrize(("granularity", "gain"), [(0.0, 1.0), (1.0, 4 / 3), (10.0, 11 / 6), (1e9, 2.0)])
def test_twice_the_peers_gain_what_the_paper_says(granularity: float, gain: float) -> None:
    assert doubled(granularity) == pytest.approx(gain)


def test_a_report_tells_it_of_the_run_and_of_every_peer() -> None:
    summary = report(told([(10.0, {"aa": 4.0, "bb": 8.0})] * 2, ["aa", "bb"]))
    assert summary["granularity"] == pytest.approx(16.0 / 3.0)
    assert [peer["granularity"] for peer in summary["peers"]] == pytest.approx([8.0 / 11.0, 16.0 / 3.0])
    assert "5.3 times as long as the rest of a round" in text(summary)
    assert "1.73 times as fast" in text(summary)
