"""The envelope of rules about updates: what passes them, and what that can do.

    hidden    g + p with p across g passes a rule on length (k times) and cosine (at least c) while
              |p| / |g| <= min(sqrt(k^2 - 1), sqrt(1 / c^2 - 1))
    signal    liars of full length leave  (1 - f) - f / c_h  of it, c_h the cosine of an honest update with it;
              nothing is left from  f = c_h / (1 + c_h)  on
    caught    k cheats under checks of a part q: 1 - (1 - q)^k; a stake deters from (1 - q) / q gains on
    trees     medians of medians, depth d, fan-in w: (ceil(w / 2) / w)^d of the leaves suffice, towards 1 / 2^d

Rules filter accidents. Against those who know them only work that is done again, and names that cost something, help.
"""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import Any

import numpy as np

from atoll.plan.limits import backdoor, robust
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, with_value


def hidden_part(norm_max: Any, cosine_min: Any) -> Any:
    """Return the longest hidden component that passes, in lengths of an honest update."""
    by_norm = np.sqrt(np.maximum(np.asarray(norm_max, float) ** 2 - 1, 0))
    return np.minimum(by_norm, np.sqrt(1 / np.maximum(cosine_min, 1e-9) ** 2 - 1))


def signal_left(attackers: Any, honest_cosine: Any) -> Any:
    """Return which part of the common signal is left in a mean of clipped updates; below 0 it points backwards."""
    return (1 - attackers) - attackers / np.maximum(honest_cosine, 1e-9)


def attackers_max(honest_cosine: Any) -> Any:
    """Return the part of liars from which on nothing is left."""
    return honest_cosine / (1 + honest_cosine)


def stake_needed(checked: Any) -> Any:
    """Return the stake, in gains of one cheat, from which on cheating does not pay."""
    return (1 - checked) / np.maximum(checked, 1e-9)


def caught(checked: Any, cheats: Any) -> Any:
    """Return the chance that somebody who cheats so often is found out."""
    return 1 - (1 - checked) ** cheats


def cheats_to(chance: float, checked: float) -> int:
    """Return after how many cheats the chance to be found out is so high."""
    return int(np.ceil(np.log(1 - chance) / np.log(1 - checked)))


