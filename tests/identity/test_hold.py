"""What is held back (Gaia): with nothing insignificant it is BSP; else what a loop by hand comes to, peer by peer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.sim.faults import Crash, SlowLink
from atoll.spec.axes.codec import Fp32, Significance
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import Delay, Shift
from atoll.spec.axes.what import Delta, Hold
from atoll.spec.run import Membership, Run
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    ddp,
    digest_of,
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


def held(codec: Significance = MOST, *, rounds: int = 6, ahead: bool = False) -> Run:
    what = Delta(codec=codec, residual=Hold(), result=Fp32())
    return gaia(what, inner=Sgd(lr=RATE), rounds=rounds, start_with=PEERS, overlap=AHEAD if ahead else None)


def test_with_a_threshold_of_nothing_it_is_bsp() -> None:
    """Everybody's updates are added up: the mean gradient at as many times the rate."""
    whole = weights_of(trained(ddp(outer=Sgd(lr=PEERS * RATE), rounds=3, start_with=PEERS), PEERS))
    assert apart(weights_of(trained(held(Significance(least=0.0), rounds=3), PEERS)), whole) < SAME
    assert apart(weights_of(trained(held(rounds=3), PEERS)), whole) > 100 * SAME, "else it is not"


@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.long)])
def test_it_is_what_a_loop_by_hand_comes_to(ahead: bool) -> None:
    rounds = 6
    anchor, apart_by = by_hand(rounds, ahead=ahead)
    assert apart(weights_of(trained(held(rounds=rounds, ahead=ahead), PEERS)), anchor) < SAME
    assert apart_by > 10 * SAME, "peers have weights of their own meanwhile"


def by_hand(rounds: int, *, ahead: bool) -> tuple[Vector, float]:
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
            engine.assign((there[place] if ahead else anchor - holds[place]).astype(np.float32))
            before = engine.weights().astype(np.float64)
            engine.train(steps_over(((round_ - 1) * PEERS + place) * BATCH, 1))
            wanted = holds[place] + before - engine.weights()
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
