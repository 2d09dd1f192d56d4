"""How a message is spoiled: one step at a time, from a seeded chance, fast enough for a million inputs.

Two levels. Bytes: flipped bits, cut tails, lengths that lie, pieces of other messages. Trees: another type, a huge
number, a bottomless list, a key twice or one too many, a part of another message, a thousand copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from tests.fuzz.grow import Elements, Pairs

DEPTH = 3_000
COPIES = 200
LIES = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xdc\xff\xff",
    b"\xde\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc5\xff\xff", b"\xd9\xff", b"\xc1",
)  # fmt: skip
"""Headers of msgpack that promise more than can follow, and the byte it never uses."""
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, 1e308, float("nan"), float("inf"), "", "x" * 5000,
    "\x00", "\ud7ff", b"", b"\xff" * 33, b"x" * 5000, [], {}, [[]], {"type": "hello"}, [None] * 50, {1: 2}, {b"k": 1},
    msgspec.Raw(b"\x91" * DEPTH), msgspec.Raw(b"\x81\xa1a" * DEPTH), msgspec.Raw(b"\xa2\xff\xfe"),
    msgspec.Raw(b"\xc7\x05\x01hello"), msgspec.Raw(b"\xd6\xff\x00\x00\x00\x00"),
)  # fmt: skip
"""Values of every type, at their ends: extension types and bad texts included."""


class Mutator:
    """Spoils bytes and trees by a seeded chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._ways: tuple[Callable[[bytearray, Sequence[bytes]], None], ...] = (
            self._flip, self._flip, self._set, self._cut, self._drop, self._lie, self._splice, self._lengthen,
            self._swap,
        )  # fmt: skip

    def spoil(self, seeds: Sequence[bytes]) -> bytes:
        """Return one of the seeds, spoiled in one to four ways."""
        rng = self._rng
        data = bytearray(seeds[int(rng.random() * len(seeds))])
        for _ in range(1 + int(rng.random() * 4)):
            if data:
                self._ways[int(rng.random() * len(self._ways))](data, seeds)
        return bytes(data)

    def _at(self, data: bytearray) -> int:
        return int(self._rng.random() * len(data))

    def _flip(self, data: bytearray, _: Sequence[bytes]) -> None:
        data[self._at(data)] ^= 1 << int(self._rng.random() * 8)

    def _set(self, data: bytearray, _: Sequence[bytes]) -> None:
        data[self._at(data)] = int(self._rng.random() * 256)

    def _cut(self, data: bytearray, _: Sequence[bytes]) -> None:
        del data[self._at(data) :]

    def _drop(self, data: bytearray, _: Sequence[bytes]) -> None:
        at = self._at(data)
        del data[at : at + 1 + int(self._rng.random() * 8)]

    def _lie(self, data: bytearray, _: Sequence[bytes]) -> None:
        at = self._at(data)
        lie = LIES[int(self._rng.random() * len(LIES))]
        data[at : at + (len(lie) if self._rng.random() < 0.5 else 1)] = lie

    def _splice(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        other = seeds[int(self._rng.random() * len(seeds))]
        start = int(self._rng.random() * (len(other) + 1))
        data[self._at(data) :] = other[start : start + 4096]

    def _lengthen(self, data: bytearray, _: Sequence[bytes]) -> None:
        data += self._rng.randbytes(1 + int(self._rng.random() * 16))

    def _swap(self, data: bytearray, _: Sequence[bytes]) -> None:
        at, to = self._at(data), self._at(data)
        data[at], data[to] = data[to], data[at]

    def spoil_tree(self, tree: Any, others: Sequence[Any]) -> Any:
        """Return a tree with one to three of its nodes spoiled."""
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            tree = self._down(tree, others)
        return tree

    def _down(self, tree: Any, others: Sequence[Any]) -> Any:
        """Go down a random path and spoil what is at its end."""
        rng = self._rng
        if isinstance(tree, dict) and tree and rng.random() < 0.7:
            key = rng.choice(list(tree))
            return tree | {key: self._down(tree[key], others)}
        if isinstance(tree, list) and tree and rng.random() < 0.7:
            at = rng.randrange(len(tree))
            return [*tree[:at], self._down(tree[at], others), *tree[at + 1 :]]
        return self._spoiled(tree, others)

    def _spoiled(self, node: Any, others: Sequence[Any]) -> Any:
        rng = self._rng
        if isinstance(node, dict) and rng.random() < 0.7:
            return self._spoiled_map(node)
        if isinstance(node, list) and rng.random() < 0.7:
            return self._spoiled_list(node)
        if isinstance(node, int) and rng.random() < 0.4:
            return max(-(2**63), min(2**64 - 1, node + rng.choice((-1, 1, -(2**31), 2**31, 2**32, -node - 1))))
        return rng.choice(JUNK) if rng.random() < 0.8 else rng.choice(others)

    def _spoiled_map(self, node: dict[Any, Any]) -> Any:
        rng, items = self._rng, list(node.items())
        match rng.randrange(5):
            case 0 if items:
                del items[rng.randrange(len(items))]
                return dict(items)
            case 1:
                return node | {rng.choice(("more", "", "kind", "type", "x" * 2000)): rng.choice(JUNK)}
            case 2 if items:
                key, _ = rng.choice(items)
                return Pairs((*items, (key, rng.choice(JUNK))))
            case 3:
                return Pairs(tuple(items), said=rng.choice((0, 1, len(items) + 1, 2**16, 2**32 - 1)))
            case _:
                rng.shuffle(items)
                return dict(items) | {rng.choice(JUNK_KEYS): None}

    def _spoiled_list(self, node: list[Any]) -> Any:
        rng = self._rng
        match rng.randrange(5):
            case 0 if node:
                return node[: rng.randrange(len(node))]
            case 1 if node:
                return [rng.choice(node)] * COPIES
            case 2:
                return [*node, rng.choice(JUNK)]
            case 3:
                return Elements(tuple(node), said=rng.choice((0, len(node) + 1, 2**16, 2**32 - 1)))
            case _:
                return node[::-1]


JUNK_KEYS: tuple[Any, ...] = (None, 1, 1.5, b"k", "more", True)
