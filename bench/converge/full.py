"""Ways of the study at full size: a trial's model and inner steps, with exchanges worked out in place.

    python -m bench.converge.full --shards FOLDER [--ways PATTERN] [--trial NAME] [--steps N --rounds N] [--rate TIMES]

Small models have misled; and a trial can only play what the engine has. This plays the ways of `bench.converge.ways`
one after the other by a trial's own engines, samples and rates, in as many rounds as a way has. What peers set out from
at the end is judged by an eighth of the text that was held out: what is chosen by a look is not chosen by all that a
trial is judged by. Of a way it takes what is exchanged and the outer step; inner numbers are the trial's, its rates so
many times as high as asked. A look may be shorter than the trial, in fewer rounds, and its rate rises and falls in as
much less. It is a look and no trial: nothing goes into the record, and what wins here has yet to win there.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from bench.converge.listed import trial_named
from bench.converge.study import Known, Swarm, known_of
from bench.converge.trial import Trial, run_of
from bench.converge.ways import WAYS, Way
from bench.show import asked_for, ending, parser_of, show
from msgspec import Struct
from msgspec.structs import replace

from atoll.data.samples import open_data
from atoll.model.compute import Step, Vector
from atoll.model.engine import build_engine, pick_device
from atoll.model.shape import parts
from atoll.spec.schedule import rate

THIRTY = "muloco-sign-held-outer1.4-0.3-alike-ahead-firm0.12-m0.95-n8-h68-lr0.02"
"""Thirty rounds of a bit."""
LOOKED = 24
"""Samples by which it is seen what layers are given."""
EIGHTH = 8
"""Of the text that was held out looks are judged by one part of so many."""
SAY_EVERY_S = 30.0


class Seen(Struct, frozen=True, kw_only=True):
    """What a way comes to."""

    way: str
    bits_per_byte: float
    loss: float
    """Of training, in the last round."""
    took_s: float


class Field:
    """Eight engines of a trial, which play one way after the other."""

    def __init__(self, trial: Trial, shards: Path, device: str, steps: int = 0, pace: float = 1.0) -> None:
        self._run = run_of(trial, shards)
        full, schedule = self._run.budget.rounds * trial.every, self._run.recipe.work.schedule
        self._count, self._pace = steps or full, pace
        """Steps of each peer, and what rates are multiplied by."""
        self._schedule = replace(schedule, warmup_steps=max(1, schedule.warmup_steps * self._count // full))
        self._data = open_data(self._run.data, self._run.seeds.data, shards)
        self._device = pick_device(device)
        self._engines = [build_engine(self._run, self._data, device=str(self._device)) for _ in range(trial.peers)]
        self._start, self._fresh = self._engines[0].weights(), self._engines[0].private()
        self._parts = parts(self._engines[0].shapes)

    def play(self, name: str, way: Way) -> Seen:
        """Train by one way and judge what came of it."""
        began_s = said_s = time.monotonic()
        for engine in self._engines:
            engine.restore(self._fresh)
            engine.assign(self._start)
        rows = {key: torch.stack([each] * len(self._engines)) for key, each in self._tensors(self._start).items()}
        swarm = Swarm(way, rows, self._count, lambda: self._look(way.seen))
        loss, since = 0.0, 0
        for step in swarm.ends:
            stints = [self._steps(place, since, step + 1) for place in range(len(self._engines))]
            trained = [engine.train(steps) for engine, steps in zip(self._engines, stints, strict=True)]
            loss, since = sum(each.loss_sum / each.steps for each in trained) / len(trained), step + 1
            self._exchange(swarm, rows, step)
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                print(f"{name}: step {since}, loss {loss:.3f}, {said_s - began_s:.0f} s", file=sys.stderr, flush=True)
        judge = self._engines[0]
        judge.assign(self._vector(swarm.copies, 0))
        total, tokens = judge.evaluate(0, judge.held_out() // EIGHTH)
        bits = self._data.bits_per_byte(total / tokens)
        return Seen(way=name, bits_per_byte=bits, loss=loss, took_s=time.monotonic() - began_s)

    def _exchange(self, swarm: Swarm, rows: dict[str, torch.Tensor], step: int) -> None:
        for place, engine in enumerate(self._engines):
            for key, tensor in self._tensors(engine.weights()).items():
                rows[key][place].copy_(tensor)
        swarm.after(step)
        for place, engine in enumerate(self._engines):
            engine.assign(self._vector(rows, place))

    def _tensors(self, vector: Vector) -> dict[str, torch.Tensor]:
        """Return a vector's tensors, on the device."""
        flat = torch.from_numpy(vector).to(self._device)
        return {key: flat[part].view(self._engines[0].shapes[key]) for key, part in self._parts.items()}

    def _vector(self, rows: dict[str, torch.Tensor], place: int) -> Vector:
        """Return the vector of one peer's rows."""
        vector: Vector = torch.cat([rows[key][place].flatten() for key in self._parts]).cpu().numpy()
        return vector

    def _steps(self, place: int, first: int, end: int) -> list[Step]:
        """Return a peer's steps of a round: its samples lie together, behind those of the peer before it."""
        work, peers = self._run.recipe.work, len(self._engines)
        own = (first * peers + place * (end - first)) * work.batch
        return [
            Step(
                samples=tuple(range(own + at * work.batch, own + (at + 1) * work.batch)),
                rate=self._pace * rate(self._schedule, first + at, (first + at) / self._count),
            )
            for at in range(end - first)
        ]

    def _look(self, damping: float) -> dict[str, Known]:
        engine = self._engines[0]
        return known_of(engine.inputs(list(engine.layout), range(LOOKED)), damping, self._device)


def seen(
    trial: Trial, ways: dict[str, Way], shards: Path, device: str, steps: int = 0, pace: float = 1.0
) -> Iterator[Seen]:
    """Play ways; yield what each comes to."""
    field = Field(trial, shards, device, steps, pace)
    for name, way in ways.items():
        yield field.play(name, way)


def text(row: Seen) -> str:
    return f"{row.way:<26} {row.bits_per_byte:.4f} bits per byte   training {row.loss:.4f}   {row.took_s:.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--ways", default="few-30,few-30-seen*", help="those with such names, in their order")
    parser.add_argument("--trial", default=THIRTY, help="whose model and inner steps they are")
    parser.add_argument("--steps", type=int, default=0, help="of each peer; 0: as many as the trial has")
    parser.add_argument("--rounds", type=int, default=0, help="in which they exchange; 0: as many as the way has")
    parser.add_argument("--rate", type=float, default=1.0, help="what the trial's rates are multiplied by")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    ways = {name: way for name, way in WAYS.items() if asked_for(name, options.ways)}
    if options.rounds:
        ways = {name: dataclasses.replace(way, rounds=options.rounds) for name, way in ways.items()}
    with ending():
        trial = trial_named(options.trial)
        rows = seen(trial, ways, options.shards, options.device, options.steps, options.rate)
        show(rows, text, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
