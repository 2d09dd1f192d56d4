"""A tiny language model, really trained by FedAvg on text that differs from peer to peer.

Atoll's own data is assigned by the run in one common order, so its engine cannot be given uneven shards; this stands in
for them. A topic is a random Markov chain of tokens, a peer's text is a mixture of topics drawn from Dirichlet(alpha)
(large: all alike; small: a topic or two each), the model is a table of logits, and each step is SGD on drawn pairs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class World(Struct, frozen=True):
    """Pairs of tokens: how often each occurs in the text of each peer."""

    pairs: Matrix
    """peers x tokens x tokens, each peer's adding up to 1."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Where a training ended."""

    loss: float
    """On text of all peers alike, nats a token."""
    floor: float
    """The least that any table of pairs can have there."""

    @property
    def above(self) -> float:
        return self.loss - self.floor


def world(peers: int, alpha: float, rng: np.random.Generator, *, topics: int = 8, tokens: int = 16) -> World:
    """Return peers whose texts are mixtures of topics; `alpha` infinite: all the same one."""
    chains = rng.dirichlet(np.full(tokens, 0.1), (topics, tokens))
    firsts = rng.dirichlet(np.full(tokens, 0.5), topics)
    even = np.full((peers, topics), 1 / topics)
    shares = even if np.isinf(alpha) else rng.dirichlet(np.full(topics, alpha), peers)
    return World(np.einsum("pt,ta,tab->pab", shares, firsts, chains))


def train(world: World, *, steps: int, local_steps: int, rate: float, batch: int, rng: np.random.Generator) -> Outcome:
    """Return where so many steps of each peer lead when weights are averaged after every few."""
    peers, tokens, _ = world.pairs.shape
    weights = np.zeros((tokens, tokens))
    for _ in range(steps // local_steps):
        own = np.tile(weights, (peers, 1, 1))
        for _ in range(local_steps):
            drawn = rng.multinomial(batch, world.pairs.reshape(peers, -1)).reshape(world.pairs.shape) / batch
            own -= rate * (drawn.sum(2, keepdims=True) * _softmax(own) - drawn)
        weights = own.mean(0)
    every = world.pairs.mean(0)
    best = every / every.sum(1, keepdims=True)
    return Outcome(loss=_loss(every, _softmax(weights)), floor=_loss(every, best))


def _softmax(logits: Matrix) -> Matrix:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _loss(pairs: Matrix, chances: Matrix) -> float:
    return float(-(pairs * np.log(np.maximum(chances, 1e-30))).sum())
