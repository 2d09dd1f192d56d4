"""A model that no machine holds, cut into stages over several: planned, since Atoll cannot run it yet.

Every solver that takes a fleet as it is proposes a placement, all are judged alike, and the fastest step wins. A
pipeline is there only while every stage has a machine, so whoever comes and goes costs more here than among replicas.
Ranges are of everything at its low, middle or high end at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.plan import upkeep
from atoll.plan.cost import churn
from atoll.plan.cost.flops import head_forward_flop, layer_forward_flop, layer_parameters, of_size
from atoll.plan.goal import Goal
from atoll.plan.knowledge import Knowledge, knowledge_of
from atoll.plan.money.bill import bill
from atoll.plan.place.chain import balanced
from atoll.plan.place.crew import Crew, Job, Layer, crew_of
from atoll.plan.place.depth import deepened
from atoll.plan.place.fence import fenced
from atoll.plan.place.islands import islanded
from atoll.plan.place.placement import Placement, judged
from atoll.plan.spread import TENTH, Floats, Range
from atoll.spec.fleet import Churn, Fleet, Machine

BYTES_PARAMETER = 16.0
"""Weights and gradients in 16 bits, a copy and Adam's two moments in 32."""
ELEMENT_BYTES = 2.0
TIMES_TRAINED = 4.0
"""A forward pass, a backward one of twice that, and the forward again, as activations are not kept."""
HOUR_S = 3600.0
MANY = 200
"""For more machines only the quicker solvers are asked: whoever has a thousand wants an answer within a minute."""


class Staged(Struct, frozen=True, kw_only=True):
    """The best placement of a model's layers, and what training takes with it."""

    placement: Placement
    there: float
    """The part of the time in which every stage has a machine."""
    time_s: Range
    usd: Range
    energy_kwh: Range
    carbon_g: Range
    others: dict[str, float]
    """What a step takes by the other solvers."""


def staged(goal: Goal, fleet: Fleet, machines: Sequence[Machine], facts: Facts) -> Staged | None:
    """Return the fastest way to cut a model over machines; None: all of them together do not hold it."""
    job, crew = job_of(goal), crew_of(fleet, machines)
    few = (deepened, islanded, balanced, fenced)
    many = (partial(deepened, explain=False), islanded)
    placed = [solver(crew, job) for solver in (few if len(machines) <= MANY else many)]
    found = {each.solver: each for each in placed if each is not None}
    if not found:
        return None
    best = min(found, key=lambda name: found[name].step_s)
    used = {name for stage in found[best].stages for name in stage.machines}
    machines = [machine for machine in machines if machine.name in used]
    crew, knowledge = crew_of(fleet, machines), knowledge_of(machines, facts)
    there = _there(found[best], machines)
    steps = goal.tokens / goal.batch_tokens
    times_s = [steps * step_s / max(there, 1e-9) for step_s in _ends(crew, job, found[best], knowledge)]
    hours = [np.full(len(machines), time_s / HOUR_S) for time_s in times_s]
    inputs = [partial(_at, knowledge, end) for end in _ENDS]
    drawn = [upkeep.drawn(machines, told, mine, 1.0) for told, mine in zip(inputs, hours, strict=True)]
    bills = [bill(upkeep.terms(machines, told, mine, 1.0)) for told, mine in zip(inputs, hours, strict=True)]
    return Staged(
        placement=found[best],
        there=there,
        time_s=Range(*times_s),
        usd=Range(*(float(each.total_usd) for each in bills)),
        energy_kwh=Range(*(float(each.energy_kwh) for each in drawn)),
        carbon_g=Range(*(float(each.carbon_g) for each in drawn)),
        others={name: each.step_s for name, each in found.items() if name != best},
    )


_ENDS = (-TENTH, 0.0, TENTH)


def job_of(goal: Goal) -> Job:
    """Return a goal's model as a chain: its embedding goes with the first layer, its head with the last."""
    decoder = of_size(goal.size, goal.vocab, goal.context)
    handed = goal.context * goal.size.dim * ELEMENT_BYTES
    table = goal.vocab * goal.size.dim
    layers = []
    for number in range(goal.size.layers):
        ends = (number == 0) + (number == goal.size.layers - 1 and not goal.size.tied)
        parameters = layer_parameters(decoder) + ends * table
        forward = layer_forward_flop(decoder, goal.context)
        if number == goal.size.layers - 1:
            forward += head_forward_flop(decoder, goal.context)
        layers.append(
            Layer(
                flop=TIMES_TRAINED * float(forward),
                state_bytes=BYTES_PARAMETER * parameters,
                gradient_bytes=ELEMENT_BYTES * parameters,
                held_bytes=handed,
                out_bytes=handed,
            )
        )
    return Job(layers=tuple(layers), batch=max(1, round(goal.batch_tokens / goal.context)))


def _at(knowledge: Knowledge, deviation: float, name: str) -> Floats:
    return knowledge[name].at(deviation)


def _there(placement: Placement, machines: Sequence[Machine]) -> float:
    """Return the part of the time in which at least one machine of every stage is there."""
    part = {
        each.name: churn.availability(each.availability.up_s, each.availability.down_s)
        if isinstance(each.availability, Churn)
        else 1.0
        for each in machines
    }
    stages = [1 - np.prod([1 - part[name] for name in stage.machines]) for stage in placement.stages]
    return float(np.prod(stages))


def _ends(crew: Crew, job: Job, placement: Placement, knowledge: Knowledge) -> list[float]:
    """Return what a step takes with everything fast, in the middle, and slow."""
    place = {peer.name: number for number, peer in enumerate(crew.peers)}
    parts = [(s.first, s.end, tuple(place[name] for name in s.machines)) for s in placement.stages]
    found = []
    for end in reversed(_ENDS):
        speed, rate = knowledge["computing"].at(end), float(np.min(knowledge["lines"].at(end)))
        peers = tuple(
            replace(peer, flop_s=peer.flop_s * float(speed[number])) for number, peer in enumerate(crew.peers)
        )
        links = replace(crew.links, bytes_s=crew.links.bytes_s * rate)
        found.append(judged(Crew(peers, links), job, parts, placement.micro_batch, placement.solver).step_s)
    return found
