"""The cosine transform of square tiles with a column, or a row, in one lane's registers: nothing moves between lanes.

Triton has tensors and no lists of them, so the text of a kernel is written here, with a name for each of a side's
elements: halves are folded and folded again as `sync.frequencies` says it, operation by operation. Between the columns
and the rows of a tile everything passes through a few bytes that a program has to itself; there are so few programs,
each with many tiles, that these never leave the device's cache. `model.encoding.cosines` takes this, where it makes the
same bits.
"""

from __future__ import annotations

import linecache
from functools import cache
from itertools import pairwise
from typing import Any

from atoll.model.encoding import tiles

BESIDE = 2
"""Elements between rows of what a program has to itself, so that lanes do not wait for each other."""
_OWN_GROUP, _GROUP = 2, 16
"""Elements of a row that are read or written together: what one lane can, and what several lanes do for each other."""


class _Text:
    """A kernel's body, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._named = 0

    def put(self, made: str) -> str:
        """Return the name of something that is made."""
        self._named += 1
        self.lines.append(f"v{self._named} = {made}")
        return f"v{self._named}"

    def times(self, name: str, factor: float) -> str:
        """Return the name of a multiple; the factor is written as what it is in fp64, not as Triton takes it to be."""
        return self.put(f"{name} * tl.full((), {factor!r}, tl.float64)")

    def say(self, *lines: str) -> None:
        """Write lines as they are."""
        self.lines.extend(lines)


def _forward(text: _Text, x: list[str]) -> list[str]:
    """Write the sums of x times cosines; return their names."""
    side = len(x)
    if side == 1:
        return x
    half = side // 2
    pairs = list(zip(x[:half], x[half:][::-1], strict=True))
    even = _forward(text, [text.put(f"{low} + {high}") for low, high in pairs])
    folded = [text.put(f"{low} - {high}") for low, high in pairs]
    odd = _forward(text, [text.times(*each) for each in zip(folded, tiles.folds(side), strict=True)])
    odd = [*(text.put(f"{one} + {other}") for one, other in pairwise(odd)), odd[-1]]
    return [name for pair in zip(even, odd, strict=True) for name in pair]


def _inverse(text: _Text, x: list[str]) -> list[str]:
    """Write the sums of cosines times x; return their names."""
    side = len(x)
    if side == 1:
        return x
    odd = [x[1], *(text.put(f"{one} + {other}") for other, one in pairwise(x[1::2]))]
    even, odd = _inverse(text, x[0::2]), _inverse(text, odd)
    odd = [text.times(*each) for each in zip(odd, tiles.folds(side), strict=True)]
    pairs = list(zip(even, odd, strict=True))
    high = [text.put(f"{one} - {other}") for one, other in pairs]
    return [*(text.put(f"{one} + {other}") for one, other in pairs), *high[::-1]]


def _transform(text: _Text, x: list[str], *, forward: bool) -> list[str]:
    scales = tiles.scales(len(x))
    if forward:
        return [text.times(*each) for each in zip(_forward(text, x), scales, strict=True)]
    return _inverse(text, [text.times(*each) for each in zip(x, scales, strict=True)])


def _read_rows(text: _Text, begin: str, step: str, side: int, group: int) -> list[str]:
    """Write how each lane reads its row, some elements together; return their names."""
    names: list[str] = []
    for first in range(0, side, group):
        together = text.put(f"tl.load({begin} + lane[:, None] * {step} + ({first} + tl.arange(0, {group}))[None, :])")
        bits = (side, *[2] * (group.bit_length() - 1))
        names += _parted(text, text.put(f"tl.reshape({together}, {bits})"), group)
    return [text.put(f"{name}.to(tl.float64)") for name in names]


def _parted(text: _Text, together: str, many: int) -> list[str]:
    """Write how columns part that are together, by the last bit of their places; return their names."""
    if many == 1:
        return [together]
    text.say(f"low, high = tl.split({together})")
    halves = [text.put("low"), text.put("high")]
    each = [_parted(text, half, many // 2) for half in halves]
    return [name for pair in zip(*each, strict=True) for name in pair]


def _write_rows(text: _Text, x: list[str], begin: str, step: str, kind: str, group: int) -> None:
    side = len(x)
    for first in range(0, side, group):
        some = _joined([f"{name}.to({kind})" for name in x[first : first + group]])
        at = f"{begin} + lane[:, None] * {step} + ({first} + tl.arange(0, {group}))[None, :]"
        text.say(f"tl.store({at}, tl.reshape({some}, ({side}, {group})))")


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"tl.join({_joined(names[0::2])}, {_joined(names[1::2])})"


def _read_columns(text: _Text, begin: str, step: str, side: int) -> list[str]:
    return [text.put(f"tl.load({begin} + {nth} * {step} + lane).to(tl.float64)") for nth in range(side)]


def _write_columns(text: _Text, x: list[str], begin: str, step: str, kind: str) -> None:
    for nth, name in enumerate(x):
        text.say(f"tl.store({begin} + {nth} * {step} + lane, {name}.to({kind}))")


def text_of(side: int, *, forward: bool) -> str:
    """Return the text of the kernel that transforms tiles of such a side."""
    text, pitch = _Text(), str(side + BESIDE)
    if forward:
        x = _transform(text, _read_columns(text, "given + first", "step", side), forward=True)
        _write_columns(text, x, "here", pitch, "tl.float64")
        text.say("tl.debug_barrier()")
        x = _transform(text, _read_rows(text, "here", pitch, side, _OWN_GROUP), forward=True)
        _write_rows(text, x, "made + at", str(side), "tl.float32", _GROUP)
    else:
        x = _transform(text, _read_rows(text, "given + at", str(side), side, _GROUP), forward=False)
        _write_rows(text, x, "here", pitch, "tl.float64", _OWN_GROUP)
        text.say("tl.debug_barrier()")
        x = _transform(text, _read_columns(text, "here", pitch, side), forward=False)
        _write_columns(text, x, "made + first", "step", "tl.float32")
    head = [
        "def cosine_columns(given, made, own, firsts, steps, ats, count):",
        f"    lane = tl.arange(0, {side})",
        f"    here = own + tl.program_id(0) * {side * (side + BESIDE)}",
        "    tile = tl.program_id(0)",
        "    while tile < count:",
        "        first, step, at = tl.load(firsts + tile), tl.load(steps + tile), tl.load(ats + tile)",
    ]
    tail = ["tl.debug_barrier()", "tile += tl.num_programs(0)"]
    return "\n".join([*head, *(f"        {line}" for line in [*text.lines, *tail])]) + "\n"


@cache
def kernel_of(side: int, *, forward: bool) -> Any:
    """Return the kernel; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import programs

    name, text = f"<cosine columns {side} {forward}>", text_of(side, forward=forward)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # where Triton looks for it
    return programs.kernel_from(text, name, "cosine_columns")
