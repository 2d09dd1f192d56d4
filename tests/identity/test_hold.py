"""What is held back: of Gaia's updates, with nothing insignificant, it is BSP; else what a loop by hand comes to.

So it is where one part of the model is exchanged at a time: only of that part what is held changes.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.sim.faults import Crash, SlowLink
from atoll.spec.axes.codec import Fp16, Fp32, Sign, Significance
from atoll.spec.axes.optimizer import AdamW, Assign, Sgd
from atoll.spec.axes.pace import Block, Delay, Overlap, Shift
from atoll.spec.axes.what import Delta, Forget, Hold
from atoll.spec.axes.when import Fragments, Parts, Tensors
from atoll.spec.recipe import Recipe
from atoll.spec.run import Membership, Run
from atoll.sync.units import units_of
from tests.few import few_of
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    as_it_arrives,
    ddp,
    digest_of,
    diloco,
    engine_of,
    gaia,
    steps_over,
    trained,
    weights_of,
)
from tests.peer.world import lines

RATE, PEERS = 0.1, 2
MOST = Significance(least=0.05)
AHEAD = Delay(steps=1, reconcile=Shift())


def held(codec: Significance = MOST, *, rounds: int = 6, ahead: bool = False, decay: float = 1.0) -> Run:
    what = Delta(codec=codec, residual=Hold(decay=decay), result=Fp32())
    return gaia(what, inner=Sgd(lr=RATE), rounds=rounds, start_with=PEERS, overlap=AHEAD if ahead else None)


def test_with_a_threshold_of_nothing_it_is_bsp() -> None:
    """Everybody's updates are added up: the mean gradient at as many times the rate."""
    whole = weights_of(trained(ddp(outer=Sgd(lr=PEERS * RATE), rounds=3, start_with=PEERS), PEERS))
    assert apart(weights_of(trained(held(Significance(least=0.0), rounds=3), PEERS)), whole) < SAME
    assert apart(weights_of(trained(held(rounds=3), PEERS)), whole) > 100 * SAME, "else it is not"


@pytest.mark.parametrize(("ahead", "decay"), few_of([(False, 1.0), (False, 0.5), (True, 1.0)], ((False, 0.5),)))
def test_it_is_what_a_loop_by_hand_comes_to(ahead: bool, decay: float) -> None:
    rounds = 6
    anchor, apart_by = by_hand(rounds, ahead=ahead, decay=decay)
    assert apart(weights_of(trained(held(rounds=rounds, ahead=ahead, decay=decay), PEERS)), anchor) < SAME
    assert apart_by > 10 * SAME, "peers have weights of their own meanwhile"


@pytest.mark.long
def test_where_nothing_of_it_is_kept_what_is_left_out_is_forgotten() -> None:
    forgets = replace(held(), recipe=_with(held().recipe, Forget()))
    assert digest_of(trained(held(decay=0.0), PEERS)) == digest_of(trained(forgets, PEERS))
    assert digest_of(trained(held(decay=0.5), PEERS)) != digest_of(trained(forgets, PEERS))


def _with(recipe: Recipe, residual: Forget) -> Recipe:
    channel = recipe.channel["outer"]
    return replace(recipe, channel={"outer": replace(channel, what=replace(channel.what, residual=residual))})


def by_hand(rounds: int, *, ahead: bool, decay: float) -> tuple[Vector, float]:
    """Return the anchor, and how far two peers are from each other: each is the anchor but for what it holds.

    Who is ahead takes its step where it was when it last sent something: what came of that is in the next.
    """
    engines = [engine_of(held()) for _ in range(PEERS)]
    anchor = engines[0].weights().astype(np.float64)
    holds = [np.zeros_like(anchor) for _ in engines]
    there = [anchor for _ in engines]
    for round_ in range(1, rounds + 1):
        sent = np.zeros_like(anchor)
        for place, engine in enumerate(engines):
            kept = decay * holds[place]
            engine.assign((there[place] if ahead else anchor - kept).astype(np.float32))
            before = engine.weights().astype(np.float64)
            engine.train(steps_over(((round_ - 1) * PEERS + place) * BATCH, 1))
            wanted = kept + before - engine.weights()
            there[place] = anchor - wanted
            significant = np.abs(wanted) >= np.abs(anchor) * MOST.least / math.sqrt(round_)
            holds[place] = np.where(significant, 0.0, wanted)
            sent += wanted - holds[place]
        anchor = anchor - sent
    return anchor.astype(np.float32), float(np.abs(holds[0] - holds[1]).max())


@pytest.mark.long
def test_nobody_is_more_than_a_round_ahead_of_what_others_found_significant() -> None:
    """With a line that takes seconds: work for round v + 2 begins only where what all sent in round v is in."""
    run = held(rounds=5, ahead=True)
    outcome = trained(run, PEERS, [SlowLink(at_s=0.3, peer=1, for_s=20.0, factor=1000.0)])
    for peer in range(PEERS):
        applied = 0
        for line in lines(outcome, object, peer=peer):
            match line.event:
                case journal.RoundApplied(version=version):
                    applied = version
                case journal.WorkProgressed(version=version):
                    assert version <= applied + 2
                case _:
                    pass
        assert applied == 5


