"""The terminal view, drawn from invented journals, and the files it follows."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atoll import journal
from atoll.journal import Line
from atoll.observe.progress import Progress, fold
from atoll.observe.tail import Tail
from atoll.observe.view import follow, render, sparkline
from atoll.spec.load import demo_run
from tests.observe.story import PEERS, tell


def drawn(progress: Progress, *, width: int = 100, late_s: float = 0.0) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(render(progress, demo_run(overrides=["budget.rounds=12"]), progress.last_s + late_s, width=width))
    return console.export_text()


def write(home: Path, lines: list[Line]) -> None:
    """Append lines to the journals of their peers."""
    for line in lines:
        file = home / "peers" / line.peer / "journal.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            stream.write(msgspec.json.encode(line) + b"\n")


def test_the_screen_says_where_the_run_stands() -> None:
    screen = drawn(fold(tell(3)))
    assert "atoll demo  training  3 members" in screen
    assert "round 3 of 12  25%" in screen
    assert "5.000 → 3.000" in screen
    for peer in PEERS:
        assert peer in screen
    assert "round 3 committed with 3 contributions" in screen


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (50, 60, 80, 100, 200):
        for progress in (fold([]), fold(tell(3)), fold(tell(12, finish=True))):
            assert max(len(line) for line in drawn(progress, width=width).splitlines()) <= width


def test_a_peer_that_wrote_nothing_for_long_is_shown_as_silent() -> None:
    assert "silent 1 min 30 s" in drawn(fold(tell(2)), late_s=90.0)
    assert "silent" not in drawn(fold(tell(2, finish=True)), late_s=90.0)


def test_more_peers_than_fit_are_counted() -> None:
    lines = [Line(1.0, f"peer-{i:03d}", journal.PeerStarted(run="r")) for i in range(50)]
    assert "and 34 more" in drawn(fold(lines))


def test_a_loss_that_is_no_number_does_not_break_the_screen() -> None:
    work = journal.WorkProgressed(
        channel="outer", version=1, steps=1, steps_of=2, loss=float("nan"), tokens=10, took_s=0.0
    )
    assert "nan" in drawn(fold([Line(1.0, "a", work)]))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)), st.integers(1, 50))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width


def test_a_falling_loss_draws_falling_bars() -> None:
    assert sparkline([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([8.0, 8.0, 1.0, 1.0], 2) == "█▁"


def test_without_a_terminal_each_round_is_one_plain_line(tmp_path: Path) -> None:
    lost = Line(1015.0, PEERS[0], journal.PeerLost(who="deadbeef", why="silent"))
    write(tmp_path, [*tell(3, finish=True), lost])
    out = io.StringIO()
    progress = follow(tmp_path, run=demo_run(overrides=["budget.rounds=12"]), console=Console(file=out, width=40))
    said = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in said if line.startswith("round")] == [f"round {i} of 12" for i in (1, 2, 3)]
    assert "lost deadbeef: silent" in said
    assert "\x1b" not in out.getvalue()
    assert progress.finished


def test_on_a_terminal_the_view_ends_with_the_run_and_leaves_the_last_screen(tmp_path: Path) -> None:
    write(tmp_path, tell(3, finish=True))
    out = io.StringIO()
    follow(
        tmp_path,
        run=demo_run(overrides=["budget.rounds=12"]),
        console=Console(file=out, width=100, force_terminal=True),
    )
    assert "finished" in out.getvalue()


def test_a_line_caught_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, tell(1))
    tail = Tail(tmp_path)
    assert len(tail.lines()) == len(tell(1))
    file = tmp_path / "peers" / PEERS[0] / "journal.jsonl"
    raw = msgspec.json.encode(Line(5.0, PEERS[0], journal.PeerStopped(why="done"))) + b"\n"
    with file.open("ab") as stream:
        stream.write(raw[:20])
    assert tail.lines() == []
    with file.open("ab") as stream:
        stream.write(raw[20:])
    assert [line.event for line in tail.lines()] == [journal.PeerStopped(why="done")]
    assert tail.lines() == []


def test_peers_that_start_later_are_followed_too(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.lines() == []
    write(tmp_path, [Line(1.0, "late", journal.PeerStarted(run="r"))])
    assert [line.peer for line in tail.lines()] == ["late"]


def test_lines_of_another_version_are_counted_and_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b'{"at_s": 1, "peer": "a", "event": {"kind": "from_the_future"}}\nnot json\n')
    tail = Tail(file)
    assert tail.lines() == []
    assert tail.unknown == 2
