"""Planted bugs: the checks find them, and find nothing in the code as it is.

A copy of the package gets one bug by a patch of its text; then a few seeds are played from that copy in a process of
its own. What finds the bugs is the very code that watches every storm. To play a copy by hand:

    PYTHONPATH=COPY python tests/sim/test_planted.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

import atoll
from atoll import journal
from atoll.sim.check import violations
from atoll.sim.faults import Crash, Fault, SlowCompute
from atoll.sim.scenario import Scenario, on_fleet, simulate
from atoll.sim.storm import weather
from atoll.spec.fleet import Always, load_fleet
from atoll.spec.load import demo_run
from atoll.spec.run import Run
from tests.peer.world import once

SOURCE = Path(atoll.__file__).parent
SEEDS = 3


class Bug(Struct, frozen=True):
    """A change of the text of the package: `old` must stand there exactly once."""

    old: str
    new: str
    found: str
    """Part of a sentence in which the checks must report it."""


BUGS = {
    "an owner counts the first contribution twice": Bug(
        "combine(parts, weights)",
        "combine([parts[0], *parts], [weights[0], *weights])",
        "away from what the log adds up to",
    ),
    "one owner counts a contribution twice when it comes again after a new plan": Bug(
        "combine(parts, weights)",
        "combine([*parts, *parts[:plan.attempt]], [*weights, *weights[:plan.attempt]])",
        "away from what the log adds up to",
    ),
    "a member applies a result twice": Bug(
        "advance(channel.merge.outer, anchor, merged, factor)",
        "advance(channel.merge.outer, anchor, merged + merged, factor)",
        "away from what the log adds up to",
    ),
    "a member that fetched a result applies it twice": Bug(
        "advance(channel.merge.outer, anchor, merged, factor)",
        "advance(channel.merge.outer, anchor, merged + merged if fetched else merged, factor)",
        " holds ",
    ),
    "a lease that was committed is handed out again": Bug(
        "used = [leases.pop(peer) for peer in contributors]",
        "used = [leases.pop(peer) for peer in contributors[1:]] + [leases[contributors[0]]]",
        " is in versions ",
    ),
    "a member works on a sample of its neighbour": Bug(
        "samples = list(lease.positions(own))",
        "samples = [position + announced.key.version % 2 for position in lease.positions(own)]",
        "away from what the log adds up to",
    ),
    "a round is called committed before the log is durable": Bug(
        "await self._store.append([entry], durable=True)",
        "await self._store.append([entry], durable=type(record).__name__ != 'RoundCommitted')",
        "was called committed but is not in the log",
    ),
    "a contribution that was left out is taken for counted": Bug(
        "contributors = tuple(c.peer for c in round_.settled)",
        "contributors = round_.announced.members",
        "away from what the log adds up to",
    ),
}


def violations_in(copy: Path) -> dict[str, list[str]]:
    """Return what the checks of a copy of the package find in a few seeds, by scenario."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    command = [sys.executable, str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert found.pop("package") == [str(copy / "atoll")], "another package was played"
    return found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package's code."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, copy / "atoll", ignore=shutil.ignore_patterns("__pycache__", "corpora"))
    return copy


def test_the_code_as_it_is_breaks_no_promise(package: Path) -> None:
    found = violations_in(package)
    assert len(found) == SEEDS + 2
    assert {name: what for name, what in found.items() if what} == {}


def plant(bug: Bug, package: Path) -> None:
    """Patch the one place in a package where the bug fits."""
    files = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    places = [path for path, text in files.items() for _ in range(text.count(bug.old))]
    assert len(places) == 1, f"{bug.old!r} stands in {len(places)} places: the bug cannot be planted any more"
    places[0].write_text(files[places[0]].replace(bug.old, bug.new), "utf-8")


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, package: Path, tmp_path: Path) -> None:
    bug = BUGS[name]
    shutil.copytree(package / "atoll", tmp_path / "atoll")
    plant(bug, tmp_path / "atoll")
    found = violations_in(tmp_path)
    told = [what for some in found.values() for what in some]
    assert any(bug.found in what for what in told), f"not found: {name}; the checks said {told}"


# what runs in the process of a copy


def main() -> None:
    """Play a few seeds and say what the checks find."""
    found = {f"storm {seed}": stormy(seed) for seed in range(SEEDS)}
    found["a slow member"] = slow_member()
    found["a crash after a commit"] = crash_after_commit()
    print(json.dumps({"package": [str(Path(atoll.__file__).parent)], **found}))


def stormy(seed: int) -> list[str]:
    """Return what a storm on five slow homes breaks."""
    machines, delays_s = on_fleet(load_fleet("homes"))
    slow = [replace(m, availability=Always(), device=replace(m.device, flop_s=2e11)) for m in machines[:5]]
    return weather(_run(5), slow, delays_s, seed, until_s=40.0).broken


def slow_member() -> list[str]:
    """Return what breaks when a member misses rounds, so that leases go back."""
    faults = [SlowCompute(at_s=1.0, peer=2, for_s=40.0, factor=300.0)]
    return violations(_run(3), simulate(_scenario(faults)))


def crash_after_commit() -> list[str]:
    """Return what breaks when the organiser dies in the moment after it called a round committed."""
    commits = [at_s for at_s, _ in once(simulate(_scenario([])), journal.RoundCommitted)]
    broken = []
    for at_s in commits[1:4]:
        broken += violations(_run(3), simulate(_scenario([Crash(at_s=at_s + 1e-6, peer=0, restart_after_s=5.0)])))
    return broken


def _run(peers: int) -> Run:
    changes = [f"membership.start_with={peers}", "budget.rounds=100000", "upkeep.checkpoint_every=1"]
    return demo_run(overrides=[*changes, "recipe.channel.outer.when.steps=8"])


def _scenario(faults: Sequence[Fault]) -> Scenario:
    machines, delays_s = on_fleet(load_fleet("lan"))
    slow = [replace(m, device=replace(m.device, flop_s=2e11)) for m in machines[:3]]
    rounds = 12
    return Scenario(
        run=_run(3),
        machines=slow,
        delays_s=delays_s,
        faults=faults,
        enough=lambda world: all(host.version >= rounds for host in world.hosts) or world.now_s() > 600,
    )


if __name__ == "__main__":
    main()