def leaves_needed(depth: int, fan_in: int, trimmed: float | None = None) -> float:
    """Return the part of the leaves that turn over a tree of medians, or of means trimmed by so much on each side."""
    enough = -(-fan_in // 2) if trimmed is None else min(ceil(trimmed * fan_in), (fan_in - 1) // 2) + 1
    return (enough / fan_in) ** depth


def unseen_radius(loss_noise: float, curvature: float, samples: int, z: float = 2.0) -> float:
    """Return how far weights may be moved across the valley before a held-out loss of so many samples shows it."""
    return float(np.sqrt(2 * z * loss_noise / np.sqrt(samples) / curvature))


def displaced(rate: float, rounds: float, attackers: float, hidden: float) -> float:
    """Return how far hidden parts carry a model in so many rounds, in lengths of an honest update."""
    return rate * rounds * attackers * hidden


def number(s: Scenario) -> Any:
    """Return which part of the signal is left when the attackers do their worst."""
    return signal_left(s.trust.attackers.value, s.trust.honest_cosine.value)


def deters(s: Scenario) -> bool:
    """Return whether cheating costs more than it brings."""
    return bool(s.trust.checked.value > 0 and s.trust.stake_gains.value >= stake_needed(s.trust.checked.value))


def judge(s: Scenario) -> Judged:
    """Return whether rules are enough, checks are needed, or nothing helps."""
    left, share = float(number(s)), s.trust.attackers.value
    verdict: Verdict = "no wall"
    if left <= 0:
        verdict = "wall"
    elif share > 0 and not deters(s):
        verdict = "binds"
    hidden = float(hidden_part(s.trust.norm_max.value, s.trust.cosine_min.value))
    passes = f"rules let through {hidden:.1f} times an honest update"
    if share == 0:
        binds = f"peers are {s.trust.peers}; {passes}, were one to lie"
    elif verdict == "wall":
        binds = (
            f"{share:.0%} attackers, nothing is left from {float(attackers_max(s.trust.honest_cosine.value)):.0%} on"
        )
    else:
        stake = "unbounded" if not s.trust.checked.value else f"{float(stake_needed(s.trust.checked.value)):.1f} gains"
        has = f"{s.trust.stake_gains.value:g} gains at stake"
        binds = f"{passes}; {has}, {stake} needed at {s.trust.checked.value:.0%} checked"
    return Judged(
        verdict=verdict,
        number=left,
        says=f"{max(left, 0):.0%} of the signal left at {share:.0%} attackers",
        binds=binds,
    )


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return checks with a stake, or peers who know each other."""
    checked = max(0.1, s.trust.checked.value)
    stake = float(np.ceil(stake_needed(checked) - 1e-9))
    staked = with_value(with_value(s, "trust.checked", checked), "trust.stake_gains", stake)
    recomputed = with_value(staked, "work.redundancy", max(s.work.redundancy.value, 1 + checked))
    known = with_value(with_value(s, "trust.attackers", 0.0), "trust.peers", "known")
    said = f"do {checked:.0%} of the work again, stakes of {stake:g} gains"
    return [(said, recomputed), ("train with peers who know each other", known)]


# the run of chance


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return rules really asked, liars really added, cheats really drawn."""
    rng = np.random.default_rng(seed)
    norm_max, cosine_min = s.trust.norm_max.value, s.trust.cosine_min.value
    checked = s.trust.checked.value or 0.1
    cosine, share = s.trust.honest_cosine.value, s.trust.attackers.value or 0.05
    free = float(rng.geometric(checked, 40000).mean() - 1)
    return [
        Check(
            what="longest hidden component that passes",
            formula=float(hidden_part(norm_max, cosine_min)),
            run=robust.hidden_found(norm_max, cosine_min, rng),
            within=1e-6,
            how="rules asked about an update with more and more of it",
        ),
        Check(
            what=f"part of the signal that {share:.0%} liars leave",
            formula=float(signal_left(share, cosine)),
            run=robust.crowd(cosine, 400, rng).left(round(400 * share)),
            within=0.02,
            chance=True,
            how="400 drawn updates, the engine's clipped mean of them",
        ),
        Check(
            what="part of liars that turns the mean of clipped updates around",
            formula=float(attackers_max(cosine)),
            run=robust.turned_at(cosine, rng),
            within=0.08,
            how="400 drawn updates, more and more of them lies, the engine's clipped mean of them",
        ),
        Check(
            what=f"cheats that go through before one is found out, {checked:.0%} checked",
            formula=float(stake_needed(checked)),
            run=free,
            within=0.04,
            how="40,000 cheaters drawn",
        ),
        Check(
            what="distance at which a held-out loss shows moved weights every other time",
            formula=unseen_radius(2.0, 1.0, 1000),
            run=robust.unseen_found(2.0, 1.0, 1000, rng),
            within=0.03,
            how="2,000 looks at a thousand drawn losses, weights moved farther and farther",
        ),
        Check(
            what="part of the leaves that turns a tree of medians over, depth 3, fan-in 9",
            formula=float(leaves_needed(3, 9)),
            run=robust.leaves_found(3, 9),
            within=1e-9,
            how="the engine's medians taken, from the leaves up",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return what each rule keeps under each attack, what each threshold admits, and what a backdoor does."""
    return [_kept(), _admits(s), _adds_up(s), _unseen(), _deterred(), _opened()]


def _kept() -> Rows:
    rows = []
    for liars, attack in [(0, "none"), *product((10, 15, 20), robust.ATTACKS)]:
        kept = [robust.kept(rule, attack, 50, liars, np.random.default_rng(3)) for rule in robust.rules(liars).values()]
        rows.append([f"{liars} of 50", attack, *(f"{each:.2f}" for each in kept)])
    title = "Cosine of the merged update with the truth (noise 2.2 times the signal; Krum is not among Atoll's rules)"
    return Rows(title=title, head=["liars", "attack", *robust.rules(0)], rows=rows)


def _admits(s: Scenario) -> Rows:
    """Return what a threshold on the cosine lets through, and whom it turns away: honest noise differs by peer."""
    rng = np.random.default_rng(5)
    noise = np.sqrt(1 / s.trust.honest_cosine.value**2 - 1) * np.exp(0.4 * rng.standard_normal(20000))
    cosines = 1 / np.sqrt(1 + noise**2)
    rows = [
        [f"{c:g}", f"{float(hidden_part(np.inf, c)):.2f}", f"{float((cosines < c).mean()):.0%}"]
        for c in (0.9, 0.7, 0.5, 0.3, 0.1)
    ]
    head = ["cosine at least", "hidden part admitted", "honest peers turned away"]
    return Rows(
        title=f"A rule on the cosine, honest ones at {s.trust.honest_cosine.value:g} and around", head=head, rows=rows
    )


def _adds_up(s: Scenario) -> Rows:
    """Return how far hidden parts carry a model, beside its own way; where nobody lies, were one in 20 to."""
    share = s.trust.attackers.value or 0.05
    hidden = float(hidden_part(s.trust.norm_max.value, s.trust.cosine_min.value))
    cosine, peers = s.trust.honest_cosine.value, max(s.peers.count.value, 1)
    own = float(np.sqrt(cosine**2 + (1 - cosine**2) / peers))
    rows = [
        [f"{rounds}", f"{displaced(1.0, rounds, share, hidden):.1f}", f"{own * rounds:.1f}"]
        for rounds in (10, 100, 1000)
    ]
    title = f"Carried along one direction by {share:.0%} attackers, in lengths of an honest update, at most"
    return Rows(title=title, head=["rounds", "hidden parts", "the model's own way, were it straight"], rows=rows)


def _unseen() -> Rows:
    samples = (100, 1000, 10000, 100000)
    rows = [[f"{count:,}", f"{unseen_radius(2.0, 1.0, count):.2f}"] for count in samples]
    title = "How far weights may go before a held-out loss shows it (spread 2 nats, curvature 1)"
    return Rows(title=title, head=["samples", "distance"], rows=rows)


def _deterred() -> Rows:
    rows = [[f"{q:.0%}", f"{cheats_to(0.99, q)}", f"{float(stake_needed(q)):.1f}"] for q in (0.01, 0.05, 0.1, 0.3)]
    return Rows(title="Checking", head=["checked", "cheats to be found out (99 %)", "stake in gains"], rows=rows)


def _opened() -> Rows:
    rows = []
    for liars in (0.0, 0.05, 0.1, 0.2):
        end = backdoor.train(liars, np.random.default_rng(9))
        rows.append([f"{liars:.0%}", f"{end.right:.1%}", f"{end.loss:.4f}", f"{end.opened:.0%}"])
    head = ["liars", "told right", "held-out loss", "trigger opens"]
    return Rows(title="A backdoor within the rules, 20 peers, 100 rounds, really trained", head=head, rows=rows)


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return what is left of the signal over the part of liars, with rules really tried beside it."""
    shares = np.linspace(0, 0.5, 51)
    series = []
    for cosine in (0.1, 0.4, 0.9):
        left = np.asarray(signal_left(shares, cosine))
        seen = left > -1  # farther down it says no more
        series.append(
            Marks(label=f"honest cosine {cosine:g}", x=(100 * shares[seen]).tolist(), y=(100 * left[seen]).tolist())
        )
    tried = [0, 5, 10, 15, 20]
    ys = [100 * robust.crowd(0.4, 50, np.random.default_rng(seed), size=2000).left(liars) for liars in tried]
    drawn = Marks(label="clipped mean of 50, tried at 0.4", x=[2 * liars for liars in tried], y=ys, joined=False)
    nothing = Marks(label="nothing left", x=[0, 50], y=[0, 0], grey=True)
    return [
        Drawing(
            title="What liars leave of the signal",
            x="% of the peers who lie together",
            y="% of the signal",
            series=[*series, drawn, nothing],
            caption="Below the grey line the merged update points backwards; the noisier honest ones, the fewer liars.",
        )
    ]


LIMIT = Limit(
    name="envelope",
    question="What passes rules about updates?",
    inputs=(
        *(f"trust.{key}" for key in ("attackers", "checked", "stake_gains", "honest_cosine", "cosine_min", "norm_max")),
    ),
    levers=("trust.attackers", "trust.checked", "trust.stake_gains"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
