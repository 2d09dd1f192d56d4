"""Promises about the code itself that neither linter nor type checker can see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "atoll"
DETERMINISTIC = ("peer", "sync", "swarm")
"""Rooms that run in both worlds and must give the same result from the same seed."""
INSIDE = (*DETERMINISTIC, "net")

FORBIDDEN_CALLS = {"time.time", "random.random", "os.urandom", "uuid.uuid1", "uuid.uuid4", "asyncio.as_completed"}
"""Outside time, outside chance, and orders that depend on who was first."""
FORBIDDEN_MODULES = {"uuid"}


def files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (SOURCE / room).rglob("*.py"))


def path_is_cache(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(SOURCE).parts)


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of names, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_set(node: ast.expr) -> bool:
    """Return whether an expression is a set on its face; one behind a name is not seen."""
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and dotted(node.func) in ("set", "frozenset")
    )


def faults(tree: ast.AST, *, deterministic: bool) -> list[str]:
    """Return what a module does that it must not, as `line: what`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: {name}")
            if deterministic and name == "id":
                found.append(f"{node.lineno}: id() is an address, and differs from run to run")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: import {name}" for name in names if name in FORBIDDEN_MODULES]
        looped = [node.iter] if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) else []
        found += [f"{each.lineno}: the order of a set differs from run to run" for each in looped if is_set(each)]
    return found


@pytest.mark.parametrize("path", files(*INSIDE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_peer_takes_no_time_chance_or_order_from_outside_its_box(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    assert faults(ast.parse(path.read_text("utf-8")), deterministic=room in DETERMINISTIC) == []


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "import uuid",
        "from uuid import uuid4",
        "import os\nos.urandom(8)",
        "for x in {1, 2}: pass",
        "[x for x in set(y)]",
        "for done in asyncio.as_completed(jobs): pass",
        "seen[id(x)] = 1",
    ],
)
def test_the_check_itself_finds_what_it_looks_for(code: str) -> None:
    assert faults(ast.parse(code), deterministic=True)


def test_the_check_itself_lets_honest_code_pass() -> None:
    code = "for x in sorted({1, 2}): pass\nfor y in [3]: y.id()\nloop.time()\nrandom.Random(1).random()"
    assert faults(ast.parse(code), deterministic=True) == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"util", "utils", "common", "core", "helpers", "misc"}
    assert [path for path in sorted(SOURCE.rglob("*")) if path.stem in drawers] == []


def test_no_room_is_empty() -> None:
    empty = [room.name for room in sorted(SOURCE.iterdir()) if room.is_dir() and not any(room.rglob("*.*"))]
    assert empty == []


@pytest.mark.parametrize("path", files("."), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_the_make_commands_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    said = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text("utf-8")))
    assert {"demo", "test"} <= said
    assert said <= targets


def test_the_atoll_commands_of_the_readme_exist() -> None:
    from atoll.cli.main import COMMANDS

    said = set(re.findall(r"^\s*(?:\$ )?atoll ([a-z]+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert said <= set(COMMANDS)


def test_continuous_integration_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_licence_is_the_whole_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_no_file_of_the_package_is_ignored_by_git_and_so_left_out_of_the_wheel() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines() if line.endswith("/")}
    ours = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.*")) if not path_is_cache(path)]
    assert [path for path in ours if ignored & set(path.parts)] == []
