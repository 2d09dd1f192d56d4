"""The simplest model worth beating: which token follows which.

A table of pairs counted on the training split, smoothed towards the frequencies of single tokens:
P(b | a) = (n(ab) + k P(b)) / (n(a) + k). The strength k is chosen on the tail of the training split, never on
the held-out samples the result is measured on, so that a neural network that beats it has learnt
something longer than a pair.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_STRENGTHS = tuple(2.0**power for power in range(-2, 13))
_TAIL = 0.05


def bigram_loss(
    train_tokens: NDArray[np.integer], held_out_batches: Iterable[NDArray[np.int64]], vocab_size: int
) -> float:
    """Return the mean loss in nats per token over the held-out samples (rows of context + 1 tokens)."""
    cut = max(1, int(len(train_tokens) * (1 - _TAIL)))
    assert cut + 1 < len(train_tokens), "too few tokens for a table"
    tail: NDArray[np.int64] = train_tokens[cut - 1 :].astype(np.int64)[None, :]
    trial = _Table(train_tokens[:cut], vocab_size)
    strength = min(_STRENGTHS, key=lambda k: trial.loss(tail, k))
    table = _Table(train_tokens, vocab_size)
    total, tokens = 0.0, 0
    for batch in held_out_batches:
        total += table.loss(batch, strength)
        tokens += batch[:, 1:].size
    assert tokens > 0, "no held-out samples"
    return total / tokens


class _Table:
    """Counts of tokens and pairs; pairs are kept sorted, since most of the vocabulary squared never occurs."""

    def __init__(self, tokens: NDArray[np.integer], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        ids = tokens.astype(np.int64)
        self._pairs, self._pair_counts = np.unique(ids[:-1] * vocab_size + ids[1:], return_counts=True)
        self._first_counts = np.bincount(ids[:-1], minlength=vocab_size)
        singles = np.bincount(ids, minlength=vocab_size) + 1.0  # plus one: no token is impossible
        self._singles = singles / singles.sum()

    def loss(self, rows: NDArray[np.int64], strength: float) -> float:
        """Return the summed loss of predicting each row's tokens from the one before."""
        first, second = rows[:, :-1].ravel(), rows[:, 1:].ravel()
        pairs = first * self._vocab_size + second
        found = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        counts = np.where(self._pairs[found] == pairs, self._pair_counts[found], 0)
        likely = (counts + strength * self._singles[second]) / (self._first_counts[first] + strength)
        return float(-np.log(likely).sum())
