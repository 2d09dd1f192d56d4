"""Chance that is the same on every device: whole numbers of 24 bits, each from a seed and an element's place alone.

A generator that draws one number after the other cannot be shared out among ten thousand cores. Here a number is what a
place becomes when it is mixed twice, each time with a key that is made of the seed: shifts and products of 32 bits,
which numpy, torch and a kernel all have (`sync.codec.chance`, `model.encoding.scales`, `model.encoding.kernels`). The
mixing is the one-to-one map of 32 bits that Chris Wellons found to be the least biased of its kind (lowbias32).
"""

from __future__ import annotations

from typing import Any

from atoll.spec.axes.codec import Codec, Stochastic, TurnedSign

DRAWN_BITS = 24
"""As many as a float's fraction holds, and one more."""
WORD_BITS = 32
ALL_BITS = 0xFFFFFFFF
FACTORS = (0x7FEB352D, 0x846CA68B)
SHIFTS = (16, 15, 16)
_SEED_WORDS = 4
_BEGINNINGS = (0x9E3779B9, 0x85EBCA6B)


def draws(codec: Codec) -> bool:
    """Return whether chance has a part in a codec."""
    return isinstance(getattr(codec, "values", codec), Stochastic | TurnedSign)


def keys_of(seed: int) -> tuple[int, int]:
    """Return the two keys of a seed of up to 128 bits; neighbouring seeds have keys that are nothing alike."""
    words = [(seed >> (WORD_BITS * place)) & ALL_BITS for place in range(_SEED_WORDS)]
    keys = list(_BEGINNINGS)
    for word in words:
        keys = [mixed(key ^ word) for key in keys]
    return keys[0], keys[1]


def mixed(number: Any) -> Any:
    """Return another number of 32 bits for each one: of an int, or of a torch vector of int64, which wraps around."""
    number = number ^ (number >> SHIFTS[0])
    number = (number * FACTORS[0]) & ALL_BITS
    number = number ^ (number >> SHIFTS[1])
    number = (number * FACTORS[1]) & ALL_BITS
    return number ^ (number >> SHIFTS[2])
