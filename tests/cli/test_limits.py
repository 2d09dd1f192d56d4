"""`atoll limits` as a person meets it: a verdict, one limit in full, a file of one's own, a report."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from atoll.cli.limits import command
from atoll.errors import SpecError
from tests.world.warm import atoll

WIDE = os.environ | {"COLUMNS": "140"}


def limits(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return atoll("limits", *arguments, cwd=cwd, env=WIDE)


@pytest.mark.long
def test_a_person_copies_a_scenario_changes_it_and_gets_another_verdict(tmp_path: Path) -> None:
    shipped = limits("labs", "--toml")
    assert shipped.returncode == 0
    (tmp_path / "mine.toml").write_text(shipped.stdout.replace("device_memory_gb = 80", "device_memory_gb = 8"))
    done = limits("mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ONLY IF: memory binds" in done.stdout
    for name in ("bandwidth", "stragglers", "drift", "memory", "cost", "envelope", "provenance"):
        assert f"\n{name} " in done.stdout
    assert "the nearest plan" in done.stdout and "where training far apart is right" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 140


@pytest.mark.long
def test_a_program_gets_one_limit_with_its_inputs_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    command("homes", limit="memory", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "atoll.limits/1"
    assert told["verdict"] == "wall"
    assert {each["path"] for each in told["given"]} >= {"model.parameters", "peers.device_memory_gb"}
    assert all(each["source"] for each in told["given"])
    assert told["checks"] and told["tables"] and told["drawings"]
    command("labs", limit="cost", as_json=True)
    assert json.loads(capsys.readouterr().out)["drawings"][1]["bars"], "numbers that numpy made are told too"


def test_the_example_says_where_the_claim_holds_and_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(example="fusionai", report=str(tmp_path / "fusion.html"))
    said = capsys.readouterr().out
    assert "0.984" in said and "over homes' uplinks 0.5%" in said
    assert (tmp_path / "fusion.html").read_text().count("<figure>") == 2


@pytest.mark.parametrize(
    ("asked", "what", "hint"),
    [
        ({"scenario": "home"}, "no scenario is called 'home'", "did you mean 'homes'"),
        ({"scenario": "homes", "limit": "memry"}, "there is no limit 'memry'", "did you mean 'memory'"),
        ({"scenario": "homes", "report": "x.pdf"}, "the report is an HTML file", "x.html"),
        ({"example": "fusion"}, "there is no example 'fusion'", "fusionai"),
        ({"report": "x.html"}, "no scenario is named", "homes"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(asked: dict[str, str], what: str, hint: str) -> None:
    with pytest.raises(SpecError, match=what) as refused:
        command(**asked)  # type: ignore[arg-type]
    assert hint in refused.value.hint


@pytest.mark.long
def test_every_shipped_scenario_has_a_whole_answer_and_a_report_with_a_plot_for_each_limit(tmp_path: Path) -> None:
    verdicts = {each["scenario"]: each["verdict"] for each in json.loads(limits("--json").stdout)["answers"]}
    assert verdicts == {"homes": "no", "labs": "yes", "organisation": "only if"}
    for name in verdicts:
        done = limits(name, "--json", "--report", f"{name}.html", cwd=tmp_path)
        told = json.loads(done.stdout)
        assert len(told["findings"]) == 7
        assert all(check["agrees"] for finding in told["findings"] for check in finding["checks"])
        assert (tmp_path / f"{name}.html").read_text().count("<figure>") >= 7
