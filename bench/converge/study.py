"""A small study before trials are chosen: many small models side by side in one program, eight peers of each way.

    python -m bench.converge.study --shards FOLDER [--ways PATTERN] [--steps N] [--batch N] [--epochs N] [--width N]

It says which ways are worth a trial, not what a trial comes to, and it is no part of the record: models of a million
parameters (of half the width an eighth of that), judged on a part of the training text that they did not read. Peers
are rows of one tensor, so a device is busy with them as with one large model, and what is exchanged is worked out in
place: nothing here is the engine's but the model, Muon's step and the schedule. All ways read the same samples.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.show import asked_for, parser_of
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from atoll.data.samples import open_folder
from atoll.model.llama import Llama
from atoll.model.muon import evened, orthonormal, row_squares
from atoll.model.shape import initial, shapes
from atoll.spec.run import Size

PEERS, BATCH, CONTEXT = 8, 8, 128
WIDTH, HEAD = 128, 32
WARM, FLOOR = 1 / 16, 0.05
ADAM_LR, BETAS, ADAM_DECAY = 2e-3, (0.9, 0.95), 0.1
BLOCK = 512
JUDGED = 512
"""Samples."""

Codec = Callable[[Tensor], Tensor]
"""What rows of values become on their way."""


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


def size_of(width: int) -> Size:
    """Return a model of such a width, in proportion."""
    heads = width // HEAD
    return Size(dim=width, layers=heads, heads=heads, kv_heads=heads, ffn=11 * width // 4)


class Swarm:
    """The peers of one way, as rows of all peers' weights, their anchor, and each one's copy of it."""

    def __init__(self, way: Way, weights: dict[str, Tensor], steps: int) -> None:
        self.way, self._weights = way, weights
        self.anchor = {name: rows[0].clone() for name, rows in weights.items()}
        self.copies = {name: rows.clone() for name, rows in weights.items()}
        self._momentum = {name: torch.zeros_like(value) for name, value in self.anchor.items()}
        self._left = {name: torch.zeros_like(value).flatten() for name, value in self.anchor.items()}
        self._fed = {name: torch.zeros_like(rows).flatten(1) for name, rows in weights.items()}
        self._ends = {step: nth for nth, step in enumerate(_ends(way, steps))}

    def after(self, step: int) -> None:
        """Do what is due after a step."""
        if (nth := self._ends.get(step)) is not None:
            for name in list(self.anchor)[nth % self.way.fragments :: self.way.fragments]:
                self._exchange(name, nth // self.way.fragments)

    def _exchange(self, name: str, nth: int) -> None:
        way, rows, copies = self.way, self._weights[name], self.copies[name]
        wanted = (copies - rows).flatten(1)
        if not way.hold:
            wanted = wanted + self._fed[name]
        sent = way.up(wanted) * _turn(wanted.shape[1], way.thin, nth, rows.device)
        left = way.held * (wanted - sent)
        mean = sent.mean(dim=0)
        if way.own:
            self._step(name, mean)
            due = (copies - self.anchor[name]).flatten(1)
            known = _alike(due, sent)
            copies.sub_((known + way.down(due - known)).view_as(rows))
        else:
            merged = mean + way.owned * self._left[name]
            result = way.down(merged[None])[0]
            self._left[name] = merged - result - way.shared * (mean - result)
            left = left + way.shared * (sent - result)
            self._step(name, result)
            copies.copy_(self.anchor[name].expand_as(rows))
        rows.copy_(copies)
        if way.hold:
            rows.sub_(left.view_as(rows))
        else:
            self._fed[name] = left

    def _step(self, name: str, result: Tensor) -> None:
        """Move the anchor."""
        rate, beta = self.way.outer
        anchor = self.anchor[name]
        result = result.view_as(anchor)
        momentum = self._momentum[name].mul_(beta).add_(result)
        anchor.sub_(rate * (result + beta * momentum))


def _alike(due: Tensor, sent: Tensor) -> Tensor:
    """Return the multiple of what each sent that is nearest to what is due to it: one number, told with a result."""
    factor = (due * sent).sum(dim=1, keepdim=True) / sent.square().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return factor * sent


def _turn(size: int, thin: int, nth: int, device: torch.device) -> Tensor:
    """Return which elements have their turn: one where they have, else zero."""
    block = torch.arange(size, device=device) // BLOCK
    return ((block + nth) % thin == 0).float()


def _ends(way: Way, steps: int) -> list[int]:
    """Return after which steps something is exchanged."""
    lengths = np.geomspace(1.0, way.slow, way.rounds * way.fragments)
    return [round(end) - 1 for end in np.cumsum(lengths / lengths.sum() * steps)]


class Study:
    """All ways, step by step together."""

    def __init__(
        self,
        ways: dict[str, Way],
        shards: Path,
        steps: int,
        device: torch.device,
        *,
        epochs: int = 1,
        batch: int = BATCH,
        width: int = WIDTH,
    ) -> None:
        data, size = open_folder(shards, CONTEXT, 0), size_of(width)
        assert steps % epochs == 0, f"{steps} steps are not {epochs} equal readings"
        samples = steps * PEERS * batch // epochs
        assert samples + JUDGED <= data.samples, f"{data.samples} samples are too few for {steps} steps"
        self._steps, self._batch, self._device, self._ways = steps, batch, device, ways
        self._read = torch.from_numpy(data.batch(range(samples)).astype(np.int32)).repeat(epochs, 1)
        self._judged = torch.from_numpy(data.batch(range(samples, samples + JUDGED))).to(device)
        layout = shapes(size, data.vocab_size)
        start, at = torch.from_numpy(initial(layout, 0, size.layers)), 0
        replicas = len(ways) * PEERS
        self.weights: dict[str, Tensor] = {}
        for name, shape in layout.items():
            count = math.prod(shape)
            self.weights[name] = start[at : at + count].view(shape).to(device).repeat(replicas, *[1] * len(shape))
            at += count
        with torch.device("meta"):
            self._model = Llama(size, data.vocab_size)
        self._model.model.inv_freq_E = (
            1.0 / size.rope_theta ** (torch.arange(0, HEAD, 2, dtype=torch.int64).float() / HEAD)
        ).to(device)
        self._first = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self._second = {name: torch.zeros_like(v) for name, v in self.weights.items() if not _is_inside(name, v)}
        self._squares = {
            name: torch.zeros_like(value[..., :1]) for name, value in self.weights.items() if _is_inside(name, value)
        }
        each = torch.tensor(
            [(way.lr, way.decay, way.mean, way.nesterov, way.beta2) for way in ways.values()], device=device
        ).repeat_interleave(PEERS, dim=0)
        self._rates, self._decays, self._means, self._ahead, self._betas = each.unbind(1)
        self.swarms = {
            name: Swarm(way, {key: value[at * PEERS : (at + 1) * PEERS] for key, value in self.weights.items()}, steps)
            for at, (name, way) in enumerate(ways.items())
        }
        self._gradients = vmap(grad_and_value(self._loss), randomness="error")

    def _loss(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        if self._device.type == "cuda":
            weights = {name: value.bfloat16() for name, value in weights.items()}
        total: Tensor = functional_call(_Loss(self._model), _within(weights), (tokens, targets))
        return total / targets.numel()

    def run(self) -> None:
        """Train."""
        began_s, said_s = time.monotonic(), time.monotonic()
        for step in range(self._steps):
            every = PEERS * self._batch
            tokens = self._read[step * every : (step + 1) * every].to(self._device).long()
            tokens = tokens.view(PEERS, self._batch, -1).repeat(len(self._ways), 1, 1)
            gradients, losses = self._gradients(self.weights, tokens[..., :-1], tokens[..., 1:])
            self._move(gradients, step)
            for swarm in self.swarms.values():
                swarm.after(step)
            if time.monotonic() - said_s > 10:
                said_s = time.monotonic()
                each = losses.view(-1, PEERS).mean(dim=1).tolist()
                print(f"step {step}, {said_s - began_s:.0f} s: {' '.join(f'{x:.3f}' for x in each)}", flush=True)

    @torch.no_grad()
    def _move(self, gradients: dict[str, Tensor], step: int) -> None:
        squares = [gradient.flatten(1).square().sum(dim=1) for gradient in gradients.values()]
        clip = (1.0 / (torch.stack(squares).sum(dim=0).sqrt() + 1e-6)).clamp(max=1.0)
        factor = _rate(step, self._steps)
        for name, value in self.weights.items():
            each = (-1, *[1] * (value.ndim - 1))
            gradient = gradients[name] * clip.view(each)
            if name in self._second:
                self._adam(name, value, gradient, factor, step + 1)
                continue
            rows, columns = value.shape[1:]
            rates = (self._rates * factor).view(each)
            value.mul_(1 - rates * self._decays.view(each))
            value.sub_(self._way(name, gradient) * (rates * max(1.0, rows / columns) ** 0.5))

    def _way(self, name: str, gradient: Tensor) -> Tensor:
        """Return where Muon moves matrices to."""
        each = (-1, 1, 1)
        means, betas = self._means.view(each), self._betas.view(each)
        mean = self._first[name].lerp_(gradient, 1 - means)
        moves = orthonormal(torch.where(self._ahead.view(each) > 0, gradient.lerp(mean, means), mean))
        squares = self._squares[name].lerp_(row_squares(moves), 1 - betas)
        return torch.where(betas > 0, evened(moves, squares), moves)

    def _adam(self, name: str, value: Tensor, gradient: Tensor, factor: float, step: int) -> None:
        one, two = BETAS
        first = self._first[name].lerp_(gradient, 1 - one)
        second = self._second[name].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        value.mul_(1 - ADAM_LR * factor * ADAM_DECAY)
        size = (second / (1 - two**step)).sqrt_().add_(1e-8)
        value.addcdiv_(first, size, value=-ADAM_LR * factor / (1 - one**step))

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """Return the loss of each way's anchor as the first peer has it, in nats per token."""
        found = {}
        for name, swarm in self.swarms.items():
            held = {key: rows[0] for key, rows in swarm.copies.items()}
            parts = [self._loss(held, part[:, :-1], part[:, 1:]) for part in torch.split(self._judged, 64)]
            found[name] = float(torch.stack(parts).mean())
        return found


