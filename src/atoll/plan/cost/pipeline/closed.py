"""A pipeline's step without playing it: the forms that planners use, each with what it leaves out.

even          (m + P - 1)(F + B): equal stages, lines that take no time; exact for GPipe and 1F1B
interleaved   the bubble (P - 1)(F + B) falls to a v-th with v parts a device
zero-bubble   (P - 1)(F + D - W) is left of it in H1, (P - 1)(F + D - 2 W) in H2, never less than nothing
chain         MLTC and Sailor: the slowest stage with its sends, once per micro-batch, and once through all others
overlapped    FusionAI: the same, sends hidden behind compute unless they are longer
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.plan.cost.flops import Number


def even_s(stages: Number, micro_batches: Number, forward_s: Number, backward_s: Number) -> Number:
    """Return the step of equal stages under GPipe or 1F1B."""
    return (micro_batches + stages - 1) * (forward_s + backward_s)


def bubble_part(stages: Number, micro_batches: Number) -> Number:
    """Return the part of that step in which a device waits."""
    return (stages - 1) / (micro_batches + stages - 1)


def interleaved_s(
    stages: Number, micro_batches: Number, chunks: Number, forward_s: Number, backward_s: Number
) -> Number:
    """Return the step of equal devices with so many parts each."""
    return (micro_batches + (stages - 1) / chunks) * (forward_s + backward_s)


def zero_bubble_idle_s(
    stages: Number, forward_s: Number, input_s: Number, weights_s: Number, *, doubled: bool = False
) -> Number:
    """Return how long the worst device waits under ZB-H1, or under ZB-H2 (`doubled`)."""
    return np.maximum(0.0, (stages - 1) * (forward_s + input_s - (2 if doubled else 1) * weights_s))


def chain_s(compute_s: Sequence[float], send_s: Sequence[float], micro_batches: int, update_s: float = 0.0) -> float:
    """Return a step by the slowest stage: both directions of work and of sending count for each stage."""
    both_s = [work + sends for work, sends in zip(compute_s, send_s, strict=True)]
    return sum(both_s) + (micro_batches - 1) * max(both_s) + update_s


def overlapped_s(compute_s: Sequence[float], send_s: Sequence[float], micro_batches: int) -> float:
    """Return a step whose sends go on while devices compute: what is longer of all counts per micro-batch."""
    return sum(compute_s) + sum(send_s) + (micro_batches - 1) * max(*compute_s, *send_s)


def boundary_rate_bytes_s(
    flop_s: Number, stages: Number, parameters: Number, hidden: Number, element_bytes: Number = 2.0
) -> Number:
    """Return the rate that each direction of a boundary needs for lines never to hold equal stages up.

    A pipeline of `stages` devices of `flop_s` trains flop_s P / 6 N tokens a second, and each crosses once each way.
    """
    return flop_s * stages / (6.0 * parameters) * hidden * element_bytes
