"""A ring and a swarm, played out piece by piece: what the formulas of bandwidth are held against."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Ring(Struct, frozen=True, kw_only=True):
    """What became of an exchange."""

    lasts_s: float
    sent_bytes: float
    """By one peer."""


class Rounds(Struct, frozen=True, kw_only=True):
    """What became of rounds of steps and exchanges."""

    computing: float
    """The part of the time."""
    sent_bytes_s: float
    """By one peer."""


def ring_run(size_bytes: float, up_bytes_s: NDArray[np.float64]) -> Ring:
    """Return a ring of peers, piece by piece: each waits for its neighbour, then for its own line.

    Everybody's own part goes round once to be summed and once to be known: what has been where is kept, and the ring is
    done when everybody knows every sum.
    """
    peers, sent = len(up_bytes_s), 0.0
    ready = np.zeros(peers)
    summed = np.ones(peers, int)  # how many are in the piece that each is about to pass on
    known = np.zeros(peers, int)  # finished pieces that each has
    while known.min() < peers:
        ready = np.maximum(ready, np.roll(ready, 1)) + size_bytes / peers / up_bytes_s
        sent += size_bytes / peers
        summed = np.minimum(np.roll(summed, 1) + 1, peers)
        known += summed == peers
    return Ring(lasts_s=float(ready.max()), sent_bytes=sent)


def rounds_run(size_bytes: float, up_bytes_s: NDArray[np.float64], step_s: float, steps: int, rounds: int) -> Rounds:
    """Return rounds of so many steps, one after the other, each with a ring behind it."""
    now_s = computed_s = sent = 0.0
    exchange = ring_run(size_bytes, up_bytes_s)
    for _ in range(rounds):
        for _ in range(steps):
            now_s += step_s
            computed_s += step_s
        now_s += exchange.lasts_s
        sent += exchange.sent_bytes
    return Rounds(computing=computed_s / now_s, sent_bytes_s=sent / now_s)


def steps_found(size_bytes: float, up_bytes_s: NDArray[np.float64], step_s: float, wanted: float) -> int:
    """Return the least steps with which a round computes so large a part of its time: doubled, then halved down."""
    exchange_s = ring_run(size_bytes, up_bytes_s).lasts_s

    def enough(steps: int) -> bool:
        return steps * step_s >= wanted * (steps * step_s + exchange_s) * (1 - 1e-9)

    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def swarm_run_slots(peers: int, pieces: int, down_slots: int, rng: np.random.Generator) -> int:
    """Return in how many slots a seed and its swarm pass on a file cut into pieces, the rarest first.

    In a slot every peer sends one piece that it held at the slot's beginning, and takes in at most `down_slots`.
    """
    has = np.zeros((peers + 1, pieces), bool)
    has[0] = True
    slot = 0
    while not has.all():
        slot += 1
        held, room = has.copy(), np.full(peers + 1, down_slots)
        copies = has.sum(axis=0).astype(float)
        for sender in rng.permutation(peers + 1):
            _send(held[sender], has, room, copies, rng)
    return slot


def _send(
    held: NDArray[np.bool_],
    has: NDArray[np.bool_],
    room: NDArray[np.int_],
    copies: NDArray[np.float64],
    rng: np.random.Generator,
) -> None:
    """Give one peer that lacks something the rarest piece of it."""
    useful = (held & ~has).any(axis=1) & (room > 0)
    if not useful.any():
        return
    needy = rng.choice(np.flatnonzero(useful))
    offers = np.flatnonzero(held & ~has[needy])
    piece = offers[np.argmin(copies[offers] + rng.random(len(offers)) / 2)]
    has[needy, piece] = True
    copies[piece] += 1
    room[needy] -= 1
