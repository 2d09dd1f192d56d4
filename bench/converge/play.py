"""One trial from its name to its line in the record."""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path

import torch
from bench.converge import plain, world
from bench.converge.record import Done
from bench.converge.trial import How, Trial, run_of
from msgspec.structs import replace

from atoll.data.samples import TokenData, open_data
from atoll.errors import AtollError, LocalError
from atoll.model.compute import Vector
from atoll.model.engine import build_engine, pick_device
from atoll.sim.loop import SimulationFailed
from atoll.spec.run import Run

MICRO = 96
"""Samples that go through the model at once in the plain loop, and in the evaluation."""
POINTS = 16
"""Numbers of a curve."""


def played(trial: Trial, shards: Path, device: str, *, commit: str, jobs: int) -> Done:
    """Train and judge; a training that fails is a result too."""
    began_s = time.monotonic()
    run = run_of(trial, shards)
    data = open_data(run.data, run.seeds.data, shards)
    where = pick_device(device)
    row = Done(
        trial=trial,
        commit=commit,
        data=data.manifest.digest(),
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine(),
        torch=str(torch.__version__),
        took_s=0.0,
        jobs=jobs,
        steps=trial.steps,
        rounds=trial.rounds,
        tokens=trial.steps * run.recipe.work.batch * trial.peers * data.context,
    )
    try:
        weights, losses, moved_bytes = _trained(trial, run, data, where)
        loss, tokens = judged(run, data, where, weights)
        row = replace(
            row,
            loss=loss,
            bits_per_byte=data.bits_per_byte(loss),
            held_out_tokens=tokens,
            parameters=len(weights),
            moved_bytes=moved_bytes,
            rounds=len(losses),
            curve=_curve(losses, trial.steps),
        )
    except (AtollError, SimulationFailed) as error:
        _working(where)
        row = replace(row, failed=str(error)[:300])
    return replace(row, took_s=round(time.monotonic() - began_s, 1))


def _working(device: torch.device) -> None:
    """Raise if the device itself has failed: that says nothing about a trial."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _trained(trial: Trial, run: Run, data: TokenData, device: torch.device) -> world.Played:
    match trial.how:
        case How.PLAIN:
            weights, losses = plain.train(run, data, device, micro=MICRO, compiled=device.type == "cuda")
            return world.Played(weights, losses, 0)
        case How.WORLD:
            return world.play(run, trial.peers, data, str(device))


def judged(run: Run, data: TokenData, device: torch.device, weights: Vector) -> tuple[float, int]:
    """Return the loss of an anchor on all of the held-out text, and the tokens of it."""
    work = replace(run.recipe.work, micro_batch=MICRO)
    judge = build_engine(replace(run, recipe=replace(run.recipe, work=work)), data, device=str(device))
    judge.assign(weights)
    total, tokens = judge.evaluate(0, judge.held_out())
    if not math.isfinite(total):
        raise LocalError("training diverged: the held-out loss is no number", hint="a lower rate may do")
    return total / tokens, tokens


def _curve(losses: list[float], steps: int) -> list[tuple[int, float]]:
    """Return the mean of each of a few equal parts; rounds that grow are taken to be of one length."""
    width = -(-len(losses) // POINTS)
    parts = [losses[at : at + width] for at in range(0, len(losses), width)]
    ends = [min(len(losses), at + width) for at in range(0, len(losses), width)]
    return [
        (end * steps // len(losses), round(sum(part) / len(part), 4)) for end, part in zip(ends, parts, strict=True)
    ]
