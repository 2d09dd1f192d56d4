"""Drift, and the ceiling of parallelism: does another peer still help?

Two things end it. Peers who each train on their own kind of text for H steps settle somewhere else than where all of
them together want to be (`quadratics.py`, exactly; `tiny.py`, trained). And samples needed grow with the batch of all
together as 1 + B_all / B_crit, so that R peers of B tokens a step are worth

    R (1 + B / B_crit) / (1 + R B / B_crit)   <=   1 + B_crit / B

peers, whatever the network (`cost.batch`). That is exact for a step of the best size along a noisy gradient. It is held
against steps really taken on least squares, where nobody says what the critical batch is: it comes out of the samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.plan.cost.batch import members_for, speed_up, speed_up_max
from atoll.plan.cost.flops import compute_s, six_n_d
from atoll.plan.limits import quadratics, tiny
from atoll.plan.limits.bandwidth import flop_s
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, present, with_value

USEFUL = 0.5
"""Below this part of the peers' work counting, the ceiling is said to bind."""
RATE, PEERS, SIZE = 0.5, 20, 30
"""Of the exact demonstration."""


def number(s: Scenario) -> Any:
    """Return the part of the peers' work that counts."""
    peers = present(s)
    return speed_up(peers, s.work.batch_tokens.value, s.work.critical_batch_tokens.value) / peers


def least_days(s: Scenario) -> Any:
    """Return how long it takes with peers without number, and with no exchange at all."""
    most = speed_up_max(s.work.batch_tokens.value, s.work.critical_batch_tokens.value)
    alone_s = compute_s(six_n_d(s.model.parameters.value, s.model.tokens.value), flop_s(s), 1.0)
    return alone_s / most / 86400


def judge(s: Scenario) -> Judged:
    """Return whether another peer helps, and whether each can train on its own text."""
    found, least = float(number(s)), float(least_days(s))
    steps = s.work.local_steps.value
    apart = not s.data.moves and steps > 1
    verdict: Verdict = "no wall"
    if least > s.goal.deadline_days.value:
        verdict = "wall"
    elif found < USEFUL or apart:
        verdict = "binds"
    batch = s.peers.count.value * s.work.batch_tokens.value
    has = f"{batch:,.0f} tokens a step, critical batch {s.work.critical_batch_tokens.value:,.0f}"
    if verdict == "wall":
        binds = f"{has}: {least:,.0f} days even with peers without number"
    elif apart and found >= USEFUL:
        binds = f"each peer keeps its own text for {steps:,.0f} steps"
    else:
        binds = has
    return Judged(verdict=verdict, number=found, says=f"{found:.0%} of the peers' work counts", binds=binds)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return fewer peers, or text that is dealt out to all."""
    enough = int(members_for(USEFUL, s.work.batch_tokens.value, s.work.critical_batch_tokens.value))
    eased = []
    if enough < s.peers.count.value * s.peers.up_share.value:
        enough = int(enough / s.peers.up_share.value)
        eased.append((f"use {enough:,} peers", with_value(s, "peers.count", float(enough))))
    if not s.data.moves:
        eased.append(("exchange after every step", with_value(s, "work.local_steps", 1.0)))
    return eased


# the run of chance


def step_gain(samples: int, size: int, draws: int, rng: np.random.Generator) -> float:
    """Return the part of the loss that one step gains, at the length that is best over all draws.

    Least squares whose answer lies in the data: a sample is a random row a, its loss (a . e)^2 / 2 for an error e, its
    gradient (a . e) a. Steps along the mean of so many gradients are taken at lengths tried one by one, and what is
    left of |e|^2 is measured. (How noisy such gradients are is nowhere put in: with rows of `size` normal numbers the
    variance of one is size + 1 times its mean squared, which is then the critical batch.)
    """
    along = square = 0.0
    left = draws
    while left:
        now = min(left, max(1, 2_000_000 // (samples * size)))
        gradients = _mean_gradients(now, samples, size, rng)
        along += float(gradients[:, 0].sum())  # the error is one, in the first coordinate
        square += float((gradients**2).sum())
        left -= now
    lengths = np.linspace(0.001, 1.2, 1200)
    return 1 - float((1 - 2 * lengths * along / draws + lengths**2 * square / draws).min())


def _mean_gradients(draws: int, samples: int, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return mean gradients of drawn samples, some samples at a time."""
    total, left = np.zeros((draws, size)), samples
    while left:
        now = min(left, 20000)
        rows = rng.standard_normal((draws, now, size), np.float32)
        total += (rows[:, None, :, 0] @ rows)[:, 0]
        left -= now
    return total / samples


