"""A run whose knobs are turned, on imagined fleets: what it comes to there, and that it is about as fast as the best.

The model stands for one of 60 million parameters at 65,536 tokens a step, in virtual time; nothing is trained.
"""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Engine
from atoll.model.folder import layout_of
from atoll.model.shape import elements, train_cost
from atoll.observe.granularity import of_rounds
from atoll.observe.progress import Progress
from atoll.sim.check import violations
from atoll.sim.compute import CountingEngine
from atoll.sim.scenario import Outcome, Scenario, losses_of, on_fleet, simulate
from atoll.spec.axes.codec import Codec, E3m0, Fp16, Int8
from atoll.spec.axes.control import Auto, Nobody
from atoll.spec.axes.when import Every
from atoll.spec.fleet import Always, load_fleet
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.spec.run import Budget, Data, Fresh, Membership, Run

SIZE = 2048
"""Elements that stand for the model."""
CONTEXT, VOCABULARY = 65536, 1024
FLEETS = {"lan": 4, "homes": 2, "volunteers": 1}
"""Machines of each group."""
SETTINGS: tuple[tuple[int, Codec], ...] = ((30, Fp16()), (30, Int8()), (100, Int8()), (100, E3m0()))
"""What a person might settle on who exchanges at least every hundred steps."""


def fixed(steps: int, codec: Codec) -> Recipe:
    recipe = load_recipe("auto")
    ((name, channel),) = recipe.channel.items()
    channel = replace(channel, when=Every(steps=steps), what=replace(channel.what, codec=codec))
    return replace(recipe, control=Nobody(), channel={name: channel})


def play(fleet: str, recipe: Recipe, steps: int) -> tuple[Run, Outcome]:
    """Play so many steps of each machine of a fleet, on which nobody leaves."""
    whole = load_fleet(fleet)
    few = replace(whole, groups=tuple(replace(each, count=min(each.count, FLEETS[fleet])) for each in whole.groups))
    machines, delays_s = on_fleet(few)
    run = Run(
        name="steering",
        recipe=replace(recipe, work=replace(recipe.work, batch=1)),
        budget=Budget(tokens=len(machines) * steps * CONTEXT),
        model=Fresh(size="60m"),
        data=Data(context=CONTEXT),
        membership=Membership(start_with=len(machines)),
    )
    shape, layout = layout_of(run, VOCABULARY)
    cost = train_cost(replace(shape, context=CONTEXT), 1, None)

    def build(run: Run) -> Engine:
        return CountingEngine(seed=0, size=SIZE, tokens_per_sample=CONTEXT, sample_cost=cost)

    scenario = Scenario(
        run=run,
        machines=[replace(machine, availability=Always()) for machine in machines],
        delays_s=delays_s,
        losses=losses_of(whole),
        build=build,
        scale=elements(layout) / SIZE,
    )
    return run, simulate(scenario)


@cache
def steered(fleet: str, steps: int) -> tuple[Run, Outcome, list[journal.KnobsTurned], dict[int, float]]:
    """Return a play of `auto`, how its knobs were turned, and its rounds' granularity."""
    run, outcome = play(fleet, load_recipe("auto"), steps)
    told, progress = {}, Progress()
    for line in outcome.lines:
        progress.add(line)
        if isinstance(line.event, journal.KnobsTurned):
            told[line.event.version] = line.event
    return run, outcome, [told[version] for version in sorted(told)], of_rounds(progress)


def time_to_s(outcome: Outcome, samples: int) -> float:
    """Return when so many samples were in committed rounds, evenly within each, from the first announcement on."""
    began_s = next(line.at_s for line in outcome.lines if isinstance(line.event, journal.RoundAnnounced))
    seen, before, before_s = set[int](), 0, began_s
    for line in outcome.lines:
        if isinstance(line.event, journal.RoundCommitted) and line.event.version not in seen:
            seen.add(line.event.version)
            after = before + line.event.samples
            if after >= samples:
                return before_s + (line.at_s - before_s) * (samples - before) / (after - before) - began_s
            before, before_s = after, line.at_s
    raise AssertionError("the run ended before")


@pytest.mark.parametrize(
    ("fleet", "steps", "rungs", "least", "most"),
    [
        ("lan", 60, (0,), 10, 20),
        pytest.param("homes", 600, (1, 2, 3), 40, 100, marks=pytest.mark.long),
        pytest.param("volunteers", 600, (1, 2, 3), 40, 100, marks=pytest.mark.long),
    ],
)
def test_a_fleet_gets_what_its_lines_ask_for_and_exchanges_take_no_more_than_they_may(
    fleet: str, steps: int, rungs: tuple[int, ...], least: int, most: int
) -> None:
    run, outcome, turned, granularity = steered(fleet, steps)
    assert violations(run, outcome) == []
    assert isinstance(run.recipe.control, Auto)
    turned = [each for each in turned if each.version < max(granularity)]  # the last round has the steps that are left
    last = turned[-1]
    assert last.rung in rungs, last.why
    assert least <= last.steps <= most, last.why
    after = [value for version, value in granularity.items() if version > last.version]
    after = after[:-1] or after  # the last round of a run is cut short at its commit
    shares = sorted(1 / (1 + value) for value in after)
    assert shares[len(shares) // 2] <= 1.1 * run.recipe.control.share
    assert turned[0].version == 4, "after three rounds"
    assert len(turned) <= 3


@pytest.mark.long
@pytest.mark.parametrize(("fleet", "steps"), [("lan", 300), ("homes", 1500)])
def test_as_many_samples_take_at_most_a_tenth_longer_than_with_the_best_of_some_fixed_settings(
    fleet: str, steps: int
) -> None:
    _, outcome, *_ = steered(fleet, steps)
    samples = steps * len(outcome.hosts)
    took_s = time_to_s(outcome, samples)
    others_s = {setting: time_to_s(play(fleet, fixed(*setting), steps)[1], samples) for setting in SETTINGS}
    assert took_s <= 1.1 * min(others_s.values()), (took_s, others_s)
    if fleet != "lan":  # where lines hardly matter
        assert max(others_s.values()) > 1.1 * took_s, "some of them are clearly wrong"
