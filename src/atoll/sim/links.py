"""How peers hang on the simulated network, and how far apart they are."""

from __future__ import annotations

from msgspec import Struct

from atoll.net.transport import PeerId
from atoll.spec.fleet import Processor


class Link(Struct, frozen=True, kw_only=True):
    """How one peer hangs on the network."""

    up_bytes_s: float = 12.5e6
    down_bytes_s: float = 12.5e6
    region: str = ""
    loss: float = 0.0
    """Part of its packets that get lost, either way."""
    nat: bool = False
    """Behind a router that lets nobody in."""
    processor: Processor | None = None
    """What moves its bytes; None: that costs nothing."""


class Links(Struct, frozen=True, kw_only=True):
    """Who hangs on the network how, and how far regions are apart."""

    default: Link = Link()
    peers: dict[PeerId, Link] = {}
    delay_s: float = 0.02
    """One way, between regions that `delays_s` does not name."""
    delays_s: dict[tuple[str, str], float] = {}
    """One way, between two regions (or within one), in either order."""
    losses: dict[tuple[str, str], float] = {}
    """Part of the packets lost between two regions (or within one), in either order."""

    def of(self, peer: PeerId) -> Link:
        """Return a peer's link."""
        return self.peers.get(peer, self.default)

    def between_s(self, one: PeerId, other: PeerId) -> float:
        """Return the one-way delay between two peers."""
        return self._between(self.delays_s, one, other, self.delay_s)

    def loss_between(self, one: PeerId, other: PeerId) -> float:
        """Return the part of the packets lost on the way between two peers' own links."""
        return self._between(self.losses, one, other, 0.0)

    def _between(self, table: dict[tuple[str, str], float], one: PeerId, other: PeerId, default: float) -> float:
        pair = (self.of(one).region, self.of(other).region)
        return table.get(pair, table.get((pair[1], pair[0]), default))
