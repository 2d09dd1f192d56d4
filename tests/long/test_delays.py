"""Delay and compression with real losses in virtual time: what a policy chose beside a grid of settings that stay.

Four machines train the smallest model on lines on which a gradient takes three times as long as a step. A play takes
minutes; each is made once. `-s` prints the figures.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.cli.machine import Machine as Here
from atoll.cli.machine import build_torch, pinned
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.codec import CacheLines, Codec, Fp32, TopK
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.pace import Block, RoundsLate
from atoll.spec.axes.what import Feedback, Forget
from atoll.spec.axes.whom import All, AllGather
from atoll.spec.fleet import Device, Machine
from atoll.spec.load import load_run
from atoll.spec.run import Run

pytestmark = pytest.mark.long

TINY = Path(__file__).parents[2] / "docs" / "examples" / "tiny.toml"
HERE = Here(device="cpu", threads=1)
PEERS, ROUNDS = 4, 80
LINE_BYTES_S, DELAY_S = 3e5, 0.05
LOSS = 6.0
FORMS: dict[int, Codec | None] = {1: None, 10: TopK(keep=410), 50: TopK(keep=82)}
"""One of so many values is sent."""


def run_of(*, rounds: int = ROUNDS, peers: int = PEERS, policy: bool = False) -> Run:
    """Return a run of delayed, compressed gradients, whose policy may be off."""
    changes = ["recipe.base=deco", "recipe.channel.outer.when.steps=1", "recipe.channel.outer.merge.outer.lr=0.5"]
    changes += [f"budget.rounds={rounds}", "recipe.work.batch=4", f"membership.start_with={peers}"]
    changes += ["upkeep.evaluate_every=5", "upkeep.evaluate_samples=32", "upkeep.checkpoint_every=50"]
    run = load_run(TINY, overrides=changes)
    return run if policy else replace(run, recipe=replace(run.recipe, control=Nobody()))


def fixed(run: Run, late: int, codec: Codec | None, *, keeps: bool = True) -> Run:
    """Return a run whose results are so many rounds late, and its contributions in a form."""
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(channel, overlap=RoundsLate(rounds=late) if late else Block())
    if codec is not None:
        residual = Feedback() if keeps else Forget()
        what = replace(channel.what, codec=codec, result=Fp32(), residual=residual)
        channel = replace(channel, what=what, whom=All(route=AllGather()))
    return replace(run, recipe=replace(run.recipe, channel={name: channel}))


def play(run: Run, line_bytes_s: float = LINE_BYTES_S) -> Outcome:
    machine = Machine(
        name="desk",
        region="here",
        device=Device(flop_s=1e9),
        up_bytes_s=line_bytes_s,
        down_bytes_s=line_bytes_s,
        disk_bytes=10**12,
    )
    return simulate(
        Scenario(
            run=pinned(run, HERE),
            machines=[machine] * run.membership.start_with,
            delays_s={("here", "here"): DELAY_S},
            seed=1,
            build=lambda run: build_torch(run, HERE),
        )
    )


def losses(outcome: Outcome) -> list[tuple[float, int, float]]:
    """Return when each version was looked at, and what its loss was."""
    seen = [(line.at_s, line.event) for line in outcome.lines if isinstance(line.event, journal.Evaluated)]
    told = [(at_s, event.version, event.loss) for at_s, event in seen if event.loss is not None]
    return told[:-1]  # the last is over other samples


@cache
def settled(late: int, one_of: int) -> list[tuple[float, int, float]]:
    found = losses(play(fixed(run_of(), late, FORMS[one_of])))
    print(late, one_of, [(round(at_s, 1), version, round(loss, 3)) for at_s, version, loss in found])
    return found


def time_to_s(seen: list[tuple[float, int, float]], loss: float = LOSS) -> float:
    """Return when a loss was reached, in a straight line between two looks."""
    for (before_s, _, before), (after_s, _, after) in pairwise(seen):
        if after <= loss:
            return before_s + (after_s - before_s) * (before - loss) / (before - after)
    return float("inf")


def test_the_policy_chooses_the_best_of_a_grid() -> None:
    grid = {(late, one_of): time_to_s(settled(late, one_of)) for late in (0, 1, 2) for one_of in FORMS}
    best = min(grid, key=lambda pair: grid[pair])
    outcome = play(run_of(policy=True))
    turned = {line.event.version: line.event for line in outcome.lines if isinstance(line.event, journal.KnobsTurned)}
    last = turned[max(turned)]
    chosen = (last.delay, {0: 1, 2: 10, 4: 50}.get(last.rung))
    print(grid, turned, time_to_s(losses(outcome)))
    assert chosen == best
    found_out = next(at_s for at_s, version, _ in losses(outcome) if version == 10)
    spent_s = found_out - next(at_s for at_s, version, _ in settled(*best) if version == 10)
    assert time_to_s(losses(outcome)) - spent_s <= 1.05 * grid[best], "but for what it took to find out"


def test_lateness_amplifies_what_compression_does() -> None:
    last = {(late, one_of): settled(late, one_of)[-1][2] for late in (1, 8) for one_of in (1, 50)}
    print(last)
    near, far = last[1, 50] - last[1, 1], last[8, 50] - last[8, 1]
    assert far > 5 * near


def test_a_hundredth_of_the_cache_lines_is_behind_in_so_few_steps_with_feedback_and_without() -> None:
    """The threshold rises slower than what is left out grows, so at first it is the same lines again and again."""
    lines, exactly = CacheLines(keep=0.01), CacheLines(keep=0.01, remember=False)
    forms = {"all": (None, True), "kept": (lines, True), "lost": (lines, False), "exact": (exactly, True)}
    last = {}
    for name, (codec, keeps) in forms.items():
        run = fixed(run_of(rounds=160, peers=2), 0, codec, keeps=keeps)
        last[name] = losses(play(run, line_bytes_s=1e7))[-1][2]
    print(last)
    assert 0.02 * last["all"] < last["lost"] - last["all"] < 0.1 * last["all"]
    assert 0.02 * last["all"] < last["kept"] - last["all"] < 0.12 * last["all"]
    assert last["exact"] < min(last["kept"], last["lost"]) - 0.1
