"""What a placement is about: a chain of layers, peers with their speed and memory, and the links between them.

Numbers are those of one training step: work and bytes of a layer are per sequence, forward and backward together.
A link takes its latency and then its bytes one after the other; of two directions that differ the mean counts, as in
DT-FM. Where a fleet knows only access lines, a link is as fast as the slower of the two lines at its ends, or as one
connection is that loses as many packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from atoll.plan.cost.holds import SPARE
from atoll.plan.pace import ways_of
from atoll.spec.fleet import Fleet, Machine

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Layer(Struct, frozen=True, kw_only=True):
    """One unit of the chain: it is never cut."""

    flop: float
    """Forward and backward of one sequence."""
    state_bytes: float
    """Weights, gradients and what the optimizer keeps."""
    gradient_bytes: float
    """What a replica has to tell the others of in a step."""
    held_bytes: float
    """Kept of each sequence between its forward and its backward."""
    working_bytes: float = 0.0
    """Needed beside that for each sequence while it is computed; of the layers of a stage one is at a time."""
    out_bytes: float
    """Handed on of each sequence; as much comes back."""


class Job(Struct, frozen=True, kw_only=True):
    """A chain of layers, and how many sequences a step takes of all pipelines together."""

    layers: tuple[Layer, ...]
    batch: int


class Peer(Struct, frozen=True, kw_only=True):
    """A machine as a placement sees it."""

    name: str
    flop_s: float
    """What training reaches, not what the maker promises."""
    memory_bytes: float
    """What training may use of it."""
    island: str = ""
    """Peers of the same one share a fast network."""


class Links(Struct, frozen=True, eq=False):
    """What lies between any two peers, the same in both directions."""

    latency_s: Floats
    bytes_s: Floats

    def transfer_s(self, size_bytes: float) -> Floats:
        """Return how long so many bytes take between any two; nothing from a peer to itself."""
        times_s = self.latency_s + size_bytes / self.bytes_s
        np.fill_diagonal(times_s, 0.0)
        return times_s

    def among(self, places: Sequence[int]) -> Links:
        """Return the links between some of the peers, in the order given."""
        grid = np.ix_(places, places)
        return Links(self.latency_s[grid], self.bytes_s[grid])


class Crew(Struct, frozen=True, eq=False):
    """Peers and their links."""

    peers: tuple[Peer, ...]
    links: Links

    def among(self, places: Sequence[int]) -> Crew:
        """Return some of the crew, in the order given."""
        return Crew(tuple(self.peers[place] for place in places), self.links.among(places))


def links_of(latency_s: Floats, bytes_s: Floats) -> Links:
    """Return links whose two directions are taken for their mean."""
    return Links((latency_s + latency_s.T) / 2, (bytes_s + bytes_s.T) / 2)


def crew_of(fleet: Fleet, machines: Sequence[Machine]) -> Crew:
    """Return a fleet's machines as peers, with their regions for islands."""
    peers = tuple(
        Peer(
            name=each.name,
            flop_s=each.device.reached_flop_s,
            memory_bytes=(1 - SPARE) * each.device.memory_bytes,
            island=each.region,
        )
        for each in machines
    )
    ways = ways_of(fleet, machines)
    lines = np.minimum(ways.up_bytes_s[:, None], ways.down_bytes_s[None, :])
    return Crew(peers, links_of(ways.trip_s / 2, np.minimum(lines, ways.one_bytes_s)))
