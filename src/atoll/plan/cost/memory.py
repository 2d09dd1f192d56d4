"""The memory of training: what stays (weights, gradients, optimizer) and what is kept for the way back.

What stays is so many bytes per parameter, by how numbers are held; replicas may share it out (ZeRO stages 1 to 3), and
tensor parallelism cuts it. Of what is kept for the way back, Korthikanti et al. (2022) count for one layer in sixteen
bits, with s tokens, b sequences, width h and a heads

    nothing again      s b h (34 + 5 a s / h)      and cut t ways   s b h (10 + 24 / t + 5 a s / (h t))
    attention again    s b h 34                                     s b h (10 + 24 / t)
    every layer again  s b h 2, and one layer's 34 + 5 a s / h while it is done

A fused attention keeps no a s^2 either, so it counts as `selective` without the work. A stage of a pipeline keeps that
for every micro-batch that went forward and not yet back: how many those are is the schedule's.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from atoll.plan.cost.flops import Decoder, Number, Recompute

Zero = Literal[0, 1, 2, 3]
"""What replicas share out: nothing, the optimizer, gradients too, weights too."""


class Precision(Struct, frozen=True, kw_only=True):
    """How numbers are held: bytes per parameter."""

    weights: float
    gradients: float
    optimizer: float
    """Moments, and weights in full where the others are not."""

    @property
    def total(self) -> float:
        """Return the bytes of a parameter in all."""
        return self.weights + self.gradients + self.optimizer


PRECISIONS = {
    "fp32 adam": Precision(weights=4, gradients=4, optimizer=8),
    "mixed adam": Precision(weights=2, gradients=2, optimizer=12),
    "mixed adam, fp32 gradients": Precision(weights=2, gradients=4, optimizer=12),
    "8-bit adam": Precision(weights=2, gradients=2, optimizer=6),
    "bf16 adam": Precision(weights=2, gradients=2, optimizer=4),
    "bf16, 8-bit adam": Precision(weights=2, gradients=2, optimizer=2),
    "qlora": Precision(weights=0.7, gradients=0, optimizer=0),
}
"""16, 16, 18, 10, 8, 6 and about 0.7 bytes: mixed and 8-bit keep weights in fp32 beside those they compute with."""

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]


def state_bytes(
    parameters: Number, precision: Precision, *, tensor: int = 1, replicas: int = 1, zero: Zero = 0
) -> Number:
    """Return what one device holds of a model that `tensor` devices cut and `replicas` share out."""
    parts = (precision.optimizer, precision.gradients, precision.weights)
    per_parameter = sum(part / (replicas if zero > number else 1) for number, part in enumerate(parts))
    return parameters * per_parameter / tensor


def layer_kept_bytes(
    decoder: Decoder, sequences: Number, recompute: Recompute = "none", *, tensor: int = 1, sequence: bool = False
) -> Number:
    """Return what one layer keeps of a micro-batch; `sequence` cuts what tensor parallelism leaves whole, too."""
    tokens = decoder.context * sequences * decoder.hidden
    if recompute == "full":
        return 2.0 * tokens / (tensor if sequence else 1)
    whole = 10.0 / (tensor if sequence else 1)
    scores = 5.0 * decoder.heads * decoder.context / decoder.hidden if recompute == "none" else 0.0
    return tokens * (whole + (24.0 + scores) / tensor)


def stage_kept_bytes(
    decoder: Decoder,
    layers: Number,
    sequences: Number,
    live: Number,
    recompute: Recompute = "none",
    *,
    tensor: int = 1,
) -> Number:
    """Return what a stage keeps of `live` micro-batches, with the one layer that is being computed again."""
    kept = live * layers * layer_kept_bytes(decoder, sequences, recompute, tensor=tensor)
    return kept + (layer_kept_bytes(decoder, sequences, "none", tensor=tensor) if recompute == "full" else 0.0)


def live_micro_batches(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 2) -> float:
    """Return how many micro-batches a stage keeps at most, in shares of what the whole stage keeps of one.

    Interleaved stages hold `chunks` pieces each and keep a piece at a time; zero-bubble schedules keep a micro-batch
    until its weights' gradient is done, too.
    """
    behind = stages - stage
    match schedule:
        case "gpipe":
            return micro_batches
        case "1f1b":
            return min(micro_batches, behind)
        case "interleaved":
            pieces = 2 * (behind - 1) + (chunks - 1) * stages + 1
            return min(micro_batches * chunks, pieces) / chunks
        case "zb-h1" | "zb-v":
            return min(micro_batches, stages)
        case "zb-h2":
            return min(micro_batches, 2 * stages - 1)


# ceilings


def largest_model(memory_bytes: Number, bytes_per_parameter: Number, *, usable: float = 0.9) -> Number:
    """Return the parameters that fit one device, activations aside, with a gigabyte for all that is not the model."""
    return (usable * memory_bytes - 1e9) / bytes_per_parameter


def stages_needed(parameters: Number, memory_bytes: Number, bytes_per_parameter: Number = 16.0) -> Number:
    """Return how many devices one replica takes, with a fifth of each for activations."""
    return np.maximum(1, np.ceil(bytes_per_parameter * parameters / (0.8 * memory_bytes)))
