"""What a setting comes to per step, without a wire: all workers' arithmetic in one process.

Rates, accumulation and H are chosen so: what a step or an exchange takes is known from a few rounds in the lab, and
how many are needed does not depend on the wire. DDP is one worker with everybody's batches, hivemind's local updates
are DiLoCo with an outer rate of 1 and no momentum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.train.setting import Setting, System
from bench.train.task import BATCH, WARMUP_STEPS, Judge, run_of

from atoll.model.compute import Step
from atoll.model.engine import TorchEngine, build_engine
from atoll.spec.load import load_run
from atoll.sync.merge import advance, first_anchor, weighed_mean

LOOKS = 4
"""Updates of DDP between two looks."""


def losses(judge: Judge, setting: Setting, folder: Path, device: str) -> Iterator[tuple[int, float]]:
    """Yield rounds done and the held-out loss after them."""
    rates = setting.rates
    path = folder / "maths.toml"
    path.write_text(run_of("maths", setting.peers, rates, setting.codec))
    run = load_run(path)
    workers = 1 if setting.system is System.DDP else setting.peers
    engines: list[TorchEngine] = [build_engine(run, judge.data, device=device) for _ in range(workers)]
    if setting.system is System.DDP:
        yield from _together(judge, engines[0], setting)
        return
    outer = next(iter(run.recipe.channel.values())).merge.outer
    anchor = first_anchor(outer, engines[0].weights())
    for turn in range(setting.rounds):
        deltas = []
        for index, engine in enumerate(engines):
            engine.assign(anchor.weights)
            engine.train(steps_of(setting, turn, index))
            deltas.append(anchor.weights - engine.weights())
        anchor = advance(outer, anchor, weighed_mean(deltas, [1.0] * workers))
        yield turn + 1, judge.loss(anchor.weights)


def _together(judge: Judge, engine: TorchEngine, setting: Setting) -> Iterator[tuple[int, float]]:
    """Yield what DDP comes to."""
    samples = BATCH * setting.rates.steps * setting.peers
    for number in range(setting.rounds):
        engine.train([Step(samples=tuple(range(number * samples, (number + 1) * samples)), rate=_rate(number))])
        if (number + 1) % LOOKS == 0:
            yield number + 1, judge.loss(engine.weights())


def steps_of(setting: Setting, turn: int, index: int) -> list[Step]:
    """Return a worker's local steps of a round: rounds take samples in order, and are split in order."""
    steps = setting.rates.steps
    first = (turn * setting.peers + index) * steps
    return [
        Step(samples=tuple(range(at * BATCH, (at + 1) * BATCH)), rate=_rate(turn * steps + at - first))
        for at in range(first, first + steps)
    ]


def _rate(step: int) -> float:
    return min(1.0, (step + 1) / WARMUP_STEPS)
