"""Stragglers: what does waiting for the slow cost?

Peers with the same work need lognormal times (spread sigma), and some drop out. A round that waits for k of R lasts as
long as the k-th smallest time of those who finish, whose mean is exact by quadrature over its Beta law
(`cost.stragglers.expected_quorum`). Rounds that lack more than they can do without are begun again: 1 / P(at least k of
R finish) tries. What comes after the quorum is lost.

Equal work on unequal machines waits for the slowest of them for ever (slowest / mean); work in proportion to speed does
not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct

from atoll.plan.cost import churn
from atoll.plan.cost.stragglers import Lognormal, all_finish, best_deadline, expected_quorum, exponential_max
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, present, with_value

SLOW, TOO_SLOW = 2.0, 3.0
"""A round may last so many mean times before it is said to bind, and before it is no way to train."""
QUORUM = 0.9
"""What a round waits for at most when strict barriers are given up."""
SPREAD_MAX = 3.0
"""Times more uneven than this are taken as so: the mean is then one peer's in thousands, and says nothing."""


FOREVER = 1e9
"""Mean times of a round in which never enough finish."""


@lru_cache(maxsize=8192)
def waited(sigma: float, peers: int, among: int, dropout: float = 0.0, together: int = 1) -> float:
    """Return the mean time until so many are done of all, in mean times of one peer."""
    spread = Lognormal(sigma=min(sigma, SPREAD_MAX))
    return min(FOREVER, expected_quorum(spread, among, peers, together=together, drop_out=dropout))


def quorum_of(quorum: float, peers: float) -> int:
    """Return how many a round waits for."""
    return max(1, min(round(peers), int(np.ceil(quorum * round(peers) - 1e-9))))


class Waits(Struct, frozen=True, kw_only=True):
    """What a round's waiting comes to; elementwise over worlds."""

    lasts: Any
    """In mean times."""
    counts: Any
    """The part of the contributions that the round waits for: the rest comes late and is lost."""
    tries: Any
    """Rounds begun for one that has its quorum."""


def waits(s: Scenario, groups: Any, together: Any = 1) -> Waits:
    """Return what waiting costs among groups of peers who are only done together (stages of one pipeline)."""
    each = np.vectorize(_waits, otypes=[float, float, float])
    lasts, counts, tries = each(
        s.peers.spread.value, np.maximum(groups, 1), s.work.quorum.value, s.peers.dropout.value, together
    )
    equal = 1.0 if s.work.proportional else np.maximum(s.peers.slowest.value, 1e-3)
    alone = np.round(np.maximum(groups, 1)) * together <= 1
    return Waits(lasts=np.where(alone, lasts, lasts / equal), counts=counts, tries=tries)


def _waits(spread: float, groups: float, quorum: float, dropout: float, together: float) -> tuple[float, float, float]:
    """Return the same for one world. Who drops out of a pipeline is replaced: that it stands still is memory's."""
    many, stages = round(groups), round(together)
    if many * stages <= 1:
        return 1.0, 1.0, 1.0
    among, gone = quorum_of(quorum, many), float(dropout) if stages == 1 else 0.0
    lasts = waited(float(spread), many, among, gone, stages)
    return lasts, among / many, float(churn.tries_until_quorum(1 - gone, many, among))


def number(s: Scenario) -> Any:
    """Return how many mean times a round lasts."""
    return waits(s, present(s)).lasts


def calm_quorum(s: Scenario) -> float:
    """Return what a round would better wait for: fewer than all, and no more than are there, but half of them."""
    peers = round(float(present(s)))
    there = min(QUORUM, (peers - 1) / peers, 0.95 * (1 - s.peers.dropout.value))
    return float(min(s.work.quorum.value, max(0.5, there)))


def relaxed(s: Scenario) -> Scenario:
    """Return the scenario without strict barriers: a quorum, and work by speed."""
    return with_value(with_value(s, "work.quorum", calm_quorum(s)), "work.proportional", True)


def breaks(s: Scenario) -> bool:
    """Return whether most rounds lack more peers than they can do without."""
    return bool(waits(s, present(s)).tries > 2)


