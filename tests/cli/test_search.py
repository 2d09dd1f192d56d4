"""`atoll sim --seeds`, `--replay` and `--faults`: what a person sees of the search for faults."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll.sim.case import Case, play, to_json
from atoll.sim.faults import Crash
from atoll.sim.skies import case_of
from tests.world.warm import atoll


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `atoll sim` in a process of its own."""
    return atoll("sim", *arguments)


def stored(case: Case, path: Path) -> Path:
    path.write_bytes(to_json(case, play(case)))
    return path


def hopeless() -> Case:
    """Return a case that must break: of two peers that every round needs, one is lost for good."""
    case = case_of("pair", 1)
    membership = replace(case.run.membership, start_with=2)
    lost = (Crash(at_s=10.0, peer=1, restart_after_s=None),)
    run = replace(case.run, membership=membership)
    return replace(case, run=run, machines=case.machines[:2], tickets={}, faults=lost, until_s=15.0)


def test_a_search_prints_how_each_family_fared() -> None:
    done = sim("--seeds", "0..3", "--faults", "storm=pair", "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "atoll.seeds/1"
    assert (found["seeds"], found["broken"], found["cases"]) == (3, {}, [])
    assert [(row["family"], row["seeds"]) for row in found["families"]] == [("pair", 3)]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--seeds", "0..3", "--journal", "lines.jsonl"), "--journal: not with --seeds without a run file"),
        (("--seeds", "0..3", "--set", "budget.rounds=3"), "--set: not with --seeds without a run file"),
        (("run.toml", "--seeds", "0..3", "--real-compute"), "--real-compute: not with --seeds"),
        (("--faults", "points", "--fleet", "homes"), "--fleet: not with --faults points"),
        (("run.toml", "--replay", "case.json"), "a run file: not with --replay"),
    ],
)
def test_what_a_search_does_not_listen_to_is_refused(words: tuple[str, ...], named: str) -> None:
    done = sim(*words)
    assert done.returncode == 2 and named in done.stderr, done.stderr
    assert "leave it out: that listens to " in done.stderr


def test_a_stored_case_is_replayed_to_the_byte(tmp_path: Path) -> None:
    path = stored(case_of("pair", 2), tmp_path / "case.json")
    done = sim("--replay", str(path), "--journal", str(tmp_path / "lines.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "yes, to the byte" in done.stdout
    assert "broken        nothing" in done.stdout
    assert (tmp_path / "lines.jsonl").read_text("utf-8").count("\n") > 50


def test_a_replay_that_takes_another_course_says_so(tmp_path: Path) -> None:
    path = stored(case_of("pair", 2), tmp_path / "case.json")
    path.write_text(path.read_text("utf-8").replace('"trace": "', '"trace": "00'), "utf-8")
    done = sim("--replay", str(path))
    assert done.returncode == 1
    assert "took another course" in done.stderr and "hint: it was stored by atoll" in done.stderr


def test_a_broken_promise_is_an_error_that_says_what_it_takes(tmp_path: Path) -> None:
    path = stored(hopeless(), tmp_path / "case.json")
    done = sim("--replay", str(path), "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["same"]
    assert any("of calm" in what for what in found["broken"])
    assert "broken promise" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no run file was given"),
        (["--seeds", "5..5"], "'5..5' is not a range"),
        (["--seeds", "0..5", "--faults", "storm=drizzle"], "no family is called 'drizzle'"),
        (["--seeds", "0..5", "--faults", "list.json"], "needs a run file"),
        (["--replay", "no/such/case.json"], "cannot be read"),
    ],
    ids=["nothing", "an empty range", "an unknown family", "a list without a run", "no such case"],
)
def test_what_cannot_be_searched_is_said_with_a_hint(arguments: list[str], told: str) -> None:
    done = sim(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