def worth_drawn(peers: float, own: float, rng: np.random.Generator) -> float:
    """Return what a peer among so many is worth, as a part of one alone, by steps really taken.

    `own` is a peer's batch over the critical one. In the toy both are whole samples, so it is met as nearly as those
    allow; a batch of fifty critical ones stands for all larger ones, which gain no more than 2 % beyond it.
    """
    size = int(np.clip(round(1 / own) - 1, 120, 400))
    alone = max(1, round(own * (size + 1)))
    together = max(alone, round(peers * own * (size + 1)))
    seen = (min(alone, 50 * size), min(together, 50 * size))
    gains = [step_gain(many, size, int(np.clip(10_000_000 // (many * size), 8, 20000)), rng) for many in seen]
    return gains[1] / gains[0] * alone / together


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return steps really taken beside the ceiling, and FedAvg really run beside its fixed point."""
    rng = np.random.default_rng(seed)
    own = s.work.batch_tokens.value / s.work.critical_batch_tokens.value
    peers = max(2.0, float(present(s)))
    steps = int(min(max(s.work.local_steps.value, 1), 100))
    bowls = quadratics.bowls(PEERS, SIZE, rng)
    rounds = quadratics.rounds_to(bowls, steps, RATE, 1e-9)
    came = quadratics.train(bowls, steps, RATE, rounds)
    best = quadratics.optimum(bowls)
    return [
        Check(
            what=f"part of the work of {peers:,.0f} peers that counts",
            formula=float(speed_up(peers, own, 1.0)) / peers,
            run=worth_drawn(peers, own, rng),
            within=0.04,
            how="steps along mean gradients of drawn samples, at the best of 1,200 lengths, for one peer and for all",
        ),
        Check(
            what=f"how far from the optimum FedAvg of {steps} local steps settles (quadratics)",
            formula=quadratics.bias(bowls, steps, RATE),
            run=float(np.linalg.norm(came - best) / np.linalg.norm(best)),
            within=1e-6,
            how=f"{PEERS} peers, {SIZE} dimensions, {rounds} rounds really run",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return the ceiling, what local steps cost on quadratics, and what they cost a tiny language model."""
    return [_ceiling(s), _bowls(), _trained()]


def _ceiling(s: Scenario) -> Rows:
    many = (10, 100, 1000, 5000, 20000)
    batch, critical = s.work.batch_tokens.value, s.work.critical_batch_tokens.value
    rows = [
        [f"{scale * critical / 1e6:.3g} M", *(f"{speed_up(peers, batch, scale * critical):,.0f}" for peers in many)]
        for scale in (0.25, 1, 4)
    ]
    title = f"Peers' worth of progress, of peers with {batch:,.0f} tokens a step"
    return Rows(title=title, head=["critical batch", *(f"{peers:,} peers" for peers in many)], rows=rows)


def _bowls() -> Rows:
    """Return the cost of local steps over many draws: one draw alone may be far out."""
    drawn = [quadratics.bowls(PEERS, SIZE, np.random.default_rng(seed)) for seed in range(12)]
    rows = []
    for steps in (1, 5, 20, 100, 500):
        biases = np.quantile([quadratics.bias(each, steps, RATE) for each in drawn], (0.1, 0.5, 0.9))
        lost = np.median([quadratics.gap_lost(each, steps, RATE) for each in drawn])
        rounds = np.median([quadratics.rounds_to(each, steps, RATE) for each in drawn])
        said = f"{biases[1]:.0%} ({biases[0]:.0%} to {biases[2]:.0%})"
        rows.append([str(steps), said, f"{lost:.0%}", f"{rounds:.0f}"])
    head = ["local steps", "settles off the optimum", "of the gain lost", "rounds to a thousandth"]
    return Rows(title=f"FedAvg on {PEERS} quadratics of different curvature, 12 draws", head=head, rows=rows)


def _trained() -> Rows:
    rows = []
    for alpha in (np.inf, 1.0, 0.1):
        cells = []
        for steps in (1, 10, 100):
            place = tiny.world(8, alpha, np.random.default_rng(7))
            rng = np.random.default_rng(8)
            end = tiny.train(place, steps=200, local_steps=steps, rate=10.0, batch=256, rng=rng)
            cells.append(f"{end.above:.3f}")
        rows.append(["all alike" if np.isinf(alpha) else f"{alpha:g}", *cells])
    title = "A tiny language model by FedAvg, 8 peers, 200 steps each: nats a token above the best table"
    return Rows(title=title, head=["Dirichlet alpha", "every step", "every 10", "every 100"], rows=rows)


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return useful peers over peers, with steps really taken beside it."""
    rng = np.random.default_rng(seed)
    batch, critical = s.work.batch_tokens.value, s.work.critical_batch_tokens.value
    many = np.geomspace(1, 20000, 40)
    series = [
        Marks(
            label=f"critical batch {scale * critical / 1e6:.3g} M tokens",
            x=many.tolist(),
            y=np.asarray(speed_up(many, batch, scale * critical)).tolist(),
        )
        for scale in (0.25, 1, 4)
    ]
    few = [1, 10, 100, 1000, 10000]
    worth = [peers * worth_drawn(peers, batch / critical, rng) for peers in few]
    drawn = Marks(label="steps really taken", x=few, y=worth, joined=False)
    all_count = Marks(label="if every peer counted", x=[1, 20000], y=[1, 20000], grey=True)
    here = s.peers.count.value
    mine = Marks(label="this scenario", x=[here], y=[float(speed_up(here, batch, critical))], joined=False)
    return [
        Drawing(
            title="What another peer is worth",
            x="peers",
            y="peers' worth of progress",
            series=[*series, drawn, mine, all_count],
            log_x=True,
            log_y=True,
            caption="Beyond the critical batch more peers only repeat each other; no network changes that.",
        )
    ]


LIMIT = Limit(
    name="drift",
    question="Does another peer still help, and may each train on its own text?",
    inputs=(
        "peers.count",
        "peers.up_share",
        "work.batch_tokens",
        "work.critical_batch_tokens",
        "work.local_steps",
        "model.parameters",
        "model.tokens",
        "peers.devices",
        "peers.device_tflops",
        "peers.mfu",
        "goal.deadline_days",
    ),
    levers=(
        "peers.count",
        "work.batch_tokens",
        "work.critical_batch_tokens",
        "work.local_steps",
        "model.tokens",
        "goal.deadline_days",
    ),
    switches=("data.moves",),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
