"""The arithmetic of a decoder: parameters, those a token meets, and the operations of training on it.

A product of a token with a matrix is two operations per weight. On the way back it is done twice, for the input's
gradient and for the weights'; what is not kept is computed again. Attention adds, per token and layer, two products
with all it looks at: 4 s h operations over a whole sequence of s tokens, half of that where only the past is seen.

    GPT of width h     12 h^2 weights a layer     24 h^2 + 4 s h operations a token and layer
    Llama              2 h^2 + 2 h k + 3 h f      with k the width of keys and values, f that of the feed-forward
    experts            a token meets `met` of `experts` feed-forwards; all of them are held

Norms, biases and positions are parameters that hardly compute; a lookup of an embedding is no product.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from atoll.model.shape import check
from atoll.spec.run import Size

Number = Any
"""A plain number, or an array of draws of it; both may meet in one formula."""
Recompute = Literal["none", "selective", "full"]
"""What is computed again on the way back: nothing, attention's inner products, or every layer from its input."""


class Decoder(Struct, frozen=True, kw_only=True):
    """The shape of a decoder, as far as it costs something."""

    layers: int
    hidden: int
    heads: int
    kv_hidden: int
    """Width of keys and of values."""
    ffn: int
    matrices: int
    """Of a feed-forward: 2, or 3 where it is gated."""
    vocab: int
    context: int
    tied: bool = True
    """The head is the embedding."""
    positions: int = 0
    """Learned positions."""
    biases: bool = False
    experts: int = 1
    met: int = 1
    """Experts that a token goes through."""
    causal: bool = True
    """False: attention is counted over whole sequences, as those do who count 24 h^2 + 4 s h."""


def of_size(size: Size, vocab: int, context: int) -> Decoder:
    """Return the decoder of a run."""
    check(size)
    return Decoder(
        layers=size.layers,
        hidden=size.dim,
        heads=size.heads,
        kv_hidden=size.dim // size.heads * size.kv_heads,
        ffn=size.ffn,
        matrices=3,
        vocab=vocab,
        context=context,
        tied=size.tied,
    )


def of_gpt(layers: int, hidden: int, vocab: int, context: int, *, heads: int = 0, causal: bool = False) -> Decoder:
    """Return a decoder of the GPT and OPT kind: all heads their own keys, a feed-forward four times as wide."""
    return Decoder(
        layers=layers,
        hidden=hidden,
        heads=heads or max(1, hidden // 64),
        kv_hidden=hidden,
        ffn=4 * hidden,
        matrices=2,
        vocab=vocab,
        context=context,
        positions=context,
        biases=True,
        causal=causal,
    )


# parameters


def attention_weights(decoder: Decoder) -> int:
    """Return the weights of one layer's four projections."""
    return 2 * decoder.hidden * (decoder.hidden + decoder.kv_hidden)


def expert_weights(decoder: Decoder) -> int:
    """Return the weights of one feed-forward."""
    return decoder.matrices * decoder.hidden * decoder.ffn


def layer_parameters(decoder: Decoder) -> int:
    """Return what one layer holds: matrices of all experts, who chooses between them, norms, biases."""
    hidden, ffn = decoder.hidden, decoder.ffn
    router = hidden * decoder.experts if decoder.experts > 1 else 0
    norms = 4 * hidden if decoder.biases else 2 * hidden
    biases = decoder.experts * ((decoder.matrices - 1) * ffn + hidden) + 2 * hidden + 2 * decoder.kv_hidden
    return (
        attention_weights(decoder)
        + decoder.experts * expert_weights(decoder)
        + router
        + norms
        + (biases if decoder.biases else 0)
    )


def parameters(decoder: Decoder) -> int:
    """Return all that is trained."""
    tables = decoder.vocab * (1 if decoder.tied else 2) + decoder.positions
    last_norm = 2 * decoder.hidden if decoder.biases else decoder.hidden
    return decoder.layers * layer_parameters(decoder) + tables * decoder.hidden + last_norm


def active_parameters(decoder: Decoder) -> int:
    """Return the parameters that a token meets; the N of 6 N D."""
    idle = decoder.experts - decoder.met
    return parameters(decoder) - decoder.layers * idle * expert_weights(decoder)


# operations


def layer_forward_flop(decoder: Decoder, tokens: Number) -> Number:
    """Return the operations of so many tokens in one layer, on the way there."""
    weights = attention_weights(decoder) + decoder.met * expert_weights(decoder)
    return tokens * (2.0 * weights + _seen(decoder))


def layer_weights_flop(decoder: Decoder, tokens: Number) -> Number:
    """Return the operations of one layer's weights' gradients, which nothing else on the way back waits for."""
    return tokens * 2.0 * (attention_weights(decoder) + decoder.met * expert_weights(decoder))


def head_forward_flop(decoder: Decoder, tokens: Number) -> Number:
    """Return the operations of the head, which is as wide as the vocabulary."""
    return tokens * 2.0 * decoder.hidden * decoder.vocab


def forward_flop(decoder: Decoder, tokens: Number) -> Number:
    """Return the operations of the whole model on the way there."""
    return decoder.layers * layer_forward_flop(decoder, tokens) + head_forward_flop(decoder, tokens)


def layer_backward_flop(decoder: Decoder, tokens: Number, recompute: Recompute = "none") -> Number:
    """Return the operations of one layer on the way back, with what is computed again for it."""
    forward = layer_forward_flop(decoder, tokens)
    match recompute:
        case "none":
            return 2.0 * forward
        case "selective":
            return 2.0 * forward + tokens * _seen(decoder)
        case "full":
            return 3.0 * forward


def train_flop(decoder: Decoder, tokens: Number, recompute: Recompute = "none") -> Number:
    """Return the operations of training on so many tokens; the head is never computed again."""
    layers = layer_forward_flop(decoder, tokens) + layer_backward_flop(decoder, tokens, recompute)
    return decoder.layers * layers + 3.0 * head_forward_flop(decoder, tokens)


def six_n_d(active: Number, tokens: Number) -> Number:
    """Return the usual estimate of training: six operations per parameter that a token meets."""
    return 6.0 * active * tokens


def compute_s(flop: Number, flop_s: Number, efficiency: Number) -> Number:
    """Return how long operations take on a device that reaches a part of what its maker promises."""
    return flop / (flop_s * efficiency)


def _seen(decoder: Decoder) -> float:
    """Return the operations of attention's inner products, of a token in one layer."""
    return (2.0 if decoder.causal else 4.0) * decoder.context * decoder.hidden
