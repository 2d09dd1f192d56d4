"""Who turns the knobs: the broker, from what rounds took by its own clock, between two rounds.

What a round took is work and what is not work. The exchange is bytes and the rest (agreeing, applying, latency): of
another form bytes are in proportion, the rest is the same, and work goes with the steps. So it is known what part of a
round would be lost at each position of the knobs:

    lost = max(0, bytes + rest - delay)        share = lost / (work + lost)        granularity = work / lost

At first all is taken for bytes but what comes after the commit: lines that lose packets carry much less than they
could, so no rate that somebody measured tells. Two forms of the exchange then tell the two apart.

The policy `auto` takes the first rung of the recipe's ladder on which some number of steps keeps the share below its
limit, and of those the fewest. It decides after a few rounds, and then again only when the limit is broken or when
something clearly gentler would do. What members say of themselves counts only within what the broker sees: nobody has
worked for longer than until it contributed, and nothing takes longer than the round did. Others: `hide`, `match`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from atoll.spec.axes.control import Auto, Hide, Knobs, Match, Nobody, Policy
from atoll.spec.axes.pace import Delay
from atoll.spec.knobs import batches_of, beginning, delay_max
from atoll.spec.say import kind
from atoll.swarm.log import KnobsTurned, knobs_of
from atoll.swarm.policy import hide
from atoll.swarm.policy import match as matching
from atoll.swarm.policy.forecast import Line, View, wire_s
from atoll.swarm.routes.owners import rate_of
from atoll.swarm.routes.shares import fill_in
from atoll.swarm.state import Before, Broker, Measure, Round
from atoll.units import say_time

ROUNDS = 3
"""Rounds that are measured before anything is decided: the middle one counts."""
AIM = 0.75
"""Of the limit so much is aimed at, so that a setting that was chosen stays within it."""
CALM = 0.5
"""What is gentler must keep to so much of the limit, so that it is not given up again at once."""
BETTER = 0.85
"""What is to help against a broken limit must lose at most so much of what is lost now."""
FEWER = 1.5
"""Only so many times fewer steps are worth a change."""
SPARE = 1.3
"""A delay is so many times what it is to hide: an exchange may take longer now and then."""
APART = 1.5
"""Two forms of the exchange tell bytes from the rest if one has so many times the other's."""
NOISE = 0.1
"""A part of an exchange's time that means nothing."""
TINY = 1e-9


# measuring


def observe(broker: Broker, now_s: float) -> Broker:
    """Return the broker with what the round took that was closed last, now that the next one could begin."""
    if broker.closed is None:
        return broker
    measure = _measure(broker, broker.closed, now_s)
    if measure is not None and isinstance(broker.run.recipe.control, Match):
        broker = replace(broker, lines=_look(broker, broker.closed, measure.work_s))
    measured = broker.measured if measure is None else (*broker.measured, measure)[-_rounds(broker) :]
    return replace(broker, closed=None, measured=measured)


def _rounds(broker: Broker) -> int:
    """Return how many rounds are measured before anything is decided: the middle one counts."""
    control = broker.run.recipe.control
    return control.every if isinstance(control, Hide | Match) else ROUNDS


def _measure(broker: Broker, round_: Round, now_s: float) -> Measure | None:
    """Return what a round took; None while nobody has measured how fast it works."""
    period_s = (now_s - round_.began_s) / broker.setting.room  # since then as many were committed
    quotas = dict(zip(round_.announced.members, round_.announced.quotas, strict=True))
    here = {peer: broker.present[peer].standing for peer in quotas if peer in broker.present and peer in round_.took_s}
    standings = [(peer, standing) for peer, standing in here.items() if standing is not None]
    worked_s = [
        min(quotas[peer] / standing.samples_s, _most_s(broker, round_, peer))
        for peer, standing in standings
        if 0.0 < standing.samples_s < math.inf
    ]
    if not worked_s:
        return None
    work_s = min(max(worked_s), period_s)
    lost_s, late = period_s - work_s, _hidden(broker)
    outlasted = late >= 1 and lost_s > NOISE * period_s  # then nothing but the exchange made it so long
    waited_s = min((s.exchange_s for _, s in standings if s.exchange_s > 0), default=math.inf)
    return Measure(
        members=len(quotas),
        work_s=work_s,
        lost_s=lost_s,
        exchange_s=late * period_s if outlasted else min(max(waited_s, lost_s), lost_s + late * work_s),
        rest_s=now_s - broker.closed_s,
    )


