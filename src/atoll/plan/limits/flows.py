"""A ring and a swarm, played out piece by piece: what the formulas of bandwidth are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ring_run_s(size_bytes: float, up_bytes_s: NDArray[np.float64]) -> float:
    """Return when a ring of peers is done, piece by piece: each waits for its neighbour, then for its own line."""
    peers = len(up_bytes_s)
    ready = np.zeros(peers)
    for _ in range(2 * (peers - 1)):
        ready = np.maximum(ready, np.roll(ready, 1)) + size_bytes / peers / up_bytes_s
    return float(ready.max())


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
