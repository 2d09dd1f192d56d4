"""A run file in, a checked `Run` out.

A run file is TOML; its `[recipe]` table may start from a shipped recipe (`base = "diloco"`) and change any key below
it. `--set a.b=c` goes on top. What comes out has passed the types (`strict`) and the sense of the whole (`check`), so
nobody below asks again. A run that another peer sent goes through the very same door.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from atoll.errors import SpecError
from atoll.spec.recipe import Recipe
from atoll.spec.rules.run import check
from atoll.spec.run import Folder, Run, Shards
from atoll.spec.shelf import RECIPES
from atoll.spec.shelf import recipe_names as recipe_names
from atoll.spec.strict import Layers, Tree, merge, near, parse_toml, read_toml, record

RUN_BYTES_MAX = 2**20
"""No run is larger: a peer that sends more is sending something else."""

PATHS = (("model", "path"), ("data", "source", "path"), ("recipe", "base"))
"""Keys of a run that may name a file or folder."""

_EXAMPLES = files("atoll") / "spec" / "examples"


def load_run(path: Path, *, overrides: Sequence[str] = ()) -> Run:
    """Return the run that the file at `path` describes, with `overrides` ("recipe.work.batch=4") on top.

    Relative paths in it are taken from the file's folder, those in `overrides` from the working folder.
    """
    return build_run(read_toml(path), path, overrides=overrides)


def build_run(tree: Tree, path: Path, *, overrides: Sequence[str] = ()) -> Run:
    """Return the run of a decoded file, as `load_run` does; errors and relative paths are those of `path`."""
    return _anchor_paths(_build(tree, str(path), path.parent, overrides), path.parent)


def demo_run(*, overrides: Sequence[str] = ()) -> Run:
    """Return the run that `atoll demo` trains."""
    return _build(parse_toml((_EXAMPLES / "demo.toml").read_text("utf-8"), "demo.toml"), "demo.toml", Path(), overrides)


@lru_cache(maxsize=64)  # in simulation a thousand peers read the same few runs
def decode_run(data: bytes, *, source: str = "run") -> Run:
    """Return a run from its canonical bytes, as strictly as from a file; `source` names it in errors."""
    if len(data) > RUN_BYTES_MAX:
        raise SpecError(f"{source}: {len(data)} bytes are too many for a run", hint=f"at most {RUN_BYTES_MAX}")
    try:
        tree = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{source}: not a run: {error}", hint="was it sent by another version?") from None
    layers = Layers([(source, tree)])
    return check(record(tree, Run, layers), layers)


def load_recipe(name: str) -> Recipe:
    """Return a shipped recipe."""
    tree = parse_toml(recipe_text(name), f"{name}.toml")
    return record(tree, Recipe, Layers([(f"{name}.toml", tree)]))


def recipe_text(name: str) -> str:
    """Return the TOML text of a shipped recipe, header and all."""
    known = recipe_names()
    if name not in known:
        raise SpecError(f"no recipe is called '{name}'", hint=f"known recipes: {', '.join(known)}{near(name, known)}")
    return (RECIPES / f"{name}.toml").read_text("utf-8")


def schema() -> dict[str, Any]:
    """Return the JSON schema of a run file."""
    (whole,), parts = msgspec.json.schema_components([Run], ref_template="#/$defs/{name}")
    based = {
        "type": "object",
        "required": ["base"],
        "properties": {"base": {"type": "string", "description": "a shipped recipe, or the path of a recipe file"}},
        "description": "Start from another recipe and change keys below it.",
    }
    run = parts.pop("Run")
    run["properties"]["recipe"] = {"anyOf": [run["properties"]["recipe"], based]}
    assert whole == {"$ref": "#/$defs/Run"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **run, "$defs": parts}


def _build(tree: Tree, file: str, folder: Path, overrides: Sequence[str]) -> Run:
    """Return the run of a tree after its base recipe and the overrides."""
    sets = set_tree(overrides)
    tree = with_sets(tree, file, folder, sets)
    base = _base(tree, file, folder)
    layers = Layers([*base, (file, tree), *([("--set", sets)] if sets else [])])
    for _, under in base:
        recipe = {key: value for key, value in tree["recipe"].items() if key != "base"}
        tree = tree | {"recipe": merge(under["recipe"], recipe)}
    return check(record(tree, Run, layers), layers)


def with_sets(tree: Tree, file: str, folder: Path, sets: Tree) -> Tree:
    """Return what a file says with `--set` on top: another kind than that of its own base replaces the table."""
    under = _base(tree, file, folder) if sets else []
    return merge(tree, sets, under[0][1] if under else None)


def _base(tree: Tree, file: str, folder: Path) -> list[tuple[str, Tree]]:
    """Return the layer that `recipe.base` names, if it does."""
    recipe = tree.get("recipe")
    if not isinstance(recipe, dict) or "base" not in recipe:
        return []
    name, known = recipe["base"], recipe_names()
    if isinstance(name, str) and name.endswith(".toml"):
        return [(str(folder / name), {"recipe": _recipe_file(folder / name)})]
    if name not in known:
        hint = f"known recipes: {', '.join(known)}{near(str(name), known)}, or the path of a .toml file"
        raise SpecError(f"{file}: recipe.base: no recipe is called '{name}'", hint=hint)
    return [(f"recipe {name}", {"recipe": _shipped(name)})]


def _recipe_file(path: Path) -> Tree:
    """Return what a file says that is a recipe of its own, whole: what is wrong with it is said of it."""
    tree = read_toml(path)
    if "base" in tree:
        hint = 'write it there: [recipe] base = "..."; or begin a file with atoll recipes show NAME --toml'
        raise SpecError(f"{path}: 'base' belongs into a run file, and this is a recipe", hint=hint)
    record(tree, Recipe, Layers([(str(path), tree)]))
    return tree


@cache
def _shipped(name: str) -> Tree:
    """Return what a shipped recipe says; trees are laid over each other, never changed."""
    return parse_toml(recipe_text(name), f"{name}.toml")


def set_tree(overrides: Sequence[str]) -> Tree:
    """Return the tree that `--set a.b=c` flags write, in their order."""
    tree: Tree = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise SpecError(f"--set {text}: not of the form key.path=value", hint="write --set recipe.work.batch=4")
        node = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise SpecError(f"--set {text}: '{part}' was set to a plain value before", hint="set one or the other")
        node[parts[-1]] = _value(value.strip())
    _see_from_here(tree)
    return tree


def _see_from_here(tree: Tree) -> None:
    """Let paths that were typed be those of the folder they were typed in, not of the run file's."""
    for *tables, key in PATHS:
        node: Any = tree
        for table in tables:
            node = node.get(table) if isinstance(node, dict) else None
        value = node.get(key) if isinstance(node, dict) else None
        if isinstance(value, str) and value and (key != "base" or value.endswith(".toml")):
            node[key] = str(Path(value).absolute())


def _value(text: str) -> Any:
    """Return text as a TOML value; what is none is taken as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _anchor_paths(run: Run, folder: Path) -> Run:
    """Return the run with relative paths seen from the run file's folder."""
    if isinstance(run.model, Folder):
        run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, path=str(folder / run.model.path)))
    if isinstance(run.data.source, Shards):
        source = Shards(path=str(folder / run.data.source.path))
        run = msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, source=source))
    return run