@pytest.mark.long
def test_who_crashes_finds_what_it_held() -> None:
    run = replace(held(), membership=Membership(start_with=PEERS, contributors_min=PEERS))
    calm = trained(run, PEERS)
    at_s = next(line.at_s for line in lines(calm, journal.RoundApplied, peer=1) if line.event.version == 3)  # type: ignore[union-attr]
    crashed = trained(run, PEERS, [Crash(at_s=at_s + 1e-4, peer=1, restart_after_s=0.5)])
    assert digest_of(crashed) == digest_of(calm)


# in parts

COUNT, SPACING = 2, 2
BIT = Delta(codec=Sign(block=64), residual=Hold(), result=Fp16())
STRIDED = Fragments(steps=COUNT * SPACING, count=COUNT)
WHENS: dict[str, Parts] = {
    "strided": STRIDED,
    "by lot": Fragments(steps=COUNT * SPACING, count=COUNT, pattern="drawn"),
    "tensors": Tensors(steps=3 * SPACING, count=3, passes=4.0),
}


def in_parts(when: Parts = STRIDED, what: Delta = BIT, *, rounds: int = 7, overlap: Overlap | None = None) -> Run:
    run = diloco(inner=AdamW(lr=3e-3), outer=Assign(), steps=SPACING, rounds=rounds, start_with=PEERS, what=what)
    channel = replace(run.recipe.channel["outer"], when=when, overlap=overlap or Block())
    membership = Membership(start_with=PEERS, contributors_min=PEERS)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}), membership=membership)


@pytest.mark.parametrize(
    ("name", "late", "decay"),
    few_of(product(("strided", "by lot", "tensors"), (0, 1), (1.0, 0.75)), (("strided", 0, 1.0), ("by lot", 1, 0.75))),
)
def test_part_by_part_it_is_what_a_loop_by_hand_comes_to(name: str, late: int, decay: float) -> None:
    run = in_parts(WHENS[name], replace(BIT, residual=Hold(decay=decay)), overlap=AHEAD if late else None)
    anchor, apart_by = parts_by_hand(run, late, kept=decay)
    assert apart(weights_of(trained(run, PEERS)), anchor) < SAME
    assert apart_by > 100 * SAME, "peers hold something of their own meanwhile"


def parts_by_hand(run: Run, late: int, kept: float) -> tuple[Vector, float]:
    """Return the anchor, and how far apart two peers are in what they hold.

    What comes back of a part takes the place of what a peer had of it, but for what it holds, or of what it had when it
    sent that, which is `late` steps ago; all else stays as its work left it.
    """
    engines = [engine_of(run) for _ in range(PEERS)]
    units = units_of(run.recipe.channel["outer"].when, engines[0].layout, BIT.codec)
    anchor = engines[0].weights()
    holds = [np.zeros_like(anchor) for _ in engines]
    there = [anchor for _ in engines]
    back: list[int] = []
    for round_ in range(run.budget.rounds):
        unit = units[round_ % len(units)].in_pass(round_ // len(units))
        which = unit.take(np.arange(anchor.size, dtype=np.float32)).astype(int).tolist()
        total = np.zeros(len(which), np.float32)
        for place, engine in enumerate(engines):
            samples = steps_over((round_ * PEERS + place) * SPACING * BATCH, SPACING)
            engine.train(samples[:late])
            weights = engine.weights()
            begins = (anchor - np.float32(kept) * holds[place])[back]
            weights[back] = weights[back] + (begins - there[place][back]) if late else begins
            engine.assign(weights)
            engine.train(samples[late:])
            there[place] = engine.weights()
            wanted = (anchor - there[place])[which]
            arrives = as_it_arrives(BIT.codec, wanted)
            holds[place][which] = wanted - arrives
            total += arrives
        anchor = anchor.copy()
        anchor[which] -= (total / np.float32(PEERS)).astype(np.float16).astype(np.float32)
        back = which
    return anchor, float(np.abs(holds[0] - holds[1]).max())


@pytest.mark.parametrize("overlap", [None, pytest.param(AHEAD, marks=pytest.mark.long)])
def test_where_nothing_is_left_out_it_does_not_matter_that_it_would_be_held(overlap: Overlap | None) -> None:
    held, forgotten = (
        in_parts(what=Delta(residual=residual), rounds=5, overlap=overlap) for residual in (Hold(), Forget())
    )
    assert digest_of(trained(held, PEERS)) == digest_of(trained(forgotten, PEERS))


@pytest.mark.parametrize("name", ["strided", pytest.param("by lot", marks=pytest.mark.long)])
def test_who_crashes_between_two_parts_or_while_one_is_exchanged_finds_what_it_held(name: str) -> None:
    run = in_parts(WHENS[name], rounds=5)
    calm = trained(run, PEERS)
    applied = [line.at_s for line in lines(calm, journal.RoundApplied, peer=1)]
    for part in (0.1, 0.9):
        at_s = applied[2] + part * (applied[3] - applied[2])
        crashed = trained(run, PEERS, [Crash(at_s=at_s, peer=1, restart_after_s=0.5)])
        assert digest_of(crashed) == digest_of(calm)
