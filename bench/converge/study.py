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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from bench.converge.ways import BLOCK, WAYS, Codec, Way, alike, by_inputs
from bench.show import asked_for, parser_of
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from atoll.data.samples import open_folder
from atoll.model.compute import Moments
from atoll.model.inputs import second_moments
from atoll.model.llama import Llama, bind, blank
from atoll.model.muon import evened, orthonormal, row_squares
from atoll.model.shape import initial, shapes
from atoll.spec.run import Size
from atoll.sync.by_inputs import prepared

PEERS, BATCH, CONTEXT = 8, 8, 128
WIDTH, HEAD = 128, 32
WARM, FLOOR = 1 / 16, 0.05
ADAM_LR, BETAS, ADAM_DECAY = 2e-3, (0.9, 0.95), 0.1
JUDGED = 512
"""Samples."""
LOOKED = 32
"""Samples by which it is seen what layers are given."""


def size_of(width: int) -> Size:
    """Return a model of such a width, in proportion."""
    heads = width // HEAD
    return Size(dim=width, layers=heads, heads=heads, kv_heads=heads, ffn=11 * width // 4)


Known = tuple[Tensor, Tensor]
"""Of a matrix: what part of each column's error goes into the ones behind it, and the damped moments behind that."""
Look = Callable[[], dict[str, Known]]
"""Sees what layers are given now."""


def known_of(moments: Mapping[str, Moments], damping: float, device: torch.device) -> dict[str, Known]:
    """Return what rounding by inputs goes by."""
    found = {name: prepared(each, damping) for name, each in moments.items()}
    return {
        name: (torch.from_numpy(each[0].copy()).to(device), torch.from_numpy(each[1]).to(device))
        for name, each in found.items()
        if each is not None
    }


class Swarm:
    """The peers of one way, as rows of all peers' weights, their anchor, and each one's copy of it."""

    def __init__(self, way: Way, weights: dict[str, Tensor], steps: int, look: Look | None = None) -> None:
        self.way, self._weights = way, weights
        self._look, self._known = look, dict[str, Known]()
        self.anchor = {name: rows[0].clone() for name, rows in weights.items()}
        self.copies = {name: rows.clone() for name, rows in weights.items()}
        self._momentum = {name: torch.zeros_like(value) for name, value in self.anchor.items()}
        self._left = {name: torch.zeros_like(value).flatten() for name, value in self.anchor.items()}
        self._fed = {name: torch.zeros_like(rows).flatten(1) for name, rows in weights.items()}
        self._ends = {step: nth for nth, step in enumerate(_ends(way, steps))}

    @property
    def ends(self) -> list[int]:
        """Return after which steps something is exchanged."""
        return sorted(self._ends)

    def after(self, step: int) -> None:
        """Do what is due after a step."""
        if (nth := self._ends.get(step)) is not None:
            self._known = self._look() if self._look is not None and self.way.seen else {}
            for name in self._due(nth % self.way.fragments):
                self._exchange(name, nth // self.way.fragments)

    def _due(self, turn: int) -> list[str]:
        """Return which tensors have a turn."""
        if not self.way.named:
            return list(self.anchor)[turn :: self.way.fragments]
        return [name for name in self.anchor if any(each in name for each in self.way.named) == (turn == 0)]

    def _exchange(self, name: str, nth: int) -> None:
        way, rows, copies = self.way, self._weights[name], self.copies[name]
        wanted = (copies - rows).flatten(1)
        if not way.hold:
            wanted = wanted + self._fed[name]
        sent = self._coded(name, nth, wanted, way.up, down=False) * _turn(wanted.shape[1], way.thin, nth, rows.device)
        left = way.held * (wanted - sent)
        mean = sent.mean(dim=0)
        if way.own:
            self._step(name, mean)
            due = (copies - self.anchor[name]).flatten(1)
            known = alike(due, sent)
            copies.sub_((known + self._coded(name, nth, due - known, way.down)).view_as(rows))
        else:
            merged = mean + way.owned * self._left[name]
            result = self._coded(name, nth, merged[None], way.down)[0]
            self._left[name] = merged - result - way.shared * (mean - result)
            left = left + way.shared * (sent - result)
            self._step(name, result)
            copies.copy_(self.anchor[name].expand_as(rows))
        rows.copy_(copies)
        if way.hold:
            rows.sub_(left.view_as(rows))
        else:
            self._fed[name] = left

    def _coded(self, name: str, nth: int, rows: Tensor, codec: Codec, *, down: bool = True) -> Tensor:
        """Return what rows of a tensor become on their way."""
        for part, finer, until in (*self.way.finer, *(self.way.finer_down if down else ())):
            if part in name and (nth + 0.5) / self.way.rounds < until:
                return finer(rows)
        if name in self._known and (down or self.way.seen_up):
            return by_inputs(rows, self.anchor[name].shape[1], *self._known[name], self.way.gain)
        return codec(rows)

    def _step(self, name: str, result: Tensor) -> None:
        """Move the anchor."""
        rate, beta = self.way.outer
        anchor = self.anchor[name]
        result = result.view_as(anchor)
        momentum = self._momentum[name].mul_(beta).add_(result)
        anchor.sub_(rate * (result + beta * momentum))


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
        self._size, self._vocab = size, data.vocab_size
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
        self.swarms = {name: self._swarm(at, way) for at, (name, way) in enumerate(ways.items())}
        self._gradients = vmap(grad_and_value(self._loss), randomness="error")

    def _swarm(self, at: int, way: Way) -> Swarm:
        rows = {key: value[at * PEERS : (at + 1) * PEERS] for key, value in self.weights.items()}
        one = blank(self._size, self._vocab)
        bind(one, {key: value[0] for key, value in rows.items()}, set())

        @torch.no_grad()
        def look() -> dict[str, Known]:
            tokens = self._read[:LOOKED, :-1].to(self._device).long()
            moments = {name: found.cpu().numpy() for name, found in second_moments(one, list(rows), tokens)}
            return known_of(moments, way.seen, self._device)

        return Swarm(way, rows, self._steps, look)

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
