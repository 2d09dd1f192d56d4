"""What one of Atoll's peers holds: on its device to train the whole model, and in the host's memory to exchange it.

On the device: weights in fp32, their gradients, what the optimizer remembers, and everything that a forward pass keeps
for the way back, counted tensor by tensor as the model makes them. Elements per token and layer, with width d, keys and
values k, feed-forward f and a heads:

    on a processor, fp32     10 d + 4 f + a + 2          (a group's keys and values are spread out: 2 d, not 2 k)
    on CUDA, in bytes        30 d + 4 k + 8 f + 4 a + 8  (bf16 products; residual stream, norms and unit rows in fp32)

and the logits three times in fp32 (log-probabilities, and two gradients of their size on the way back), of at most
2^30 of them at once. CUDA also has a bf16 copy of every matrix. Both lines are held against torch to the byte, the
second under autocast on a processor (`tests/plan/cost/test_holds.py`): of code that is not compiled, since compiled
code keeps less. Allocators round up and keep a rest: `SPARE` is for them.

In the host's memory: the anchor, the outer optimizer's state, what codecs left out, and what an exchange holds at its
peak (`swarm.routes.shares.peak_bytes`); on a processor everything of the device as well.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from atoll.model.moments import FIRST, SECOND, remembered, travelling
from atoll.model.shape import Shape, elements, is_big, is_inside, parameters, shapes
from atoll.plan.cost.flops import of_size
from atoll.spec.axes.optimizer import Accumulate, Inner, Muon
from atoll.spec.axes.what import Forget, Hold
from atoll.spec.axes.when import Fragments, Parts
from atoll.spec.axes.whom import AllGather, Star
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Size
from atoll.swarm.routes.shares import peak_bytes
from atoll.sync.codec import wire_bytes
from atoll.sync.merge import outer_names
from atoll.sync.units import longest
from atoll.units import say_bytes

Kind = Literal["cpu", "cuda"]
LOGITS_MAX = 2**30
"""Logits beyond which the head works in slices (as `model.llama`)."""
MUON_ELEMENTS, MUON_COPIES = 2**25, 5
"""Elements that Muon steps at once, and about how many copies it makes of them."""
SPARE = 0.1
"""Part of a device's memory that is left for its allocator and its libraries' kernels."""
PROCESS_BYTES = 260_000_000
"""A peer without a model: Python, torch and Atoll itself, as the kernel counts them."""


class Need(Struct, frozen=True, kw_only=True):
    """What training the whole model takes on one device."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    """For the way back."""
    working_bytes: float
    """While logits are turned into gradients, or the optimizer steps."""
    overlap: bool = True
    """Gradients are there during a forward pass: in a step of several micro-batches, or a recorded one."""

    @property
    def total_bytes(self) -> float:
        """Return the most that is held at any moment."""
        stays = self.weights_bytes + self.optimizer_bytes
        passing = self.kept_bytes + self.working_bytes
        return stays + (passing + self.gradients_bytes if self.overlap else max(passing, self.gradients_bytes))


class Fit(Struct, frozen=True, kw_only=True):
    """Whether a peer can take part, and why not."""

    fits: bool
    reason: str
    device_bytes: float
    host_bytes: float
    recompute: bool = False
    """The engine will compute layers again on the way back, about a third more work, to keep less (`shape.is_big`)."""


def device_need(
    size: Size,
    vocab: int,
    context: int,
    samples_at_once: int,
    optimizer: Inner,
    *,
    kind: Kind = "cuda",
    recompute: bool = False,
    whole_batch: bool = False,
) -> Need:
    """Return what a device needs for steps of so many samples at once; `whole_batch`: a step is one forward pass."""
    count, inside = parameters(size, vocab), _inside(size, vocab)
    tokens = samples_at_once * context
    copies = 2.0 * (inside + vocab * size.dim if kind == "cuda" else 0)
    return Need(
        weights_bytes=4.0 * count,
        gradients_bytes=(8.0 if isinstance(optimizer, Accumulate) else 4.0) * count,
        optimizer_bytes=4.0 * _remembered(optimizer, size, vocab),
        kept_bytes=_kept_bytes(size, vocab, context, tokens, kind, recompute) + copies,
        working_bytes=max(
            _logits_bytes(vocab, tokens, kind), _layer_bytes(size, tokens), _stepping_bytes(optimizer, inside)
        ),
        overlap=kind == "cuda" or not whole_batch,
    )


@lru_cache(maxsize=64)
def _inside(size: Size, vocab: int) -> int:
    """Return how many of a model's parameters are in the matrices of its layers."""
    layout = shapes(size, vocab)
    return sum(math.prod(shape) for name, shape in layout.items() if is_inside(name, shape))


def device_bytes(
    size: Size,
    vocab: int,
    context: int,
    samples_at_once: int,
    optimizer: Inner,
    *,
    kind: Kind = "cuda",
    recompute: bool = False,
) -> float:
    """Return the bytes that one peer's device needs to train the whole model, an allocator's rest not counted."""
    return device_need(size, vocab, context, samples_at_once, optimizer, kind=kind, recompute=recompute).total_bytes


