"""A model that no machine holds, cut into stages over several: planned, since Atoll cannot run it yet.

Every solver that takes a fleet as it is proposes a placement, all are judged by the same step time, and the fastest
wins. A pipeline is there only while every stage has a machine, so whoever comes and goes costs more here than among
replicas; a machine is paid for while it is there, whether or not the others are. Where a stage has one machine alone,
whatever was done since the last time it was saved is lost with it (Young, Daly). Solvers that want something else of a
fleet are not asked: equal groups (`groups`), the engine's clusters and its shares of a result (`rings`). How many
packets get lost is taken as the fleet says it; everything else that is not known exactly is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.plan import upkeep
from atoll.plan.cost import churn
from atoll.plan.cost.flops import head_forward_flop, layer_forward_flop, layer_parameters, of_size
from atoll.plan.cost.holds import stage_working_bytes
from atoll.plan.goal import Goal
from atoll.plan.knowledge import AS_OF, USEFUL_MIN, Knowledge, knowledge_of, stays_s
from atoll.plan.money.inputs import keeping
from atoll.plan.place.chain import balanced
from atoll.plan.place.crew import Crew, Job, Layer, crew_of
from atoll.plan.place.depth import deepened
from atoll.plan.place.fence import fenced
from atoll.plan.place.islands import islanded
from atoll.plan.place.placement import Part, Placement, in_turn, pipeline_of
from atoll.plan.ranges import Deviations, Ranged, Sway, Taken, ranged, sways
from atoll.plan.spread import Floats, Spread, spread
from atoll.spec.fleet import Fleet, Machine

BYTES_PARAMETER = 16.0
"""Weights and gradients in 16 bits, a copy and Adam's two moments in 32."""
ELEMENT_BYTES = 2.0
TIMES_TRAINED = 4.0
"""A forward pass, a backward one of twice that, and the forward again, as activations are not kept."""
HOUR_S = 3600.0
MANY = 200
"""For more machines only the quicker solvers are asked: whoever has a thousand wants an answer within a minute."""
DISK_BYTES_S = 1e9
"""What a machine writes of its stage each second: an estimate."""
DRAWS = 100
"""Fewer than of replicas: each is a placement judged anew."""
CONCERNED = ("computing", "lines", "staying", "forecast", "device", "host", "building", "grid", "making")
MONEY = ("electricity", "rent", "egress", "network")
"""The inputs that a pipeline's numbers hang on."""
Solver = Callable[[Crew, Job], Placement | None]


class Staged(Ranged, frozen=True, kw_only=True):
    """The best placement of a model's layers, and what training takes with it."""

    placement: Placement
    there: float
    """The part of the time in which every stage has a machine."""
    kept: float
    """The part of what is done then that is neither saving nor done again."""
    save_every_s: float
    """How often to save; 0: no stage depends on one machine."""
    others: dict[str, float]
    """What a step takes by the other solvers."""
    sways: tuple[Sway, ...]


def staged(goal: Goal, fleet: Fleet, machines: Sequence[Machine], facts: Facts, seed: int = 0) -> Staged | None:
    """Return the fastest way to cut a model over several machines; None: they do not hold it, or nobody stays."""
    job, crew = job_of(goal), crew_of(fleet, machines)
    placed = [solver(crew, job) for solver in _solvers(len(machines))]
    found = {each.solver: each for each in placed if each is not None and not each.runs}
    if not found:
        return None
    best = min(found, key=lambda name: found[name].step_s)
    used = {name for stage in found[best].stages for name in stage.machines}
    manned = _Manned(goal, fleet, [machine for machine in machines if machine.name in used], found[best], facts)
    if manned.useful({}) <= USEFUL_MIN:
        return None
    return Staged(
        **ranged(goal, manned.knowledge, manned.takes, seed, DRAWS),
        placement=found[best],
        there=float(manned.there({})),
        kept=float(manned.knowledge["failing"].middle[0]),
        save_every_s=manned.save_every_s,
        others={name: each.step_s for name, each in found.items() if name != best},
        sways=sways(goal, manned.knowledge, manned.takes),
    )


def _solvers(machines: int) -> tuple[Solver, ...]:
    """Return who is asked: all judge by the same step time."""
    deep: Solver = partial(deepened, predict=in_turn, explain=machines <= MANY)
    quick: tuple[Solver, ...] = (deep, partial(islanded, predict=in_turn))
    if machines > MANY:
        return quick
    return (*quick, partial(balanced, predict=in_turn), partial(fenced, predict=in_turn))


def job_of(goal: Goal) -> Job:
    """Return a goal's model as a chain: its embedding goes with the first layer, its head with the last.

    Where both are one table, either stage has a copy of it.
    """
    decoder = of_size(goal.size, goal.vocab, goal.context)
    handed = goal.context * goal.size.dim * ELEMENT_BYTES
    table = goal.vocab * goal.size.dim
    last = goal.size.layers - 1
    layers = []
    for number in range(goal.size.layers):
        parameters = layer_parameters(decoder) + ((number == 0) + (number == last)) * table
        forward = layer_forward_flop(decoder, goal.context)
        if number == last:
            forward += head_forward_flop(decoder, goal.context)
        layers.append(
            Layer(
                flop=TIMES_TRAINED * float(forward),
                state_bytes=BYTES_PARAMETER * parameters,
                gradient_bytes=ELEMENT_BYTES * parameters,
                held_bytes=handed,
                working_bytes=stage_working_bytes(goal.size, goal.vocab, goal.context, head=number == last),
                out_bytes=handed,
            )
        )
    return Job(layers=tuple(layers), batch=max(1, round(goal.batch_tokens / goal.context)))


