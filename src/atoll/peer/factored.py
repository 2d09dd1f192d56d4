"""A contribution as factors: what a peer sends in either of the two rounds that its matrices travel in.

What the codec and the rank leave out is fed back as everywhere: of what was wanted (the gradient, and what was left out
before), what arrives of it is known as soon as the second contribution is made, before anybody else's is. The first
leaves nothing behind: who crashes between the two makes the same work again, from the same anchor.

Matrices are multiplied on the device that has the weights, where there is one, and what is left of them stays there; a
hundredth of them, the factors, become bytes on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.model.compute import Products, Vector
from atoll.model.held import Held
from atoll.peer.encode import portion_of, source_of
from atoll.peer.member import Member
from atoll.peer.train import Contribution, diverged, finite
from atoll.spec.axes.what import Feedback, Residual
from atoll.swarm.log import OpenRound
from atoll.sync.codec import decoded, encode, seed_of
from atoll.sync.factors import Factors


def factored(member: Member, announced: OpenRound, contribution: Contribution) -> Iterator[dict[int, memoryview]]:
    """Return a contribution encoded, all at once: a factor needs all of its matrix."""
    version, basis = announced.key.version, member.anchor.basis
    channel, grid, residual = member.channel_of(version), member.grid_of(announced.key), member.private.residual
    assert basis is not None, "there are directions from the beginning"
    matrices = _matrices(member, version, contribution)
    made = matrices.directions(basis) if channel.holds(version) else matrices.along(basis)

    def encoded(index: int) -> memoryview:
        return encode(channel.kept_by(member.me), made[slice(*grid.bounds(index))], seed_of(version, index, member.me))

    chunks = {index: encoded(index) for index in range(grid.chunks)}
    if residual is not None and not channel.holds(version):
        arrives = [_arrives(member, announced, index, chunk) for index, chunk in chunks.items()]
        matrices.leave(np.concatenate(arrives), basis, residual)
    yield chunks


class _Matrices(Protocol):
    """What a contributor wants to be known of its matrices."""

    def directions(self, basis: Vector) -> Vector: ...

    def along(self, basis: Vector) -> Vector: ...

    def leave(self, arrives: Vector, basis: Vector, residual: Held) -> None: ...


def _matrices(member: Member, version: int, contribution: Contribution) -> _Matrices:
    """Return them where the weights are; raises `LocalError` when training has diverged."""
    there, factors, unit = member.engine.transforms(), member.factors, member.unit_of(version)
    rule, residual = member.channel_of(version).what.residual, member.private.residual
    assert factors is not None, "it is asked for only where matrices are factored"
    if there is None:
        return _Here(factors, _wanted(finite(contribution(0, factors.size), version), rule, residual))
    products = there.products(factors.form)
    try:
        wanted = products.wanted(portion_of(unit, contribution), source_of(contribution), rule, residual)
    except FloatingPointError as error:
        raise diverged(version) from error
    return _There(products, wanted)


def _wanted(values: Vector, rule: Residual, residual: Held | None) -> Vector:
    if residual is not None and isinstance(rule, Feedback):
        values += residual.read() * np.float32(rule.decay)
    return values


@dataclass(frozen=True)
class _Here:
    """`_Matrices` on the processor."""

    factors: Factors
    wanted: Vector

    def directions(self, basis: Vector) -> Vector:
        return self.factors.directions(self.wanted, basis)

    def along(self, basis: Vector) -> Vector:
        return self.factors.along(self.wanted, basis)

    def leave(self, arrives: Vector, basis: Vector, residual: Held) -> None:
        np.subtract(self.wanted, self.factors.values(arrives, basis), out=residual.write())


@dataclass(frozen=True)
class _There:
    """`_Matrices` on the device."""

    products: Products
    wanted: Held

    def directions(self, basis: Vector) -> Vector:
        return self.products.directions(self.wanted, basis)

    def along(self, basis: Vector) -> Vector:
        return self.products.along(self.wanted, basis)

    def leave(self, arrives: Vector, basis: Vector, residual: Held) -> None:
        self.products.leave(self.wanted, arrives, basis, residual)


def _arrives(member: Member, announced: OpenRound, index: int, chunk: memoryview) -> Vector:
    first, end = member.grid_of(announced.key).bounds(index)
    return decoded(member.channel_of(announced.key.version).kept_by(member.me), chunk, end - first)
