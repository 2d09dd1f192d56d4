"""`atoll compare` as a person meets it: really trained, kept, reused, and left with Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.compare import _Larger, _larger
from atoll.spec.load import load_run
from tests.cli import toy
from tests.cli.toy import ENVIRONMENT
from tests.world.warm import atoll

RUN = toy.RUN + "[recipe.work.inner]\nlr = 1e-2\n[upkeep]\nevaluate_samples = 8\n"
COMMAND = [*toy.COMMAND, "compare"]


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return atoll("compare", "run.toml", *arguments, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def first(folder: Path) -> subprocess.CompletedProcess[str]:
    done = compare(folder, "--recipes", "ddp,diloco", "--fleet", "lan", "--peers", "2", "--json")
    assert done.returncode == 0, done.stderr
    return done


def by_label(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["label"]: each for each in told["recipes"]}


def test_recipes_get_equal_tokens_and_end_with_real_losses(first: subprocess.CompletedProcess[str]) -> None:
    told = json.loads(first.stdout)
    found = by_label(told)
    assert list(found) == ["solo", "ddp", "diloco"]
    assert found["ddp"]["tokens"] == found["diloco"]["tokens"] == told["tokens"] == 2 * 2 * 3 * 1 * 512
    assert found["solo"]["tokens"] == told["tokens"] // 2
    assert (found["ddp"]["rounds"], found["diloco"]["rounds"], found["solo"]["rounds"]) == (6, 2, 2)
    assert all(4.0 < each["held_out"] < 6.0 for each in found.values()), "bytes of text, hardly trained: below ln 257"
    assert len({each["held_out"] for each in found.values()}) == 3
    assert found["ddp"]["sent_bytes"] > 2 * found["diloco"]["sent_bytes"]
    assert found["solo"]["sent_bytes"] == 0


def test_the_gain_kept_follows_from_the_losses(first: subprocess.CompletedProcess[str]) -> None:
    found = by_label(json.loads(first.stdout))
    solo, ddp, diloco = (found[label]["held_out"] for label in ("solo", "ddp", "diloco"))
    if solo > ddp:
        assert found["diloco"]["gain_kept"] == pytest.approx((solo - diloco) / (solo - ddp))
        assert found["ddp"]["gain_kept"] == 1.0
    else:
        assert found["diloco"]["gain_kept"] is None


def test_the_report_lies_where_it_says_with_the_journals_beside_it(
    folder: Path, first: subprocess.CompletedProcess[str]
) -> None:
    assert "report: compare.html" in first.stderr
    html = (folder / "compare.html").read_text()
    assert html.count("<figure>") == 4
    assert "ddp and diloco on lan" in html
    assert len(list((folder / "compare.runs").glob("*.jsonl.gz"))) == 3


@pytest.mark.long
def test_what_was_played_is_reused_until_something_that_decides_it_changes(
    folder: Path, first: subprocess.CompletedProcess[str]
) -> None:
    again = compare(folder, "--recipes", "ddp,diloco", "--fleet", "lan", "--peers", "2", "--json")
    told, before = json.loads(again.stdout), json.loads(first.stdout)
    assert [each["reused"] for each in told["recipes"]] == [True, True, True]
    assert [each["points"] for each in told["recipes"]] == [each["points"] for each in before["recipes"]]
    other = compare(folder, "--recipes", "diloco", "--fleet", "lan", "--peers", "2", "--json", "--set", "seeds.data=1")
    assert [each["reused"] for each in json.loads(other.stdout)["recipes"]] == [False, False]


@pytest.mark.long
def test_without_matplotlib_the_table_comes_alone_and_says_what_to_install(
    folder: Path, first: subprocess.CompletedProcess[str]
) -> None:
    script = "import sys; sys.modules['matplotlib'] = None; from atoll.cli.main import main; main()"
    flags = ["compare", "run.toml", "--recipes", "ddp,diloco", "--fleet", "lan", "--peers", "2", "--no-solo"]
    (folder / "compare.html").unlink()
    done = subprocess.run(
        [sys.executable, "-c", script, *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "pip install 'atoll[plots]'" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[3:6]] == ["recipe", "ddp", "diloco"]
    assert not (folder / "compare.html").exists()


@pytest.mark.long
def test_as_a_larger_model_times_and_bytes_grow_and_losses_stay(
    folder: Path, first: subprocess.CompletedProcess[str]
) -> None:
    flags = ("--recipes", "diloco", "--fleet", "lan", "--peers", "2", "--no-solo", "--as", "15m", "--json")
    larger = by_label(json.loads(compare(folder, *flags).stdout))["diloco"]
    own = by_label(json.loads(first.stdout))["diloco"]
    assert larger["held_out"] == own["held_out"]
    assert larger["took_s"] > 5 * own["took_s"]
    assert larger["computing"] > own["computing"]
    assert larger["sent_bytes"] > 100 * own["sent_bytes"]


def test_a_sample_of_the_larger_model_costs_every_recipe_as_much(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    own = load_run(tmp_path / "run.toml")
    wide = load_run(tmp_path / "run.toml", overrides=["recipe.work.batch=8"])
    muon = load_run(tmp_path / "run.toml", overrides=["recipe.base=muloco", "recipe.work.inner.adamw.lr=1e-3"])
    larger = _larger(own, "15m:4096")
    assert larger is not None
    assert larger.times(wide) == pytest.approx(larger.times(own))
    assert larger.times(own) == pytest.approx(8 * _Larger("15m", 1.0).times(own)), "eight samples for each of the run's"
    assert larger.times(muon) != pytest.approx(larger.times(own), rel=1e-3), "its products are of another part"


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(folder: Path) -> None:
    (folder / "long.toml").write_text(RUN.replace("rounds = 2", "rounds = 20000"))
    command = [*COMMAND, "long.toml", "--recipes", "diloco", "--peers", "2", "--no-solo", "--out", "long.html"]
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "diloco (1 of 1): round" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert not (folder / "long.html").exists()


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (("--recipes", "dilco"), "no recipe is called 'dilco'", "did you mean 'diloco'?"),
        (("--fleet", "homs"), "no fleet is called 'homs'", "did you mean 'homes'?"),
        (("--as", "2b"), "there is no size '2b'", "known sizes: tiny"),
        (("--out", "report.pdf"), "the report is an HTML file", "report.html"),
        (("--recipes", ","), "no recipe is named", "atoll recipes"),
    ],
)
def test_what_cannot_be_played_is_said_at_once(folder: Path, arguments: tuple[str, ...], what: str, hint: str) -> None:
    began_s = time.monotonic()
    done = compare(folder, *arguments)
    assert done.returncode == 2
    assert what in done.stderr and hint in done.stderr
    assert time.monotonic() - began_s < 60
