"""What members and the broker say to each other on the control stream.

A member opens the stream with `Hello`; the broker answers `Welcome` or `Refused`, then sends the log as it
grows (`Append`) and the present plan of the open round (`Plan`). A plan is void when one with a larger
(epoch, version, attempt) is known. Nothing here is decisive by itself: only the log is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blake3 import blake3
from msgspec import UNSET, Struct, UnsetType

from atoll.swarm.log import Entry, Key
from atoll.swarm.routes.shares import Shard, owners_of
from atoll.swarm.routes.tree import Trees

SET_BYTES = 16
TRIP_BYTES = 8
"""Of a peer's name so much tells it apart from the others of a run."""


class Hello(Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """I want to take part, and this is how far I know the log."""

    run: str
    protocol: int
    next_index: int
    epoch: int
    """Of the newest broker we know of."""
    addresses: tuple[str, ...]
    name: str = ""


class Welcome(Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """You are in; this is the run, in canonical form."""

    run: bytes


class Refused(Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """You are not in, and this is why."""

    why: str
    hint: str = ""


class Redirect(Struct, frozen=True, tag="redirect", forbid_unknown_fields=True):
    """I am not the broker; it is there."""

    broker: bytes
    addresses: tuple[str, ...]


class Hail(Struct, frozen=True, tag="hail", forbid_unknown_fields=True):
    """I am the broker of this epoch: come to me."""

    epoch: int


class Append(Struct, frozen=True, tag="append", forbid_unknown_fields=True):
    """The log went on."""

    entries: tuple[Entry, ...]


class Contribution(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One peer's contribution to a round; `serial` tells a recomputed one from the one before a crash."""

    peer: bytes
    serial: int


def set_id(contributions: Iterable[Contribution]) -> bytes:
    """Return a short name for a set of contributions, in canonical order: a result says by it what is in it."""
    named = (c.peer + c.serial.to_bytes(8, "little", signed=True) for c in contributions)
    return blake3(b"".join(named)).digest(length=SET_BYTES)


def whole_id(groups: Sequence[bytes]) -> bytes:
    """Return a short name for the sets of all groups together; one group's own where there is one."""
    return groups[0] if len(groups) == 1 else blake3(b"".join(groups)).digest(length=SET_BYTES)


def sum_id(below: Iterable[bytes], own: Contribution) -> bytes:
    """Return a short name for a sum that is carried on: of others by their names, in order, and then one's own."""
    return blake3(b"".join((*below, set_id([own])))).digest(length=SET_BYTES)


class Plan(Struct, frozen=True, tag="plan", forbid_unknown_fields=True):
    """Who owns the shards of the open round and, once settled, whose contributions count.

    Until it is settled owners reduce for everybody who is not `absent`: results of another set are never applied.
    """

    key: Key
    epoch: int
    attempt: int
    shards: tuple[Shard, ...]
    settled: tuple[int | None, ...] | None = None
    """The serial of each member's contribution, in the order of the round; None: it is not in."""
    absent: tuple[bytes, ...] = ()
    gather: bool = False
    """Everybody who owns gets all contributions and reduces them for itself."""
    ring: bool = False
    """Sums go round among those who own, in the order of the shards, once it is settled on all of them."""
    trees: Trees = ()
    """Likewise sums go up these trees, all of which are of those who own."""
    closing: bool | UnsetType = UNSET
    """Enough are in: who is not done is to lend what it has."""

    @property
    def carried(self) -> bool:
        """Return whether sums are carried from member to member."""
        return self.ring or bool(self.trees)

    @property
    def owners(self) -> tuple[bytes, ...]:
        return owners_of(self.shards)


class Standing(Struct, frozen=True, tag="standing", forbid_unknown_fields=True):
    """I hold the anchor of this version, this is its digest, and what I measured of my own line; 0: not known."""

    version: int
    anchor: str
    up_bytes_s: int = 0
    down_bytes_s: int = 0
    memory_bytes: int = 0
    """What the exchange may take of my memory; 0: as much as it needs."""
    samples_s: float = 0.0
    """How fast I worked in the last round; 0: not known."""
    exchange_s: float = 0.0
    """How long it took me from my contribution to this anchor, if that was in it; 0: not known."""
    moved: float = 0.0
    """How far this anchor is from the one before it, as a part of its length; 0: not known."""
    waits: bool = False
    """My contribution is ready and was late for the last round: I do nothing before it is in one."""
    trips_ms: tuple[tuple[bytes, int], ...] = ()
    """Round trips to peers that I have a link to, by the beginnings of their names, where it matters."""
    rates_bytes_s: tuple[tuple[bytes, int], ...] = ()
    """What links to peers carry, as I measured it when I last sent them something, named and asked for likewise."""
    loss: float | UnsetType = UNSET
    """The mean of my last rounds' losses, where somebody goes by that."""


def trip_name(peer: bytes) -> bytes:
    """Return what a peer is called in a list of round trips."""
    return peer[:TRIP_BYTES]


class Contributed(Struct, frozen=True, tag="contributed", forbid_unknown_fields=True, omit_defaults=True):
    """All owners of this plan have acknowledged my contribution; where sums go round, it is ready to go into them."""

    key: Key
    epoch: int
    attempt: int
    serial: int
    took_s: float = 0.0
    """How long it took to bring it in, where somebody goes by that."""
    lent: bool | UnsetType = UNSET
    """It is only what I had before this round's work, which is not done."""


class Carrying(Struct, frozen=True, tag="carrying", forbid_unknown_fields=True):
    """So many sums I have passed on and results got under this plan: said now and then, as long as some come."""

    key: Key
    epoch: int
    attempt: int
    done: int


class Reduced(Struct, frozen=True, tag="reduced", forbid_unknown_fields=True):
    """I reduced my shards for the settled set; these are their chunks' digests, in the order of the plan."""

    key: Key
    epoch: int
    attempt: int
    digests: tuple[bytes, ...]


class Holding(Struct, frozen=True, tag="holding", forbid_unknown_fields=True):
    """I hold the whole result on disk; this is its digest root."""

    key: Key
    epoch: int
    attempt: int
    result: str


class Spoiled(Struct, frozen=True, tag="spoiled", forbid_unknown_fields=True):
    """This contribution cannot be used, whoever looks at it."""

    key: Key
    peer: bytes
    why: str


class Stuck(Struct, frozen=True, tag="stuck", forbid_unknown_fields=True):
    """I cannot get my contribution, or my sums, to this owner; `never`: no link to it has worked in this life."""

    key: Key
    epoch: int
    attempt: int
    owner: bytes
    never: bool = False


class Settings(Struct, frozen=True, tag="settings", forbid_unknown_fields=True):
    """The organiser changed what may change in the run, and signed for it."""

    run: bytes
    signature: bytes


class Leave(Struct, frozen=True, tag="leave", forbid_unknown_fields=True):
    """I go; do not wait for me."""

    why: str


class Farewell(Struct, frozen=True, tag="farewell", forbid_unknown_fields=True):
    """The run is over and everybody has its result: you may go."""


FromMember = Hello | Standing | Contributed | Carrying | Reduced | Holding | Spoiled | Stuck | Settings | Leave
FromBroker = Welcome | Refused | Redirect | Append | Plan | Farewell
