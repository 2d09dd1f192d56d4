"""A whole step of pipelines side by side: each plays its micro-batches, then replicas of a stage agree, then update.

    T = max over pipelines of the play + max over stages of its replicas' all-reduce + the slowest stage's update

which is how MLTC and Sailor put a step together; here pipelines are played (`events`, `meeting`) instead of taken for
their slowest stage. The all-reduce is a ring over the slowest line between two replicas, in which each of a stage's
tensor-parallel ranks brings its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atoll.plan.cost.collective import ring_over_s
from atoll.plan.cost.pipeline.events import play
from atoll.plan.cost.pipeline.meeting import play_meeting
from atoll.plan.cost.pipeline.orders import one_forward_one_backward
from atoll.plan.cost.pipeline.parts import Orders, Pipeline


def step_s(
    pipelines: Sequence[Pipeline],
    micro_batches: int,
    *,
    orders: Callable[[int, int], Orders] = one_forward_one_backward,
    meets: bool = True,
    sync_s: Sequence[float] = (0.0,),
    update_s: Sequence[float] = (0.0,),
) -> float:
    """Return how long a step takes; `sync_s` and `update_s` are by stage. Pipelines that are alike are played once."""
    runs = play_meeting if meets else play
    played = {each: runs(each, orders(each.devices, micro_batches)).finish_s for each in set(pipelines)}
    return max(played.values()) + max(sync_s) + max(update_s)


def replicas_sync_s(gradient_bytes: float, replicas: int, hops: Sequence[Callable[[float], float]]) -> float:
    """Return how long replicas of a stage take to agree on a gradient, given each line's time for a message."""
    if replicas < 2 or not hops:
        return 0.0
    return ring_over_s(gradient_bytes, replicas, lambda part_bytes: max(hop(part_bytes) for hop in hops))
