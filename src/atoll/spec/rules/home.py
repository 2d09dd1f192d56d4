"""What must hold where regions hold states of their own, below one that everybody holds."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.merge import Mean
from atoll.spec.axes.optimizer import Assign, DelayedNesterov, Sgd
from atoll.spec.axes.pace import Carry, Quorum, Regional
from atoll.spec.axes.what import Delta
from atoll.spec.axes.whom import Circles, Regions
from atoll.spec.recipe import Channel
from atoll.spec.rules.optimizer import optimizer_rules
from atoll.spec.rules.terms import Rule, within
from atoll.spec.rules.wire import is_exact
from atoll.spec.strict import KeyPath


def home_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Regions, in which each contributes when it is done; and numbers that can be."""
    home = channel.home
    if not isinstance(home, Regional):
        return
    path, all_ = (*path, "home"), 'or choose home { kind = "replicated" }'
    yield within((*path, "pushes"), home.pushes, 1)
    fits = 0 < home.take <= 1
    yield fits, (*path, "take"), f"{home.take} is out of range", "it must be more than 0 and at most 1"
    yield from optimizer_rules((*path, "outer"), home.outer)
    whom = channel.whom
    regions = isinstance(whom, Circles) and isinstance(whom.pattern, Regions) and not whom.all_every
    said = "a state of each region needs regions, which tell each other when they have something to tell"
    hint = 'choose whom { kind = "circles", pattern = { kind = "regions" } } without all_every'
    yield regions, path, said, f"{hint}, {all_}"
    free = isinstance(channel.barrier, Quorum) and isinstance(channel.late, Carry)
    said = "regions do not wait for each other: a round ends with the first that are done, of whichever region"
    yield free, path, said, f'choose barrier {{ kind = "quorum" }} and late {{ kind = "carry" }}, {all_}'
    exact = isinstance(channel.what, Delta) and is_exact(channel.what) and not channel.forms
    said = "what a region has come to is known to all of it, and told by one: nobody could feed back what is left out"
    hint = 'exchange { kind = "delta" } as "fp32", "fp16" or "bf16" without feedback'
    yield exact, path, said, f"{hint}, {all_}"
    mean = isinstance(channel.merge.combine, Mean) and channel.merge.combine.weights == "uniform"
    said = "each contribution counts the same in its region, and each region above them"
    yield mean, path, said, f'choose merge.combine {{ kind = "mean", weights = "uniform" }}, {all_}'
    plain = isinstance(channel.merge.outer, Assign | Sgd | DelayedNesterov) and not channel.merge.scheduled
    said = "an optimizer that counts rounds, or follows a schedule of them, would count those of other regions"
    yield plain, path, said, f'choose merge.outer of kind "assign", "sgd" or "delayed-nesterov" as it is, {all_}'
