"""The shipped recipes as files: how they are called, and what each says of itself.

To list them no more is needed, so nothing here knows what a recipe is made of. Of each file only what stands before its
first table is read: checking all of them by their types and rules takes many times as long.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

RECIPES = Path(__file__).parents[1] / "recipes"


class Head(NamedTuple):
    """What a recipe says of itself."""

    about: str
    paper: str
    reconstructed: str = ""
    """Which parts are not the paper's own."""


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in RECIPES.glob("*.toml")))


def recipe_heads() -> dict[str, Head]:
    """Return what every shipped recipe says of itself, by name."""
    return {name: _head((RECIPES / f"{name}.toml").read_text("utf-8")) for name in recipe_names()}


def _head(text: str) -> Head:
    """Return the head of a recipe file, read without its tables."""
    before = tomllib.loads(text.partition("\n[")[0])
    return Head(before["about"], before["paper"], before.get("reconstructed", ""))