def host_bytes(recipe: Recipe, travels: int, members: int, share: float | None = None) -> float:
    """Return what a peer keeps in the host's memory, its model aside, while a round of its largest channel is on.

    Of so many elements: the parameters, and moments that travel with them.
    """
    stays = max(_stays(channel) for channel in recipe.channel.values())
    rounds = max(_round_bytes(channel, travels, members, share) for channel in recipe.channel.values())
    return PROCESS_BYTES + 4.0 * travels * (1 + stays) + rounds


def fits(
    size: Size,
    vocab: int,
    context: int,
    recipe: Recipe,
    members: int,
    memory_bytes: float,
    *,
    host_memory_bytes: float = 0.0,
    kind: Kind = "cuda",
) -> Fit:
    """Return whether a peer with so much device memory can train the model by a recipe; 0 host bytes: not known."""
    work, at_once = recipe.work, recipe.work.at_once
    again = kind == "cuda" and is_big(Shape(size=size, vocab=vocab, context=context), at_once, memory_bytes)
    need = device_bytes(size, vocab, context, at_once, work.inner, kind=kind, recompute=again)
    host = host_bytes(recipe, elements(travelling(recipe, shapes(size, vocab))), members)
    wants = need + host if kind == "cpu" else host
    reason = ""
    if need > (1 - SPARE) * memory_bytes:
        reason = _too_large(need, memory_bytes, at_once)
    elif host_memory_bytes and wants > host_memory_bytes:
        reason = f"the exchange needs {say_bytes(wants)} of the host's memory, there are {say_bytes(host_memory_bytes)}"
    return Fit(fits=not reason, reason=reason, device_bytes=need, host_bytes=wants, recompute=again)


def _too_large(need: float, memory_bytes: float, at_once: int) -> str:
    fewer = ", with fewer samples at once it may fit" if at_once > 1 else ""
    usable = (1 - SPARE) * memory_bytes
    return f"training needs {say_bytes(need)} of the device's memory, {say_bytes(usable)} can be used{fewer}"


def _kept_bytes(size: Size, vocab: int, context: int, tokens: int, kind: Kind, recompute: bool) -> float:
    """Return what a forward pass keeps until the way back has passed it."""
    d, layer = size.dim, _layer_token_bytes(size, of_size(size, vocab, context).kv_hidden, kind)
    layers = 4 * d * size.layers + layer if recompute else layer * size.layers
    ends = (12 if kind == "cpu" else 10) * d + 4 + 8
    angles = 2 * 4 * context * (d // size.heads)
    slices = tokens * vocab > LOGITS_MAX
    return float(tokens) * (layers + ends + (0 if slices else 4 * vocab)) + angles


def _layer_token_bytes(size: Size, kv_hidden: int, kind: Kind) -> int:
    """Return what one layer keeps of a token until the way back has passed it."""
    d, f, a = size.dim, size.ffn, size.heads
    return 4 * (10 * d + 4 * f + a + 2) if kind == "cpu" else 30 * d + 4 * kv_hidden + 8 * f + 4 * a + 8


def stage_working_bytes(size: Size, vocab: int, context: int, *, head: bool) -> float:
    """Return what a stage on CUDA needs of each sequence for the one layer, or head, that is being gone back through.

    Layers are computed again then, so that nothing but their inputs is kept of all others.
    """
    layer = context * _layer_token_bytes(size, of_size(size, vocab, context).kv_hidden, "cuda")
    going_back = layer + _layer_bytes(size, context)
    return max(going_back, 4.0 * context * vocab + _logits_bytes(vocab, context, "cuda")) if head else going_back


def _logits_bytes(vocab: int, tokens: int, kind: Kind) -> float:
    """Return what the head's way back makes beside what was kept: two gradients, on CUDA one in bf16 too."""
    logits = float(tokens) * vocab
    fresh = 8 if logits <= LOGITS_MAX else 12
    return (fresh + (2 if kind == "cuda" else 0)) * min(logits, LOGITS_MAX)


def _layer_bytes(size: Size, tokens: int) -> float:
    """Return what the way back through the last feed-forward makes, if the head made less."""
    return 4.0 * tokens * (size.dim + size.ffn)


def _stepping_bytes(optimizer: Inner, inside: int) -> float:
    return 4.0 * MUON_COPIES * min(inside, MUON_ELEMENTS) if isinstance(optimizer, Muon) else 0.0


@lru_cache(maxsize=64)
def _remembered(optimizer: Inner, size: Size, vocab: int) -> int:
    """Return how many numbers an inner optimizer keeps."""
    weights = shapes(size, vocab)
    return sum(elements(remembered(optimizer, weights, kind)) for kind in (FIRST, SECOND))


def _stays(channel: Channel) -> int:
    """Return how many vectors of the model's size a channel keeps beside the anchor."""
    residual = channel.what.residual
    left_out = not isinstance(residual, Forget)
    given = isinstance(residual, Hold) and residual.shared > 0  # until the result is there
    own = max(channel.ahead, isinstance(channel.when, Parts))  # weights to go on from
    return len(outer_names(channel.merge.outer)) + left_out + given + own


def _round_bytes(channel: Channel, travels: int, members: int, share: float | None) -> float:
    """Return what an exchange holds at its peak; of a share nobody named, everything where one may have to hold it."""
    if share is None:
        share = 1.0 if isinstance(channel.whom.route, AllGather | Star) else 1 / members
    parts = channel.when.count if isinstance(channel.when, Fragments) else 1
    contribution = wire_bytes(longest(channel), -(-travels // parts))
    return channel.room * peak_bytes(contribution, share, members)
