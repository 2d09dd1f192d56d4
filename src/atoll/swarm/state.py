"""What the broker hears, what it may do, and what it knows: the records its decisions are made of.

Time is a number that is passed in. `Write` asks for a record; it takes effect when it comes back as `Logged`,
so the same decisions serve whatever makes the log durable.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.control import Knobs
from atoll.spec.axes.whom import Whom
from atoll.spec.knobs import channel_of, steps_of
from atoll.spec.recipe import Channel
from atoll.spec.run import AllowList, Run
from atoll.spec.turns import Turn, turn_of
from atoll.swarm.log import Entry, History, Key, Member, OpenRound, Record, SettingsChanged, knobs_of
from atoll.swarm.messages import Contribution, FromBroker, FromMember, Plan, Standing
from atoll.swarm.policy.match import Line
from atoll.swarm.routes.circles import Circle, copies_of
from atoll.swarm.routes.shares import WHOLE, Bulk, Shard, owners_of
from atoll.swarm.routes.tree import Trees

REUNION_S = 15.0
"""After a restart, how long known members may take to come back before the run goes on without them."""


# what it hears


class Arrived(Struct, frozen=True):
    """A member opened its control stream."""

    member: Member
    next_index: int


class Said(Struct, frozen=True):
    """A member that is present said something."""

    peer: bytes
    message: FromMember


class Gone(Struct, frozen=True):
    """A member's control stream ended."""

    peer: bytes
    why: str


class Logged(Struct, frozen=True):
    """A record we asked for is durable."""

    entry: Entry


class Tick(Struct, frozen=True):
    """Time passed."""


Heard = Arrived | Said | Gone | Logged | Tick


# what it does


class Write(Struct, frozen=True):
    """Append a record to the log."""

    record: Record


class Tell(Struct, frozen=True):
    """Send a member a message."""

    peer: bytes
    message: FromBroker


class Catch(Struct, frozen=True):
    """Send a member the log from an index on, as it is now."""

    peer: bytes
    next_index: int


class Note(Struct, frozen=True):
    """Write a journal event."""

    event: journal.Event


class Wake(Struct, frozen=True):
    """Look again at that time, if nothing happens before."""

    at_s: float


Action = Write | Tell | Catch | Note | Wake


# what it knows


class Presence(Struct, frozen=True):
    """A member whose control stream is open."""

    member: Member
    standing: Standing | None = None
    unreached: tuple[bytes, ...] = ()
    """Members that cannot reach it."""
    doubts: tuple[tuple[bytes, int], ...] = ()
    """Members that could not reach it once, though they had before, and in which round."""


class Pace(Struct, frozen=True):
    """How long the last rounds took: the median contribution, and results from the settling to the commit."""

    work_s: tuple[float, ...] = ()
    return_s: tuple[float, ...] = ()
    seen: tuple[bytes, ...] = ()
    """Who contributed to the last of them."""
    quorums_s: tuple[float, ...] = ()
    """When enough had contributed to each of them, where rounds end by that."""
    lead_s: float = 0.0
    """How long before its announcement the work on the next one could begin: who joins only then needs that too."""


class Measure(Struct, frozen=True, kw_only=True):
    """What one round took, by our own clock, until the next could be announced."""

    members: int
    work_s: float
    """The longest that a member worked."""
    lost_s: float
    """All the rest of it."""
    exchange_s: float
    """What its exchange took, also where members went on meanwhile."""
    rest_s: float
    """From its commit until the next could be announced."""


class Before(Struct, frozen=True):
    """How the knobs stood before they were last turned, and what exchanges took then."""

    knobs: Knobs | None
    exchange_s: float


class Trial(Struct, frozen=True, kw_only=True):
    """Shares that rates speak for, until a round shows whether they are better."""

    since: int
    """The first round that has them."""
    before: dict[bytes, float]
    took: dict[tuple[str, str], tuple[int, float]]
    """What rounds of each kind took that did not, as the broker has it."""