def _most_s(broker: Broker, round_: Round, peer: bytes) -> float:
    """Return for how long a member may have worked until it contributed."""
    if broker.setting.room > 1:
        return round_.heard_s[peer] - round_.began_s
    return round_.took_s[peer] + broker.pace.lead_s


def _hidden(broker: Broker) -> float:
    """Return behind which part of a round's work an exchange may hide; behind how many of them."""
    setting = broker.setting
    if isinstance(setting.overlap, Delay):
        return setting.overlap.steps / broker.round_steps
    return float(max(setting.ahead, setting.room - 1))


# deciding


def turn(broker: Broker) -> tuple[Broker, KnobsTurned | None]:
    """Return how the knobs are to be turned before the next round, None: they stay; and what to remember about now."""
    policy, history = broker.run.recipe.control, broker.history
    if isinstance(policy, Nobody) or history.last is None:
        return broker, None
    if history.announced > history.newest or any(each.version > history.version for each in history.turned[-1:]):
        return broker, None  # what the next round is stands already: it was announced before, and given up, or turned
    now, last = knobs_of(history, history.version), history.last
    measured = len(broker.measured) >= _rounds(broker)
    wanted, why = _decided(broker, policy, last.contributors, now) if measured else (now, "")
    if wanted is not None and not broker.run.budget.rounds:
        wanted, why = _within_budget(broker, policy, len(last.contributors), wanted, why)
    if wanted is None or wanted == now or (now is None and wanted == beginning(broker.run.recipe)):
        return broker, None
    if measured:
        broker = replace(broker, before=Before(now, _middle(broker, "exchange_s")))
    return broker, KnobsTurned(broker.turn.name, broker.history.version + 1, wanted, why)


def _decided(broker: Broker, policy: Policy, members: Sequence[bytes], now: Knobs | None) -> tuple[Knobs | None, str]:
    """Return how a policy wants the knobs to stand, and why."""
    match policy:
        case Auto():
            view = _view(broker, policy, members)
            work_s, lost_s = _middle(broker, "work_s"), _middle(broker, "lost_s")
            wanted = decide(policy, view, now, lost_s / max(work_s + lost_s, TINY))
            return wanted, _why(policy, view, wanted, work_s, lost_s)
        case Hide():
            return hide.decide(policy, _view(broker, policy, members), _present(broker))
        case Match():
            setting = _setting(broker, members)
            steps, work_s = broker.round_steps, _middle(broker, "work_s")
            return matching.decide(policy, setting, broker.lines, now, work_s, steps)


def _within_budget(broker: Broker, policy: Policy, members: int, wanted: Knobs, why: str) -> tuple[Knobs, str]:
    """Return knobs at which a round takes no more than is left of the budget of tokens, and why they stand so."""
    recipe, history = broker.run.recipe, broker.history
    tokens = broker.run.budget.tokens / broker.tokens_per_sample
    if isinstance(policy, Auto):
        steps = max(policy.least, math.ceil((tokens - history.samples) / (members * recipe.work.batch)))
        if steps < wanted.steps:
            delay = min(wanted.delay, delay_max(policy.ladder[wanted.rung], steps))
            return replace(wanted, steps=steps, delay=delay), f"{steps} steps are all that is left of the budget"
    left, batches = tokens - history.given_samples, batches_of(recipe)
    if wanted.samples > max(left, batches[0]):
        most = max(samples for samples in batches if samples <= max(left, batches[0]))
        return replace(wanted, samples=most), f"no more than {most} samples fit into what is left of the budget"
    return wanted, why


