"""Contributions that miss their rounds at random: what that costs the loss, with small models really trained."""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.faults import Pause
from atoll.sim.scenario import Outcome, World
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.work import Constant, Cosine
from atoll.spec.run import Budget, Run
from tests.identity.small import diloco, engine_of
from tests.peer.world import events, once, play

pytestmark = pytest.mark.long

PEERS, STEPS, ROUNDS, UNTIL_S = 4, 10, 30, 60.0
COSINE, CONSTANT = Cosine(warmup_steps=20), Constant()
"""As the recipe has it, and without an end that calms down."""


class Draw(NamedTuple):
    """How long peers sleep at a time and are there between, on average; a round takes 0.15 s, and waits for 0.2."""

    away_s: float
    there_s: float
    seed: int
    """Of naps, model and data."""


SHORT, LONG = (0.3, 0.5), (1.35, 1.5)
"""Away for a round or two at a time, and for ten."""
DRAWS = [*(Draw(*SHORT, seed) for seed in (2, 3, 5, 6)), *(Draw(*LONG, seed) for seed in (0, 2, 3))]
"""Those of seven seeds each by which a fifth to two fifths are lost."""


def run_of(budget: Budget, seed: int, schedule: Constant | Cosine) -> Run:
    run = diloco(
        inner=AdamW(lr=3e-3),
        outer=Sgd(lr=0.7, momentum=0.9, nesterov=True),
        steps=STEPS,
        rounds=ROUNDS,
        start_with=PEERS,
        schedule=schedule,
    )
    upkeep = replace(run.upkeep, patience_s_max=0.2, checkpoint_every=100)
    return replace(run, budget=budget, upkeep=upkeep, seeds=replace(run.seeds, model=seed, data=seed))


def naps(draw: Draw) -> list[Pause]:
    """Return when everybody but the broker sleeps."""
    chance, found = np.random.default_rng(draw.seed), list[Pause]()
    for peer in range(1, PEERS):
        at_s = 0.4
        while at_s < UNTIL_S:
            at_s += float(chance.exponential(draw.there_s))
            found.append(Pause(at_s=at_s, peer=peer, for_s=draw.away_s))
            at_s += draw.away_s
    return found


def tokens(outcome: Outcome) -> int:
    return sum(event.tokens for _, event in once(outcome, journal.RoundCommitted))


def lost(outcome: Outcome) -> float:
    """Return which part of contributions missed their rounds."""
    counts = [len(event.contributors) for _, event in once(outcome, journal.RoundCommitted)]
    return 1 - mean(counts) / PEERS


def loss(outcome: Outcome) -> float:
    last = events(outcome, journal.Evaluated)[-1].loss
    assert last is not None
    return last


def is_over(world: World) -> bool:
    """Return whether the organiser has left: who slept then has nobody to ask for the last rounds."""
    return not world.hosts[0].alive


@cache
def calm(seed: int, schedule: Constant | Cosine) -> Outcome:
    return play(run_of(Budget(rounds=ROUNDS), seed, schedule), PEERS, build=engine_of)


def with_naps(draw: Draw, budget: Budget, schedule: Constant | Cosine) -> Outcome:
    run = run_of(budget, draw.seed, schedule)
    return play(run, PEERS, build=engine_of, faults=naps(draw), enough=is_over)


def worse(lossy: Outcome, draw: Draw, schedule: Constant | Cosine) -> float:
    """Return by which part the loss is higher than without naps; with `-s` that is said."""
    found = loss(lossy) / loss(calm(draw.seed, schedule)) - 1
    rounds = len(once(lossy, journal.RoundCommitted))
    print(f"\n{draw}, {type(schedule).__name__}: {lost(lossy):.0%} lost in {rounds} rounds, loss {found:+.1%}")
    return found


@pytest.mark.parametrize("draw", DRAWS)
def test_a_third_of_contributions_lost_at_random_costs_less_than_three_percent_of_the_loss(draw: Draw) -> None:
    """On as many tokens: what misses a round goes back, and is worked on again from a newer anchor."""
    as_many = tokens(calm(draw.seed, COSINE))
    lossy = with_naps(draw, Budget(tokens=as_many), COSINE)
    assert 0.2 < lost(lossy) <= 0.4
    assert tokens(lossy) == pytest.approx(as_many, rel=0.05)
    assert worse(lossy, draw, COSINE) < 0.03


@pytest.mark.parametrize("when", [SHORT, LONG])
def test_likewise_in_as_many_rounds_with_fewer_tokens_on_average(when: tuple[float, float]) -> None:
    draws = [Draw(*when, seed) for seed in range(6)]
    played = [with_naps(draw, Budget(rounds=ROUNDS), COSINE) for draw in draws]
    assert 0.2 < mean(map(lost, played)) <= 0.4
    assert mean(worse(*each, COSINE) for each in zip(played, draws, strict=True)) < 0.03


@pytest.mark.xfail(strict=True, reason="9 to 15 % worse: the last rounds have few contributors, and nothing calms")
def test_likewise_where_the_rate_stays_the_same_to_the_end() -> None:
    found = []
    for draw in (Draw(*SHORT, 2), Draw(*SHORT, 6), Draw(*LONG, 2)):
        lossy = with_naps(draw, Budget(tokens=tokens(calm(draw.seed, CONSTANT))), CONSTANT)
        found.append(worse(lossy, draw, CONSTANT))
    assert max(found) < 0.03
