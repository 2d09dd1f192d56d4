"""What two peers say to each other about bulk: parts, results and state, each on a stream of its own.

    part    contributor -> owner    PartHead, then the chunks the owner says are Missing, then Accepted
    result  owner -> member         ResultHead, chunks, then Accepted
    ask     newcomer -> anyone      AskRun, then Welcome with the run or Refused
    fetch   anyone -> holder        FetchResult or FetchState, an Offer, then chunks

Chunks carry their index, so a transfer may begin anywhere and be resumed with another peer.
"""

from __future__ import annotations

from msgspec import Struct

from atoll.net.wire import Wire
from atoll.swarm.log import Key
from atoll.swarm.messages import Refused, Welcome


class AskRun(Struct, frozen=True, tag="ask-run", forbid_unknown_fields=True):
    """Which run is this? I have a ticket for it."""

    run: str
    protocol: int


class PartHead(Struct, frozen=True, tag="part", forbid_unknown_fields=True):
    """I bring these chunks of my contribution."""

    key: Key
    serial: int
    first: int
    count: int


class Missing(Struct, frozen=True, tag="missing", forbid_unknown_fields=True):
    """Of those I still need these."""

    chunks: tuple[int, ...]


class Chunk(Struct, frozen=True, tag="chunk", forbid_unknown_fields=True):
    """One chunk, encoded."""

    index: int
    data: bytes


class Accepted(Struct, frozen=True, tag="accepted", forbid_unknown_fields=True):
    """I have them all."""


class Declined(Struct, frozen=True, tag="declined", forbid_unknown_fields=True):
    """I do not take, or do not have, this."""

    why: str


class ResultHead(Struct, frozen=True, tag="result", forbid_unknown_fields=True):
    """These are the reduced chunks of my shard under this plan."""

    key: Key
    epoch: int
    attempt: int
    first: int
    digests: tuple[bytes, ...]


class FetchResult(Struct, frozen=True, tag="fetch-result", forbid_unknown_fields=True):
    """Send me a committed round's result, from this chunk on."""

    key: Key
    start: int


class FetchState(Struct, frozen=True, tag="fetch-state", forbid_unknown_fields=True):
    """Send me the anchor, of this version or newer, from this chunk on."""

    version: int
    start: int


class Offer(Struct, frozen=True, tag="offer", forbid_unknown_fields=True):
    """I have it: the version, and the digests of all its chunks."""

    version: int
    digests: tuple[bytes, ...]


AskTalk: Wire[AskRun | Welcome | Refused] = Wire(AskRun | Welcome | Refused)
PartTalk: Wire[PartHead | Missing | Chunk | Accepted | Declined] = Wire(
    PartHead | Missing | Chunk | Accepted | Declined
)
ResultTalk: Wire[ResultHead | Chunk | Accepted | Declined] = Wire(ResultHead | Chunk | Accepted | Declined)
FetchTalk: Wire[FetchResult | FetchState | Offer | Chunk | Declined] = Wire(
    FetchResult | FetchState | Offer | Chunk | Declined
)
