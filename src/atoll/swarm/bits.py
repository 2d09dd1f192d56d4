"""Some of many peers, as one bit each: how the log names who takes part without naming a thousand keys.

Both sides know the many, in one order: the roster's members, or a round's.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress

_TRUTH = bytes.maketrans(b"01", b"\0\1")


def bits_of(some: Container[bytes], of: Sequence[bytes]) -> bytes:
    """Return a bit for each of the many, set for those who are among `some`; the first is the lowest."""
    digits = "".join("1" if peer in some else "0" for peer in reversed(of))
    return int(digits or "0", 2).to_bytes(_size_bytes(of), "little")


def named(bits: bytes, of: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return those of the many whose bit is set; raises `ValueError` for bits that cannot be theirs."""
    number = int.from_bytes(bits, "little")
    if len(bits) != _size_bytes(of) or number >> len(of):
        raise ValueError(f"{len(bits)} bytes of bits for {len(of)} peers")
    return tuple(compress(of, f"{number:0{len(of)}b}"[::-1].encode().translate(_TRUTH)))


def _size_bytes(of: Sequence[bytes]) -> int:
    return (len(of) + 7) // 8