def _setting(broker: Broker, members: Sequence[bytes]) -> matching.Setting:
    """Return who contributes in which form now."""
    sizes = [rung.size_bytes for rung in broker.rungs]
    return matching.setting_of(sizes, members, knobs_of(broker.history, broker.history.version))


def _look(broker: Broker, round_: Round, work_s: float) -> dict[bytes, matching.Line]:
    """Return what lines are taken to carry, given how long each took to bring in its contribution to a round."""
    setting, lines = _setting(broker, round_.announced.members), dict(broker.lines)
    time_s = matching.time_of(setting.sizes, lines, work_s)
    for peer, took_s in round_.sent_s.items():
        standing = broker.present[peer].standing if peer in broker.present else None
        if standing is not None and took_s > 0:
            share = broker.shares.get(peer, 0.0)
            up_bytes_s = (1 - share) * setting.sizes[setting.rungs[peer]] / took_s
            owner_bytes_s = min(standing.up_bytes_s, standing.down_bytes_s)
            seen = matching.Line(up_bytes_s, 0.0, standing.down_bytes_s, owner_bytes_s, share)
            lines[peer] = matching.believe(lines.get(peer, matching.Line()), seen, took_s, time_s)
    return lines


def _middle(broker: Broker, what: str) -> float:
    return float(median(getattr(measure, what) for measure in broker.measured))


def _view(broker: Broker, policy: Policy, members: Sequence[bytes]) -> View:
    """Return what was measured in the middle of the last rounds, and how other rungs compare."""
    lines = _lines(broker, members)
    exchange_s, rest_s = _middle(broker, "exchange_s"), _middle(broker, "rest_s")
    present = _forecast(broker, policy, knobs_of(broker.history, broker.history.version), lines)
    bytes_s = max(0.0, exchange_s - rest_s)
    if broker.setting.room > 1:  # lines carry what a round has in the time that one takes, however many are open
        bytes_s = min(bytes_s, _middle(broker, "work_s") + _middle(broker, "lost_s"))
    if broker.before is not None:
        earlier = _forecast(broker, policy, broker.before.knobs, lines)
        bytes_s = split(bytes_s, exchange_s, present, broker.before.exchange_s, earlier)
    rungs = [wire_s(f.route, b.size_bytes, lines) for f, b in zip(policy.ladder, broker.rungs, strict=True)]
    return View(
        step_s=max(_middle(broker, "work_s") / broker.round_steps, TINY),
        wire_s=bytes_s,
        rest_s=exchange_s - bytes_s,
        ratios=tuple(each / present if present else 1.0 for each in rungs),
        members=min(measure.members for measure in broker.measured),
        samples=_present(broker).samples,
        batches=batches_of(broker.run.recipe),
        least=len(members) * broker.run.recipe.work.batch,
    )


def _present(broker: Broker) -> Knobs:
    """Return how the knobs stand, or where they began if nobody turned them yet."""
    return knobs_of(broker.history, broker.history.version) or beginning(broker.run.recipe)


def split(bytes_s: float, exchange_s: float, forecast: float, before_s: float, before: float) -> float:
    """Return how much of an exchange is bytes, at most `bytes_s`, by what another form of it took.

    Both forms' forecasts are in any one unit. Where they are alike, or where fewer bytes took clearly longer, which is
    because something else changed meanwhile, nothing can be told.
    """
    if max(forecast, before) <= APART * min(forecast, before):
        return bytes_s
    slope = (before_s - exchange_s) / (before - forecast)
    told = slope * forecast >= -NOISE * exchange_s
    return min(bytes_s, max(0.0, slope * forecast)) if told else bytes_s


def _forecast(broker: Broker, policy: Policy, knobs: Knobs | None, lines: Sequence[Line]) -> float:
    """Return what the bytes of the exchange need at a position of the knobs, if lines carry what members measured."""
    if knobs is None:
        ((name, channel),) = broker.run.recipe.channel.items()
        return wire_s(channel.whom.route, broker.bulks[name][0].size_bytes, lines)
    return wire_s(policy.ladder[knobs.rung].route, broker.rungs[knobs.rung].size_bytes, lines)


