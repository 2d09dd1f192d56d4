"""The answer: yes, no, or only if; which limit binds; the nearest plan that would do; and where far apart is right.

A scenario is a yes where none of the seven limits stands in the way and the training is done in time; an only-if where
some can be had out of the way at a price; a no where one is a wall, or where time or money are not enough whatever is
changed about the exchange. The nearest plan is found by easing the worst limit first, the gentlest change first, as
long as no other limit becomes worse by as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from atoll.plan.limits import bandwidth, cost, drift, envelope, memory, provenance, stragglers
from atoll.plan.limits.finding import SEVERITY, Finding, Flip, Given, Judged, Limit
from atoll.plan.limits.flip import flip
from atoll.plan.limits.regimes import Regime, regimes
from atoll.plan.limits.scenario import Scenario, said, with_value, worlds
from atoll.units import say_number

LIMITS: tuple[Limit, ...] = (
    bandwidth.LIMIT,
    stragglers.LIMIT,
    drift.LIMIT,
    memory.LIMIT,
    cost.LIMIT,
    envelope.LIMIT,
    provenance.LIMIT,
)
WORLDS = 200
EASINGS_MAX = 16
NOTHING = 1e-4
LOSS_MAX = 2.0
"""What is late for no greater loss than this is late because there are too few peers."""
Said = Literal["yes", "only if", "no"]


class Nearest(Struct, frozen=True, kw_only=True):
    """A plan near the scenario that does better, and how far one would have to go."""

    changes: tuple[str, ...]
    verdict: Said
    days: float
    usd: float
    left: tuple[str, ...]
    """Limits that still bind."""


class Answer(Struct, frozen=True, kw_only=True):
    """What is to be said of a scenario."""

    scenario: str
    about: str
    verdict: Said
    because: str
    binding: str
    """The limit that binds; empty: none does."""
    conditions: tuple[str, ...]
    days: tuple[float, float, float]
    usd: tuple[float, float, float]
    """Low, expected, high: of ten draws of the inputs one lies below and one above."""
    deadline_days: float
    in_time: float
    """The part of those draws that are done by then."""
    findings: tuple[Finding, ...]
    nearest: Nearest | None
    """None where the answer is yes, or where nothing near is better."""
    regimes: tuple[Regime, ...]


def answer(scenario: Scenario, seed: int = 0, *, whole: bool = True) -> Answer:
    """Return what there is to say of a scenario; not whole: without the tables and drawings beside it."""
    findings = tuple(find(limit, scenario, seed, whole=whole) for limit in LIMITS)
    verdict, binding, because = decide(scenario)
    many = worlds(scenario, np.random.default_rng(seed), WORLDS)
    bills, here = cost.bill(many), cost.bill(scenario)
    conditions = tuple(f"{each.limit}: {each.moves}" for each in findings if each.verdict != "no wall")
    return Answer(
        scenario=scenario.name,
        about=scenario.about,
        verdict=verdict,
        because=because,
        binding=binding,
        conditions=conditions,
        days=_range(bills.days, here.days),
        usd=_range(bills.usd, here.usd),
        deadline_days=scenario.goal.deadline_days.value,
        in_time=float(np.mean(np.broadcast_to(bills.days <= many.goal.deadline_days.value, WORLDS))),
        findings=findings,
        nearest=None if verdict == "yes" else nearest(scenario),
        regimes=tuple(regimes(scenario)),
    )


def _range(draws: object, value: object) -> tuple[float, float, float]:
    low, high = _tenths(draws)
    here = float(np.asarray(value))
    return min(low, here), here, max(high, here)


def _tenths(draws: object) -> tuple[float, float]:
    """Return where a tenth of all draws lies below and above: of the draws themselves, for some may have no end."""
    low, high = np.quantile(np.broadcast_to(np.asarray(draws, float), WORLDS), (0.1, 0.9), method="inverted_cdf")
    return float(low), float(high)


def find(limit: Limit, scenario: Scenario, seed: int = 0, *, whole: bool = True) -> Finding:
    """Return what one limit comes to, with everything beside it."""
    judged = limit.judge(scenario)
    low, high = _tenths(limit.number(worlds(scenario, np.random.default_rng(seed), WORLDS)))
    given = tuple(_given(limit, scenario, path) for path in limit.inputs)
    return Finding(
        limit=limit.name,
        question=limit.question,
        verdict=judged.verdict,
        number=judged.number,
        low=min(low, judged.number),
        high=max(high, judged.number),
        says=judged.says,
        binds=judged.binds,
        moves=_moves(limit, scenario, judged, [each.flip for each in given if each.flip]),
        given=given,
        checks=tuple(limit.checks(scenario, seed)),
        tables=tuple(limit.tables(scenario)) if whole else (),
        drawings=tuple(limit.drawings(scenario, seed)) if whole else (),
    )


def _given(limit: Limit, scenario: Scenario, path: str) -> Given:
    held = said(scenario, path)
    low, high = held.ends
    turns = flip(scenario, limit.judge, path)
    return Given(path=path, value=held.value, low=low, high=high, source=held.source, flip=turns)


def _moves(limit: Limit, scenario: Scenario, judged: Judged, flips: Sequence[Flip]) -> str:
    """Return what would turn the verdict: a change that eases it, and the input nearest to its step."""
    if judged.verdict == "no wall":
        worse = min([each for each in flips if each.path in limit.levers] or flips, key=_far, default=None)
        ways = [f"{worse.verdict} at {_step(worse)}"] if worse else []
        ways += [f"{told.verdict} with {words}" for words, told in _switched(limit, scenario, judged)]
        return "; ".join(ways) or "no input alone, within a thousand times"
    offers = (offer for offer in limit.ease(scenario) if _milder(limit.judge(offer[1]), judged))
    words, eased = next(offers, ("", scenario))
    kept = (path for path in limit.levers if said(eased, path) == said(scenario, path))
    other = [turn for path in kept if (turn := flip(scenario, limit.judge, path, milder=True))]
    ways = [*([words] if words else []), *(_step(each) for each in sorted(other, key=_far)[:2])]
    ways += [words for words, told in _switched(limit, scenario, judged) if _milder(told, judged)]
    return "; or ".join(ways) or "no input alone, within a thousand times"


def _switched(limit: Limit, scenario: Scenario, judged: Judged) -> Iterator[tuple[str, Judged]]:
    """Yield the choices of yes or no that would turn the verdict."""
    for path in limit.switches:
        section, key = path.split(".")
        other = not getattr(getattr(scenario, section), key)
        told = limit.judge(with_value(scenario, path, other))
        if told.verdict != judged.verdict:
            yield f"{path} = {str(other).lower()}", told


def _milder(one: Judged, other: Judged) -> bool:
    return SEVERITY[one.verdict] < SEVERITY[other.verdict]


def _step(turn: Flip) -> str:
    at = "above 0" if turn.now == 0 and turn.at < NOTHING else say_number(turn.at)
    return f"{turn.path} {at} (now {say_number(turn.now)})"


def _far(turn: Flip) -> float:
    """Return how far a step is from where its input stands, as a factor."""
    pair = sorted((abs(turn.now), abs(turn.at)))
    return pair[1] / pair[0] if pair[0] else float("inf")


def decide(s: Scenario) -> tuple[Said, str, str]:
    """Return the verdict, the limit that binds, and why."""
    judged = {limit.name: limit.judge(s) for limit in LIMITS}
    walls = [name for name, each in judged.items() if each.verdict == "wall"]
    if walls:
        return "no", walls[0], f"{walls[0]} is a wall: {judged[walls[0]].binds}"
    days, deadline = float(cost.bill(s).days), s.goal.deadline_days.value
    if days > deadline:
        worst = max(cost.losses(s).items(), key=lambda item: float(item[1]))
        most = worst[0] if float(worst[1]) >= LOSS_MAX else "peers"
        why = f"it takes {cost.say_days(days)}, {deadline:,.0f} are allowed"
        eats = ": too few peers" if most == "peers" else f"; {most} multiplies the time by {float(worst[1]):.1f}"
        return "no", most, why + eats
    binding = [name for name, each in judged.items() if each.verdict == "binds"]
    if binding:
        first, *others = binding
        also = f"; so do {', '.join(others)}" if others else ""
        return "only if", first, f"{first} binds: {judged[first].binds}{also}"
    return "yes", "", f"no limit stands in the way, and {days:,.1f} of {deadline:,.0f} days are enough"


def severity(s: Scenario) -> float:
    """Return how much stands in the way: walls weigh more than what only binds, and so does being late."""
    late = float(cost.bill(s).days) > s.goal.deadline_days.value
    return sum((0, 1, 8)[SEVERITY[limit.judge(s).verdict]] for limit in LIMITS) + 8 * late


def nearest(s: Scenario) -> Nearest | None:
    """Return the nearest plan that does better, easing the worst limit first."""
    changes: list[str] = []
    for _ in range(EASINGS_MAX):
        found = _eased(s)
        if found is None:
            break
        said, s = found
        changes.append(said)
    if not changes:
        return None
    bill = cost.bill(s)
    left = tuple(limit.name for limit in LIMITS if limit.judge(s).verdict != "no wall")
    return Nearest(changes=tuple(changes), verdict=decide(s)[0], days=float(bill.days), usd=float(bill.usd), left=left)


def _eased(s: Scenario) -> tuple[str, Scenario] | None:
    """Return the scenario with one thing better; None where nothing is, or nothing need be."""
    now = severity(s)
    order = sorted(LIMITS, key=lambda limit: -SEVERITY[limit.judge(s).verdict])
    offers = [offer for limit in order if limit.judge(s).verdict != "no wall" for offer in limit.ease(s)]
    if float(cost.bill(s).days) > s.goal.deadline_days.value:
        offers += _sooner(s)
    return next((offer for offer in offers if severity(offer[1]) < now), None)


def _sooner(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return what else there is to be done in time: more peers, then less to train, then more time."""
    offers = []
    for times in (2, 4, 8):
        more = with_value(s, "peers.count", s.peers.count.value * times)
        offers.append((f"find {s.peers.count.value * times:,.0f} such peers", more))
    offers += cost.LIMIT.ease(s)
    days = float(np.ceil(float(cost.bill(s).days)))
    if np.isinf(days):
        return offers
    return [*offers, (f"take {days:,.0f} days", with_value(s, "goal.deadline_days", days))]