class _Manned:
    """A placement with its machines: what training takes with it, wherever inputs are."""

    def __init__(self, goal: Goal, fleet: Fleet, machines: Sequence[Machine], placement: Placement, facts: Facts):
        known = knowledge_of(machines, facts)
        self.knowledge: Knowledge = {name: known[name] for name in (*CONCERNED, *MONEY)}
        self._job, self._facts = job_of(goal), facts
        self._steps = goal.tokens / goal.context / self._job.batch
        self._machines, self._placement, self._crew = machines, placement, crew_of(fleet, machines)
        place = {machine.name: number for number, machine in enumerate(machines)}
        self._parts: list[Part] = [
            (stage.first, stage.end, tuple(place[name] for name in stage.machines)) for stage in placement.stages
        ]
        trip_s = 2 * self._crew.links.latency_s
        self._sent = upkeep.sent_of(machines, _flows(self._job, self._parts), trip_s, facts)
        self.knowledge["failing"], self.save_every_s = self._failing()

    def takes(self, deviations: Deviations) -> Taken:
        """Return time, money, energy and carbon where inputs deviate so much from their middle."""

        def inputs(name: str) -> Any:
            return self.knowledge[name].at(deviations.get(name, 0.0))

        step_s, work = self._steps_s(inputs)
        time_s = self._steps * step_s / self.useful(deviations)
        hours = np.asarray(time_s)[..., None] / HOUR_S * self._present(deviations)
        bill = upkeep.bill(self._machines, inputs, hours, work, self._sent, self._steps, self._facts)
        drawn = upkeep.drawn(self._machines, inputs, hours, work, self._sent, self._steps)
        return Taken(time_s, bill.total_usd + 0.0 * time_s, drawn.energy_kwh, drawn.carbon_g)

    def useful(self, deviations: Deviations) -> Floats:
        """Return the part of the time in which something is done that stays."""
        kept = self.knowledge["failing"].at(deviations.get("failing", 0.0))[..., 0]
        return np.maximum(self.there(deviations) * kept, USEFUL_MIN)

    def there(self, deviations: Deviations) -> Floats:
        """Return the part of the time in which at least one machine of every stage is there."""
        away = 1 - self._present(deviations)
        stages = [1 - away[..., list(places)].prod(axis=-1) for _, _, places in self._parts]
        return np.asarray(np.prod(stages, axis=0))

    def _present(self, deviations: Deviations) -> Floats:
        """Return the part of the time in which each machine is there."""
        up_s, down_s = stays_s(self._machines)
        up_s = up_s * self.knowledge["staying"].at(deviations.get("staying", 0.0))
        return np.asarray(churn.availability(up_s, down_s))

    def _failing(self) -> tuple[Spread, float]:
        """Return the part of the work that stays, and how often to save, where some stage depends on one machine."""
        alone = [(first, end, self._machines[places[0]]) for first, end, places in self._parts if len(places) == 1]
        if not alone:
            return spread([1.0], [1.0], [1.0], "every stage has a second machine", AS_OF), 0.0
        states = [sum(layer.state_bytes for layer in self._job.layers[first:end]) for first, end, _ in alone]
        machines = [machine for _, _, machine in alone]
        fetch_s = max(state / machine.down_bytes_s for state, machine in zip(states, machines, strict=True))
        seldom, middle, often = keeping(machines, self._facts, max(states) / DISK_BYTES_S, fetch_s)
        about = spread([often.kept], [middle.kept], [seldom.kept], "failures and spot tables, or the fleet file", AS_OF)
        return about, middle.best_s

    def _steps_s(self, inputs: Callable[[str], Any]) -> tuple[Floats, Floats]:
        """Return how long a step takes, and which part of it each machine computes; for each draw."""
        faster, lines, slower = np.broadcast_arrays(inputs("computing"), inputs("lines"), inputs("forecast"))
        draws = [
            self._step(*each)
            for each in zip(*(each.reshape(-1, len(self._machines)) for each in (faster, lines, slower)), strict=True)
        ]
        step_s, work = np.array([step_s for step_s, _ in draws]), np.array([work for _, work in draws])
        return step_s.reshape(faster.shape[:-1]), work.reshape(faster.shape)

    def _step(self, faster: Floats, lines: Floats, slower: Floats) -> tuple[float, list[float]]:
        crew, size = self._crew, self._placement.micro_batch
        peers = tuple(
            replace(peer, flop_s=peer.flop_s * float(more)) for peer, more in zip(crew.peers, faster, strict=True)
        )
        rates = np.minimum(lines[:, None], lines[None, :]) / slower[0]
        links = replace(crew.links, latency_s=crew.links.latency_s * slower[0], bytes_s=crew.links.bytes_s * rates)
        times = pipeline_of(Crew(peers, links), self._job, self._parts, size)
        step_s, work = in_turn(times), [0.0] * len(peers)
        for first, end, places in self._parts:
            flop = times.micro_batches * size * sum(layer.flop for layer in self._job.layers[first:end])
            for place in places:
                work[place] = min(1.0, flop / peers[place].flop_s / step_s)
        return step_s, work


def _flows(job: Job, parts: Sequence[Part]) -> dict[tuple[int, int], float]:
    """Return what goes from each to each in a step: activations and their gradients, and replicas' gradients."""
    found: dict[tuple[int, int], float] = {}
    sequences = job.batch / len(parts[0][2])
    for (_, end, here), (_, _, there) in pairwise(parts):
        for one, other in zip(here, there, strict=True):
            for pair in ((one, other), (other, one)):
                found[pair] = found.get(pair, 0.0) + sequences * job.layers[end - 1].out_bytes
    for first, end, places in parts:
        size_bytes = sum(layer.gradient_bytes for layer in job.layers[first:end])
        for pair in permutations(places, 2):
            found[pair] = found.get(pair, 0.0) + 2 * size_bytes / len(places)
    return found
