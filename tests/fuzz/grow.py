"""Valid messages of every protocol, grown from their types, so that a new message is fuzzed from its first day.

No class is named here: `msgspec.inspect` says what a union of records looks like on the wire, and `grow` makes plain
trees (dicts, lists, numbers, texts) of that shape. Trees are what the mutator works on; `pack` makes bytes of them,
also of trees that no honest encoder would write: maps with a key twice, lists that lie about their length.
"""

from __future__ import annotations

import importlib
import pkgutil
import struct
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

import atoll
from atoll.net.wire import WIRE_VERSION, Wire

ROOMS = ("atoll.net.", "atoll.swarm.", "atoll.peer.")
ELEMENTS_MAX = 3
TEXTS = ("", "outer", "all", "model", "a:1", "127.0.0.1:4433", "f" * 64, "é", "name")
BLOBS = (b"", b"\x00", b"p" * 32, b"d" * 32, b"\x00" * 64, b"{}")
NUMBERS = (0, 1, 2, 3, 7, 100, 10**6, 2**40)


def wires() -> dict[str, Wire[Any]]:
    """Return every protocol of the package, by the name of the variable that holds it."""
    found: dict[str, Wire[Any]] = {}
    for module in pkgutil.walk_packages(atoll.__path__, "atoll."):
        if module.name.startswith(ROOMS):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, Wire) and value not in found.values():
                    found[f"{module.name.removeprefix('atoll.')}.{name}"] = value
    return found


def kinds_of(wire: Wire[Any]) -> Any:
    """Return the union of records that a protocol accepts."""
    decode: Any = wire._decode
    return decode.__self__.type


@dataclass(frozen=True)
class Pairs:
    """A map as it stands on the wire: keys may come twice, and its header may lie about how many there are."""

    items: tuple[tuple[Any, Any], ...]
    said: int | None = None


@dataclass(frozen=True)
class Elements:
    """A list whose header lies."""

    items: tuple[Any, ...]
    said: int


@dataclass(frozen=True)
class Words:
    """What texts, blobs and numbers are drawn from: somebody who knows the run knows better ones."""

    texts: tuple[str, ...] = TEXTS
    blobs: tuple[bytes, ...] = BLOBS
    numbers: tuple[int, ...] = NUMBERS


class Grower:
    """Makes plain trees of a type."""

    def __init__(self, kinds: Any, rng: Random, words: Words | None = None) -> None:
        info = inspect.type_info(kinds)
        self._rng = rng
        self._words = words or Words()
        self.members: tuple[Any, ...] = info.types if isinstance(info, inspect.UnionType) else (info,)

    def grow(self, member: Any = None) -> Any:
        """Return a valid tree of one of the records, or of the given one."""
        return self._grow(member or self._rng.choice(self.members))

    def _grow(self, kind: Any) -> Any:
        rng = self._rng
        match kind:
            case inspect.StructType():
                return self._struct(kind)
            case inspect.UnionType(types=types):
                return self._grow(rng.choice(types))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.IntType(ge=low, le=high):
                value = rng.choice(self._words.numbers)
                return min(max(value, low if low is not None else value), high if high is not None else value)
            case inspect.FloatType():
                return rng.choice((0.0, 1.5, -3.25, 1e9))
            case inspect.StrType():
                return rng.choice(self._words.texts)
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                return rng.choice(self._words.blobs)
            case inspect.NoneType():
                return None
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                return [self._grow(item) for _ in range(rng.randint(0, ELEMENTS_MAX))]
            case inspect.TupleType(item_types=items):
                return [self._grow(item) for item in items]
            case inspect.DictType(key_type=key, value_type=value):
                return {self._grow(key): self._grow(value) for _ in range(rng.randint(0, ELEMENTS_MAX))}
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case _:
                raise NotImplementedError(f"the wire has a type that nobody has fuzzed yet: {kind}")

    def _struct(self, kind: inspect.StructType) -> Any:
        grown = {field.encode_name: self._grow(field.type) for field in kind.fields}
        if kind.array_like:
            return [*([kind.tag] if kind.tag is not None else []), *grown.values()]
        return ({kind.tag_field: kind.tag} if kind.tag_field is not None else {}) | grown


def sealed(tree: Any) -> bytes:
    """Return a tree as a wire message."""
    return bytes((WIRE_VERSION,)) + pack(tree)


_leaf = msgspec.msgpack.Encoder().encode


def pack(tree: Any) -> bytes:
    """Return a tree in msgpack, honest or not."""
    match tree:
        case dict():
            return _header(0x80, 0xDE, 0xDF, len(tree)) + b"".join([pack(k) + pack(v) for k, v in tree.items()])
        case list():
            return _header(0x90, 0xDC, 0xDD, len(tree)) + b"".join([pack(each) for each in tree])
        case Pairs(items=items, said=said):
            count = len(items) if said is None else said
            return _header(0x80, 0xDE, 0xDF, count) + b"".join([pack(k) + pack(v) for k, v in items])
        case Elements(items=items, said=said):
            return _header(0x90, 0xDC, 0xDD, said) + b"".join([pack(each) for each in items])
        case msgspec.Raw():
            return bytes(tree)
        case _:
            return _leaf(tree)


def _header(short: int, middle: int, long: int, count: int) -> bytes:
    if count < 16:
        return bytes((short | count,))
    return struct.pack(">BH", middle, count) if count < 1 << 16 else struct.pack(">BI", long, count)
