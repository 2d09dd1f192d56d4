"""How a planted bug is searched for, what is remembered of that, and how a stored case is played again.

A copy of the package gets the bug; `player` plays cases from the copy in a process of its own. Found cases are stored
as NAME.json beside this file; `found.json` says how many plays each took and which checks caught it.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tests.sim.planted.bugs import BUGS, Bug, plant

HERE = Path(__file__).parent
FOUND = HERE / "found.json"
POINTS_MAX = 400
"""Crash points played for a bug that the mixed seeds do not show."""
SWEEP = ("points",)

CHECKS = (
    ("peer failed", " failed: "),
    ("as_the_log_says", "different contributions of one peer"),
    ("as_the_log_says", "away from what the log adds up to"),
    ("as_the_log_says", "which the log does not have"),
    ("as_the_log_says", "began from weights it cannot have"),
    ("as_the_log_says", "began anew without a reason"),
    ("as_the_knobs_say", "as its knobs say"),
    ("as_the_knobs_say", "where its knobs say"),
    ("as_the_knobs_say", "turned knobs to what"),
    ("one_history", " holds "),
    ("one_commit", "was committed differently"),
    ("leases_as_logged", "works on other samples than its own"),
    ("leases_as_logged", "tells of other samples than were "),
    ("leases_as_logged", "tells otherwise of who works on"),
    ("counted_once", " is in versions "),
    ("none_forgotten", "came back and is forgotten"),
    ("inner_as_counted", "steps in its inner state"),
    ("readable", "cannot read its"),
    ("tokens_as_counted", " samples, the log has "),
    ("durable", "was called committed but is not in the log"),
    ("durable_at_crashes", "could have led without"),
    ("held_by_two", "holders of its result"),
    ("patient", "after its broker contributed"),
    ("ready", ", which was only at "),
    ("one_leader", "has two leaders"),
    ("blamed_rightly", "no journal blames it"),
    ("blamed_rightly", "which is honest, is blamed"),
    ("settled", " are behind version "),
    ("settled", " anchors of version "),
    ("live", " rounds for everybody within "),
    ("peer broke", " broke at "),
)
"""By which words of its sentences a check is known; the first that fits."""


class Found(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a search for one bug showed."""

    seeds: int = 0
    """The play in which the checks caught it; 0: they did not."""
    played: int = 0
    family: str = ""
    seed: int = 0
    checks: tuple[str, ...] = ()
    """What caught it in the stored case."""


def check_of(sentence: str) -> str:
    """Return which check says such a thing."""
    first = sentence.partition("\n")[0]
    return next((check for check, words in CHECKS if words in first), "simulation")


def checks_of(broken: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({check_of(sentence) for sentence in broken}))


def copy_with(bug: Bug | None, source: Path, folder: Path) -> Path:
    """Return a folder with a copy of the package in which the bug is planted."""
    shutil.copytree(source, folder / "atoll", ignore=shutil.ignore_patterns("corpora"))
    if bug is not None:
        plant(bug, folder / "atoll")
    return folder


def compiled(source: Path, folder: Path) -> Path:
    """Return a copy of the package's code, compiled once, so that copies of it need not be."""
    copy_with(None, source, folder)
    compileall.compile_dir(folder, quiet=2)
    return folder / "atoll"


def played(*words: object) -> list[dict[str, Any]]:
    """Return what the player answers, line by line."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, str(HERE / "player.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def replayed(pairs: Sequence[tuple[Path, Path]]) -> list[list[str]]:
    """Return what each stored case breaks in its copy of the package."""
    return [told["broken"] for told in played("replay", *(word for pair in pairs for word in pair))]


def search(copy: Path, bug: Bug, seeds: int, real: Path) -> tuple[Found, str]:
    """Return how a copy's bug is caught, and the case that does; seeds first, then the sweep of crash points.

    What breaks in the real package too shows nothing about the bug, and is passed over with a word.
    """
    total = 0
    searches: list[tuple[str, int, tuple[str, ...]]] = [("search", seeds, bug.skies), ("points", POINTS_MAX, ())]
    for command, most, families in searches[bug.skies == SWEEP :]:
        first = 0
        while first < most:
            (told,) = played(command, copy, first, most, *families)
            first, total = first + told["played"], total + told["played"]
            if not told["broken"]:
                break
            if also := broken_in(real, told["case"], copy):
                print(f"without {bug.name} too, {told['family']} seed {told['seed']}: {also[0]}", file=sys.stderr)
                continue
            family = told["family"] if command == "search" else f"points: {told['family']}"
            checks = checks_of(told["broken"])
            return Found(seeds=total, played=total, family=family, seed=told["seed"], checks=checks), told["case"]
    return Found(played=total), ""


def shrunk(copy: Path, caught: Found, case: str) -> tuple[Found, str]:
    """Return what was caught, with the least case that still shows it."""
    path = copy / "case.json"
    path.write_text(case)
    (told,) = played("shrink", copy, path)
    return replace(caught, checks=checks_of(told["broken"])), told["case"]


def broken_in(copy: Path, case: str, folder: Path) -> list[str]:
    """Return what a case breaks in a copy of the package."""
    path = folder / "played.json"
    path.write_text(case)
    return replayed([(copy, path)])[0]


def stored_again(copy: Path, path: Path) -> list[str]:
    """Store a case anew with the trace that it has in a copy of the package, and return what it breaks there."""
    (told,) = played("again", copy, path)
    broken: list[str] = told["broken"]
    path.write_text(told["case"])
    return broken


def found() -> dict[str, Found]:
    """Return what is remembered of the searches."""
    return msgspec.json.decode(FOUND.read_bytes(), type=dict[str, Found]) if FOUND.exists() else {}


def keep(bug: Bug, caught: Found, case: str) -> None:
    """Remember a search, and the case that shows the bug."""
    known = found() | {bug.name: caught}
    ordered = {one.name: known[one.name] for one in BUGS if one.name in known}
    FOUND.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    if case:
        case_file(bug).write_text(case)


def case_file(bug: Bug) -> Path:
    """Return where the case that shows a bug is stored."""
    return HERE / f"{bug.name}.json"


def table() -> str:
    """Return what was found, for the docs."""
    lines = ["| planted bug | promise | family | plays needed | caught by |", "|---|---|---|---|---|"]
    known = found()
    for bug in BUGS:
        caught = known.get(bug.name, Found())
        how = ", ".join(f"`{check}`" for check in caught.checks) or "nothing yet"
        needed = str(caught.seeds) if caught.seeds else f"none of {caught.played}"
        lines.append(f"| `{bug.name}`: {bug.what} | {bug.promise} | {caught.family or '-'} | {needed} | {how} |")
    return "\n".join(lines)
