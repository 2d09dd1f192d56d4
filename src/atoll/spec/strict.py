"""From TOML to frozen records, strictly, with errors a person can act on.

The records themselves say what is allowed, so this is one walk over a tree of plain values beside the tree of their
types: it stops at the first thing that does not fit and names it in TOML's spelling (`recipe.channel.outer.when`),
with what is allowed there and the nearest known word. The library's own decoder would refuse the same input, but
forgets the names of table entries on the way and knows no near misses; it still makes the record in the end.

A tree may come from several layers (a base recipe, the run file, `--set`); an error names the layer that said it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from atoll.errors import SpecError

T = TypeVar("T")
Tree = dict[str, Any]
KeyPath = tuple[str | int, ...]

_FLOAT_MAX = 1e300
WHOLE, FINITE, YES_NO = "a whole number", "a finite number", "true or false"
"""What is written without quotes."""
_BARE = re.compile(r"^[A-Za-z0-9_-]+$")
_WHERE = re.compile(r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$", re.DOTALL)


class Layers:
    """Where the values of a merged tree came from: names and their trees, the strongest last."""

    def __init__(self, layers: Iterable[tuple[str, Tree]]) -> None:
        self._layers = list(layers)

    def blame(self, path: KeyPath) -> str:
        """Return the name of the strongest layer that says most of `path`."""
        return max(enumerate(self._layers), key=lambda entry: (depth(entry[1][1], path), entry[0]))[1][0]

    def meant(self, path: KeyPath) -> str:
        """Return ` (did you mean 'x'?)` when another layer has a name close to one that it does not know."""
        *above, last = path or ("",)
        others = [_at(tree, above) for _, tree in self._layers]
        return near(
            str(last), [key for table in others if isinstance(table, dict) and last not in table for key in table]
        )

    def refuse(self, path: KeyPath, what: str, *, hint: str = "", key: str = "") -> NoReturn:
        """Raise the `SpecError` for what stands at `path`, said by whoever wrote `key` there."""
        file = self.blame((*path, key) if key else path)
        raise SpecError(": ".join(part for part in (file, spell(path), what) if part), hint=hint)


def spell(path: KeyPath) -> str:
    """Return a key path as TOML spells it: `machine[0].name`, `channel."a b".when`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.match(part) else f'"{part}"')
    return text


