"""Sets of positions of the global order, as sorted spans: exact, and small however many positions they hold.

A run counts millions of positions in a few unbroken stretches, so sets are kept as [start, end) pairs that neither
touch nor overlap. Only what an audit needs: union, difference, intersection, size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Span = tuple[int, int]
SHOWN_MAX = 4
"""Stretches that are spelled out when a set is said in words."""


@dataclass(frozen=True)
class Spans:
    """A set of positions."""

    pairs: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return sum(end - start for start, end in self.pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    @property
    def end(self) -> int:
        """One past the highest position."""
        return self.pairs[-1][1] if self.pairs else 0

    def __or__(self, other: Spans) -> Spans:
        return Spans(tuple(_joined(sorted([*self.pairs, *other.pairs]))))

    def __and__(self, other: Spans) -> Spans:
        return self - (self - other)

    def __sub__(self, other: Spans) -> Spans:
        return Spans(tuple(_without(self.pairs, other.pairs)))

    def __str__(self) -> str:
        shown = [f"{start}" if end == start + 1 else f"{start}-{end - 1}" for start, end in self.pairs[:SHOWN_MAX]]
        return ", ".join([*shown, "..."] if len(self.pairs) > SHOWN_MAX else shown)


def from_ranges(ranges: Iterable[tuple[int, int]]) -> Spans:
    """Return the set that (first, count) ranges cover, whatever their order."""
    return Spans(tuple(_joined(sorted((first, first + count) for first, count in ranges if count))))


def up_to(end: int) -> Spans:
    """Return all positions below `end`."""
    return Spans(((0, end),)) if end > 0 else Spans()


def of(numbers: Iterable[int]) -> Spans:
    """Return single numbers as a set, so that they can be said briefly."""
    return Spans(tuple(_joined((number, number + 1) for number in sorted(numbers))))


def _joined(pairs: Iterable[Span]) -> Iterator[Span]:
    """Yield sorted pairs with those that touch or overlap made one."""
    held: Span | None = None
    for start, end in pairs:
        if held is None:
            held = start, end
        elif start <= held[1]:
            held = held[0], max(held[1], end)
        else:
            yield held
            held = start, end
    if held is not None:
        yield held


def _without(pairs: tuple[Span, ...], taken: tuple[Span, ...]) -> Iterator[Span]:
    """Yield what is left of `pairs` outside `taken`; both are sorted."""
    at = 0
    for start, end in pairs:
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] < end:
            if taken[look][0] > start:
                yield start, taken[look][0]
            start = max(start, taken[look][1])
            look += 1
        if start < end:
            yield start, end