def judge(s: Scenario) -> Judged:
    """Return whether rounds end in good time, as the scenario has it and without strict barriers."""
    found = float(number(s))
    verdict: Verdict = "no wall"
    if breaks(s) or found > SLOW:
        calm = relaxed(s)
        verdict = "binds" if number(calm) <= TOO_SLOW and not breaks(calm) else "wall"
    missing = f"{1 / float(waits(s, present(s)).tries):.0%} of rounds have enough who finish"
    unequal = (
        ""
        if s.work.proportional
        else f", equal work waits for machines of {s.peers.slowest.value:.2f} of the mean speed"
    )
    peers = round(float(present(s)))
    binds = f"waits for {quorum_of(s.work.quorum.value, peers):,} of {peers:,} who are there; {missing}{unequal}"
    says = f"a round lasts {found:.2f} mean times" if found < FOREVER else "a round never ends"
    return Judged(verdict=verdict, number=found, says=says, binds=binds)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a quorum, work by speed, or both."""
    calm = calm_quorum(s)
    return [
        (f"wait for {calm:.0%} of the peers", with_value(s, "work.quorum", calm)),
        ("give slower peers fewer steps", with_value(s, "work.proportional", True)),
        (f"wait for {calm:.0%} of the peers, give slower ones fewer steps", relaxed(s)),
    ]


# the run of chance


class Played(Struct, frozen=True, kw_only=True):
    """Rounds with drawn times and drawn drop-outs."""

    lasts: float
    """The mean of those that had their quorum, in mean times of one peer."""
    whole: float
    """The part of the rounds in which enough finished."""


def run(sigma: float, peers: int, among: int, rounds: int, rng: np.random.Generator, *, dropout: float = 0.0) -> Played:
    """Return what becomes of rounds in which every peer draws its time, or is gone."""
    total, whole, left = 0.0, 0, rounds
    while left:  # some at a time: a thousand rounds of ten thousand peers fill a memory
        now = min(left, max(1, 2_000_000 // peers))
        times = np.exp(sigma * rng.standard_normal((now, peers)))
        times[rng.random((now, peers)) < dropout] = np.inf
        ends = np.partition(times, among - 1, axis=1)[:, among - 1]
        total += float(ends[np.isfinite(ends)].sum())
        whole += int(np.isfinite(ends).sum())
        left -= now
    return Played(lasts=total / max(whole, 1) / float(np.exp(sigma**2 / 2)), whole=whole / rounds)


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return rounds with drawn times and drop-outs beside the quadrature and the tries."""
    rng = np.random.default_rng(seed)
    peers, spread, dropout = max(2, min(round(float(present(s))), 2000)), s.peers.spread.value, s.peers.dropout.value
    rounds = max(200, min(20000, 2_000_000 // peers))
    among = quorum_of(s.work.quorum.value, peers)
    own, barrier = run(spread, peers, among, rounds, rng, dropout=dropout), run(spread, peers, peers, rounds, rng)
    spelled = f"{rounds:,} rounds with lognormal times of spread {spread:g}"
    return [
        Check(
            what=f"mean length of a round that waits for {among:,} of {peers:,}, {dropout:.1%} dropping out",
            formula=waited(spread, peers, among, dropout),
            run=own.lasts,
            within=0.03,
            how=f"{spelled}, drop-outs drawn",
        ),
        Check(
            what=f"mean length of a round that waits for all of {peers:,}, nobody dropping out",
            formula=waited(spread, peers, peers),
            run=barrier.lasts,
            within=0.03,
            how=spelled,
        ),
        Check(
            what=f"chance that {among:,} of {peers:,} finish a round",
            formula=1 / float(churn.tries_until_quorum(1 - dropout, peers, among)),
            run=own.whole,
            within=0.012,
            chance=True,
            how=f"{rounds:,} rounds with drawn drop-outs",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return slowdowns by the number of peers and what is waited for, and when to close a round."""
    spread, dropout = s.peers.spread.value, s.peers.dropout.value
    rows = []
    for peers in (10, 100, 1000, 10000):
        waits_ = [f"{waited(spread, peers, quorum_of(quorum, peers)):.2f}" for quorum in (1.0, 0.95, QUORUM)]
        rows.append([f"{peers:,}", *waits_, f"{exponential_max(peers):.1f}", f"{all_finish(dropout, peers):.3f}"])
    head = ["peers", "everybody", "95 %", "90 %", "exponential times", "all finish"]
    times = np.exp(spread * np.random.default_rng(0).standard_normal(20000) - spread**2 / 2)
    close, _ = best_deadline(times.tolist(), 0.1, partial=False)
    title = f"Length of a round in mean times, with spread {spread:g}, nobody dropping out; most work an hour comes"
    lost = float((times > close).mean())
    return [Rows(title=f"{title} from closing it after {close:.2f}, {lost:.0%} lost", head=head, rows=rows)]


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the length of a round over the number of peers, with drawn rounds beside it."""
    rng = np.random.default_rng(seed)
    many = [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
    spread = s.peers.spread.value
    series = []
    for label, quorum in (("everybody", 1.0), ("95 % of them", 0.95), ("90 % of them", QUORUM)):
        ys = [waited(spread, peers, quorum_of(quorum, peers)) for peers in many]
        series.append(Marks(label=label, x=many, y=ys))
    few = [10, 100, 1000]
    drawn = [run(spread, peers, peers, 300, rng).lasts for peers in few]
    series.append(Marks(label="everybody, drawn", x=few, y=drawn, joined=False))
    return [
        Drawing(
            title="Waiting for the slow",
            x="peers",
            y="length of a round, mean times",
            series=series,
            log_x=True,
            caption="A strict barrier grows with the number of peers; a quorum does not. Nobody drops out here.",
        )
    ]


LIMIT = Limit(
    name="stragglers",
    question="What does waiting for the slow cost?",
    inputs=("peers.count", "peers.up_share", "peers.spread", "peers.dropout", "peers.slowest", "work.quorum"),
    levers=("peers.count", "work.quorum", "peers.spread", "peers.dropout"),
    switches=("work.proportional",),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
