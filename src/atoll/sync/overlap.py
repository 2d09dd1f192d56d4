"""Going on while a round is exchanged: where the next steps start from, and how a result is taken in later.

A peer that does not wait keeps weights of its own: `local`, as they were when it contributed. From there it goes on
with the next round's samples. What comes back is the anchor after all, the same for everybody; the peer then has to
bring together the anchor, which has its contribution and everybody else's, and the steps it has taken meanwhile, which
it has not. Unless something old is kept in a blend, the next contribution is new work only.

    blend   weights <- keep * weights + (1 - keep) * anchor       (Streaming DiLoCo)
    shift   weights <- weights + (anchor - local)                 (delayed averaging: the mean in place of one's own)
    join    weights <- (S anchor + weights) / (S + 1)             (WAGMA-SGD: late for a mean of S)
    lead    the next round starts from anchor + lead              (eager updates, a whole round late)

An eager peer steps its outer optimizer with the stale mean in which its own part is replaced by its newest one. Plain
and Nesterov descent are linear, so that is the common anchor, stepped with the mean as it came, plus a lead of its own:
the same optimizer stepped with nothing but the replacement. The anchor stays common, and what is private fades away.
"""

from __future__ import annotations

import numpy as np

from atoll.model.compute import Vector
from atoll.spec.axes.optimizer import Outer
from atoll.sync.merge import Anchor, advance, first_anchor


def blend(weights: Vector, anchor: Vector, keep: float) -> Vector:
    """Return weights of which so much stays, in the memory of those given."""
    weights *= np.float32(keep)
    weights += anchor * np.float32(1 - keep)
    return weights


def shift(weights: Vector, anchor: Vector, local: Vector) -> Vector:
    """Return weights with the anchor in place of what they came from, in the memory of those given."""
    weights += anchor - local
    return weights


def one_more(own: Vector, mean: Vector, among: int) -> Vector:
    """Return the mean of some and of one's own, which is not among them: (sum + own) / (among + 1)."""
    total: Vector = mean * np.float32(among) + own
    return total / np.float32(among + 1)


class Lead:
    """How far a peer is ahead of the common anchor by its own newest contribution; at first not at all."""

    def __init__(self, outer: Outer, size: int) -> None:
        self._outer = outer
        self._state = first_anchor(outer, np.zeros(size, np.float32))
        self._sent = np.zeros(size, np.float32)
        """Our contribution that is in the newest mean."""

    def vectors(self) -> dict[str, Vector]:
        """Return all of it by name, in its own memory."""
        return {"sent": self._sent, **{f"lead.{name}": vector for name, vector in self._state.vectors().items()}}

    def forget(self) -> None:
        """Be where the anchor is."""
        for vector in self.vectors().values():
            vector[:] = 0.0

    def step(self, first: int, end: int, fresh: Vector, share: float, share_before: float) -> Vector:
        """Take in some elements of our next contribution, and return by how much we are ahead in them.

        `share` is the part of the mean that it will be, `share_before` the part that our last one is of the newest.
        """
        part: Anchor = self._state.part(first, end)
        replaced = fresh * np.float32(share) - self._sent[first:end] * np.float32(share_before)
        self._sent[first:end] = fresh
        advance(self._outer, part, replaced)
        return part.weights