class _Loss(torch.nn.Module):
    """The model's loss as a module of its own: what `functional_call` asks for."""

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.of = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.of.loss_sum(tokens.contiguous(), targets.contiguous())


def _within(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"of.{name}": value for name, value in weights.items()}


def _is_inside(name: str, rows: Tensor) -> bool:
    """Return whether Muon steps it: the matrices inside the model."""
    return rows.ndim == 3 and ".layers." in name


def _rate(step: int, steps: int) -> float:
    warm = round(WARM * steps)
    if step < warm:
        return (step + 1) / warm
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--ways", default="*", help="those with such names: bit-*,fp-*")
    parser.add_argument("--steps", type=int, default=2040)
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a peer's step")
    parser.add_argument("--epochs", type=int, default=1, help="how often the text is read; divides the steps")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the models; a multiple of {HEAD}")
    options = parser.parse_args(arguments)
    ways = {name: way for name, way in WAYS.items() if asked_for(name, options.ways)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"epochs": options.epochs, "batch": options.batch, "width": options.width}
    study = Study(ways, options.shards, options.steps, device, **about)
    with sdpa_kernel(SDPBackend.MATH):  # the others know nothing of models side by side
        study.run()
        losses = study.judge()
    for name, loss in sorted(losses.items(), key=lambda pair: pair[1]):
        print(f"{name:<26} {loss:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
