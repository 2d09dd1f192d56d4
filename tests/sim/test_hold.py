"""Storms over runs that exchange parts of the model and hold what codecs leave out; and that a wrong hold is found.

Where everybody waits for results, and codecs take each value by itself, anchors are judged to the bit: who forgot what
it held, or took it back with work that counts, would show. In the other forms all must agree.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.peer.private import opened
from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import MARKS, UNIT
from atoll.sim.faults import Crash, Fault, Leave, Partition
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.parts import PartByPart, told
from atoll.sim.scenario import Outcome
from atoll.sim.skies import case_of, family_of
from atoll.spec.axes.codec import Bf16, E3m0, Fp16, Fp32, Sign, TurnedSign
from atoll.spec.axes.pace import Block, Delay, Overlap, Quorum, Seconds, Shift
from atoll.spec.axes.what import Delta, Feedback, Hold
from atoll.spec.axes.when import Fragments, Parts, Tensors
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import assert_sound, counting_run, events, log_of
from tests.peer.world import play as played
from tests.sim.test_check import rewrite
from tests.sim.under import broken_under, read_back, run_under

PARTS = 3
WHENS: tuple[Parts, ...] = (
    Fragments(steps=PARTS * STEPS, count=PARTS),
    Fragments(steps=PARTS * STEPS, count=PARTS, pattern="drawn"),
    Tensors(steps=PARTS * STEPS, count=PARTS, passes=PARTS / 2),
)
WHATS: tuple[Delta, ...] = (
    Delta(codec=Bf16(), residual=Hold()),
    Delta(codec=Fp16(), residual=Hold(), result=Fp32()),
    Delta(codec=Bf16(), residual=Hold(decay=0.7)),
    Delta(codec=Sign(block=64), residual=Hold(), result=Fp16()),
    Delta(codec=E3m0(), residual=Hold()),
)
"""The first three are judged to the bit."""
BITS: tuple[Delta, ...] = tuple(
    Delta(codec=codec, residual=Hold(), owners=Feedback()) for codec in (Sign(block=64), TurnedSign(block=64))
)
"""As the shipped recipe has it, and in bases that chunks draw; not of elements by lot."""
LATE: tuple[Overlap, ...] = (Block(), Block(), Block(), Delay(steps=1, reconcile=Shift()))
NAMES = ("fragments", "by lot", "tensors")
SEEDS = range(800, 1160)
QUICK = (816, 829)
PEERS, ROUNDS = 3, 9


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all forms in all parts, waiting for results and others or not."""
    shipped = load_recipe("held-bit")
    when, what = WHENS[seed % len(WHENS)], WHATS[seed // 3 % len(WHATS)]
    if seed % 10 >= 8 and when != WHENS[1]:
        what = BITS[9 - seed % 10]
    channel = replace(shipped.channel["outer"], when=when, what=what, overlap=LATE[seed // 12 % 4])
    if seed % 5 == 4:
        channel = replace(channel, barrier=Quorum(contributors=2, grace=Seconds(s=0.5)))
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe_of(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written_and_many_are_judged_to_the_bit() -> None:
    runs = [run_under(recipe_of(seed), seed) for seed in SEEDS[::5]]
    assert [read_back(run) for run in runs] == runs
    assert sum(told(run.recipe.channel["outer"]) for run in runs) > len(runs) / 4


def test_storms_are_drawn_over_such_runs() -> None:
    drawn = [case_of(family_of(seed), seed).run for seed in range(400)]
    holding = [run for run in drawn for c in run.recipe.channel.values() if isinstance(c.what.residual, Hold)]
    assert len(holding) >= 5
    assert [read_back(run) for run in holding] == holding


def waiting(when: Parts = WHENS[0], what: Delta = WHATS[0]) -> Run:
    """Return a calm run in which everybody waits for everybody, of a codec that leaves something out of all values."""
    run = counting_run("held-bit", rounds=ROUNDS, start_with=PEERS, contributors_min=PEERS, patience_s_max=60.0)
    channel = replace(run.recipe.channel["outer"], when=when, what=what)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def worked_out(run: Run, outcome: Outcome) -> PartByPart:
    """Return what log and journals say that everybody held, and what anchors were."""
    size = len(anchor_from_bytes(outcome.hosts[1].disk.files()[_last("checkpoint")], "").weights)
    return PartByPart(run, size, log_of(outcome), outcome.lines, math.inf, {})


def _last(kind: str) -> str:
    return f"{kind}/{ROUNDS}.safetensors"


TROUBLES: dict[str, list[Fault]] = {
    "none": [],
    "crashed early in a round": [Crash(at_s=3.05, peer=2, restart_after_s=0.5)],
    "crashed late in a round": [Crash(at_s=3.6, peer=2, restart_after_s=0.5)],
    "the organiser crashed": [Crash(at_s=3.3, peer=0, restart_after_s=0.5)],
    "left": [Leave(at_s=3.3, peer=2, restart_after_s=0.5)],
    "cut off": [Partition(at_s=3.0, side=(2,), for_s=3.0)],
}


@pytest.mark.parametrize(
    "when", [WHENS[0], *(pytest.param(each, marks=pytest.mark.long) for each in WHENS[1:])], ids=NAMES
)
@pytest.mark.parametrize("what", [WHATS[0], WHATS[2]], ids=["all", "a part"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_goes_down_between_two_parts_everybody_holds_what_its_work_that_counts_left_out(
    trouble: str, when: Parts, what: Delta
) -> None:
    run = waiting(when, what)
    outcome = played(run, PEERS, faults=TROUBLES[trouble])
    assert_sound(run, outcome, version=ROUNDS)
    assert not events(outcome, journal.ResidualLost)
    found = worked_out(run, outcome)
    assert max(found.anchors) == ROUNDS
    for host in outcome.hosts:
        _, vectors = opened(host.disk.files()[_last("private")])
        gap = vectors["residual"] - found.held[bytes(host.peer)]
        gap[MARKS] = 0.0
        assert not gap.any()
        assert np.count_nonzero(vectors["residual"]) > gap.size / 4


def test_what_does_not_follow_is_found() -> None:
    run = waiting()
    outcome = played(run, PEERS)
    assert violations(run, outcome) == []
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[_last("checkpoint")], "")
    anchor.weights[5] += UNIT
    rewrite(outcome, 1, _last("checkpoint"), anchor_to_bytes(anchor))
    (said,) = violations(run, outcome)
    assert "away from what the log adds up to" in said
