"""Crews and chains that can be said in a line."""

from collections.abc import Sequence

import numpy as np

from atoll.plan.place.crew import Crew, Job, Layer, Peer, links_of


def even_job(
    layers: int = 12,
    batch: int = 64,
    *,
    flop: float = 1e12,
    state_bytes: float = 1e9,
    gradient_bytes: float = 1e8,
    held_bytes: float = 5e7,
    working_bytes: float = 2e8,
    out_bytes: float = 8e6,
) -> Job:
    """Return a chain of equal layers."""
    layer = Layer(
        flop=flop,
        state_bytes=state_bytes,
        gradient_bytes=gradient_bytes,
        held_bytes=held_bytes,
        working_bytes=working_bytes,
        out_bytes=out_bytes,
    )
    return Job(layers=(layer,) * layers, batch=batch)


def counted_bytes(job: Job, first: int, end: int, micro_batch: int, held: int) -> float:
    """Return what a stage needs, counted layer by layer: what lasts, what it holds, and the largest it works on."""
    total, largest = 0.0, 0.0
    for number in range(first, end):
        layer = job.layers[number]
        total += layer.state_bytes
        for _ in range(held):
            total += micro_batch * layer.held_bytes
        largest = max(largest, micro_batch * layer.working_bytes)
    return total + largest


def island_crew(
    sizes: Sequence[int],
    *,
    speeds: Sequence[float] | None = None,
    inside: tuple[float, float] = (0.0005, 25e9 / 8),
    across: tuple[float, float] = (0.005, 1e9 / 8),
    memory_bytes: float = 80e9,
) -> Crew:
    """Return islands of equal peers; links within and across as (latency in s, bytes per s)."""
    at = np.repeat(range(len(sizes)), sizes)
    same = at[:, None] == at[None, :]
    peers = tuple(
        Peer(
            name=f"{'abcdefgh'[island]}{number}",
            flop_s=(speeds or [1e14] * len(sizes))[island],
            memory_bytes=memory_bytes,
            island="abcdefgh"[island],
        )
        for number, island in enumerate(at)
    )
    return Crew(peers, links_of(np.where(same, inside[0], across[0]), np.where(same, inside[1], across[1])))


def home_crew(count: int, seed: int = 0) -> Crew:
    """Return homes all over the world, each with a line and a device of its own."""
    draw = np.random.default_rng(seed)
    up_bytes_s = 10 ** draw.uniform(6, 8, count)
    down_bytes_s = up_bytes_s * draw.uniform(1, 10, count)
    regions, latency_s = draw.integers(30, size=count), draw.uniform(0.01, 0.15, (30, 30))
    peers = tuple(
        Peer(
            name=f"home-{number}",
            flop_s=float(draw.choice([8e12, 15e12, 30e12])),
            memory_bytes=float(draw.choice([8e9, 12e9, 24e9])),
            island=str(regions[number]),
        )
        for number in range(count)
    )
    rates = np.minimum(up_bytes_s[:, None], down_bytes_s[None, :])
    return Crew(peers, links_of(latency_s[np.ix_(regions, regions)], rates))
