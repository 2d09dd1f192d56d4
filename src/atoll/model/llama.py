"""The decoder that is trained: the Llama architecture in plain torch.

Root-mean-square norms, rotary positions that rotate halves, grouped key-value heads, a SwiGLU feed-forward,
a tied or separate head: the arithmetic and the parameter names are those of Hugging Face's Llama, so its
folders load and save without translation. The decoder is made without memory (on torch's "meta" device) and
`bind` gives it tensors, because the engine wants all trainable ones to be views of one flat vector.

Shape suffixes: B batch, T time, D model width, H heads, K key-value heads, E width of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atoll.spec.run import Size

IGNORED = -100
"""Target of a position that does not count (padding)."""

LOGITS_MAX = 2**30
"""Logits of one forward pass beyond which the head works in slices, recomputed on the way back."""


class Cache:
    """Keys and values of the text so far, for generation."""

    def __init__(self, size: Size, length_max: int, device: torch.device) -> None:
        shape = (size.layers, 2, 1, size.kv_heads, length_max, size.dim // size.heads)
        self.kept = torch.zeros(shape, device=device)
        self.length = 0

    def extend(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append to a layer and return all of its keys and values."""
        end = self.length + k_BKTE.shape[2]
        k_kept, v_kept = self.kept[layer]
        k_kept[:, :, self.length : end] = k_BKTE
        v_kept[:, :, self.length : end] = v_BKTE
        return k_kept[:, :, :end], v_kept[:, :, :end]


