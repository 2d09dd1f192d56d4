"""Stragglers: what does waiting for the slow cost?

Peers with the same work need lognormal times (spread sigma). A round that waits for the k fastest of R lasts as long as
the k-th smallest time, whose mean is exact by quadrature over its Beta law:

    E[T_(k:R)] = integral over u in (0, 1) of exp(sigma z(Beta^-1(u; k, R - k + 1)))        z: the normal quantile

For the rest: exponential times give H_R = ln R + 0.577 for the slowest of R, Pareto(a) grows as R^(1/a) Gamma(1 - 1/a),
and everybody finishes with the chance (1 - p)^R. Equal work on unequal machines waits for the slowest of them for ever
(slowest / mean); work in proportion to speed does not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, with_value

SLOW, TOO_SLOW = 2.0, 3.0
"""A round may last so many mean times before it is said to bind, and before it is no way to train."""
QUORUM = 0.9
"""What a round waits for at most when strict barriers are given up."""
NODES = 400
SPREAD_MAX = 3.0
"""Times more uneven than this are taken as so: the mean is then one peer's in thousands, and says nothing."""


@lru_cache(maxsize=4096)
def waited(sigma: float, peers: int, among: int) -> float:
    """Return the mean time until so many of the peers are done, in mean times of one."""
    from scipy.special import betaincinv, ndtri

    edges = 1 - (1 - np.arange(NODES + 1) / NODES) ** 3  # finer towards 1, where the slowest live
    middles = 1 - (1 - (np.arange(NODES) + 0.5) / NODES) ** 3
    normal = ndtri(np.clip(betaincinv(among, peers - among + 1, middles), 1e-300, 1 - 1e-16))
    return float((np.exp(sigma * normal - sigma**2 / 2) * np.diff(edges)).sum())


def exponential_slowest(peers: int) -> float:
    """Return the mean of the slowest of so many exponential times, in mean times of one: the harmonic number."""
    return float(np.sum(1 / np.arange(1, peers + 1)))


def pareto_slowest(alpha: float, peers: int) -> float:
    """Return the same of Pareto times, for many peers: it grows as a power of their number."""
    from math import gamma

    return float(peers ** (1 / alpha)) * gamma(1 - 1 / alpha) * (alpha - 1) / alpha


def all_finish(dropout: Any, peers: Any) -> Any:
    """Return the chance that nobody drops out of a round."""
    return (1 - dropout) ** peers


def quorum_of(quorum: float, peers: float) -> int:
    """Return how many a round waits for."""
    return max(1, min(round(peers), int(np.ceil(quorum * round(peers) - 1e-9))))


def deadline(times: NDArray[np.float64], exchange: float) -> tuple[float, float]:
    """Return when to close a round so that most whole contributions come per hour, and what part is lost then."""
    ends = np.sort(times)
    rate = np.arange(1, len(ends) + 1) / (ends + exchange)
    best = int(np.argmax(rate))
    return float(ends[best]), 1 - (best + 1) / len(ends)


def _slowdown(spread: float, peers: float, quorum: float, slowest: float, proportional: bool) -> float:
    alone = round(peers) <= 1
    chance = 1.0 if alone else waited(min(float(spread), SPREAD_MAX), round(peers), quorum_of(quorum, peers))
    return chance / (1.0 if proportional or alone else slowest)


def number(s: Scenario) -> Any:
    """Return how many mean times a round lasts."""
    each = np.vectorize(_slowdown, otypes=[float], excluded=["proportional"])
    return each(
        s.peers.spread.value,
        np.maximum(s.peers.count.value, 1),
        s.work.quorum.value,
        np.maximum(s.peers.slowest.value, 1e-3),
        proportional=s.work.proportional,
    )


def calm_quorum(s: Scenario) -> float:
    """Return what a round would better wait for: fewer than all, and no more than are there, but half of them."""
    peers = max(round(s.peers.count.value), 1)
    there = min(QUORUM, (peers - 1) / peers, 0.95 * (1 - s.peers.dropout.value))
    return float(min(s.work.quorum.value, max(0.5, there)))


def relaxed(s: Scenario) -> Scenario:
    """Return the scenario without strict barriers: a quorum, and work by speed."""
    return with_value(with_value(s, "work.quorum", calm_quorum(s)), "work.proportional", True)


def breaks(s: Scenario) -> bool:
    """Return whether most rounds lack more peers than they can do without."""
    from scipy.special import betainc

    peers = round(max(s.peers.count.value, 1))
    enough = quorum_of(s.work.quorum.value, peers)
    return bool(
        betainc(enough, peers - enough + 1, 1 - s.peers.dropout.value) < 0.5
    )  # at least so many of them are there


