"""Local steps and an exchange now and then: which part of the time is computed.

    round     H steps of B tokens, 6 N operations each, then an all-reduce of N b / c bytes
    part      t_compute / (t_compute + t_exchange)

In the ratio of the two the model's size cancels: the tax of exchanging depends on H, B, line and compression alone, and

    H >= e / (1 - e)  2 b F / (6 c u B)

steps keep the computed part at e, with F operations and u bytes a second.
"""

from __future__ import annotations

import numpy as np

from atoll.plan.cost.flops import Number


def computed_part(compute_s: Number, exchange_s: Number) -> Number:
    """Return the part of the time that is computed when everybody waits for the exchange."""
    return compute_s / (compute_s + exchange_s)


def overlapped_part(compute_s: Number, exchange_s: Number) -> Number:
    """Return the same where the exchange goes on beside the next steps."""
    return compute_s / np.maximum(compute_s, exchange_s)


def local_s(steps: Number, tokens: Number, parameters: Number, flop_s: Number) -> Number:
    """Return how long the steps of a round take, at so many operations a second in earnest."""
    return steps * tokens * 6.0 * parameters / flop_s


def exchange_bytes(parameters: Number, element_bytes: Number, compression: Number = 1.0) -> Number:
    """Return how long a contribution is."""
    return parameters * element_bytes / compression


def tax(
    steps: Number, tokens: Number, flop_s: Number, rate_bytes_s: Number, element_bytes: Number, compression: Number
) -> Number:
    """Return the time of a large all-reduce over that of the steps before it: the model's size is not in it."""
    return 2.0 * element_bytes / (compression * rate_bytes_s) * flop_s / (6.0 * steps * tokens)


def steps_for(
    part: Number, tokens: Number, flop_s: Number, rate_bytes_s: Number, element_bytes: Number, compression: Number = 1.0
) -> Number:
    """Return the local steps from which on so large a part of the time is computed."""
    return part / (1.0 - part) * tax(1.0, tokens, flop_s, rate_bytes_s, element_bytes, compression)


def spread_s(
    size_bytes: Number, seed_bytes_s: Number, up_bytes_s: Number, down_bytes_s: Number, members: int
) -> Number:
    """Return the least time in which a seed and its peers give something to all of them (the fluid bound)."""
    together = seed_bytes_s + members * up_bytes_s
    alone = np.maximum(size_bytes / seed_bytes_s, size_bytes / down_bytes_s)
    return np.maximum(alone, members * size_bytes / together)


def wall_clock_s(
    compute_s: Number,
    steps: Number,
    size_bytes: Number,
    members: Number,
    near: tuple[Number, Number],
    far: tuple[Number, Number],
    *,
    replicas: Number = 1,
    every: Number = 1,
) -> Number:
    """Return a run as DiLoCo's scaling laws idealise it: all-reduces at every step, or within replicas and rarely far.

    `near` and `far` are (latency_s, rate_bytes_s) inside a site and between sites; one replica: all steps go far.
    """
    outside = 2.0 * size_bytes / far[1] * (1 - 1 / members) + far[0]
    if np.all(np.asarray(replicas) <= 1):
        return compute_s + steps * outside
    inside = 2.0 * size_bytes / near[1] * (1 - replicas / members) + near[0]
    return compute_s + steps * inside + steps / every * outside
