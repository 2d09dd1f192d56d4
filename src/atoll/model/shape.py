"""The decoder on paper: which parameters it has, in which order they form a vector, what training costs.

Everything here follows from the spec alone and needs no torch, so planner, simulator and checkpoint
reader agree with the engine to the element. Names are Hugging Face's, so a vector and a folder of the
Llama family are two forms of the same thing.

Initial weights are made of integers and one fp32 multiplication per element: bit for bit the same on
every processor, which a library's normal distribution (vectorised logarithms and cosines) is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.model.compute import Cost, Vector
from atoll.spec.axes.optimizer import Inner, Muon
from atoll.spec.run import SIZES, Fresh, Lora, Size

Shapes = dict[str, tuple[int, ...]]
"""Parameter names and shapes, sorted by name: the layout of a vector."""

INIT_STD = 0.02

NEWTON_STEPS = 5
"""That make a matrix of Muon's orthonormal."""

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's size with what the data adds to it."""

    size: Size
    vocab: int
    context: int
    """Longest text it was trained on, in tokens."""
    bos: int | None = None
    eos: int | None = None


def size_of(model: Fresh) -> Size:
    """Return the shape a run asks for, checked."""
    if isinstance(model.size, Size):
        return check(model.size)
    if model.size not in SIZES:
        raise SpecError(f"model.size: there is no size {model.size!r}", hint=f"known sizes: {', '.join(SIZES)}")
    return SIZES[model.size]


def check(size: Size) -> Size:
    """Return `size` when it can be built, else raise `SpecError`."""
    for key in ("dim", "layers", "heads", "kv_heads", "ffn"):
        if getattr(size, key) < 1:
            raise SpecError(f"model.size.{key}: must be at least 1", hint="see `atoll.spec.run.SIZES` for examples")
    if size.dim % (2 * size.heads):
        raise SpecError(
            f"model.size.dim: {size.dim} is not an even multiple of heads = {size.heads}",
            hint="the width of one head (dim / heads) must be a whole, even number",
        )
    if size.heads % size.kv_heads:
        raise SpecError(
            f"model.size.kv_heads: {size.kv_heads} does not divide heads = {size.heads}",
            hint="each key-value head serves the same number of heads",
        )
    return size


def shapes(size: Size, vocab: int) -> Shapes:
    """Return every parameter of the decoder."""
    dim, kv_dim = size.dim, size.dim // size.heads * size.kv_heads
    found: Shapes = {"model.embed_tokens.weight": (vocab, dim), "model.norm.weight": (dim,)}
    if not size.tied:
        found["lm_head.weight"] = (vocab, dim)
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = (dim,)
        found[at + "post_attention_layernorm.weight"] = (dim,)
        found[at + "self_attn.q_proj.weight"] = (dim, dim)
        found[at + "self_attn.k_proj.weight"] = (kv_dim, dim)
        found[at + "self_attn.v_proj.weight"] = (kv_dim, dim)
        found[at + "self_attn.o_proj.weight"] = (dim, dim)
        found[at + "mlp.gate_proj.weight"] = (size.ffn, dim)
        found[at + "mlp.up_proj.weight"] = (size.ffn, dim)
        found[at + "mlp.down_proj.weight"] = (dim, size.ffn)
    return dict(sorted(found.items()))


def adapter_shapes(size: Size, lora: Lora) -> Shapes:
    """Return the parameters of low-rank adapters on the decoder's linear maps."""
    unknown = [target for target in lora.targets if target not in LORA_TARGETS]
    if unknown or not lora.targets:
        raise SpecError(
            f"model.adapter.targets: {', '.join(unknown) or 'empty'}", hint=f"choose from {', '.join(LORA_TARGETS)}"
        )
    if lora.rank < 1:
        raise SpecError(f"model.adapter.rank: {lora.rank} is not a rank", hint="8 or 16 is usual")
    found: Shapes = {}
    for name, shape in shapes(size, 1).items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in lora.targets:
            found[module + ".lora_A.weight"] = (lora.rank, shape[1])
            found[module + ".lora_B.weight"] = (shape[0], lora.rank)
    return dict(sorted(found.items()))


def elements(layout: Shapes) -> int:
    """Return how many elements the vector of a layout has."""
    return sum(math.prod(shape) for shape in layout.values())


@lru_cache(maxsize=64)
def parameters(size: Size, vocab: int) -> int:
    """Return how many parameters the decoder has; planners ask again and again."""
    return elements(shapes(size, vocab))


