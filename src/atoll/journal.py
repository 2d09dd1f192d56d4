"""What happened, as typed events in the past tense; one JSON line each.

Code writes events, never log strings. Metrics, the terminal view, reports, the checks of the simulator
and the trace hash are all readers of this one record, so a number that is not here is not in a claim.
A line is `{"at_s": ..., "peer": ..., "event": {"kind": "round_committed", ...}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from atoll.errors import LocalError

WHY_CHARS_MAX = 500
"""Reasons may quote what another peer said; it does not decide how long our lines are."""


class Clock(Protocol):
    """Wall time, for display, expiry and hours of the day; never for safety."""

    def now_s(self) -> float: ...


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_snake, omit_defaults=True):
    """Base of everything that can happen."""


class PeerStarted(_Event):
    run: str
    name: str = ""
    organiser: bool = False
    device: str = ""
    protocol: int = 0
    resumed_version: int | None = None


class PeerStopped(_Event):
    why: str
    version: int = 0
    finished: bool = False
    """The run is over, not only this peer's part in it."""


class TicketPrinted(_Event):
    ticket: str


class PeerJoined(_Event):
    who: str
    roster: int


class PeerLeft(_Event):
    who: str
    roster: int
    why: str = ""


class PeerLost(_Event):
    """A link to another peer died; `why` says how it was noticed."""

    who: str
    why: str


class JoinRefused(_Event):
    who: str
    why: str


class MessageRefused(_Event):
    """Bytes from another peer were malformed, oversized, replayed or out of place."""

    who: str
    why: str


class RoundAnnounced(_Event):
    channel: str
    version: int
    members: list[str]
    samples: int
    first: int
    """Position of the first sample of the round in the global order."""
    handed: list[tuple[int, int]] = []
    """All leases of the round as (first, count) ranges of the global order, joined where they touch."""
    ahead: list[tuple[int, int]] = []
    """What its members go on with while the round is exchanged, likewise: their leases in the next one."""


class LeaseTaken(_Event):
    """This peer began to work on its lease."""

    channel: str
    version: int
    ranges: list[tuple[int, int]]
    own: bool = False
    """Whether it starts from weights of its own, as it last contributed them, instead of from the anchor."""


class WorkProgressed(_Event):
    """A slice of local work was done."""

    channel: str
    version: int
    """The round for which its lease was handed out."""
    steps: int
    steps_of: int
    loss: float | None
    """Mean over the slice, nats per token; None when it was not a finite number."""
    tokens: int
    took_s: float


class TeacherChosen(_Event):
    """The broker chose towards whose weights all others move, by the losses that members say they have."""

    channel: str
    version: int
    who: str
    losses: dict[str, float]
    """What is far below the median was passed over."""


class LinksFilled(_Event):
    """This peer chose how much of its contribution goes over each of its links."""

    channel: str
    version: int
    parts: dict[str, float]
    """Of the values so many, by who gets them."""


class ContributionSent(_Event):
    channel: str
    version: int
    attempt: int
    sent_bytes: int
    took_s: float


class RoundReplanned(_Event):
    """A shard owner vanished; others took its shards over."""

    channel: str
    version: int
    attempt: int
    why: str


class SharesChanged(_Event):
    """Members own other parts of the grid than before."""

    channel: str
    version: int
    shares: dict[str, float]
    why: str


class RegionsChanged(_Event):
    """Members are in other regions than before, by the round trips that they measured."""

    channel: str
    version: int
    regions: list[list[str]]
    """The members of each."""


class RegionBegun(_Event):
    """This peer's region begins from the state above all regions: it is new, or nobody has what it held."""

    channel: str
    version: int
    anchor: str


class TreesChanged(_Event):
    """Sums go up other trees than before, by what links were measured to carry."""

    channel: str
    version: int
    roots: dict[str, float]
    """The part of the chunks that ends at each root."""
    trees: int
    before_s: float
    """What a round would take with the trees before, by what is known now; 0: there were none of these members."""
    forecast_s: float


