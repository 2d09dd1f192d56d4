"""What the engine's inner loop costs over a plain PyTorch loop: interleaved pairs, median of ratios.

    python -m bench.inner                                   a small model on this CPU
    python -m bench.inner --device cuda --size 125m         compiled, bf16 autocast

Both sides train the same decoder with the same optimizer, batch, clipping and precision. The plain loop is
written out below and has its one batch on the device before it starts; ours reads its own samples for every
step, as in a run. A pair is one slice of steps on each side, in alternating order, so that drift of the
machine falls on both. MFU counts 6 N per token plus attention in full (12 x layers x width x context), the
usual convention, against the device's dense bf16 rate (or, unknown or CPU, a measured matrix product).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.model.compute import Step
from atoll.model.engine import TorchEngine, build_engine, views
from atoll.model.llama import Llama, bind, blank
from atoll.model.shape import initial, shapes
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.what import Delta
from atoll.spec.axes.when import Every
from atoll.spec.axes.work import Work
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import SIZES, Budget, Data, Fresh, Run

PEAK_FLOP_S = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "4090": 165e12, "L40S": 362e12}
SMALL = {"size": "5m", "context": 128, "batch": 8, "vocab": 4096, "steps": 2}
LARGE = {"size": "125m", "context": 1024, "batch": 32, "vocab": 32000, "steps": 10}
INNER = AdamW(lr=3e-4)


class Stream:
    """Made-up tokens, read row by row as a run reads its shards."""

    held_out_samples = 0

    def __init__(self, vocab: int, context: int, samples: int) -> None:
        self.vocab_size, self.context, self.samples = vocab, context, samples
        drawn = np.random.Generator(np.random.PCG64(0)).integers(0, vocab, samples * context + 1)
        self._tokens = drawn.astype(np.uint16)

    def batch(self, positions: Sequence[int]) -> NDArray[np.int64]:
        rows = np.empty((len(positions), self.context + 1), np.int64)
        for row, position in zip(rows, positions, strict=True):
            at = position % self.samples * self.context
            row[:] = self._tokens[at : at + self.context + 1]
        return rows

    def held_out(self, first: int, count: int) -> NDArray[np.int64]:
        raise NotImplementedError("nothing is evaluated here")


def main() -> None:
    """Measure and print."""
    args = parse()
    torch.set_num_threads(args.threads)
    data = Stream(args.vocab, args.context, samples=64 * args.batch)
    ours = our_slice(args, data)
    plain = plain_slice(args, data)
    check_same_work(ours(0, 1), plain(0, 1))
    for _ in range(2):  # compilation, allocation, clocks
        ours(1, args.steps)
        plain(1, args.steps)
    ours_s, plain_s = measure(args, ours, plain)
    report(args, ours_s, plain_s)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro", type=int, default=0, help="samples per forward pass; 0: the whole batch")
    parser.add_argument("--eager", action="store_true", help="compile neither side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", choices=list(SIZES))
    for name in ("context", "batch", "vocab", "steps"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    for name, value in (LARGE if args.device.startswith("cuda") else SMALL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.micro = args.micro or args.batch
    args.compile = args.device.startswith("cuda") and not args.eager
    return args


Slice = Callable[[int, int], float]
"""Train from a step on, for so many steps; return the summed loss."""


def our_slice(args: argparse.Namespace, data: Stream) -> Slice:
    channel = Channel(when=Every(steps=1), what=Delta(), merge=Merge(outer=Sgd(lr=1.0)))
    work = Work(inner=INNER, batch=args.batch, micro_batch=args.micro, clip=1.0)
    run = Run(
        name="bench",
        recipe=Recipe(work=work, channel={"outer": channel}),
        budget=Budget(rounds=1),
        model=Fresh(size=args.size),
        data=Data(context=args.context),
    )
    engine: TorchEngine = build_engine(
        run, data, device=args.device, threads=args.threads, compile=args.compile, recompute=False
    )

    def go(first: int, count: int) -> float:
        starts = range(first * args.batch, (first + count) * args.batch, args.batch)
        return engine.train([Step(samples=tuple(range(at, at + args.batch))) for at in starts]).loss_sum

    return go


def plain_slice(args: argparse.Namespace, data: Stream) -> Slice:
    """Return the loop anybody would write: one batch on the device, loss, backward, clip, step."""
    device = torch.device(args.device)
    model = plain_model(args, device)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": INNER.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=INNER.lr, betas=INNER.betas, eps=INNER.eps, fused=True,
    )  # fmt: skip
    loss_of = torch.compile(model.loss_sum, dynamic=False) if args.compile else model.loss_sum
    batch = torch.from_numpy(data.batch(range(args.batch))).to(device)
    cuts = [batch[at : at + args.micro] for at in range(0, args.batch, args.micro)]
    parts = [(cut[:, :-1].contiguous(), cut[:, 1:].contiguous()) for cut in cuts]
    half = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    tokens = args.batch * args.context

    def go(first: int, count: int) -> float:
        total = torch.zeros((), device=device)
        for _ in range(count):
            for inputs, targets in parts:
                with half:
                    loss = loss_of(inputs, targets) / tokens
                loss.backward()
                total += loss.detach()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(total)

    return go


def plain_model(args: argparse.Namespace, device: torch.device) -> Llama:
    layout = shapes(SIZES[args.size], args.vocab)
    start = torch.from_numpy(initial(layout, 0, SIZES[args.size].layers))
    model = blank(SIZES[args.size], args.vocab)
    bind(model, {name: part.clone().to(device) for name, part in views(layout, start).items()}, frozenset(layout))
    return model


def check_same_work(one: float, other: float) -> None:
    """Stop unless both sides see the same loss on the same samples from the same weights."""
    if not math.isclose(one, other, rel_tol=1e-3):
        raise SystemExit(f"the two sides do not do the same work: first losses {one} and {other}")


def measure(args: argparse.Namespace, ours: Slice, plain: Slice) -> tuple[list[float], list[float]]:
    """Return the seconds of each slice, ours and plain."""
    times: dict[Slice, list[float]] = {ours: [], plain: []}
    for pair in range(args.pairs):
        for side in (ours, plain) if pair % 2 else (plain, ours):
            began_s = time.perf_counter()
            side(pair, args.steps)  # both end by reading a number from the device, so the time is whole
            times[side].append(time.perf_counter() - began_s)
    return times[ours], times[plain]


def report(args: argparse.Namespace, ours_s: list[float], plain_s: list[float]) -> None:
    ratios = sorted(a / b for a, b in zip(ours_s, plain_s, strict=True))
    low, high = median_interval(ratios)
    tokens = args.steps * args.batch * args.context
    size = SIZES[args.size]
    parameters = sum(math.prod(shape) for shape in shapes(size, args.vocab).values())
    flop_token = 6 * parameters + 12 * size.layers * size.dim * args.context
    rate, plain_rate = tokens / statistics.median(ours_s), tokens / statistics.median(plain_s)
    peak = peak_flop_s(args.device)
    found = {
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "size": args.size,
        "parameters": parameters,
        "context": args.context,
        "batch": args.batch,
        "micro_batch": args.micro,
        "compiled": args.compile,
        "pairs": len(ratios),
        "steps_per_slice": args.steps,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_low_95": round(low, 4),
        "ratio_high_95": round(high, 4),
        "tokens_s": round(rate),
        "plain_tokens_s": round(plain_rate),
        "mfu": round(rate * flop_token / peak, 4),
        "plain_mfu": round(plain_rate * flop_token / peak, 4),
        "peak_flop_s": peak,
    }
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:16} {value}")


def median_interval(ordered: list[float]) -> tuple[float, float]:
    """Return order statistics that hold the true median with at least 95 %."""
    count = len(ordered)
    below = 0.0
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if below > 0.025:
            return ordered[max(0, rank - 1)], ordered[count - max(1, rank)]
    return ordered[0], ordered[-1]


def peak_flop_s(device: str) -> float:
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name()
        for known, peak in PEAK_FLOP_S.items():
            if known in name:
                return peak
    edge, kind = (8192, torch.bfloat16) if device.startswith("cuda") else (1024, torch.float32)
    square = torch.randn(edge, edge, device=device).to(kind)
    best_s = math.inf
    for _ in range(5):
        began_s = time.perf_counter()
        float((square @ square)[0, 0])
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * edge**3 / best_s


if __name__ == "__main__":
    main()