def judge(s: Scenario) -> Judged:
    """Return whether rounds end in good time, as the scenario has it and without strict barriers."""
    found = float(number(s))
    verdict: Verdict = "no wall"
    if breaks(s) or found > SLOW:
        calm = relaxed(s)
        verdict = "binds" if number(calm) <= TOO_SLOW and not breaks(calm) else "wall"
    missing = (
        f"{float(all_finish(s.peers.dropout.value, max(s.peers.count.value, 1))):.0%} of rounds see everybody finish"
    )
    unequal = (
        ""
        if s.work.proportional
        else f", equal work waits for machines of {s.peers.slowest.value:.2f} of the mean speed"
    )
    waits = f"waits for {s.work.quorum.value:.0%} of {s.peers.count.value:,.0f} peers; {missing}{unequal}"
    return Judged(verdict=verdict, number=found, says=f"a round lasts {found:.2f} mean times", binds=waits)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a quorum, work by speed, or both."""
    calm = calm_quorum(s)
    return [
        (f"wait for {calm:.0%} of the peers", with_value(s, "work.quorum", calm)),
        ("give slower peers fewer steps", with_value(s, "work.proportional", True)),
        (f"wait for {calm:.0%} of the peers, give slower ones fewer steps", relaxed(s)),
    ]


def run(sigma: float, peers: int, among: int, rounds: int, rng: np.random.Generator) -> float:
    """Return the mean length of rounds whose times are drawn, in mean times of one."""
    total, left = 0.0, rounds
    while left:  # some at a time: a thousand rounds of ten thousand peers fill a memory
        now = min(left, max(1, 2_000_000 // peers))
        times = np.exp(sigma * rng.standard_normal((now, peers)))
        total += float(np.partition(times, among - 1, axis=1)[:, among - 1].sum())
        left -= now
    return total / rounds / float(np.exp(sigma**2 / 2))


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return rounds with drawn times beside the quadrature, and drawn drop-outs beside the power."""
    rng = np.random.default_rng(seed)
    peers, spread = max(2, min(round(s.peers.count.value), 2000)), s.peers.spread.value
    rounds = max(200, min(4000, 2_000_000 // peers))
    among = quorum_of(s.work.quorum.value, peers)
    dropout = s.peers.dropout.value
    whole = float((rng.binomial(peers, dropout, 20000) == 0).mean())
    chance = float(all_finish(dropout, peers))
    return [
        Check(
            what=f"mean length of a round that waits for {wait:,} of {peers:,}",
            formula=waited(spread, peers, wait),
            run=run(spread, peers, wait, rounds, rng),
            within=0.03,
            how=f"{rounds:,} rounds with lognormal times of spread {spread:g}",
        )
        for wait in dict.fromkeys((peers, among))
    ] + [
        Check(
            what="chance that everybody finishes a round",
            formula=chance,
            run=whole,
            within=0.012,
            chance=True,
            how="20,000 rounds with drawn drop-outs",
        )
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return slowdowns by the number of peers and what is waited for, and when to close a round."""
    spread, dropout = s.peers.spread.value, s.peers.dropout.value
    rows = []
    for peers in (10, 100, 1000, 10000):
        waits = [f"{waited(spread, peers, quorum_of(quorum, peers)):.2f}" for quorum in (1.0, 0.95, QUORUM)]
        rows.append([f"{peers:,}", *waits, f"{exponential_slowest(peers):.1f}", f"{all_finish(dropout, peers):.3f}"])
    head = ["peers", "everybody", "95 %", "90 %", "exponential times", "all finish"]
    close, lost = deadline(np.exp(spread * np.random.default_rng(0).standard_normal(20000) - spread**2 / 2), 0.1)
    title = f"Length of a round in mean times, with spread {spread:g}; most work an hour comes from closing it"
    return [Rows(title=f"{title} after {close:.2f}, {lost:.0%} lost", head=head, rows=rows)]


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
    drawn = [run(spread, peers, peers, 300, rng) for peers in few]
    series.append(Marks(label="everybody, drawn", x=few, y=drawn, joined=False))
    return [
        Drawing(
            title="Waiting for the slow",
            x="peers",
            y="length of a round, mean times",
            series=series,
            log_x=True,
            caption="A strict barrier grows with the number of peers; a quorum does not.",
        )
    ]


LIMIT = Limit(
    name="stragglers",
    question="What does waiting for the slow cost?",
    inputs=("peers.count", "peers.spread", "peers.dropout", "peers.slowest", "work.quorum"),
    levers=("peers.count", "work.quorum", "peers.spread", "peers.dropout"),
    switches=("work.proportional",),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