class Round(Struct, frozen=True, kw_only=True):
    """An open round as this broker sees it."""

    announced: OpenRound
    began_s: float
    since_s: float
    """Since when it is waited for: its announcement, or the settling of the round before, which is worked on first."""
    moved_s: float
    attempt: int
    first_attempt: int
    shards: tuple[Shard, ...]
    gather: bool = False
    ring: bool = False
    """Sums go round among the owners; where they can not, the broker owns everything."""
    trees: Trees = ()
    """Likewise they go up these trees."""
    circles: tuple[Circle, ...] = ()
    """Who exchanges with whom; none: all with all."""
    settled: tuple[Contribution, ...] | None = None
    settled_s: float = 0.0
    patient_until_s: float = 0.0
    """Until when, once settled, it may stand still, as far as looked at: it costs a look at every member."""
    serials: dict[bytes, int] = {}
    """Contributions that all owners of this attempt hold."""
    took_s: dict[bytes, float] = {}
    """How long each contributor took since it was waited for, over all attempts."""
    sent_s: dict[bytes, float] = {}
    """How long each took to bring in its contribution, where members say so."""
    heard_s: dict[bytes, float] = {}
    """When each contributor first said so, over all attempts, in that order."""
    spoiled: tuple[bytes, ...] = ()
    carrying: dict[bytes, int] = {}
    """How much each has carried, as far as it said so."""
    reduced: dict[bytes, tuple[bytes, ...]] = {}
    holding: dict[bytes, str] = {}
    held_s: float | None = None
    """Since when enough hold the result for a commit."""
    shunned: tuple[bytes, ...] = ()
    """Members that somebody could not bring its contribution to: they own nothing for the rest of the round."""
    absent: tuple[bytes, ...] = ()
    """Members whose contribution is not hoped for: away, or refused."""
    late: tuple[bytes, ...] = ()
    """Members that are no longer waited for where sums are carried."""
    parted: tuple[tuple[bytes, bytes], ...] = ()
    """Members that could not pass anything on to another, and to whom."""
    lent: dict[bytes, int] = {}
    """What owners hold of members that are not done: weights from before."""
    closing_s: float | None = None
    """Since when those are asked for."""

    @property
    def carried(self) -> bool:
        """Return whether sums are carried from member to member."""
        return self.ring or bool(self.trees)

    @property
    def owners(self) -> tuple[bytes, ...]:
        return owners_of(self.shards)

    @property
    def key(self) -> Key:
        return self.announced.key


class Calm(Struct, frozen=True):
    """Roster and council were looked at, and are as they should be: for these peers and this log, until then."""

    present: dict[bytes, Presence]
    away_s: dict[bytes, float]
    history: History
    until_s: float


