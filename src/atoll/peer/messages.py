"""What two peers say to each other about bulk: parts, results and state, each on a stream of its own.

    part    contributor -> owner    PartHead, then the chunks the owner says are Missing, then Accepted
            owner -> root           SumHead, SumsKept, then sums of its group as they are made, Done, then Accepted
    result  owner -> member         ResultHead, Kept, then chunks as they are reduced, Done, then Accepted
                                    (on both the receiver says now and then how much it Got)
    ask     newcomer -> anyone      AskRun, then Welcome with the run or Refused
    fetch   anyone -> holder        FetchState, then Snapshots: what there is. Or FetchPieces or FetchResult, an Offer,
                                    then Wants and Cancels one way, Chunks and Haves the other, until the asker ends it

Chunks carry their index, so a transfer may begin anywhere and be resumed with another peer.
"""

from __future__ import annotations

from msgspec import Struct

from atoll.net.wire import Wire
from atoll.swarm.log import Entry, Key
from atoll.swarm.messages import Refused, Welcome


class AskRun(Struct, frozen=True, tag="ask-run", forbid_unknown_fields=True):
    """Which run is this? I have a ticket for it."""

    run: str
    protocol: int


class AskLog(Struct, frozen=True, tag="ask-log", forbid_unknown_fields=True):
    """I am the organiser and re-form the council: what is in your log?"""

    run: str


class KnownLog(Struct, frozen=True, tag="known-log", forbid_unknown_fields=True):
    """This is some of it; more follows, or not. `term` is the newest I know of."""

    term: int
    entries: tuple[Entry, ...]
    more: bool


class PartHead(Struct, frozen=True, tag="part", forbid_unknown_fields=True):
    """I bring my contribution: under this plan you own some of its chunks. This stream is for every so many-th."""

    key: Key
    epoch: int
    attempt: int
    serial: int
    stripe: int = 0
    stripes: int = 1


class SumHead(Struct, frozen=True, tag="sums", forbid_unknown_fields=True):
    """My group's sums follow of chunks whose root you are under this plan, each as soon as it is there."""

    key: Key
    epoch: int
    attempt: int


class SumsKept(Struct, frozen=True, tag="sums-kept", forbid_unknown_fields=True):
    """Of your sums I have these already: group, chunk, and for which set of contributions."""

    sums: tuple[tuple[int, int, bytes], ...]


class Summed(Struct, frozen=True, tag="summed", forbid_unknown_fields=True):
    """A group's sum of one chunk, for one set of its contributions, with their weight."""

    group: int
    index: int
    of: bytes
    weight: float
    data: memoryview


class Missing(Struct, frozen=True, tag="missing", forbid_unknown_fields=True):
    """Of the chunks I own I still need these."""

    chunks: tuple[int, ...]


class Chunk(Struct, frozen=True, tag="chunk", forbid_unknown_fields=True):
    """One chunk, encoded."""

    index: int
    data: memoryview


class Accepted(Struct, frozen=True, tag="accepted", forbid_unknown_fields=True):
    """I have them all."""


class Got(Struct, frozen=True, tag="got", forbid_unknown_fields=True):
    """I have so many more bytes of what you are sending."""

    size_bytes: int


class Declined(Struct, frozen=True, tag="declined", forbid_unknown_fields=True):
    """I do not take, or do not have, this."""

    why: str


class Superseded(Struct, frozen=True, tag="superseded", forbid_unknown_fields=True):
    """I know of a newer plan, or of the end of that round."""


class ResultHead(Struct, frozen=True, tag="result", forbid_unknown_fields=True):
    """Reduced chunks of my shards under this plan follow, each as soon as it is there."""

    key: Key
    epoch: int
    attempt: int


class Kept(Struct, frozen=True, tag="kept", forbid_unknown_fields=True):
    """Of your chunks I have these already, each for this set of contributions."""

    chunks: tuple[tuple[int, bytes], ...]


class Returned(Struct, frozen=True, tag="returned", forbid_unknown_fields=True):
    """One reduced chunk, for one set of contributions: another set's may follow until the round is settled."""

    index: int
    of: bytes
    digest: bytes
    data: memoryview


class Done(Struct, frozen=True, tag="done", forbid_unknown_fields=True):
    """Those were all, for the settled set."""


class FetchState(Struct, frozen=True, tag="fetch-state", forbid_unknown_fields=True):
    """Which snapshots of the state do you have, or could you make, that are newer than this version?"""

    version: int


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """One snapshot: the anchor's file of a version, the same bytes at everybody who has it."""

    version: int
    state: str
    """Hex digest of the anchor, as the log names it."""
    size_bytes: int
    root: str
    """Hex digest over all this and the digests of the pieces."""
    whole: bool
    """False where the peer is still downloading it."""


class Snapshots(Struct, frozen=True, tag="snapshots", forbid_unknown_fields=True):
    """These."""

    snapshots: tuple[Snapshot, ...]


class FetchPieces(Struct, frozen=True, tag="fetch-pieces", forbid_unknown_fields=True):
    """Send me pieces of this snapshot, and keep it while I ask; others who draw it may find me here."""

    version: int
    root: str
    addresses: tuple[str, ...] = ()


class FetchResult(Struct, frozen=True, tag="fetch-result", forbid_unknown_fields=True):
    """Send me chunks of a round's result: the one whose chunk digests have this root."""

    key: Key
    root: str


class Fellow(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who draws the same snapshot: it will soon have something to give."""

    peer: bytes
    addresses: tuple[str, ...]


class Offer(Struct, frozen=True, tag="offer", forbid_unknown_fields=True):
    """I have it: the digests of all its pieces, and which of them are here."""

    digests: tuple[bytes, ...]
    here: bytes = b""
    """One bit per piece, lowest first; empty: all."""
    fellows: tuple[Fellow, ...] = ()


class Want(Struct, frozen=True, tag="want", forbid_unknown_fields=True):
    """Send me these, in this order, behind those I asked for before."""

    pieces: tuple[int, ...]


class Cancel(Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """I have these from somebody else: leave out what is not on its way yet."""

    pieces: tuple[int, ...]


class Have(Struct, frozen=True, tag="have", forbid_unknown_fields=True):
    """These have come here since the offer."""

    pieces: tuple[int, ...]


AskTalk: Wire[AskRun | Welcome | Refused | AskLog | KnownLog] = Wire(AskRun | Welcome | Refused | AskLog | KnownLog)
PartMessage = PartHead | Missing | Chunk | SumHead | SumsKept | Summed | Done | Got | Accepted | Declined | Superseded
PartTalk: Wire[PartMessage] = Wire(PartMessage)
ResultTalk: Wire[ResultHead | Kept | Returned | Got | Done | Accepted | Declined | Superseded] = Wire(
    ResultHead | Kept | Returned | Got | Done | Accepted | Declined | Superseded
)
FetchMessage = (
    FetchState | Snapshots | FetchPieces | FetchResult | Offer | Want | Cancel | Have | Chunk | Declined
)  # fmt: skip
FetchTalk: Wire[FetchMessage] = Wire(FetchMessage)
