"""What is read from journals, and that order between peers does not matter."""

from __future__ import annotations

from itertools import chain, zip_longest

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.journal import Line
from atoll.observe.progress import fold, left_s, part_done, round_s, say
from atoll.observe.report import report, text
from atoll.spec.load import demo_run
from tests.observe.story import PEERS, tell


def test_rounds_tokens_and_loss_are_those_of_the_journal() -> None:
    progress = fold(tell(3))
    assert progress.version == 3
    assert progress.tokens == 9000
    assert progress.losses == [5.0, 4.0, 3.0]
    assert progress.tokens_s == pytest.approx(3 * 500.0)
    assert progress.sent_bytes == 9_000_000
    assert progress.state == "training"
    assert {peer.name: (peer.version, peer.steps) for peer in progress.peers.values()} == dict.fromkeys(PEERS, (3, 5))


def test_the_interleaving_of_peers_changes_nothing() -> None:
    lines = tell(3, finish=True)
    each = [[line for line in lines if line.peer == peer] for peer in reversed(PEERS)]
    one_after_another = list(chain(*each))
    in_turns = [line for group in zip_longest(*each) for line in group if line is not None]
    wanted = report(fold(lines))
    assert report(fold(one_after_another)) == wanted
    assert report(fold(in_turns)) == wanted


def test_a_commit_told_twice_counts_once() -> None:
    lines = tell(2)
    again = [
        Line(line.at_s + 5, PEERS[1], line.event) for line in lines if isinstance(line.event, journal.RoundCommitted)
    ]
    assert fold([*lines, *again]).tokens == fold(lines).tokens


def test_traffic_of_a_restarted_peer_adds_up() -> None:
    lines = [
        Line(1.0, "a", journal.PeerStarted(run="r")),
        Line(2.0, "a", journal.TrafficCounted(sent_bytes=100, received_bytes=10)),
        Line(3.0, "a", journal.PeerStarted(run="r", resumed_version=1)),
        Line(4.0, "a", journal.TrafficCounted(sent_bytes=5, received_bytes=1)),
    ]
    peer = fold(lines).peers["a"]
    assert (peer.sent_bytes, peer.received_bytes) == (105, 11)


def test_the_time_left_follows_the_pace_of_the_last_rounds() -> None:
    run, progress = demo_run(overrides=["budget.rounds=10"]), fold(tell(4))
    assert round_s(progress) == pytest.approx(10.0)
    assert part_done(progress, run) == pytest.approx(0.4)
    assert left_s(progress, run, progress.last_s) == pytest.approx(60.0)
    assert left_s(progress, run, progress.last_s + 4.0) == pytest.approx(56.0)
    assert left_s(progress, run, progress.last_s + 1e6) == 0.0


def test_a_budget_of_tokens_is_measured_in_tokens() -> None:
    run = demo_run(overrides=["budget.rounds=0", "budget.tokens=30000"])
    assert part_done(fold(tell(5)), run) == pytest.approx(0.5)


def test_before_the_second_commit_no_time_is_promised() -> None:
    run = demo_run()
    assert left_s(fold(tell(1)), run, 2000.0) is None
    assert left_s(fold([]), run, 2000.0) is None
    assert part_done(fold(tell(1)), None) is None


def test_losses_and_refusals_are_kept_with_their_reasons() -> None:
    lines = [
        Line(1.0, "a", journal.PeerLost(who="b", why="silent for 10 s")),
        Line(2.0, "a", journal.MessageRefused(who="c", why="oversized")),
    ]
    progress = fold(lines)
    assert progress.lost == [("b", "silent for 10 s")]
    assert progress.refused == [("c", "oversized")]
    assert [words for _, _, words in progress.events] == [
        "lost b: silent for 10 s",
        "refused a message of c: oversized",
    ]


def test_routine_is_no_news() -> None:
    assert say(tell(1)[-1]) is None
    assert say(Line(0.0, "a", journal.PeerStarted(run="r", organiser=True))) == "opened the run"


def test_a_run_is_over_when_every_peer_has_stopped() -> None:
    assert not fold(tell(2)).over
    progress = fold(tell(2, finish=True))
    assert progress.over
    assert progress.state == "finished"


def test_the_report_names_each_peer_and_its_share() -> None:
    summary = report(fold(tell(4, finish=True)), demo_run(overrides=["budget.rounds=4"]))
    assert summary["rounds"] == summary["rounds_of"] == 4
    assert summary["held_out"] == 3.25
    assert summary["took_s"] == 40.0
    assert [each["contributions"] for each in summary["peers"]] == [4, 4, 4]
    assert [each["round_sent_bytes"] for each in summary["peers"]] == [2_000_000] * 3
    assert "held-out  3.250" in text(summary)
    assert "12.0 MB by 3 peers, 4.0 MB each" in text(summary)


def test_a_report_of_nothing_is_still_a_report() -> None:
    summary = report(fold([]))
    assert summary["state"] == "waiting for peers"
    assert "rounds    0" in text(summary)


def test_a_report_says_how_knobs_were_turned_and_why() -> None:
    run = demo_run(overrides=["recipe.base='auto'", "recipe.channel.outer.when.steps=10"])
    turn = journal.KnobsTurned(channel="outer", version=4, steps=100, rung=3, delay=0, lr=0.6, why="lines are slow")
    later = replace(turn, version=9, steps=100, rung=1, why="lines got fast")
    lines = [Line(at_s=1.0, peer=peer, event=event) for event in (turn, later) for peer in ("aa", "bb")]
    summary = report(fold(lines), run)
    assert [(each["from_round"], each["form"]) for each in summary["knobs"]] == [(4, "top-k"), (9, "int8")]
    said = [line for line in text(summary).splitlines() if line.startswith("knobs")]
    assert said == [
        "knobs     10 -> 100 steps, top-k, from round 4 on: lines are slow",
        "knobs     100 steps, int8, from round 9 on: lines got fast",
    ]


def test_a_report_says_that_nothing_was_turned_only_where_somebody_could() -> None:
    steered = report(fold(tell(2)), demo_run(overrides=["recipe.base='auto'"]))
    assert steered["knobs"] == [] and "nothing was turned" in text(steered)
    plain = report(fold(tell(2)), demo_run())
    assert plain["knobs"] is None and "knobs" not in text(plain)


def test_of_knobs_that_were_turned_often_the_last_are_told_and_how_many_there_were() -> None:
    turn = journal.KnobsTurned(channel="outer", version=1, steps=10, rung=0, delay=0, lr=0.0, why="it was measured")
    lines = [Line(at_s=1.0, peer="aa", event=replace(turn, version=version)) for version in range(4, 24, 4)]
    summary = report(fold(lines))
    assert len(summary["knobs"]) == 5
    said = [line for line in text(summary).splitlines() if line.startswith("knobs")]
    assert said[0] == "knobs     turned 5 times, the last:"
    assert [line.partition(" from ")[2] for line in said[1:]] == [
        f"round {version} on: it was measured" for version in (12, 16, 20)
    ]