class QuotasChanged(_Event):
    """Members work on other numbers of samples than before: speeds that they measured are others, or rounds grow."""

    channel: str
    version: int
    quotas: dict[str, int]


class KnobsTurned(_Event):
    """From this round on the exchange is another; written by everybody, when it learns of it."""

    channel: str
    version: int
    steps: int
    """Local steps between two exchanges."""
    rung: int
    """Which form the exchange has: of the ladder in the run's recipe."""
    delay: int
    """Steps that results come late by."""
    lr: float
    """Of the outer optimizer; 0: as the recipe has it."""
    why: str
    samples: int = 0
    """Of a batch of all together; 0: as the recipe has it."""
    each: dict[str, int] = {}
    """Peers whose contributions have a form of their own, and which."""


class PeerUnreachable(_Event):
    """Of two peers that are connected to the broker one cannot reach the other."""

    who: str
    by: str
    why: str


class RoundSettled(_Event):
    """The broker fixed whose contributions are in."""

    channel: str
    version: int
    attempt: int
    contributors: list[str]
    why: str


class RoundVoided(_Event):
    """A round was given up: too few of its members were left."""

    channel: str
    version: int
    returned: list[tuple[int, int]] = []
    """Ranges of the global order that went back."""


class RoundCommitted(_Event):
    """A round is durable: the log says so."""

    channel: str
    version: int
    contributors: list[str]
    samples: int
    tokens: int
    result: str
    """Hex digest root of the result bytes, or over the roots of its circles' results."""
    circles: list[str] = []
    """Hex digest root of each circle's result; empty: nobody gave anything to it."""
    round_s: float = 0.0
    counted: list[tuple[int, int]] = []
    """Ranges of the global order in the committed contributions, joined where they touch."""
    returned: list[tuple[int, int]] = []
    """Ranges that were handed out for this round and went back."""
    carried: list[tuple[int, int]] = []
    """Ranges that stay with members who work on: theirs in the next round."""
    staleness: list[int] = []
    """Of each contributor, how many rounds were committed since its lease was handed out; empty: none for all."""


class RoundApplied(_Event):
    """This peer holds the anchor of `version`."""

    channel: str
    version: int
    anchor: str
    """Hex digest of anchor and replicated outer state."""
    fetched: bool = False
    """True when the result had to be fetched after the commit."""
    circle: str = ""
    """Hex digest root of what was applied, where it was made by a circle: who was in another one has other weights."""
    apart: float = 0.0
    """How far the weights that this peer gave were from the mean it applied, as a part of its length; 0: not known."""
    astray: bool = False
    """True where regions hold states of their own and this is not that of the peer's own one: it will get that."""


class RoundPassedOver(_Event):
    """This peer goes on with the weights it has: a round made nothing for it, or nothing that it could get."""

    channel: str
    version: int
    anchor: str
    why: str


class LeaseCarried(_Event):
    """A round was committed without this peer's contribution: it keeps its lease and works on."""

    channel: str
    version: int
    steps: int
    """Taken so far."""
    steps_of: int


class WeightsLent(_Event):
    """A round of circles ended before this peer's work was done: weights it had before are in it."""

    channel: str
    version: int
    of: int
    """The version whose weights they are."""


class ContributionDropped(_Event):
    """Own work missed its round: its lease went back."""

    channel: str
    version: int
    samples: int


class StateFetched(_Event):
    version: int
    size_bytes: int
    donors: list[str]
    took_s: float


class CatchUpFailed(_Event):
    """Nobody could send what this peer was missing; it tries again."""

    version: int
    why: str


class CatchUpTooSlow(_Event):
    """This peer falls behind faster than it catches up; `why` has the arithmetic. It goes on trying."""

    version: int
    behind: int
    """Versions between its anchor and the newest."""
    why: str


class InnerStateRestored(_Event):
    """Work that did not count was taken back: the inner optimizer is where it was before that work began."""

    channel: str
    version: int
    """The round the work was for."""
    why: str


class StateHealed(_Event):
    """Own state differed from the one the log names; it was downloaded anew."""

    version: int
    had: str
    wanted: str


