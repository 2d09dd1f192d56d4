"""One pipeline through cluster after cluster, so that only their borders use slow links (OP-Fence of FusionLLM).

Clusters and their order come from the links alone (`near`), the cuts in that order are exact. So every border is
crossed once in each direction, whoever is left out.
"""

from __future__ import annotations

from atoll.plan.place.chain import Row, in_order, placed
from atoll.plan.place.crew import Crew, Job
from atoll.plan.place.near import communities, lined
from atoll.plan.place.placement import Placement, Predict, at_once


def fenced(crew: Crew, job: Job, micro_batch: int = 1, predict: Predict = at_once) -> Placement | None:
    """Return one pipeline that goes through cluster after cluster; None: they cannot hold the chain."""
    row = fenced_row(crew, job, micro_batch)
    return None if row is None else placed(crew, job, row, micro_batch, "fence", predict)


def fenced_row(crew: Crew, job: Job, micro_batch: int = 1) -> Row | None:
    """Return the better of the two ways along the clusters."""
    apart_s = crew.links.transfer_s(max(layer.out_bytes for layer in job.layers) * micro_batch)
    order = [place for cluster in lined(apart_s, communities(apart_s)) for place in cluster]
    rows = [row for way in (order, order[::-1]) if (row := in_order(crew, job, way, micro_batch))]
    return min(rows, key=lambda row: row.slowest_s, default=None)
