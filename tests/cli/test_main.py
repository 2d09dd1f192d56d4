"""The command line as a person meets it: real processes, their output, their exit codes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from atoll import errors
from atoll.cli.main import COMMANDS
from atoll.spec.load import demo_run, recipe_names
from atoll.spec.run import canonical
from atoll.units import say_counted
from tests.observe.story import tell
from tests.world.warm import atoll

HEAVY = ("torch", "iroh", "numpy", "transformers", "tokenizers", "safetensors")

PROBE = """
import resource, sys
from atoll.cli.main import main
sys.argv = ["atoll", *sys.argv[1:]]
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, *sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [("--help",), ("recipes",), ("recipes", "show", "diloco"), ("sim", "--help")])
def test_light_commands_load_nothing_heavy_and_answer_in_half_a_cpu_second(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    used_s, *modules = done.stderr.splitlines()[-1].split()
    assert not set(HEAVY) & set(modules)
    assert float(used_s) < 0.5
    if arguments == ("recipes",):
        assert "atoll.spec.recipe" not in modules, "however many there are: listing them checks none"


def test_help_lists_every_command_and_every_exit_code() -> None:
    said = atoll("--help").stdout
    for name in COMMANDS:
        hidden = getattr(importlib.import_module(f"atoll.cli.{name}"), "HIDDEN", False)
        assert (f"\n  {name} " in said) != hidden
    for code in ("0 done", "1 failed", "2 wrong usage", "3 this machine", "4 network", "5 refused", "130 interrupted"):
        assert code in said


def test_each_kind_of_error_has_its_documented_exit_code() -> None:
    kinds = (errors.AtollError, errors.SpecError, errors.LocalError, errors.PeerLost, errors.PeerRefused)
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("AtollError('it went wrong', hint='try again')", 1),
        ("SpecError('it went wrong', hint='try again')", 2),
        ("LocalError('it went wrong', hint='try again')", 3),
        ("PeerLost('it went wrong', hint='try again')", 4),
        ("PeerRefused('it went wrong', hint='try again')", 5),
        ("ExceptionGroup('tasks', [ValueError(), LocalError('it went wrong', hint='try again')])", 3),
        ("KeyboardInterrupt()", 130),
    ],
)
def test_what_a_command_raises_ends_as_two_lines_and_an_exit_code(raised: str, code: int) -> None:
    script = f"""
import sys
from atoll.cli import main
from atoll.errors import *
@main.app.command("fall")
def fall() -> None:
    raise {raised}
sys.argv = ["atoll", "fall"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr == ("" if code == 130 else "error: it went wrong\nhint: try again\n")


def test_wrong_usage_exits_with_2_and_no_traceback() -> None:
    for arguments in (("nonsense",), ("recipes", "--nope"), ("schema", "fleeet"), ("recipes", "show", "x")):
        done = atoll(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_recipes_are_listed_shown_and_printed_as_json_and_toml() -> None:
    listed = json.loads(atoll("recipes", "--json").stdout)
    assert [each["name"] for each in listed["recipes"]] == recipe_names()
    shown = atoll("recipes", "show", "diloco").stdout
    assert "every (steps = 500): exchange after a fixed number of local steps" in shown
    assert "sgd (lr = 0.7, momentum = 0.9, nesterov = true)" in shown
    sparse = atoll("recipes", "show", "sparseloco").stdout
    assert "codec = top-k (keep = 64, block = 4096, values = buckets (bits = 2, width = 6))" in sparse
    assert (
        json.loads(atoll("recipes", "show", "ddp", "--json").stdout)["recipe"]["channel"]["outer"]["what"]["kind"]
        == "grad"
    )
    assert atoll("recipes", "show", "ddp", "--toml").stdout.startswith("# DDP")
    assert atoll("recipes", "list").stdout == atoll("recipes").stdout


def test_a_recipe_is_explained_by_its_name_alone() -> None:
    assert atoll("recipes", "diloco").stdout == atoll("recipes", "show", "diloco").stdout


def test_recipes_say_what_they_move_on_a_fleet() -> None:
    said = json.loads(atoll("recipes", "--parameters", "1000000", "--fleet", "homes", "--json").stdout)
    moves = {each["name"]: each["moves"] for each in said["recipes"]}
    assert moves["ddp"]["times_less_than_ddp_fp32"] == pytest.approx(1.0, rel=0.02)
    assert moves["diloco"]["step_bytes"] == moves["ddp"]["step_bytes"] / 500
    assert moves["opendiloco"]["round_sent_bytes"] == pytest.approx(moves["diloco"]["round_sent_bytes"] / 2)
    assert moves["ddp"]["exchange_s_min"] == pytest.approx(moves["ddp"]["round_sent_bytes"] / 2.5e6)
    told = atoll("recipes", "sparseloco", "--model", "125m", "--peers", "4").stdout
    assert "85.7M parameters on 4 equal peers" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--parameters", "1000000000000"), "1.0T parameters, 8 equal peers;"),
        (("--model", "125m", "--peers", "500"), "500 equal peers, 96 of which stand for all;"),
        (("--model", "125m", "--fleet", "lan", "--peers", "1"), "fleet lan (1 machine);"),
    ],
)
def test_large_models_and_crowds_are_counted_too(arguments: tuple[str, ...], said: str) -> None:
    assert said in atoll("recipes", *arguments).stdout


def test_one_is_told_as_one() -> None:
    assert [say_counted(count, "peer") for count in (0, 1, 1000)] == ["0 peers", "1 peer", "1,000 peers"]
    assert "(1 step a round)" in atoll("recipes", "ddp", "--model", "125m").stdout


def test_ddp_moves_as_much_as_ddp_where_shares_are_by_lines_too() -> None:
    said = atoll("recipes", "--model", "125m", "--fleet", "volunteers").stdout.splitlines()
    by_name = {line.split()[0]: line.split() for line in said if line}
    assert by_name["ddp"][-1] == "1.0"
    assert by_name["halos"][1] == "0.121", "three digits"
    (slowest,) = [line for line in said if line.startswith("The slowest line: ")]
    assert slowest == "The slowest line: dsl-eu-0 (8 Mbit up, 40 down)."
    assert any(line.startswith("Of ") and "halos" in line and "cable-us-1" in line for line in said)


def test_a_recipe_that_cannot_be_counted_has_a_dash_and_its_reason_below() -> None:
    said = atoll("recipes", "--parameters", "2").stdout.splitlines()
    assert ["dreamddp", *"------"] in [line.split() for line in said]
    assert "Not counted: dreamddp: when.count: 5 exchanges in a period, but this model has 2 tensors." in said
    found = json.loads(atoll("recipes", "--parameters", "1000", "--json").stdout)["recipes"]
    assert [(each["name"], each["moves"]) for each in found if "why" in each] == [("powersgd", None)]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--parameters", "99999999999999999999999"), "'--parameters': Input should be less than"),
        (("--model", "125m", "--peers", "1000000000"), "'--peers': Input should be less than"),
        (("--peers", "4"), "add --model 125m"),
        (("--model", "125m", "--parameters", "5"), "give one of them"),
        (("--model", "126m"), "known sizes"),
        (("--model", "125m", "--fleet", "hoems"), "did you mean 'homes'?"),
        (("--model", "125m", "diloco"), "atoll recipes NAME --model"),
    ],
)
def test_a_question_about_bytes_that_has_no_answer_is_refused(arguments: tuple[str, ...], hint: str) -> None:
    done = atoll("recipes", *arguments)
    assert done.returncode == 2
    assert hint in done.stderr


def test_schemas_are_json_documents() -> None:
    for file in ("run", "fleet"):
        assert json.loads(atoll("schema", file).stdout)["type"] == "object"


def test_version_is_told_to_people_and_programs() -> None:
    assert atoll("version").stdout.startswith("atoll ")
    assert json.loads(atoll("version", "--json").stdout)["protocol"] >= 1


def test_watch_tells_how_a_finished_run_ended(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(canonical(demo_run(overrides=["budget.rounds=12"])))
    (tmp_path / "journal.jsonl").write_bytes(
        b"".join(msgspec.json.encode(line) + b"\n" for line in tell(3, finish=True))
    )
    told = json.loads(atoll("watch", str(tmp_path), "--json").stdout)
    assert (told["name"], told["rounds"], told["state"]) == ("demo", 3, "finished")
    assert "held-out  3.250" in atoll("watch", str(tmp_path), "--once").stdout
    followed = atoll("watch", str(tmp_path))
    assert followed.returncode == 0
    assert "round 3 of 12" in followed.stderr


def test_watching_a_folder_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    done = atoll("watch", str(tmp_path))
    assert done.returncode == 2
    assert "no journal here" in done.stderr


def test_completion_offers_the_commands() -> None:
    command = [sys.executable, "-m", "atoll.cli.main", "--show-completion", "bash"]
    # Otherwise the shell that runs the tests decides, and there may be none with completion.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert script.returncode == 0
