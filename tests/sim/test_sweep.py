"""Crashes at single sends and syncs: the points themselves, and the sweep over all kinds of them."""

from __future__ import annotations

import pytest

from atoll.net.wire import encode
from atoll.peer.messages import AskRun
from atoll.sim import sweep
from atoll.sim.case import play
from atoll.sim.faults import CrashAt
from atoll.sim.points import file_kind, fits, message_kind
from atoll.swarm.messages import Farewell

SAMPLE = 24
"""Cells of the sweep that are played here: spread evenly over the table."""
ENOUGH = (
    "an end",
    "a leave",
    "a nap",
    "a lying part",
    "two that join together",
    "sums round slow lines",
    "a vandal",
    "changed settings",
    "a council re-formed",
    "one who is not listed",
)
"""Reference runs in which everything is said that is said in any: what `make test` plays."""


@pytest.fixture(scope="module")
def seen() -> sweep.Seen:
    return sweep.look({name: sweep.look_at(sweep.references()[name]) for name in ENOUGH})


@pytest.fixture(scope="module")
def seen_in_all() -> sweep.Seen:
    return sweep.look(sweep.play_references())


def test_a_message_is_known_by_its_tag_and_its_stream() -> None:
    assert message_kind("ask", encode(AskRun("r", 1))) == "ask/ask-run"
    assert message_kind("control", encode(Farewell())) == "control/farewell"
    assert message_kind("x", b"") == message_kind("x", b"\x01\xc0\xc0\xc0") == "x/raw"


def test_a_file_is_known_by_its_folder_or_name() -> None:
    kinds = [file_kind(p) for p in ("log", "log.new", "run.json", "results/7.new", "results/", "/", "checkpoint/3.x")]
    assert kinds == ["log", "log", "run", "results", "results/", "/", "checkpoint"]


def test_a_pattern_names_a_point_wholly_or_in_part() -> None:
    for pattern in ("send:part/chunk", "send:chunk", "send:part/", "send:"):
        assert fits(pattern, "send:part/chunk")
    for pattern in ("send:fetch/chunk", "fsync:", "send:part", "fsync:chunk", ""):
        assert not fits(pattern, "send:part/chunk")
    assert fits("fsync:", "fsync:log")
    assert not fits("fsync:results", "fsync:results/")


def test_every_declared_message_is_said_in_a_reference_run(seen: sweep.Seen) -> None:
    assert sweep.declared_tags() - sweep.said_tags(seen) == set()
    assert {"fsync:log", "fsync:results", "fsync:checkpoint", "fsync:private", "fsync:boots", "fsync:run"} <= set(seen)


def test_the_sweep_leaves_no_cell_empty(seen: sweep.Seen) -> None:
    table = sweep.rows((cell, False) for cell in sweep.cells(seen))
    assert sweep.empty_cells(table) == []
    assert {row.what for row in table} == set(seen)
    assert "crash before" in sweep.text(table)


def test_what_is_never_said_is_an_empty_cell(seen: sweep.Seen) -> None:
    without = {what: where for what, where in seen.items() if not what.endswith("/plan")}
    table = sweep.rows((cell, False) for cell in sweep.cells(without) if cell.when == "before")
    empty = sweep.empty_cells(table)
    assert "plan is never said in a reference run" in empty
    assert "fsync:log: no crash after" in empty


@pytest.mark.long
def test_the_other_references_say_nothing_more(seen: sweep.Seen, seen_in_all: sweep.Seen) -> None:
    assert set(seen) == set(seen_in_all)
    assert sweep.empty_cells(sweep.rows((cell, False) for cell in sweep.cells(seen_in_all))) == []


@pytest.mark.long
def test_a_crash_at_a_point_happens_there_and_breaks_nothing(seen_in_all: sweep.Seen) -> None:
    cells = sweep.cells(seen_in_all, places_max=1, nths=1)
    sample = cells[:: max(1, len(cells) // SAMPLE)]
    broken = [(cell.what, cell.when, cell.case.family, play(cell.case).broken[:2]) for cell in sample]
    assert [found for found in broken if found[-1]] == []
    assert all(isinstance(cell.case.faults[0], CrashAt) for cell in sample)
