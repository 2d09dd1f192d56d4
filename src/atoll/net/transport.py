"""How bytes reach a peer: the contract that the real and the simulated transport both keep.

A peer is named by its ed25519 public key. Between two peers there is one connection with any number of
streams; a stream carries whole messages both ways. The contract takes the shape of QUIC but promises
only what can be kept everywhere:

- a message arrives whole and once, or not at all; messages of one stream keep their order
- `recv` is cancel-safe; a cancelled `send` resets the stream, so a half message is never taken for an end
- a stream that ends between messages raises `StreamClosed`, one that breaks raises `StreamReset`
- bytes that are no message (longer than the reader allows) raise `Malformed`, once: that is no loss but somebody's
  doing, and the stream is reset. A stream that does not begin with a tag is accepted as one with `NO_TAG`
- a dead connection raises `ConnLost` from every pending call, after a silence that its own history makes very
  improbable and in any case within `silence_s_max` of the last sign of life; the error says why in numbers (`pulse`)
- traffic has three classes: control goes before round traffic, round traffic before state traffic

`tests/contract/test_transport.py` is the one suite that every implementation passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NewType, Protocol

from atoll.errors import PeerError, PeerLost

PeerId = NewType("PeerId", bytes)
"""A peer's 32-byte ed25519 public key."""

MESSAGE_BYTES_MAX = 8 * 2**20
"""No message is larger: a bigger length prefix is garbage, refused before any memory is taken for it."""

NO_TAG = ""
"""What `accept` returns for a stream that did not begin with a tag: it is reset already, and somebody is to blame."""

STREAMS_MAX = 64
"""Streams one side keeps open at once on a connection; `open` waits beyond that."""

CONNECT_S_MAX = 10.0
"""No `connect` takes longer. No round trip is known yet; QUIC repeats its first words after 1, 3 and 7 s, so three
losses on end are borne and a fourth is not waited for."""


class Traffic(IntEnum):
    """What a stream carries; smaller goes first."""

    CONTROL = 0
    ROUND = 1
    STATE = 2


@dataclass
class Counts:
    """Payload bytes of whole messages since the start, by class of traffic."""

    sent_bytes: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))
    received_bytes: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            {kind: self.sent_bytes[kind] + other.sent_bytes[kind] for kind in Traffic},
            {kind: self.received_bytes[kind] + other.received_bytes[kind] for kind in Traffic},
        )


class LinkKind(StrEnum):
    """How a peer links to others."""

    AUTO = "auto"
    """TLS where it reaches them directly, iroh elsewhere."""
    IROH = "iroh"
    TLS = "tls"


DEFAULT_LINKS = LinkKind.AUTO


class ConnectFailed(PeerLost):
    """The peer could not be reached at any of its addresses."""


class ConnLost(PeerLost):
    """The connection died: closed by the other side, or silent for too long."""


class StreamReset(PeerLost):
    """The stream broke in the middle of a message, or the other side gave it up."""


class StreamClosed(PeerLost):
    """The other side finished the stream between two messages."""


class Malformed(PeerError):
    """The other side sent what no message may be; unlike a lost link, that is its own doing."""


class Stream(Protocol):
    """An ordered pair of message queues within a connection."""

    async def send(self, message: bytes) -> None:
        """Hand over one message, waiting while the other side is behind; cancelled: the stream is reset."""

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        """Return the next message; a longer one than `limit` is `Malformed` and resets the stream. Cancel-safe."""

    async def finish(self) -> None:
        """Say that no more messages follow from this side, once all are delivered; receiving goes on."""

    def reset(self) -> None:
        """Give the stream up at once, in both directions."""


class Conn(Protocol):
    """A living link to one authenticated peer."""

    @property
    def peer(self) -> PeerId: ...

    async def open(self, tag: str, traffic: Traffic) -> Stream:
        """Open a stream; the other side's `accept` returns the tag at once."""

    async def accept(self) -> tuple[str, Stream]:
        """Return the next stream that the other side opened."""

    async def closed(self) -> str:
        """Wait until the connection is gone and return why."""

    async def close(self, reason: str = "") -> None:
        """End the connection; pending calls on both sides raise `ConnLost`."""

    def round_trip_s(self) -> float | None:
        """Return the last measured round trip, if any."""

    def distance_s(self) -> float | None:
        """Return the shortest round trip so far, if any: how far away the other side is, whatever is sent just now."""


class Transport(Protocol):
    """One peer's door to all others."""

    @property
    def id(self) -> PeerId: ...

    @property
    def counts(self) -> Counts:
        """Return what went out and came in so far; where a model stands for a larger one, what that one's would be."""

    def addresses(self) -> list[str]:
        """Return where others may reach this peer, best first ("host:port")."""

    async def connect(self, peer: PeerId, addresses: list[str]) -> Conn:
        """Return a new connection to `peer`, proven to be it, or raise `ConnectFailed`."""

    def limit_silence(self, silence_s_max: float) -> None:
        """Give up links that are silent for so long, whatever was measured: a peer learns the limit with its run."""

    async def accept(self) -> Conn:
        """Return the next connection another peer made to us; raises `ConnLost` once we are closed."""

    async def close(self) -> None:
        """Close every connection and stop listening."""