class Broker(Struct, frozen=True, kw_only=True):
    """Everything the broker decides from."""

    me: bytes
    term: int
    """The council's term in which we lead: the epoch that our first record opens."""
    run: Run
    started_s: float
    cold: bool = False
    """This peer itself has just started: perhaps everybody has."""
    tokens_per_sample: int
    bulks: Mapping[str, tuple[Bulk, ...]] = {}
    """What one contribution to each channel is on the wire, for all its units in turn."""
    whole: Bulk = WHOLE
    """Likewise, where a round is about all of a model that otherwise goes in parts."""
    rungs: tuple[Bulk, ...] = ()
    """Likewise, on each rung of the ladder that the recipe's control has."""
    history: History = History()
    epoch: int = 0
    """Our own epoch; 0 until the log says that it began."""
    present: dict[bytes, Presence] = {}
    away_s: dict[bytes, float] = {}
    """Since when roster members are not present."""
    missed: dict[bytes, int] = {}
    """Members that missed a round, and which: they are counted in again once they hold it."""
    rounds: tuple[Round, ...] = ()
    """The open rounds that are planned, in the order in which they are to be committed."""
    pending: int = 0
    """Records that are on their way into the log: decide nothing until they are there."""
    announced: bool = False
    """A round was announced in our epoch."""
    attempts: int = 0
    """Plans made in our epoch: each has a number of its own, so that no late report can pass for a new one."""
    settings: tuple[bytes, SettingsChanged] | None = None
    """Who says that the organiser wants what changed: not looked at yet."""
    shares: dict[bytes, float] = {}
    """Which part of the grid each peer that can own something owns since the shares last changed."""
    trial: Trial | None = None
    deaf: tuple[int, int] = (0, 0)
    """Until which round shares do not follow rates, since those were wrong; and for how many rounds that was."""
    took: dict[tuple[str, str], tuple[int, float]] = {}
    """By channel and unit, as only rounds of the same kind are alike: the one that we announced and committed last, and
    what it took from the one to the other."""
    trees: tuple[tuple[bytes, ...], Trees] = ((), ())
    """The trees of the last round that was committed, and the members that they are over."""
    quotas: dict[bytes, int] = {}
    """Samples of each member since the quotas last changed."""
    pace: Pace = Pace()
    closed: Round | None = None
    """The round that we announced and committed last, until it is measured; only where knobs are turned."""
    closed_s: float = 0.0
    """When that was."""
    measured: tuple[Measure, ...] = ()
    """What the last rounds took since knobs were turned."""
    before: Before | None = None
    lines: dict[bytes, Line] = {}
    """What members' lines are taken to carry, where the policy goes by that."""
    plans: tuple[Plan, ...] = ()
    """What the broker before us planned for the open rounds, as our own member heard it."""
    calm: Calm | None = None
    told: tuple[bytes, ...] = ()
    """Who was told farewell."""

    @property
    def round(self) -> Round | None:
        """Return the round that is to be committed next; None: there is none, or it is not planned yet."""
        return self.rounds[0] if self.rounds else None

    @property
    def knobs(self) -> Knobs | None:
        """Return how knobs stand in the open round, or in the next where none is open; None: nobody turned them."""
        return knobs_of(self.history, self.history.version + 1)

    @property
    def turn(self) -> Turn:
        """Return which channel that round is of."""
        return turn_of(self.run.recipe, self.history.version + 1)

    @property
    def whom(self) -> Whom:
        return self.setting.whom

    @property
    def setting(self) -> Channel:
        """Return that channel as its knobs stand."""
        return channel_of(self.run.recipe, self.history.version + 1, self.knobs)

    @property
    def spent(self) -> float:
        """Return which part of the budget all rounds take so far, those under way among them."""
        tokens = self.history.given_samples * self.tokens_per_sample
        return self.run.budget.part(rounds=self.history.newest, tokens=tokens)

    @property
    def round_steps(self) -> int:
        """Return how many local steps that round has."""
        return steps_of(self.run.recipe, self.knobs)

    @property
    def bulk(self) -> Bulk:
        """Return what one contribution to it is on the wire."""
        if self.knobs is not None:
            return self.rungs[self.knobs.rung]
        turn, open_ = self.turn, self.history.open
        if open_ is not None and open_.key.unit != turn.unit:
            return self.whole
        bulks = self.bulks.get(turn.name, (WHOLE,))
        bulk = bulks[(turn.number - 1) % len(bulks)]
        copies = 1 if open_ is None else copies_of(self.whom, open_.key, len(open_.members))
        return Bulk(copies * bulk.chunks, bulk.chunk_bytes)


def driven(broker: Broker, round_: Round) -> Broker:
    """Return the broker with one of its rounds as it has become."""
    return replace(broker, rounds=tuple(round_ if each.key == round_.key else each for each in broker.rounds))


def expected(broker: Broker, peer: bytes, now_s: float) -> bool:
    """Return whether a member that is not here has been so since we started, and not for long."""
    return broker.away_s.get(peer) == broker.started_s and now_s - broker.started_s < REUNION_S


def admits(run: Run, peer: bytes, organiser: bytes) -> bool:
    """Return whether the run lets this peer take part."""
    who = run.membership.who
    return not isinstance(who, AllowList) or peer == organiser or peer.hex() in who.peers