def _lines(broker: Broker, members: Sequence[bytes]) -> list[Line]:
    rates = fill_in([rate_of(broker, peer) for peer in members])
    owns = [not (peer in broker.present and broker.present[peer].unreached) for peer in members]
    return [Line(*each) for each in zip(rates, owns, strict=True)]


def decide(auto: Auto, view: View, now: Knobs | None, share: float) -> Knobs:
    """Return how the knobs should stand, given that exchanges take a share of rounds now."""
    best = choose(auto, view, AIM * auto.share)
    if now is None or (share > auto.share and view.share(best) <= BETTER * share):
        return best
    gentle = choose(auto, view, CALM * auto.share)
    if _gentler(gentle, now):
        return gentle
    return replace(now, lr=best.lr)


def _gentler(one: Knobs, other: Knobs) -> bool:
    """Return whether one is clearly better for the model."""
    if one.rung != other.rung or one.delay > other.delay:
        return one.rung < other.rung
    waits = one.delay == 0 < other.delay and one.steps <= other.steps
    return waits or FEWER * one.steps <= other.steps


def choose(auto: Auto, view: View, share_max: float) -> Knobs:
    """Return the first position on the ladder that loses no more than a share, with the fewest steps that do.

    Where none does, it is the one that loses least.
    """
    lr = next((lr for count, lr in reversed(auto.outer_lr) if count <= view.members), 0.0)
    for number, rung in enumerate(auto.ladder):
        for late in (False, True) if isinstance(rung.overlap, Delay) else (False,):
            knobs = _fewest(auto, view, number, share_max, late=late)
            if knobs is not None:
                return replace(knobs, lr=lr)
    most = [Knobs(rung=i, steps=r.steps, delay=delay_max(r, r.steps), lr=lr) for i, r in enumerate(auto.ladder)]
    return min(most, key=lambda knobs: (view.share(knobs), knobs.rung))


def _fewest(auto: Auto, view: View, number: int, share_max: float, *, late: bool) -> Knobs | None:
    """Return the fewest steps on a rung that lose no more than a share, waiting for results or not; None: too many."""
    rung, exchange_s = auto.ladder[number], view.exchange_s(number)
    delay = min(delay_max(rung, rung.steps), math.ceil(SPARE * exchange_s / view.step_s)) if late else 0
    lost_s = max(0.0, exchange_s - delay * view.step_s / SPARE)
    needed = math.ceil(min(lost_s * (1 - share_max) / (share_max * view.step_s), 2.0**53))
    steps = max(auto.least, delay + 1, needed)
    return Knobs(rung=number, steps=min(_rounded(steps), rung.steps), delay=delay) if steps <= rung.steps else None


def _rounded(steps: int) -> int:
    """Return a number of steps rounded up to one that noise does not change: 11 stays, 37 is 40, 123 is 150."""
    half = max(1, 10 ** (len(str(steps)) - 1) // 2) if steps >= 20 else 1
    return -(-steps // half) * half


# saying why


def _why(auto: Auto, view: View, wanted: Knobs, work_s: float, lost_s: float) -> str:
    """Return the arithmetic in words."""
    rung, share, after_s = auto.ladder[wanted.rung], lost_s / max(work_s + lost_s, TINY), view.lost_s(wanted)
    parts = f"{say_time(view.wire_s)} of an exchange for bytes, {say_time(view.rest_s)} for the rest"
    late = f", results {wanted.delay} steps late" if wanted.delay else ""
    return (
        f"of the last rounds' {say_time(work_s + lost_s)} {say_time(lost_s)} were not work ({share:.0%}, at most "
        f"{auto.share:.0%} are wanted): {parts}; with {kind(rung.codec)}, {wanted.steps} steps of "
        f"{say_time(view.step_s)}{late} it would be {say_time(after_s)} of "
        f"{say_time(after_s + wanted.steps * view.step_s)} ({view.share(wanted):.0%})"
    )
