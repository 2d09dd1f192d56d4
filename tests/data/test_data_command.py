"""`atoll data`: data on stdout, the rest on stderr, quick to start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.cli.data import app
from atoll.errors import AtollError

Stories = Callable[..., Path]


def _atoll_data(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_prepare_inspect_and_verify_tell_the_same_digest(stories: Stories, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = json.loads(
        _atoll_data("prepare", stories(), "--out", out, "--tokenizer", "bytes", "--licence", "CC0", "--json")
    )
    seen = json.loads(_atoll_data("inspect", out, "--json"))
    checked = json.loads(_atoll_data("verify", out, "--json"))
    assert made == seen
    assert checked["ok"] is True
    assert checked["digest"] == seen["digest"]
    assert seen["manifest"]["source"]["licence"] == "CC0"


def test_tables_name_what_matters(stories: Stories, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = _atoll_data("prepare", stories(), "--out", out, "--tokenizer", "bpe-300", "--origin", "a test")
    assert _atoll_data("inspect", out) == table
    for said in ("digest", "a test", "bpe-300", "held-out", "documents by file", "licence    not said"):
        assert said in table
    assert "run file" not in table  # advice goes to stderr
    sampled = _atoll_data("inspect", out, "--sample", 3, "--context", 16)
    assert sampled.startswith(table)
    assert len(sampled) > len(table) + 16
    assert _atoll_data("verify", out).startswith("ok: 3 files")


def test_fetch_lists_corpora_and_prepares_one(tmp_path: Path) -> None:
    assert {"austen", "botocore", "kjv"} == set(json.loads(_atoll_data("fetch", "--json"))["corpora"])
    assert "ships with Atoll" in _atoll_data("fetch")
    made = json.loads(_atoll_data("fetch", "austen", "--tokenizer", "bytes", "--home", tmp_path, "--json"))
    assert made["manifest"]["tokenizer"]["vocab_size"] == 257
    assert Path(made["folder"]).parent == tmp_path / "data"


def test_errors_reach_the_main_program_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(AtollError):
        _atoll_data("verify", tmp_path)
    with pytest.raises(AtollError):
        _atoll_data("fetch", "nothing", "--home", tmp_path)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, atoll.cli.data; print(*{'numpy', 'tokenizers', 'torch', 'rich.progress'} & set(sys.modules))"
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
