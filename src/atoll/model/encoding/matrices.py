"""Which tensors travel as two thin factors, and where these lie: what every form of low rank shares.

What is made of them, operation by operation, is said in `sync.factors`; `model.encoding.products` does the same on a
device.
"""

from __future__ import annotations

from typing import NamedTuple

ALONG = 1e-6
"""What is left of a direction without those before it: a smaller part of its length is rounding."""


class Matrix(NamedTuple):
    """A tensor that travels as factors: its name, rows, columns, rank, and where it and its factors begin."""

    name: str
    rows: int
    columns: int
    rank: int
    first: int
    left: int
    right: int

    @property
    def values(self) -> slice:
        return slice(self.first, self.first + self.rows * self.columns)

    @property
    def lefts(self) -> slice:
        return slice(self.left, self.left + self.rows * self.rank)

    @property
    def rights(self) -> slice:
        return slice(self.right, self.right + self.columns * self.rank)


class Factored(NamedTuple):
    """How the tensors of a model travel: as factors, or whole; and how long all of it, and both factors, are."""

    matrices: tuple[Matrix, ...]
    whole: tuple[tuple[int, int, int], ...]
    """Of a tensor that travels as it is: where it begins in the model and in what is exchanged, and its elements."""
    size: int
    left_size: int
    right_size: int
