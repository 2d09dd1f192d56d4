"""How much each member works in a round: the same for all, perhaps growing, or by the speed that it measured.

Where work follows speed everybody is done at about the same time, however unequal the machines. Quotas change when that
makes a round clearly shorter, not with every measure: whoever goes on with the next round's samples while this one is
exchanged would begin them anew. So where they follow the rate, nobody does. A speed far beyond the others' is not
believed: whoever claimed it would get most of a round's samples, and all would wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.work import ByRate, BySpeed, Growing, Same
from atoll.spec.schedule import rate
from atoll.swarm import lease
from atoll.swarm.log import Key
from atoll.swarm.state import Action, Broker, Note

GAIN_MIN = 1.15
"""So many times longer a round must be than it could be before quotas change."""
FASTER_MAX = 50.0
"""So many times the median a speed counts at most."""

Quotas = dict[bytes, int]
"""Samples of each member."""


def quotas_of(broker: Broker, key: Key, members: Sequence[bytes]) -> tuple[Broker, Quotas, list[Action]]:
    """Return what each member of the next round is to work on, and a note where that is new.

    Who works on from an earlier round has what it has.
    """
    broker, quotas, notes = _chosen(broker, key, members)
    last = broker.history.last
    carried = last.carried if last is not None else ()
    kept = {p: lease.size(broker.history.kept[p].lease) for p in carried if p in broker.history.kept and p in quotas}
    return broker, quotas | kept, notes


def _chosen(broker: Broker, key: Key, members: Sequence[bytes]) -> tuple[Broker, Quotas, list[Action]]:
    """Return what each member would get that has nothing yet."""
    speeds = _speeds(broker, members)
    wanted = _wanted(broker, speeds, key.version)
    present = broker.quotas
    steady = not isinstance(broker.run.recipe.work.quota, Growing | ByRate)
    grown = isinstance(broker.setting.when, TargetBatch) and sum(present.values()) < sum(wanted.values())
    same = steady and present.keys() == wanted.keys() and not grown
    if same and _slowest_s(present, speeds) <= GAIN_MIN * _slowest_s(wanted, speeds):
        return broker, present, []
    broker = replace(broker, quotas=wanted)
    if wanted == present or (steady and len({*wanted.values()}) == 1 and len({*present.values()}) <= 1):
        return broker, wanted, []
    told = {short(peer): quota for peer, quota in wanted.items()}
    return broker, wanted, [Note(journal.QuotasChanged(channel=key.channel, version=key.version, quotas=told))]


def _speeds(broker: Broker, members: Sequence[bytes]) -> dict[bytes, float]:
    """Return the members' speeds in samples a second; of those who have not measured any, what is usual."""
    said = {p: x.standing.samples_s for p in members if (x := broker.present.get(p)) is not None and x.standing}
    known = {peer: speed for peer, speed in said.items() if 0.0 < speed < float("inf")}
    usual = median(known.values()) if known else 1.0
    return {peer: min(known.get(peer, usual), FASTER_MAX * usual) for peer in members}


def _wanted(broker: Broker, speeds: Mapping[bytes, float], version: int) -> Quotas:
    """Return the quotas of a round that go with some speeds: whole batches, at least one for everybody."""
    work = broker.run.recipe.work
    when = broker.setting.when
    if isinstance(when, TargetBatch):
        return _shared_out(-(-when.samples_in(version) // work.batch), work.batch, speeds)
    match work.quota:
        case Same():
            return dict.fromkeys(speeds, broker.round_steps * work.batch)
        case Growing():
            return dict.fromkeys(speeds, _grown(broker, work.quota, broker.round_steps * work.batch))
        case ByRate():
            return dict.fromkeys(speeds, _at_rate(broker, work.quota, len(speeds)) * work.batch)
        case BySpeed(least=least):
            fastest = max(speeds.values())
            most = broker.round_steps
            steps = {peer: min(most, int(most * speed / fastest + 1e-9)) for peer, speed in speeds.items()}
            return {peer: max(least, each) * work.batch for peer, each in steps.items()}


def _grown(broker: Broker, growing: Growing, first: int) -> int:
    """Return everybody's samples: as many as in the last round, or so many times more when it moved little.

    How far it moved our own member says; what was decided by it is in the log, so a new broker goes on from there.
    """
    samples = max(first, broker.history.quota)
    own = broker.present.get(broker.me)
    standing = own.standing if own is not None else None
    settled = standing is not None and standing.version == broker.history.version
    if settled and standing is not None and 0.0 < standing.moved <= growing.below:
        samples = min(growing.factor * samples, max(samples, growing.most * broker.run.recipe.work.batch))
    return samples


def _at_rate(broker: Broker, rule: ByRate, members: int) -> int:
    """Return everybody's steps: more as the rate falls; the last round takes what is left of a budget of tokens."""
    work, budget = broker.run.recipe.work, broker.run.budget
    factor = rate(work.schedule, work.schedule.warmup_steps, broker.spent)  # it may still rise, and be low for that
    longer = broker.round_steps * factor**-rule.power if factor > 0.0 else rule.most
    steps = round(min(rule.most, longer))
    if budget.rounds:
        return steps
    left = budget.tokens / broker.tokens_per_sample - broker.history.given_samples
    return max(1, min(steps, math.ceil(left / (members * work.batch))))


def _shared_out(batches: int, batch: int, speeds: Mapping[bytes, float]) -> Quotas:
    """Return so many batches shared out by speed: whole ones, the largest remainders first, one at least for each."""
    total = sum(speeds.values())
    exact = {peer: batches * speed / total for peer, speed in speeds.items()}
    each = {peer: max(1, int(share)) for peer, share in exact.items()}
    left = batches - sum(each.values())
    for peer in sorted(exact, key=lambda peer: (each[peer] - exact[peer], peer))[: max(0, left)]:
        each[peer] += 1
    for peer in sorted(exact, key=lambda peer: (-each[peer], peer)):
        spare = min(max(0, -left), each[peer] - 1)  # others had to get one at least
        each[peer], left = each[peer] - spare, left + spare
    return {peer: count * batch for peer, count in each.items()}


def _slowest_s(quotas: Quotas, speeds: Mapping[bytes, float]) -> float:
    return max(quotas[peer] / speed for peer, speed in speeds.items())
