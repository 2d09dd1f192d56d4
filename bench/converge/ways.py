"""The ways of the study (`bench.converge.study`): how peers may exchange, and what becomes of values on their way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from bench.converge.tries import FIRST
from torch import Tensor

from atoll.model.encoding.rounding import by_kernel, plain, rounds_on
from atoll.sync.by_inputs import LEAST, MOST

BLOCK = 512
"""Values that share a magnitude."""

Codec = Callable[[Tensor], Tensor]
"""What rows of values become on their way."""
Finer = tuple[tuple[str, Codec, float], ...]


def exact(rows: Tensor) -> Tensor:
    return rows


def sign(rows: Tensor) -> Tensor:
    """A bit for each, and the mean magnitude of a block."""
    cut = _blocks(rows, BLOCK)
    return _whole(cut.sign() * cut.abs().mean(dim=-1, keepdim=True), rows)


def turned(rows: Tensor) -> Tensor:
    """Likewise in a basis drawn anew each time, in which whatever a block has is spread over all of it."""
    signs = torch.randint(0, 2, (BLOCK,), device=rows.device).float() * 2 - 1
    cut = _spread(_blocks(rows, BLOCK) * signs)
    return _whole(_spread(cut.sign() * cut.abs().mean(dim=-1, keepdim=True)) * signs, rows)


def _spread(cut: Tensor) -> Tensor:
    """Return all sums and differences of blocks (Walsh and Hadamard's), as long as before; twice is nothing."""
    half = 1
    while half < BLOCK:
        one, other = cut.view(*cut.shape[:2], -1, 2, half).unbind(3)
        cut = torch.stack([one + other, one - other], dim=3).view(*cut.shape[:2], BLOCK)
        half *= 2
    return cut / math.sqrt(BLOCK)


def three(rows: Tensor) -> Tensor:
    """The best three levels for a bell: five of them are a byte."""
    cut = _blocks(rows, BLOCK)
    unit = cut.square().mean(dim=-1, keepdim=True).sqrt()
    return _whole(cut.sign() * (cut.abs() > 0.612 * unit) * (1.224 * unit), rows)


def four(rows: Tensor) -> Tensor:
    """The best four."""
    cut = _blocks(rows, BLOCK)
    unit = cut.square().mean(dim=-1, keepdim=True).sqrt()
    return _whole(cut.sign() * torch.where(cut.abs() > 0.9816 * unit, 1.510, 0.4528) * unit, rows)


def largest(part: float) -> Codec:
    """The signs of such a part of a block, the largest, and their mean magnitude: for each so many bits of entropy."""

    def codec(rows: Tensor) -> Tensor:
        cut = _blocks(rows, 8 * BLOCK)
        size = cut.abs()
        large = size >= size.topk(int(size.shape[-1] * part), dim=-1).values[..., -1:]
        level = (size * large).sum(dim=-1, keepdim=True) / large.sum(dim=-1, keepdim=True)
        return _whole(cut.sign() * large * level, rows)

    return codec


tenth = largest(0.1)
"""0.57 bits."""


def alike(due: Tensor, sent: Tensor) -> Tensor:
    """Return the multiple of what each sent that is nearest to what is due to it: one number, told with a result."""
    factor = (due * sent).sum(dim=1, keepdim=True) / sent.square().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return factor * sent


def by_inputs(rows: Tensor, columns: int, passed_on: Tensor, moments: Tensor, gain: float = 1.0) -> Tensor:
    """A bit for each, chosen a row of a matrix at a time (`atoll.sync.by_inputs`, here of all peers' rows at once).

    While they are chosen a block's magnitude is its mean times the gain.
    """
    sizes = gain * _of_blocks(rows.abs(), torch.mean).reshape(-1, columns)
    wanted = rows.reshape(-1, columns)
    form = by_kernel if rounds_on(rows.device) else plain
    made = form(wanted.contiguous(), sizes.contiguous(), passed_on.contiguous())
    felt = made @ moments
    best = _of_blocks((wanted * felt).view_as(rows), torch.sum) / _of_blocks((made * felt).view_as(rows), torch.sum)
    return made.view_as(rows) * best.nan_to_num(1.0).clamp(LEAST, MOST)


def _of_blocks(rows: Tensor, what: Callable[..., Tensor]) -> Tensor:
    """Return for every value what its block comes to."""
    cut = _blocks(rows, BLOCK)
    return _whole(what(cut, dim=-1, keepdim=True).expand_as(cut), rows)


def _blocks(rows: Tensor, block: int) -> Tensor:
    short = -rows.shape[1] % block
    return torch.nn.functional.pad(rows, (0, short)).view(len(rows), -1, block)


def _whole(cut: Tensor, rows: Tensor) -> Tensor:
    return cut.reshape(len(rows), -1)[:, : rows.shape[1]]


@dataclass(frozen=True)
class Way:
    """How peers exchange."""

    rounds: int
    up: Codec = sign
    """Of contributions."""
    down: Codec = sign
    """Of results."""
    outer: tuple[float, float] = (1.0, 0.5)
    lr: float = 0.02
    fragments: int = 1
    """Parts of the model that take turns, as many rounds each."""
    named: tuple[str, ...] = ()
    """Where they are two the first are tensors in whose names one of these is found; else every so many tensors."""
    thin: int = 1
    """Of so many blocks a contribution has one, another each time."""
    hold: bool = True
    held: float = 1.0
    """So much is kept of what contributions leave out."""
    owned: float = 1.0
    """And of what results leave out."""
    shared: float = 0.0
    """So much of what a result leaves out of contributions stays with who made them; with the owner is the rest."""
    own: bool = False
    """Whether a result is each peer's own: owners have the anchor in full, and tell a peer what its copy of it lacks
    beyond what its contribution says already."""
    slow: float = 1.0
    """How many times as long the last rounds are as the first."""
    seen: float = 0.0
    """The damping of results that are rounded by what layers are given; 0: to what is nearest."""
    gain: float = 1.0
    """Of their magnitudes while signs are chosen."""
    seen_up: bool = False
    """Whether contributions are rounded so too."""
    finer: Finer = ()
    """Parts of the model, by their names, that have another form both ways in a first part of the rounds."""
    finer_down: Finer = ()
    """Likewise of results only."""
    decay: float = 0.01
    """Of Muon's matrices."""
    mean: float = 0.9
    """Muon's momentum."""
    nesterov: bool = False
    """Whether it looks ahead."""
    beta2: float = 0.0
    """By which rows of its moves are made alike; 0: they are not."""


def small(rounds: int, lr: float = 0.01, mean: float = 0.97, **more: Any) -> Way:
    """Return a way for peers with small batches: lower rates, longer means, and as much decay at every rate."""
    return Way(rounds, lr=lr, mean=mean, decay=6e-4 / lr, **more)


def better(
    rounds: int, lr: float = 0.014, mean: float = 0.95, outer: tuple[float, float] = (1.4, 0.3), **more: Any
) -> Way:
    """Return such a way with a better Muon, and an outer step that answers at once."""
    return small(rounds, lr=lr, mean=mean, beta2=0.95, nesterov=True, outer=outer, **more)


EARLY: Finer = (("layers.0.self_attn", four, 0.34), ("layers.1.self_attn", four, 0.34))
"""Where a model learns first to look back: two bits for these in the first third are 4 % more bytes in all."""

WORDS: Finer = (("embed_tokens", four, 1.1),)
"""Two bits for results of words: with 18 million parameters and 4,096 words 6 % more bytes in all."""

WORDS_EARLY: Finer = (("embed_tokens", four, 0.34),)
"""In the first third only, 2 %."""


FIRST_FINER: Finer = tuple((name, four, 0.17) for name in FIRST)
"""Two bits for what is learnt first, both ways, in five of thirty rounds."""


def kept(rounds: int, owned: float = 0.7, **more: Any) -> Way:
    """Return such a way with results by inputs, of which owners keep a part of what was left out."""
    return better(rounds, seen=0.3, gain=1.2, owned=owned, **more)


WAYS = {
    "fp-120": Way(120, exact, exact, (0.8, 0.9)),
    "fp-30-0.8-0.9": Way(30, exact, exact, (0.8, 0.9)),
    "fp-30": Way(30, exact, exact),
    "bit-120": Way(120),
    "bit-30": Way(30),
    "bit-30-lr0.01": Way(30, lr=0.01),
    "bit-30-lr0.04": Way(30, lr=0.04),
    "bit-30-outer0.7": Way(30, outer=(1.0, 0.7)),
    "bit-30-parts4": Way(30, fragments=4),
    "bit-30-fed-back": Way(30, hold=False),
    "bit-30-slow3": Way(30, slow=3.0),
    "bit-30-slow10": Way(30, slow=10.0),
    "up-bit-30": Way(30, sign, exact),
    "down-bit-30": Way(30, exact, sign),
    "half-three-30": Way(30, sign, three, thin=2),
    "half-three-30-lr0.014": Way(30, sign, three, thin=2, lr=0.014),
    "half-three-30-outer0.3": Way(30, sign, three, (1.0, 0.3), thin=2),
    "half-three-30-slow3": Way(30, sign, three, thin=2, slow=3.0),
    "half-three-30-parts2": Way(30, sign, three, thin=2, fragments=2),
    "tenth-three-30": Way(30, tenth, three),
    "tenth-three-30-slow3": Way(30, tenth, three, slow=3.0),
    "eighth-four-30": Way(30, sign, four, thin=8),
    "small-fp-60": small(60, up=exact, down=exact),
    "small-fp-60-slow3-parts4": small(60, up=exact, down=exact, slow=3.0, fragments=4),
    "small-60": small(60),
    "small-60-turned": small(60, up=turned, down=turned),
    "small-60-turned-parts4": small(60, up=turned, down=turned, fragments=4),
    "small-60-held0.5": small(60, held=0.5),
    "small-60-held0.5-owned0.9": small(60, held=0.5, owned=0.9),
    "small-60-held0.7-owned0.9": small(60, held=0.7, owned=0.9),
    "small-60-mean0.99": small(60, mean=0.99),
    "small-60-lr0.005": small(60, lr=0.005),
    "small-60-outer0-lr0.02": small(60, lr=0.02, outer=(1.0, 0.0)),
    "small-60-outer0.7-lr0.005": small(60, lr=0.005, outer=(1.0, 0.7)),
    "small-60-parts4": small(60, fragments=4),
    "small-60-parts16": small(60, fragments=16),
    "small-60-slow3": small(60, slow=3.0),
    "small-60-slow10": small(60, slow=10.0),
    "small-60-slow3-parts4": small(60, slow=3.0, fragments=4),
    "rows-60": small(60, lr=0.014, mean=0.95, beta2=0.95),
    "rows-60-outer1.4-0.3": small(60, lr=0.014, mean=0.95, beta2=0.95, outer=(1.4, 0.3)),
    "rows-60-ahead-outer1.4-0.3": better(60),
    "long-18": better(18),
    "long-36": better(36),
    "long-36-large0.09": better(36, up=largest(0.09), down=largest(0.09)),
    "long-72-large0.04": better(72, up=largest(0.04), down=largest(0.04)),
    "long-14-three": better(14, down=three),
    "long-12-four": better(12, down=four),
    "long-18-up-bit": better(18, down=exact),
    "long-18-shared0.25": better(18, shared=0.25),
    "long-18-shared0.5": better(18, shared=0.5),
    "long-fp-18": better(18, up=exact, down=exact),
    "few-fp-15": better(15, up=exact, down=exact),
    "few-fp-30": better(30, up=exact, down=exact),
    "few-fp-60": better(60, up=exact, down=exact),
    "few-30": better(30),
    "few-60": better(60),
    "few-30-up-bit": better(30, down=exact),
    "few-30-own": better(30, own=True),
    "few-30-own-three": better(30, own=True, down=three),
    "few-30-seen": better(30, seen=1.0),
    "few-30-seen0.3": better(30, seen=0.3),
    "few-30-seen3": better(30, seen=3.0),
    "few-30-seen-owned0.9": better(30, seen=1.0, owned=0.9),
    "few-30-seen-owned0.7": better(30, seen=1.0, owned=0.7),
    "few-30-seen-both": better(30, seen=1.0, seen_up=True),
    "few-30-seen-own": better(30, seen=1.0, own=True),
    "few-30-seen-gain1.2": better(30, seen=1.0, gain=1.2),
    "few-30-seen0.3-gain1.2": better(30, seen=0.3, gain=1.2),
    "few-30-seen-words": better(30, seen=1.0, finer_down=WORDS),
    "few-30-seen-early": better(30, seen=1.0, finer=EARLY),
    "few-30-seen-early-words": better(30, seen=1.0, finer=EARLY, finer_down=WORDS),
    "few-31-seen": better(31, seen=1.0),
    "few-30-owned0.7": better(30, owned=0.7),
    "few-30-kept0.3": kept(30, 0.3),
    "few-30-kept0.5": kept(30, 0.5),
    "few-30-kept0.7": kept(30),
    "few-30-kept0.7-both": kept(30, seen_up=True),
    "few-30-kept0.7-outer1.2": kept(30, outer=(1.2, 0.3)),
    "few-30-kept0.7-outer1.65": kept(30, outer=(1.65, 0.3)),
    "few-30-kept0.7-early": kept(30, finer=EARLY),
    "few-30-kept0.7-words": kept(30, finer_down=WORDS_EARLY),
    "few-30-kept0.7-attention": kept(30, finer_down=(("self_attn", four, 0.34),)),
    "few-30-kept0.7-early-words": kept(30, finer=EARLY, finer_down=WORDS_EARLY),
    "few-30-kept1-early-words-own": kept(30, 1.0, finer=EARLY, finer_down=WORDS_EARLY, own=True),
    "few-30-kept0.7-early-words-outer1.65": kept(30, finer=EARLY, finer_down=WORDS_EARLY, outer=(1.65, 0.3)),
    "few-30-kept0.7-early-words-outer1.9": kept(30, finer=EARLY, finer_down=WORDS_EARLY, outer=(1.9, 0.3)),
    "few-30-kept0.7-first": kept(30, finer=(("", four, 0.1),)),
    "few-30-kept0.7-parts": kept(30, fragments=2, named=FIRST),
    "few-30-kept0.7-parts-first": kept(30, fragments=2, named=FIRST, finer=FIRST_FINER),
    "few-30-kept0.7-parts-first-outer1.65": kept(30, fragments=2, named=FIRST, finer=FIRST_FINER, outer=(1.65, 0.3)),
    "few-fp-30-outer1.2": better(30, up=exact, down=exact, outer=(1.2, 0.3)),
    "few-fp-30-outer1.65": better(30, up=exact, down=exact, outer=(1.65, 0.3)),
    "few-30-early": better(30, finer=EARLY),
    "few-30-half-three": better(30, thin=2, down=three),
    "few-30-own-half-three": better(30, thin=2, down=three, own=True),
    "few-30-shared0.3": better(30, shared=0.3),
    "few-fp-30-lr0.01": better(30, lr=0.01, up=exact, down=exact),
    "few-30-lr0.01": better(30, lr=0.01),
    "few-30-lr0.007": better(30, lr=0.007),
    "few-30-lr0.005": better(30, lr=0.005),
    "few-36-lr0.01": better(36, lr=0.01),
    "few-48-lr0.01": better(48, lr=0.01),
    "few-30-lr0.01-mean0.97": better(30, lr=0.01, mean=0.97),
    "few-30-lr0.01-slow0.5": better(30, lr=0.01, slow=0.5),
    "few-30-lr0.01-shared0.25": better(30, lr=0.01, shared=0.25),
    "few-30-lr0.01-outer1-0.5": better(30, lr=0.01, outer=(1.0, 0.5)),
    "few-30-lr0.01-outer2-0.3": better(30, lr=0.01, outer=(2.0, 0.3)),
    "few-30-lr0.01-outer0.8-0.8": better(30, lr=0.01, outer=(0.8, 0.8)),
    "plain-60": small(60, lr=0.014, mean=0.95),
    "plain-60-ahead": small(60, lr=0.014, mean=0.95, nesterov=True),
    "plain-60-outer1.4-0.3": small(60, lr=0.014, mean=0.95, outer=(1.4, 0.3)),
    "plain-60-outer0.6-0.7": small(60, lr=0.014, mean=0.95, outer=(0.6, 0.7)),
    "plain-60-up-bit": small(60, lr=0.014, mean=0.95, down=exact),
    "plain-60-down-bit": small(60, lr=0.014, mean=0.95, up=exact),
    "plain-fp-60": small(60, lr=0.014, mean=0.95, up=exact, down=exact),
}
"""Bits of an element both ways, in thirty rounds: `bit` 1.06 and 1.06, `half-three` 0.53 and 1.66, `tenth-three` about
0.6 and 1.66, `eighth-four` 0.13 and 2.06; four thousand times fewer bytes than DDP are 2.18 in all. Of
sixty rounds of twice the steps as many."""
