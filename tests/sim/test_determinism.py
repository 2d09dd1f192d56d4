"""One seed, one trace: in any process, whatever Python's hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import atoll

DEMO = Path(atoll.__file__).parent / "spec" / "examples" / "demo.toml"
STORM = ["--seed", "7", "--faults", "storm"]
SHORT = ["--set", "budget.rounds=8"]
LONG = ["--fleet", "homes", "--peers", "4", "--set", "model.size=15m", "--set", "budget.rounds=3"]
LONG += ["--set", "recipe.channel.outer.when.steps=10"]
"""A larger model over slow links: few rounds, and the run outlasts the storm."""


def sim(*arguments: str, hash_seed: str) -> dict[str, Any]:
    """Return what `atoll sim` says in a process of its own."""
    command = [sys.executable, "-m", "atoll.cli.main", "sim", str(DEMO), *arguments, "--json"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(SHORT, id="the demo's first rounds"),
        pytest.param([], id="the demo", marks=pytest.mark.long),
        pytest.param(LONG, id="a longer run", marks=pytest.mark.long),
    ],
)
def test_two_processes_with_different_hash_seeds_give_the_same_trace(more: list[str]) -> None:
    one, other = (sim(*STORM, *more, hash_seed=hash_seed) for hash_seed in ("1", "4242"))
    assert one["trace"] == other["trace"]
    assert one == other
    assert one["virtual_s"] > 60 or more is not LONG, "the storm was part of it"


@pytest.mark.long  # that seeds differ, `test_storm` shows too
def test_another_seed_or_another_sky_gives_another_trace() -> None:
    worlds = [["--seed", "7"], ["--seed", "8"], STORM]
    traces = {sim(*world, *LONG, hash_seed="1")["trace"] for world in worlds}
    assert len(traces) == len(worlds)