class ResidualLost(_Event):
    """What a codec left out so far is gone: a contribution counts of which nothing was kept here, or others own now
    what we owned."""

    version: int
    chunks: int = 0
    """Of results: those of which something was left out. 0: it is our contributions' own."""


class PrivateStateReset(_Event):
    """Inner optimizer state could not be taken back; it starts from zero."""

    why: str


class CheckpointSaved(_Event):
    version: int
    path: str
    size_bytes: int
    took_s: float


class Evaluated(_Event):
    """The anchor was looked at on held-out samples."""

    version: int
    loss: float | None
    tokens: int


class TrafficCounted(_Event):
    """Payload bytes handed to and taken from the transport since the start."""

    sent_bytes: int
    received_bytes: int
    round_sent_bytes: int = 0
    """Of these, contributions and results."""


class EpochStarted(_Event):
    """The council's new leader is the broker: plans of earlier ones are void, its log goes on."""

    epoch: int
    broker: str


class BrokerElected(_Event):
    """This peer leads the council from now on."""

    who: str
    epoch: int
    why: str


class BrokerLost(_Event):
    """A council member took the broker for dead; `why` says what it was judged by."""

    who: str
    epoch: int
    why: str


class BrokerMissing(_Event):
    """Of all whom this peer asked nobody leads the run or knows who does; it goes on asking. `hint` says what helps."""

    asked: int
    hint: str


class BrokerSteppedDown(_Event):
    """This peer stopped leading the council."""

    epoch: int
    why: str


class CouncilReformed(_Event):
    """The organiser's owner put a new council in place of one that lost its majority for good."""

    asked: int
    told: list[str]
    """Peers that told their log."""
    entries: int
    """Length of the log that was kept: the one that knew most."""


class CouncilChanged(_Event):
    """Other peers vote from now on."""

    members: list[str]
    why: str


class RunFinished(_Event):
    version: int
    samples: int
    tokens: int


Event = (
    PeerStarted | PeerStopped | TicketPrinted | PeerJoined | PeerLeft | PeerLost | JoinRefused | MessageRefused
    | RoundAnnounced | LeaseTaken | WorkProgressed | LinksFilled | ContributionSent
    | RoundReplanned | RoundSettled | RoundVoided | SharesChanged | RegionsChanged | RegionBegun
    | TreesChanged | QuotasChanged | KnobsTurned | TeacherChosen | PeerUnreachable
    | RoundCommitted | RoundApplied | LeaseCarried | ContributionDropped | StateFetched | CatchUpFailed | CatchUpTooSlow
    | WeightsLent
    | RoundPassedOver | InnerStateRestored | StateHealed | ResidualLost | PrivateStateReset
    | CheckpointSaved | Evaluated | TrafficCounted | EpochStarted | BrokerElected | BrokerLost | BrokerMissing
    | BrokerSteppedDown
    | CouncilChanged | CouncilReformed
    | RunFinished
)  # fmt: skip


class Line(msgspec.Struct, frozen=True):
    """One event with its stamp."""

    at_s: float
    peer: str
    """Short name of the peer that wrote it."""
    event: Event


class Journal:
    """One peer's record: stamps events and hands the encoded line to a sink."""

    def __init__(self, peer: str, clock: Clock, sink: Callable[[bytes], None]) -> None:
        self.peer = peer
        self._clock = clock
        self._sink = sink
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: Event) -> None:
        """Record that `event` happened now."""
        why = getattr(event, "why", "")
        if len(why) > WHY_CHARS_MAX:
            event = msgspec.structs.replace(event, why=why[:WHY_CHARS_MAX] + " ...")
        self._sink(self._encode(Line(self._clock.now_s(), self.peer, event)) + b"\n")


_decoder = msgspec.json.Decoder(Line)


def parse(line: bytes) -> Line:
    """Return the event of one journal line; raises `LocalError` when it is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalError(f"not a journal line: {error}", hint="was the file written by another version?") from error


def read(path: Path) -> Iterator[Line]:
    """Yield the events of a journal file; a torn last line (a crash) is passed over."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield parse(line)
