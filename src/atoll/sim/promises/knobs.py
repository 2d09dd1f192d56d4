"""Turned: knobs stand alike for everybody in every round, as a policy may turn them, and rounds are as they say."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from atoll import journal
from atoll.journal import Line
from atoll.net.identity import short
from atoll.sim.expected import channel_at, channels_of
from atoll.sim.retell import announcements, settings
from atoll.spec.axes.control import Knobs, Nobody
from atoll.spec.axes.pace import Block
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.work import Same
from atoll.spec.knobs import objection
from atoll.spec.run import Run
from atoll.swarm.log import Entry


def as_the_knobs_say(run: Run, lines: list[Line], entries: list[Entry]) -> Iterator[str]:
    """Check that knobs were turned only where a policy may, the same for everybody, and that leases follow them."""
    found = settings(entries)
    for version, knobs in found.items():
        if problem := objection(run.recipe, knobs):
            yield f"version {version}: {problem}"
    for line in lines:
        match line.event:
            case journal.KnobsTurned(version=version) as told:
                logged = found.get(version)
                each = {short(peer): rung for peer, rung in logged.each} if logged is not None else {}
                knobs = Knobs(rung=told.rung, steps=told.steps, delay=told.delay, lr=told.lr, samples=told.samples)
                if logged is None or replace(logged, each=()) != knobs or each != told.each:
                    yield f"version {version}: {line.peer} turned knobs to what the log does not have"
            case _:
                pass
    if isinstance(run.recipe.control, Nobody) or not isinstance(run.recipe.work.quota, Same):
        return
    channels = channels_of(run, entries)
    for announced in announcements(entries):
        when = channel_at(channels, announced.version).when
        steps, batch, leases = when.round_steps, run.recipe.work.batch, announced.leases.values()
        if isinstance(when, TargetBatch):
            whole = max(-(-when.samples_in(announced.version) // batch), len(leases)) * batch
            if sum(map(len, leases)) != whole:
                yield f"version {announced.version} is not of a batch of {whole} samples, as its knobs say"
        elif any(len(lease) != steps * batch for lease in leases):
            yield f"version {announced.version} is not of {steps} steps, as its knobs say"
        if any(announced.ahead.values()) and isinstance(channel_at(channels, announced.version).overlap, Block):
            yield f"version {announced.version} lets members go on, where its knobs say to wait"
