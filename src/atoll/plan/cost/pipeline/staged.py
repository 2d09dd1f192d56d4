"""A decoder cut into stages on given devices: how long each takes, what it keeps and holds, what crosses between them.

Times follow from operations and a speed that training reaches: a maker's promise times an efficiency, assumed or
measured. The head counts for the last stage, a lookup for none. Of the way back the weights' gradient is one product
per matrix, the input's gradient the rest: attention's inner products have no weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.plan.cost.collective import boundary_bytes
from atoll.plan.cost.flops import (
    Decoder,
    Recompute,
    head_forward_flop,
    layer_backward_flop,
    layer_forward_flop,
    layer_parameters,
    layer_weights_flop,
)
from atoll.plan.cost.memory import Precision, stage_kept_bytes, state_bytes
from atoll.plan.cost.pipeline.parts import Part, Pipeline, hop, joined

Line = tuple[float, float]
"""(latency_s, rate_bytes_s) of a boundary in one direction."""


def staged(
    decoder: Decoder,
    layers: Sequence[int],
    flop_s: Sequence[float],
    sequences: float,
    there: Sequence[Line],
    back: Sequence[Line] = (),
    *,
    recompute: Recompute = "none",
    element_bytes: float = 2.0,
    tensor: int = 1,
) -> Pipeline:
    """Return the pipeline of stages with so many layers, on devices that reach so many operations a second.

    `kept` of its parts is in bytes of one device, of which `tensor` cut a stage; `flop_s` is of all of them together.
    """
    tokens = sequences * decoder.context
    head = head_forward_flop(decoder, tokens)
    parts = []
    for stage, (count, speed) in enumerate(zip(layers, flop_s, strict=True)):
        ends = head if stage == len(layers) - 1 else 0.0
        weights = count * layer_weights_flop(decoder, tokens) + ends
        back_all = count * layer_backward_flop(decoder, tokens, recompute) + 2 * ends
        parts.append(
            Part(
                device=stage,
                forward_s=(count * layer_forward_flop(decoder, tokens) + ends) / speed,
                backward_s=(back_all - weights) / speed,
                weights_s=weights / speed,
                kept=stage_kept_bytes(decoder, count, sequences, 1, recompute, tensor=tensor),
            )
        )
    sent = boundary_bytes(sequences, decoder.context, decoder.hidden, element_bytes)
    return joined(parts, [hop(sent, *line) for line in there], [hop(sent, *line) for line in back or there])


def stage_parameters(decoder: Decoder, layers: Sequence[int]) -> list[int]:
    """Return what each stage holds; a tied head on another stage than the embedding is a copy of it."""
    table = decoder.vocab * decoder.hidden
    held = [count * layer_parameters(decoder) for count in layers]
    held[0] += table + decoder.positions * decoder.hidden
    held[-1] += 2 * decoder.hidden if decoder.biases else decoder.hidden
    held[-1] += 0 if len(layers) == 1 and decoder.tied else table
    return held


def room_bytes(
    decoder: Decoder,
    layers: Sequence[int],
    memory_bytes: Sequence[float],
    precision: Precision,
    *,
    tensor: int = 1,
    usable: float = 0.9,
) -> list[float]:
    """Return what is left on each stage's devices for what is kept; below 0: its weights do not fit."""
    held = [state_bytes(count, precision, tensor=tensor) for count in stage_parameters(decoder, layers)]
    return [usable * memory - states for memory, states in zip(memory_bytes, held, strict=True)]
