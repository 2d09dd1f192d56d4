"""`atoll plan` as a person meets it: a fleet of one's own, a run file to simulate, a clear no, a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.plan import command
from atoll.data.prepare import prepare
from atoll.data.samples import vocab_size_of
from atoll.errors import SpecError
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.load import load_run, recipe_text
from atoll.spec.run import Shards

LAB = """
name = "lab"
about = "four workstations and two rented servers"

[[machine]]
name = "desk"
count = 4
up = "1 Gbit"
down = "1 Gbit"
device = { gpu = "RTX 4090" }
grid = "FR"
site = "home"
terms = { kind = "owned", electricity = "0.20 usd/kWh", price_usd = 1600, years = 4 }

[[machine]]
name = "server"
count = 2
region = "cloud"
up = "5 Gbit"
down = "5 Gbit"
device = { gpu = "A100 SXM4 80GB" }
terms = { kind = "rented", usd_hour = 1.5 }
"""


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_from_my_lab_has_these_machines_to_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    command(
        model="125m",
        tokens="2.5G",
        fleet=str(tmp_path / "lab.toml"),
        recipes="ddp,diloco",
        out=tmp_path / "plan",
        report=str(tmp_path / "plan.html"),
        shows=True,
    )
    said = capsys.readouterr().out
    assert "8 rented H100" in said
    assert "hangs on" in said
    assert "facts that were used" in said
    assert "RTX 4090" in said
    run, fleet = load_run(tmp_path / "plan" / "run.toml"), load_fleet(tmp_path / "plan" / "fleet.toml")
    assert run.membership.start_with == len(expand(fleet))
    assert (tmp_path / "plan.html").read_text().count("<figure>") == 2


def test_a_program_gets_plans_with_ranges_and_everything_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    command(model="15m", fleet="lan", recipes="ddp,diloco", as_json=True)
    found = told(capsys)
    assert found["schema"] == "atoll.plan/1"
    assert found["feasible"] is True
    (first, *_) = found["plans"]
    assert first["time_s"]["low"] < first["time_s"]["middle"] < first["time_s"]["high"]
    assert len(found["looked_at"]) > 3


def test_an_impossible_goal_gets_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    command(model="125m", fleet="lan", recipes="ddp", deadline="1 min", budget=0.01, carbon="1 g")
    said = capsys.readouterr().out
    assert "NO: nothing keeps to the goal" in said
    assert "instead of 1 min" in said
    assert any(line.endswith("for machines that do not say where they are") for line in said.splitlines()), (
        "sources are whole where it is piped"
    )
    with pytest.raises(SpecError, match="no plan to write"):
        command(model="125m", fleet="lan", recipes="ddp", deadline="1 min", out=Path("nowhere"))


def test_a_no_is_told_even_where_files_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match="no plan to write"):
        command(
            model="125m", fleet="lan", recipes="ddp", deadline="1 min", out=tmp_path, report=str(tmp_path / "r.html")
        )
    assert "NO: nothing keeps to the goal" in capsys.readouterr().out
    assert "No: nothing keeps" in (tmp_path / "r.html").read_text()


def test_everybody_who_is_left_out_is_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = 'device = { flops = "9 TFLOP", memory = "4 GB" }'
    small = f'[[machine]]\nname = "small"\nup = "1 Gbit"\ndown = "1 Gbit"\n{device}\n'
    (tmp_path / "lab.toml").write_text(LAB + small)
    command(model="360m", tokens="1G", fleet=str(tmp_path / "lab.toml"), recipes="ddp")
    said = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert any("small" in line and "memory" in line for line in said)
    assert any("server-0" in line and "not among" in line for line in said)


def test_the_model_and_tokens_of_a_run_file_are_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    command(Path("docs/examples/first.toml"), fleet="lan", recipes="ddp", as_json=True)
    goal = told(capsys)["goal"]
    run = load_run(Path("docs/examples/first.toml"))
    assert goal["context"] == run.data.context


def test_the_run_of_a_plan_has_the_model_that_was_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(model="15m", tokens="1M", fleet="lan", recipes="ddp", out=tmp_path, as_json=True)
    goal = told(capsys)["goal"]
    assert vocab_size_of(load_run(tmp_path / "run.toml").data) == goal["vocab"]


SHARDS = """
name = "mine"
[data]
source = { kind = "shards", path = "shards" }
[recipe]
base = "mine-recipe.toml"
[budget]
tokens = 1_000_000
"""


def test_a_plan_written_elsewhere_finds_the_data_of_its_run_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "text.txt").write_text("\n\n".join(f"{number} sheep " * 50 for number in range(100)))
    prepare([home / "text.txt"], home / "shards", tokenizer="bytes", split="blank-lines")
    (home / "mine.toml").write_text(SHARDS)
    (home / "mine-recipe.toml").write_text(recipe_text("ddp"))
    command(home / "mine.toml", fleet="lan", recipes="ddp", out=tmp_path / "there")
    source = load_run(tmp_path / "there" / "run.toml").data.source
    assert isinstance(source, Shards)
    assert Path(source.path) == home / "shards"


def test_adapters_are_not_planned_for_as_if_they_were_the_model(tmp_path: Path) -> None:
    model = '[model]\nkind = "folder"\npath = "weights"\nadapter = { kind = "lora" }\n'
    text = f'name = "x"\n{model}[recipe]\nbase = "ddp"\n[budget]\nrounds = 1\n'
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(SpecError, match="adapters"):
        command(tmp_path / "x.toml", model="1b", fleet="lan")


def test_tables_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    command(shows=True)
    assert "prices" in capsys.readouterr().out
    command(shows=True, table="electricity")
    assert "globalpetrolprices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"model": "125m"}, "no fleet"),
        ({"fleet": "lan"}, "no model"),
        ({"fleet": "lan", "model": "125x"}, "no size '125x'"),
        ({"fleet": "lan", "model": "15m", "tokens": "many"}, "'many' is no number"),
        ({"fleet": "lan", "model": "15m", "tokens": "inf"}, "'inf' is no number"),
        ({"fleet": "lan", "model": "15m", "tokens": "0"}, "'0' is no number"),
        ({"fleet": "lan", "model": "15m", "batch": "-4k"}, "'-4k' is no number"),
        ({"fleet": "lan", "model": "15m", "batch": "4T"}, "--batch: 4.0T tokens in one step"),
        ({"fleet": "lan", "model": "15m", "carbon": "nan kg"}, "'nan kg' is no mass"),
        ({"fleet": "lan", "model": "15m", "carbon": "-1 kg"}, "'-1 kg' is no mass"),
        ({"fleet": "lan", "model": "15m", "carbon": "5 miles"}, "'5 miles' is no mass"),
        ({"fleet": "lan", "model": "15m", "recipes": "dilco"}, "no recipe is called 'dilco'"),
        ({"fleet": "lan", "model": "15m", "deadline": "soon"}, "--deadline: 'soon' is no time"),
        ({"fleet": "lan", "model": "15m", "deadline": "-5h"}, "--deadline: '-5h' is no time"),
        ({"fleet": "lan", "model": "15m", "deadline": "5"}, "--deadline: '5' is no time"),
        ({"fleet": "lan", "model": "15m", "tokens": "1e30"}, "--tokens: '1e30' is too many"),
    ],
)
def test_what_is_wrong_is_said_with_what_helps(flags: dict[str, str], what: str) -> None:
    with pytest.raises(SpecError, match=what) as refused:
        command(**flags)  # type: ignore[arg-type]
    assert refused.value.hint
