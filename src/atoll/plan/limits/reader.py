"""From TOML to a scenario, strictly, and the scenarios that come with Atoll."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from atoll.errors import SpecError
from atoll.plan.limits.scenario import MAY_BE_ZERO, SHARES, WHOLE, Said, Scenario, least_of
from atoll.spec.strict import Layers, Tree, near, parse_toml, read_toml, record

_SHIPPED = files("atoll") / "plan" / "limits" / "scenarios"
_NUMBER = 'a number, or a table: { value = 20, low = 10, high = 40, source = "where it is from" }'


def load_scenario(name: str) -> Scenario:
    """Return the scenario of a file, or a shipped one by its name."""
    if name in scenario_names():
        file = f"{name}.toml"
        return scenario_of((_SHIPPED / file).read_text("utf-8"), file)
    if not name.endswith(".toml"):
        known = scenario_names()
        hint = f"known scenarios: {', '.join(known)}{near(name, known)}, or the path of a .toml file"
        raise SpecError(f"no scenario is called '{name}'", hint=hint)
    return _checked(read_toml(Path(name)), name)


def scenario_of(text: str, file: str) -> Scenario:
    """Return the scenario that a text of TOML describes."""
    return _checked(parse_toml(text, file), file)


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(entry.name.removesuffix(".toml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".toml"))


def scenario_text(name: str) -> str:
    """Return a shipped scenario as it stands, to be copied and changed."""
    return (_SHIPPED / f"{name}.toml").read_text("utf-8")


def _checked(tree: Tree, file: str) -> Scenario:
    """Return the scenario of a tree, or say what is wrong with it."""
    layers = Layers([(file, tree)])
    scenario = record(_spelled_out(tree, layers), Scenario, layers)
    for section, held in asdict(scenario).items():
        if isinstance(held, Struct):
            for key, leaf in asdict(held).items():
                if isinstance(leaf, Said):
                    _in_range(section, key, leaf, layers)
    return scenario


def _spelled_out(tree: Tree, layers: Layers) -> Tree:
    """Return the tree with every plain number as a table, so that both ways to write one are the same."""
    kinds = get_type_hints(Scenario)
    whole = dict(tree)
    for section, table in tree.items():
        hints = get_type_hints(kinds[section]) if section in kinds and isinstance(table, dict) else {}
        if hints:
            whole[section] = {key: _as_table(hints, section, key, leaf, layers) for key, leaf in table.items()}
    return whole


def _as_table(hints: dict[str, Any], section: str, key: str, leaf: Any, layers: Layers) -> Any:
    if hints.get(key) is not Said or isinstance(leaf, dict):
        return leaf
    if isinstance(leaf, bool) or not isinstance(leaf, int | float):
        layers.refuse((section, key), f"{leaf!r} is not a number", hint=f"write {_NUMBER}")
    return {"value": leaf}


def _in_range(section: str, key: str, leaf: Said, layers: Layers) -> None:
    path, (low, high) = f"{section}.{key}", leaf.ends
    if not low <= leaf.value <= high:
        layers.refuse(
            (section, key), f"{leaf.value:g} is not between {low:g} and {high:g}", hint="low <= value <= high"
        )
    if path in SHARES and not 0 <= low <= high <= 1:
        layers.refuse((section, key), f"{leaf.value:g} is out of range", hint="a part of something: from 0 to 1")
    if low < least_of(path):
        layers.refuse((section, key), f"{low:g} is out of range", hint="at least 1")
    if path in WHOLE and leaf.value != round(leaf.value):
        layers.refuse((section, key), f"{leaf.value:g} is not a whole number", hint=f"{round(leaf.value):,}")
    zero = path in MAY_BE_ZERO
    if low < 0 or (leaf.value == 0 and not zero):
        layers.refuse((section, key), f"{low:g} is out of range", hint="at least 0" if zero else "more than 0")
