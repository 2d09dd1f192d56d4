"""Where a trial's exchanges lose what they lose: plays it once more and looks at the weights of all peers on the way.

    python -m bench.converge.lost --shards FOLDER TRIAL [--every ROUNDS]

TRIAL is a name out of `python -m bench.converge --list`, of a recipe whose peers all wait for each round's result. A
look is no trial: nothing goes into the record. Of a round it says

    way        how far a peer has come from the anchor that the round began with, in the mean of all peers
    common     which part of that, squared, all of them have in common; the rest is each one's own
    again      the cosine of the peers' mean way with that of the round before; what they hold back is in both
    behind     how far the new anchor is from the mean of the peers' weights, beside that mean way
    sign ...   which part of a peer's way, squared, such a codec leaves out, and which part of their mean way
    own        which part of their mean way a sign leaves out for a peer whose own way's signs are known already

and of the end the bits per byte of the anchor, of the mean of the last few anchors, and of the mean of the weights that
peers have by themselves. So it tells whether what is left out is still with the peers, whether another codec could
bring more of it with as many bits, and whether the way of the last round says anything about the next.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bench.converge import ways, world
from bench.converge.listed import trial_named
from bench.converge.play import judged
from bench.converge.trial import Trial, run_of
from bench.show import ending, parser_of, show
from torch import Tensor

from atoll.data.samples import open_data
from atoll.errors import SpecError
from atoll.model.compute import Step, Trained, Vector
from atoll.model.engine import TorchEngine, pick_device
from atoll.model.held import Held
from atoll.spec.axes.pace import Block
from atoll.spec.axes.what import Delta

CODECS: dict[str, ways.Codec] = {"sign": ways.sign, "turned": ways.turned, "three": ways.three, "four": ways.four}
MEANS = (2, 4, 8)
"""Of so many of the last anchors."""


@dataclass
class Round:
    """What was seen of one."""

    number: int
    way: float
    common: float
    again: float | None
    behind: float
    leaves: dict[str, tuple[float, float]]
    """Of one peer's way and of the mean way, by codec."""
    own: float
    """Of the mean way, beside what the peer's own signs say of it."""


@dataclass
class End:
    """What some weights at the end come to."""

    weights: str
    bits_per_byte: float


class Book:
    """What all peers' weights are when an anchor reaches them, round by round."""

    def __init__(self, many: int, every: int, device: torch.device) -> None:
        self._many, self._every, self._device = many, every, device
        self._came_to: list[Vector] = []
        self._before: Vector | None = None
        self._number = 0
        self.anchors: deque[Vector] = deque(maxlen=max(MEANS))
        self.peers: list[Watched] = []
        self.rounds: list[Round] = []

    def arrives(self, own: Vector, anchor: Vector) -> None:
        """Note what one peer has when it is given an anchor; a round is over when all have been given it."""
        self._came_to.append(own)
        if len(self._came_to) == self._many:
            if self.anchors:  # else they begin, all with the same
                self._number += 1
                self._close([own - self.anchors[-1] for own in self._came_to], anchor)
            self.anchors.append(anchor.copy())
            self._came_to = []

    def _close(self, each: Sequence[Vector], anchor: Vector) -> None:
        mean = _mean(each)
        if self._number % self._every == 0:
            self.rounds.append(self._seen(each[0], mean, sum(map(_square, each)) / self._many, anchor))
        self._before = mean

    def _seen(self, one: Vector, mean: Vector, each: float, anchor: Vector) -> Round:
        both = _square(mean)
        # Of the mean's square as much is everybody's own as there is of it in each, by the number of peers.
        common = (self._many * both / each - 1) / (self._many - 1) if self._many > 1 else 1.0
        before = self._before
        again = None if before is None else float(np.dot(mean, before)) / (both * _square(before)) ** 0.5
        behind = (_square(self.anchors[-1] + mean - anchor) / both) ** 0.5
        rows = [torch.from_numpy(way).to(self._device)[None] for way in (one, mean)]
        leaves = {name: (_left(codec, rows[0]), _left(codec, rows[1])) for name, codec in CODECS.items()}
        rest = rows[1] - ways.alike(rows[1], ways.sign(rows[0]))
        own = float((rest - ways.sign(rest)).square().sum() / rows[1].square().sum())
        return Round(self._number, each**0.5, common, again, behind, leaves, own)


def _square(vector: Vector) -> float:
    return float(np.dot(vector, vector))


def _left(codec: ways.Codec, rows: Tensor) -> float:
    """Return which part of a way a codec leaves out."""
    return float((rows - codec(rows)).square().sum() / rows.square().sum())


class Watched(world.Lean):
    """An engine of whose weights a book is kept."""

    def __init__(self, engine: TorchEngine, book: Book) -> None:
        super().__init__(engine)
        self._book = book
        self.came_to = engine.weights()
        """By its own work, whatever it was given since."""
        book.peers.append(self)

    def train(self, steps: Sequence[Step]) -> Trained:
        trained = super().train(steps)
        self.came_to = self.weights()
        return trained

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        if name is not None:  # a round begins from these; all else is on the way there
            self._book.arrives(self.came_to, weights)
        super().assign(weights, first, name, less, part)


def looked(trial: Trial, shards: Path, device: str, every: int) -> Iterator[Round | End]:
    """Play a trial; yield what was seen of it."""
    run = run_of(trial, shards)
    channel = run.recipe.channel["outer"]
    if not isinstance(channel.what, Delta) or not isinstance(channel.overlap, Block):
        raise SpecError(
            f"{trial.name}: peers of this one send gradients, or work on before they have a round's result",
            hint="a look is at the ways of peers that all begin from one anchor",
        )
    data = open_data(run.data, run.seeds.data, shards)
    where = pick_device(device)
    book = Book(trial.peers, every, where)
    played = world.play(run, trial.peers, data, str(where), wrap=lambda engine: Watched(engine, book))
    yield from book.rounds
    anchors = [*book.anchors, played.weights]
    own = [peer.came_to for peer in book.peers]
    ends = {"anchor": played.weights, "peers' mean": _mean(own), "one peer": own[0]}
    ends |= {f"last {many} anchors": _mean(anchors[-many:]) for many in MEANS if many <= len(anchors)}
    for name, weights in ends.items():
        loss, _ = judged(run, data, where, weights)
        yield End(name, data.bits_per_byte(loss))


def _mean(vectors: Sequence[Vector]) -> Vector:
    total = np.zeros_like(vectors[0], np.float64)
    for vector in vectors:
        total += vector
    return (total / len(vectors)).astype(np.float32)


def text(row: Round | End) -> str:
    """Return a line about a round, or about an end."""
    if isinstance(row, End):
        return f"{row.weights:<16} {row.bits_per_byte:.4f} bits per byte"
    leaves = "".join(f"   {name} {one:.2f} {mean:.2f}" for name, (one, mean) in row.leaves.items())
    again = "    -" if row.again is None else f"{row.again:5.2f}"
    parts = f"way {row.way:8.3f}   common {row.common:5.2f}   again {again}   behind {row.behind:5.2f}"
    return f"round {row.number:<4} {parts}{leaves}   own {row.own:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("trial")
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--every", type=int, default=5, help="rounds that are looked at: each so-many-th")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    with ending():
        rows = looked(trial_named(options.trial), options.shards, options.device, options.every)
        show(rows, text, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