class Norm(nn.Module):
    """Root-mean-square norm, in fp32 whatever comes in."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * unit.to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped key-value heads."""

    def __init__(self, size: Size, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, size.heads, size.kv_heads
        kv_dim = size.dim // size.heads * size.kv_heads
        self.q_proj = nn.Linear(size.dim, size.dim, bias=False)
        self.k_proj = nn.Linear(size.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(size.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: Cache | None) -> Tensor:
        batch, time, dim = x_BTD.shape
        q_BHTE = rotate(self.q_proj(x_BTD).view(batch, time, self.heads, -1).transpose(1, 2), cos_TE, sin_TE)
        k_BKTE = rotate(self.k_proj(x_BTD).view(batch, time, self.kv_heads, -1).transpose(1, 2), cos_TE, sin_TE)
        v_BKTE = self.v_proj(x_BTD).view(batch, time, self.kv_heads, -1).transpose(1, 2)
        causal = True
        if cache is not None:
            # One token may look at everything before it; a longer piece only ever starts an empty cache.
            causal = time > 1
            k_BKTE, v_BKTE = cache.extend(self.layer, k_BKTE, v_BKTE)
        y_BHTE = attend(q_BHTE, k_BKTE, v_BKTE, causal)
        joined: Tensor = self.o_proj(y_BHTE.transpose(1, 2).reshape(batch, time, dim))
        return joined


class Feed(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.dim, size.ffn, bias=False)
        self.up_proj = nn.Linear(size.dim, size.ffn, bias=False)
        self.down_proj = nn.Linear(size.ffn, size.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each on a normed copy of the residual stream."""

    def __init__(self, size: Size, layer: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(size.dim, size.norm_eps)
        self.self_attn = Attention(size, layer)
        self.post_attention_layernorm = Norm(size.dim, size.norm_eps)
        self.mlp = Feed(size)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: Cache | None) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE, cache)
        out: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    inv_freq_E: Tensor

    def __init__(self, size: Size, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, size.dim, _weight=torch.empty(vocab, size.dim))  # nothing is drawn
        self.layers = nn.ModuleList(Block(size, layer) for layer in range(size.layers))
        self.norm = Norm(size.dim, size.norm_eps)
        head_dim = size.dim // size.heads
        # Made on the CPU, also when the rest has no memory yet: every device then sees the same angles.
        even = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float()
        self.register_buffer("inv_freq_E", 1.0 / size.rope_theta ** (even / head_dim), persistent=False)
        self.recompute = False

    def forward(self, tokens_BT: Tensor, cache: Cache | None) -> Tensor:
        first = 0 if cache is None else cache.length
        at_T = torch.arange(first, first + tokens_BT.shape[1], device=tokens_BT.device).float()
        half_TE = at_T[:, None] * self.inv_freq_E
        angles_TE = torch.cat((half_TE, half_TE), dim=-1)
        cos_TE, sin_TE = angles_TE.cos(), angles_TE.sin()
        x_BTD: Tensor = self.embed_tokens(tokens_BT)
        for block in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x_BTD = _again(block, x_BTD, cos_TE, sin_TE, cache)
            else:
                x_BTD = block(x_BTD, cos_TE, sin_TE, cache)
        if cache is not None:
            cache.length += tokens_BT.shape[1]
        out: Tensor = self.norm(x_BTD)
        return out


class Llama(nn.Module):
    """The whole language model."""

    def __init__(self, size: Size, vocab: int) -> None:
        super().__init__()
        self.size, self.vocab, self.logits_max = size, vocab, LOGITS_MAX
        self.model = Decoder(size, vocab)
        self.lm_head = None if size.tied else nn.Linear(size.dim, vocab, bias=False)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Return logits for every position."""
        hidden_BTD = self.model(tokens_BT, cache)
        return F.linear(hidden_BTD, self._head())

    def next_logits(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Return logits for what follows the last position only."""
        hidden_BTD = self.model(tokens_BT, cache)
        return F.linear(hidden_BTD[:, -1], self._head())

    def loss_sum(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the cross-entropy in fp32, summed over all targets that are not `IGNORED`."""
        hidden_ND = self.model(tokens_BT, None).flatten(0, 1)
        targets_N = targets_BT.flatten()
        head_VD = self._head()
        if targets_N.numel() * self.vocab <= self.logits_max:
            return cross_entropy(hidden_ND, head_VD, targets_N)
        rows = max(1, self.logits_max // self.vocab)
        total = torch.zeros((), device=tokens_BT.device)
        for at in range(0, targets_N.numel(), rows):
            part = slice(at, at + rows)
            total = total + _again(cross_entropy, hidden_ND[part], head_VD, targets_N[part])
        return total

    def _head(self) -> Tensor:
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight


def _again(work: Callable[..., Tensor], *given: Any) -> Tensor:
    """Return what some work gives, which is done again on the way back instead of keeping what that needs.

    Nothing here is left to chance, so no state of chance is kept either: on CUDA that would wait for the device.
    """
    made: Tensor = checkpoint(work, *given, use_reentrant=False, preserve_rng_state=False)
    return made


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Return `x` turned by its position, in fp32: the first half of a head pairs with the second."""
    wide = x_BHTE.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos_TE + turned * sin_TE).to(x_BHTE.dtype)


def attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, causal: bool) -> Tensor:
    """Return softmax attention; each key-value head serves its group of heads."""
    group = q_BHTE.shape[1] // k_BKTE.shape[1]
    if group > 1 and not q_BHTE.is_cuda:
        k_BKTE, v_BKTE = k_BKTE.repeat_interleave(group, dim=1), v_BKTE.repeat_interleave(group, dim=1)
        group = 1
    return F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=causal, enable_gqa=group > 1)


def cross_entropy(hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the summed loss of the head on hidden states, in fp32."""
    logits_NV = F.linear(hidden_ND, head_VD).float()
    return F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="sum")


def blank(size: Size, vocab: int) -> Llama:
    """Return a decoder without memory; `bind` brings it to life."""
    with torch.device("meta"):
        return Llama(size, vocab)


def bind(model: Llama, tensors: Mapping[str, Tensor], trainable: frozenset[str] | set[str]) -> None:
    """Let the parameters be `tensors` (not copies of them); those named in `trainable` get gradients."""
    names = {name for name, _ in model.named_parameters()}
    assert names == set(tensors), f"parameters and tensors differ: {sorted(names ^ set(tensors))[:4]}"
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        old = model.get_parameter(name)
        assert old.shape == tensor.shape, f"{name}: {tuple(tensor.shape)} does not fit {tuple(old.shape)}"
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=name in trainable))
    device = next(iter(tensors.values())).device
    model.model.inv_freq_E = model.model.inv_freq_E.to(device)
