"""Models taken in parts, each from whom it comes soonest: what slow lines cost then."""

from __future__ import annotations

from statistics import median

import pytest
from msgspec.structs import replace

from atoll.journal import RoundAnnounced, RoundCommitted
from atoll.sim.check import violations
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.whom import Circles, Segments
from atoll.spec.run import Run
from tests.peer.world import DELAYS_S, counting_run, machines, once, sized

PEERS, SLOW, ROUNDS, SIZE = 10, 2, 8, 60_000
RATE_BYTES_S = 4e5


def run_of(explore: float) -> Run:
    run = counting_run("bacombo", rounds=ROUNDS, start_with=PEERS, checkpoint_every=100)
    channel = run.recipe.channel["outer"]
    whom = Circles(pattern=Segments(count=10, sources=2, explore=explore))
    return replace(run, recipe=replace(run.recipe, channel={"outer": replace(channel, whom=whom)}))


def played(run: Run) -> Outcome:
    """Play it where two lines of ten send at a tenth of the rate of the others; they receive as fast as those."""
    fleet = machines(PEERS, rate_bytes_s=RATE_BYTES_S)
    fleet = [replace(each, up_bytes_s=RATE_BYTES_S / 10) if place < SLOW else each for place, each in enumerate(fleet)]
    outcome = simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, build=sized(SIZE)))
    assert violations(run, outcome) == []
    return outcome


def round_s(outcome: Outcome) -> float:
    """Return what a round takes once lines are measured, the last one, of all, left out."""
    began = {event.version: at_s for at_s, event in once(outcome, RoundAnnounced)}
    ended = {event.version: at_s for at_s, event in once(outcome, RoundCommitted)}
    return median(ended[version] - began[version] for version in range(3, ROUNDS))


@pytest.mark.long
def test_with_a_fifth_of_slow_lines_a_round_takes_half_as_long_as_with_sources_by_lot() -> None:
    chosen, by_lot = (round_s(played(run_of(explore))) for explore in (0.1, 1.0))
    assert chosen <= 0.5 * by_lot
