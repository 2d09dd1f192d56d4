"""From what a result is made of back to values: frequencies, directions and lengths, or factors of matrices.

Everybody does it to the same bits, so each where it is fastest: on the device that has the weights, in turn with other
work there, or else on the processor, beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from atoll.model.compute import Merged, Restored, Vector
from atoll.peer.encode import cosines_of
from atoll.peer.member import Member
from atoll.sync.factors import Factors


class Back(NamedTuple):
    """What a result comes to."""

    values: Merged | None
    """None: nothing yet that moves weights."""
    basis: Vector | None = None
    """The directions to go on with, where matrices are factored."""


class WayBack(NamedTuple):
    """How that is found out."""

    of: Callable[[Merged], Back]
    """Given all of a result: a tile or a tensor may lie in two chunks."""
    there: bool
    """Whether the device that has the weights does it."""


def way_back(member: Member, version: int) -> WayBack | None:
    """Return how a round's result becomes values; None: it is made of them."""
    if member.factors is not None:
        return _from_factors(member, member.factors, version)
    transform, cosines = member.transform(version), cosines_of(member, version)
    if transform is None:
        return None
    if cosines is not None:
        return WayBack(lambda merged: Back([(0, cosines.back(merged))]), there=True)
    return WayBack(lambda merged: Back([(0, transform.back(joined(merged)))]), there=False)


def joined(merged: Merged) -> Vector:
    """Return all of a result."""
    return np.concatenate([values for _, values in merged])


def _from_factors(member: Member, factors: Factors, version: int) -> WayBack:
    device, basis = member.engine.transforms(), member.anchor.basis
    there = None if device is None else device.restored(factors.form)
    made: Factors | Restored = factors if there is None else there
    assert basis is not None, "where matrices are factored there are directions"
    if member.channel_of(version).holds(version):
        return WayBack(lambda merged: Back(None, made.orthonormal(joined(merged))), there is not None)

    def values(merged: Merged) -> Back:
        whole = joined(merged)
        return Back([(0, made.values(whole, basis))], _following(factors, there, version, whole))

    return WayBack(values, there is not None)


def _following(factors: Factors, there: Restored | None, version: int, merged: Vector) -> Vector:
    """Return the directions of the next step; where some must be drawn, it is the processor that does."""
    made = None if there is None else there.unit_columns(merged[: factors.basis_size])
    return factors.next_basis(merged, version) if made is None else made