def pieces(layout: Shapes, vector: Vector) -> dict[str, Vector]:
    """Return views of a vector's parts by parameter name."""
    assert vector.shape == (elements(layout),), "the vector belongs to another layout"
    return {name: vector[part].reshape(layout[name]) for name, part in parts(layout).items()}


def parts(layout: Shapes) -> dict[str, slice]:
    """Return where each parameter is in a vector of all of them."""
    found, at = {}, 0
    for name, shape in layout.items():
        count = math.prod(shape)
        found[name] = slice(at, at + count)
        at += count
    return found


def initial(layout: Shapes, seed: int, layers: int) -> Vector:
    """Return the weights a run begins with; each parameter depends only on the seed and its own name."""
    vector: Vector = np.empty(elements(layout), np.float32)
    for name, part in pieces(layout, vector).items():
        if name.endswith(".lora_B.weight"):
            part[...] = 0.0
        elif name.endswith(".lora_A.weight"):
            part[...] = _uniform(seed, name, part.shape, bound=1 / math.sqrt(part.shape[1]))
        elif part.ndim == 1:
            part[...] = 1.0
        else:
            # What writes into the residual stream starts smaller, so that depth does not inflate it.
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            part[...] = bell(seed, name, part.shape, std=INIT_STD / math.sqrt(2 * layers) if into_stream else INIT_STD)
    return vector


def train_cost(shape: Shape, samples: int, adapter: Lora | None = None) -> Cost:
    """Return the work of training on samples: 6 N per token plus causal attention; frozen weights need 4 N."""
    size, tokens = shape.size, samples * shape.context
    total = parameters(size, shape.vocab)
    # A lookup is no product: the embedding counts only where it is also the head.
    dense = total if size.tied else total - shape.vocab * size.dim
    per_token = 6.0 * dense if adapter is None else 4.0 * dense + 6.0 * elements(adapter_shapes(size, adapter))
    attention = 6.0 * size.layers * size.dim * shape.context
    return Cost(flop=tokens * (per_token + attention))


def step_cost(layout: Mapping[str, tuple[int, ...]], inner: Inner) -> Cost:
    """Return the work of one step of the optimizer: Muon's products. Others pass over memory, which is nothing."""
    if not isinstance(inner, Muon):
        return Cost()
    sides = [sorted(shape) for name, shape in layout.items() if is_inside(name, shape)]
    # Of each step of Newton and Schulz: X X^T, its square, and that times X.
    return Cost(flop=sum(NEWTON_STEPS * 2.0 * (2 * few**2 * many + few**3) for few, many in sides))


def is_inside(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a parameter is a matrix inside the model, which Muon steps."""
    return len(shape) == 2 and not name.startswith(("model.embed_tokens", "lm_head"))


def is_big(shape: Shape, samples: int, free_bytes: float) -> bool:
    """Return whether a forward pass keeps more than half of what weights and optimizer leave of a device's memory."""
    size = shape.size
    # Kept for the way back, per token and layer, in bf16 beside an fp32 residual: 2 norms, q k v, output, SwiGLU.
    per_layer = 2 * (10 * size.dim + 4 * size.ffn)
    kept_bytes = samples * shape.context * (size.layers * per_layer + 4 * shape.vocab)
    optimizer_bytes = 16 * parameters(size, shape.vocab)
    return kept_bytes > 0.5 * max(0, free_bytes - optimizer_bytes)


def _words(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    key = int.from_bytes(blake3(f"{seed}/{name}".encode()).digest(length=16), "little")
    return np.random.Philox(key=key).random_raw(count)


def bell(seed: int, name: str, shape: tuple[int, ...], std: float) -> Vector:
    """Return bell-shaped values (the sum of four uniform integers, within 3.5 std)."""
    words = _words(seed, name, math.prod(shape)).astype("<u8", copy=False).view("<u2").reshape(*shape, 4)
    centred: NDArray[np.int32] = words.sum(axis=-1, dtype=np.int32) - 131070
    unit = std / math.sqrt((65536.0**2 - 1) / 3)
    return centred.astype(np.float32) * np.float32(unit)


def _uniform(seed: int, name: str, shape: tuple[int, ...], bound: float) -> Vector:
    """Return values spread evenly over (-bound, bound)."""
    whole = (_words(seed, name, math.prod(shape)) >> np.uint64(40)).astype(np.int32).reshape(shape) - 2**23
    return whole.astype(np.float32) * np.float32(bound / 2**23)
