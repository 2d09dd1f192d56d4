"""How far behind stays what one bit an element sends, with feedback: by elements as they are, and turned first.

    python -m bench.behind

Sixty rounds of a vector that moves as training does: a part of each round's way is the same every time (`lasting`),
elements move by different amounts (`unequal`: the deviation of their logarithms), and with `falling` the rate falls to
5 % by a cosine. What is left out goes into the next round. `brought` is the part of the energy that arrives of what is
to be sent, `behind` the energy of what is still left out beside that of a round's way: both of the last ten rounds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from bench.show import parser_of, show

from atoll.spec.axes.codec import Codec, Sign, TurnedSign
from atoll.sync.feedback import encode_fed_back

ROUNDS, LAST, ELEMENTS, BLOCK = 60, 10, 2**16, 512
FLOOR = 0.05
CODECS: dict[str, Codec] = {"sign": Sign(block=BLOCK), "turned-sign": TurnedSign(block=BLOCK)}


@dataclass
class Row:
    """One codec and one kind of way."""

    codec: str
    lasting: float
    unequal: float
    falling: bool
    brought: float
    behind: float


def played(name: str, lasting: float, unequal: float, *, falling: bool) -> Row:
    """Return what comes of sixty rounds."""
    drawn = np.random.default_rng(0)
    sizes = np.exp(unequal * drawn.standard_normal(ELEMENTS))
    same, left = drawn.standard_normal(ELEMENTS), np.zeros(ELEMENTS, np.float32)
    brought, behind = [], []
    for number in range(ROUNDS):
        rate = FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * number / ROUNDS)) if falling else 1.0
        other = math.sqrt(1 - lasting**2) * drawn.standard_normal(ELEMENTS)
        way = (rate * sizes * (lasting * same + other)).astype(np.float32)
        wanted = float(np.square(left + way).sum())
        encode_fed_back(CODECS[name], way, left, 1.0, number)
        rest = float(np.square(left).sum())
        brought.append(1 - rest / wanted)
        behind.append(rest / float(np.square(way).sum()))
    return Row(name, lasting, unequal, falling, float(np.mean(brought[-LAST:])), float(np.mean(behind[-LAST:])))


def rows() -> Iterator[Row]:
    """Yield all kinds, both codecs of each."""
    for lasting, unequal, falling, name in product((0.0, 0.5, 0.9), (0.0, 0.5), (False, True), CODECS):
        yield played(name, lasting, unequal, falling=falling)


def text(row: Row) -> str:
    """Return a line of the table."""
    kind = f"lasting {row.lasting:.1f}   unequal {row.unequal:.1f}   {'falling' if row.falling else '':<8}"
    return f"{kind}{row.codec:<12}   brought {row.brought:5.2f}   behind {row.behind:9.2f}"


def main() -> int:
    options = parser_of(__doc__).parse_args()
    show(rows(), text, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