def near(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` when a known word is close, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def read_toml(path: Path) -> Tree:
    """Return the tree of a TOML file; every way this can fail is a `SpecError`."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"files here: {', '.join(others[:8])}{near(path.name, others)}" if others else "give the path of a file"
        raise SpecError(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}", hint="give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: byte {error.start} is not UTF-8", hint="save the file as UTF-8") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, file: str) -> Tree:
    """Return the tree of TOML text; a syntax error names line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _WHERE.match(str(error))
        if not found:
            raise SpecError(f"{file}: {error}", hint="see https://toml.io") from None
        lines = text.splitlines() or [""]
        line = int(found["line"] or len(lines))
        column = int(found["column"] or len(lines[-1]) + 1)
        what = found["what"][:1].lower() + found["what"][1:]
        shown = lines[min(line, len(lines)) - 1].strip()[:80]
        raise SpecError(f"{file}: line {line}, column {column}: {what}", hint=f"the line reads: {shown}") from None


def record(tree: Tree, kind: type[T], layers: Layers) -> T:
    """Return `tree` as a record of type `kind`."""
    fitted = _fit(tree, _known(kind), (), layers)  # type: ignore[arg-type]  # types are hashable
    try:
        return msgspec.convert(fitted, kind)
    except msgspec.ValidationError as error:  # the walk and the decoder disagree: still an error of the input
        layers.refuse((), str(error), hint="see `atoll schema`")


def merge(base: Tree, over: Tree, under: Any = None) -> Tree:
    """Return `base` with the keys of `over` on top, table by table; another `kind` replaces the whole table.

    What `base` itself lies over tells the kinds that it leaves out.
    """
    under = under if isinstance(under, dict) else {}
    kind = base.get("kind", under.get("kind"))
    if kind is not None and over.get("kind", kind) != kind:
        return over
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        tables = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = merge(merged[key], value, under.get(key)) if tables else value
    return merged


def _at(tree: object, path: Iterable[str | int]) -> object:
    """Return what stands at a path; None: nothing."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def depth(tree: object, path: KeyPath) -> int:
    """Return how many parts of `path` exist in `tree`."""
    for i, part in enumerate(path):
        try:
            tree = tree[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return i
    return len(path)


@cache
def _known(kind: type) -> inspect.Type:
    """Return what a record is made of: worked out once, however many files are read."""
    return inspect.type_info(kind)


def _fit(value: Any, kind: inspect.Type, path: KeyPath, layers: Layers) -> Any:
    """Return `value` made fit for `kind`, or refuse it."""
    match kind:
        case inspect.StructType():
            return _fit_table(value, kind, path, layers)
        case inspect.UnionType():
            return _fit_union(value, kind, path, layers)
        case inspect.DictType():
            _must(isinstance(value, dict), value, "a table", path, layers)
            return {key: _fit(item, kind.value_type, (*path, key), layers) for key, item in value.items()}
        case inspect.VarTupleType() | inspect.ListType():
            _must(isinstance(value, list), value, "a list", path, layers)
            return [_fit(item, kind.item_type, (*path, i), layers) for i, item in enumerate(value)]
        case inspect.TupleType():
            size = len(kind.item_types)
            _must(isinstance(value, list) and len(value) == size, value, f"a list of {size}", path, layers)
            return [_fit(value[i], item, (*path, i), layers) for i, item in enumerate(kind.item_types)]
        case _:
            return _fit_scalar(value, kind, path, layers)


def _fit_scalar(value: Any, kind: inspect.Type, path: KeyPath, layers: Layers) -> Any:
    match kind:
        case inspect.IntType():
            if isinstance(value, float) and value.is_integer():  # 1e6 is how people write a million
                return int(value)
            _must(isinstance(value, int) and not isinstance(value, bool), value, WHOLE, path, layers)
        case inspect.FloatType():
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _FLOAT_MAX
            _must(number, value, FINITE, path, layers)
        case inspect.StrType():
            _must(isinstance(value, str), value, "text in quotes", path, layers)
        case inspect.BoolType():
            _must(isinstance(value, bool), value, YES_NO, path, layers)
        case inspect.LiteralType():
            known = [str(choice) for choice in kind.values]
            if value not in kind.values:
                layers.refuse(path, f"unknown choice {_show(value)}", hint=_one_of(known, str(value)))
        case _:
            raise AssertionError(f"{kind} has no TOML form here")
    return value


def _fit_table(value: Any, kind: inspect.StructType, path: KeyPath, layers: Layers) -> Tree:
    """Fit a table to one record: nothing unknown, nothing missing."""
    _must(isinstance(value, dict), value, "a table", path, layers)
    known = {field.encode_name: field for field in kind.fields}
    of = f' for kind "{kind.tag}"' if kind.tag is not None else ""
    for key in value:
        if key == kind.tag_field:
            if value[key] != kind.tag:
                layers.refuse((*path, key), f"unknown kind {_show(value[key])}", hint=f'known kinds: "{kind.tag}"')
        elif key not in known:
            says = f"known keys: {', '.join(known)}" if known else "it takes no keys but 'kind'"
            layers.refuse(path, f"unknown key '{key}'{of}", hint=says + near(key, known), key=key)
    for name, field in known.items():
        if field.required and name not in value:
            hint = _example((*path, name), field.type) + layers.meant(path)
            layers.refuse(path, f"missing key '{name}'{of}", hint=hint)
    fitted = {key: _fit(value[key], known[key].type, (*path, key), layers) for key in value if key in known}
    return fitted | ({kind.tag_field: kind.tag} if kind.tag_field is not None else {})


def _fit_union(value: Any, kind: inspect.UnionType, path: KeyPath, layers: Layers) -> Any:
    """Fit a value to one of several: tables choose by `kind`, the rest by their type."""
    tables = [choice for choice in kind.types if isinstance(choice, inspect.StructType)]
    plain = [choice for choice in kind.types if not isinstance(choice, inspect.StructType | inspect.NoneType)]
    if not isinstance(value, dict):
        if not plain:
            _must(False, value, "a table", path, layers)
        return _fit(value, plain[0], path, layers)
    if not tables:
        _must(False, value, "no table", path, layers)
    if len(tables) == 1:
        return _fit(value, tables[0], path, layers)
    by_tag = {str(table.tag): table for table in tables}
    chosen = value.get("kind")
    if chosen is None:
        layers.refuse(path, "missing key 'kind'", hint=f"known kinds: {_quoted(by_tag)}{_would_fit(value, by_tag)}")
    if not isinstance(chosen, str) or chosen not in by_tag:
        hint = _one_of(by_tag, str(chosen), "known kinds")
        layers.refuse((*path, "kind"), f"unknown kind {_show(chosen)}", hint=hint)
    return _fit(value, by_tag[chosen], path, layers)


def _would_fit(value: Tree, by_tag: Mapping[str, inspect.StructType]) -> str:
    """Return a suggestion when the given keys belong to one choice only."""
    fits = [tag for tag, table in by_tag.items() if set(value) <= {field.encode_name for field in table.fields}]
    return f' (did you mean kind = "{fits[0]}"?)' if len(fits) == 1 and value else ""


def _must(holds: bool, value: Any, want: str, path: KeyPath, layers: Layers) -> None:
    if not holds:
        quoted = isinstance(value, str) and want in (WHOLE, FINITE, YES_NO)
        hint = f"write {want}{' without quotes' if quoted else ''}"
        layers.refuse(path, f"{_show(value)} is not {want}", hint=hint)


def _show(value: Any) -> str:
    """Return a value as TOML would write it, shortened."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value[:60]}"'
        case dict():
            return "a table"
        case list():
            return f"a list of {len(value)}"
        case _:
            return str(value)[:60]


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _one_of(known: Iterable[str], word: str, say: str = "known choices") -> str:
    known = list(known)
    return f"{say}: {_quoted(known)}{near(word, known)}"


def _example(path: KeyPath, kind: inspect.Type) -> str:
    """Return how a missing key could be written."""
    name = path[-1]
    match kind:
        case inspect.IntType():
            return f"add for example: {name} = 1"
        case inspect.FloatType():
            return f"add for example: {name} = 0.1"
        case inspect.StrType():
            return f'add for example: {name} = "..."'
        case inspect.StructType():
            keys = ", ".join(field.encode_name for field in kind.fields) or "its kind"
            return f"add a table [{spell(path)}] with {keys}"
        case inspect.UnionType():
            tags = [str(table.tag) for table in kind.types if isinstance(table, inspect.StructType)]
            return f"add {name} = {{ kind = ... }} with one of {_quoted(tags)}"
        case _:
            return f"add {name}"
