"""What members and the broker say to each other on the control stream.

A member opens the stream with `Hello`; the broker answers `Welcome` or `Refused`, then sends the log as it
grows (`Append`) and the present plan of the open round (`Plan`). A plan is void when one with a larger
(epoch, version, attempt) is known. Nothing here is decisive by itself: only the log is.
"""

from __future__ import annotations

from msgspec import Struct

from atoll.swarm.log import Entry, Key


class Hello(Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """I want to take part, and this is how far I know the log."""

    run: str
    protocol: int
    next_index: int
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


class Append(Struct, frozen=True, tag="append", forbid_unknown_fields=True):
    """The log went on."""

    entries: tuple[Entry, ...]


class Contribution(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One peer's contribution to a round; `serial` tells a recomputed one from the one before a crash."""

    peer: bytes
    serial: int


class Plan(Struct, frozen=True, tag="plan", forbid_unknown_fields=True):
    """Who owns the shards of the open round and, once settled, whose contributions count."""

    key: Key
    epoch: int
    attempt: int
    owners: tuple[bytes, ...]
    settled: tuple[Contribution, ...] | None = None


class Standing(Struct, frozen=True, tag="standing", forbid_unknown_fields=True):
    """I hold the anchor of this version, and this is its digest."""

    version: int
    anchor: str


class Contributed(Struct, frozen=True, tag="contributed", forbid_unknown_fields=True):
    """All owners of this plan have acknowledged my contribution."""

    key: Key
    epoch: int
    attempt: int
    serial: int


class Reduced(Struct, frozen=True, tag="reduced", forbid_unknown_fields=True):
    """I reduced my shard for the settled set; these are its chunks' digests."""

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
    """I cannot get my contribution to this owner."""

    key: Key
    epoch: int
    attempt: int
    owner: bytes


class Leave(Struct, frozen=True, tag="leave", forbid_unknown_fields=True):
    """I go; do not wait for me."""

    why: str


class Farewell(Struct, frozen=True, tag="farewell", forbid_unknown_fields=True):
    """The run is over and everybody has its result: you may go."""


FromMember = Hello | Standing | Contributed | Reduced | Holding | Spoiled | Stuck | Leave
FromBroker = Welcome | Refused | Redirect | Append | Plan | Farewell
