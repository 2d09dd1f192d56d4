"""What a peer knows as a member of the run, which all its tasks read and write.

The log's history, the anchor, work that is under way, and a desk for every open round (`desk`). Tasks never call each
other: each waits until there is something for it to do, does it, and says that something has changed. So any of them
can be restarted, late or repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from atoll.model.compute import Cost, Engine, Step, Vector
from atoll.model.held import Held
from atoll.net.transport import PeerId
from atoll.peer.box import Box
from atoll.peer.desk import Changes, Desk, Own, Owned, Report, plan_id
from atoll.peer.links import Links, cancelled
from atoll.peer.private import Private
from atoll.peer.store import Store
from atoll.spec import knobs
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.control import Knobs, Nobody
from atoll.spec.axes.pace import StandIn
from atoll.spec.axes.what import Dct, Feedback, Params
from atoll.spec.axes.when import Every, TargetBatch
from atoll.spec.axes.whom import Carried, Regions, Rings, Trees
from atoll.spec.axes.work import ByRate, BySpeed, Growing
from atoll.spec.load import decode_run
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.spec.turns import Turn, ends_whole, makes_model, rarest, turn_of
from atoll.swarm import ledger, log
from atoll.swarm.homes import BEGINS, Homes
from atoll.swarm.lease import Lease
from atoll.swarm.log import (
    ALL,
    MODEL,
    ClosedRound,
    CouncilReformed,
    Entry,
    EpochStarted,
    History,
    Key,
    KnobsTurned,
    OpenRound,
    RosterChanged,
    RoundAnnounced,
    RoundCommitted,
    RoundVoided,
    SettingsChanged,
)
from atoll.swarm.messages import Carrying, Contribution, FromMember, Plan, Settings, Standing, trip_name
from atoll.swarm.routes.circles import Circle, came, circles_in, copies_of, reach_of, result_for, results_of
from atoll.swarm.routes.layout import Layout, layout_of
from atoll.swarm.routes.shares import Bulk
from atoll.sync.codec import wire_bytes
from atoll.sync.factors import Factors
from atoll.sync.frequencies import Frequencies
from atoll.sync.grid import Grid
from atoll.sync.merge import Anchor
from atoll.sync.polar import Polar
from atoll.sync.units import Unit, longest, units_of

T = TypeVar("T")
LIFE_CONTRIBUTIONS_MAX = 2**32
LOSSES = 10
"""Rounds of which the losses are recent."""
LAYOUTS = 8
"""Of so many plans we remember who sends what to whom."""
CARRIED_S = 5.0
"""So often at most the broker hears that sums and results still come."""


class Past(Struct, frozen=True, kw_only=True):
    """What the log says about one version."""

    samples_before: int
    round_samples: int
    steps: int
    """Of who has most of these."""
    start: int
    """The version that it starts from, and the digest of that."""
    base: str
    of_all: bool = True
    whole: bool = False
    """It is about all of the model."""
    home: int | None = None
    """Where we were at home in it, where regions hold states of their own."""
    committed: ClosedRound | None = None
    """As it concerns us: of a round in circles what our own one has made, with an empty result if that is nothing."""


@dataclass
class Stint:
    """Work on one lease: what is to be done, and how far it has come."""

    key: Key
    """The round that it is for."""
    lease: Lease
    steps: list[Step]
    first: int = 0
    """The round for which it was handed out: it may come to be for a later one."""
    started: bool = False
    """Whether the model is where the work starts from, or beyond."""
    done: int = 0
    worked_s: float = 0.0
    loss_sum: float = 0.0
    """Of its steps so far."""
    slice: int = 1
    """Steps that take about as long as may pass between two looks at the desk."""
    gradient: Held | None = None
    """The sum so far, where gradients are exchanged."""
    reconciled: bool = False
    """Whether the anchor that it is to start from has been taken in."""
    base: int = 0
    """The version with which our private state is on disk as it was before this work."""
    carried: bool = False
    """Whether a round was committed without it: it goes on until it is done, for whichever round is open then."""
    of: int | None = None
    """The version that it starts from, where that need not be the newest; none: it is, or from where `start` says."""
    start: Vector | None = None
    """Where it starts from, if the anchor may move on from there before; none: from our own weights, or the anchor."""
    own: Own | None = None
    """What it came to, where that may be late for one round and enter another."""
    trained: Vector | None = None
    """The weights it came to, where they may be late and join what a circle has made meanwhile."""
    among: int = 0
    """How many that was the mean of; 0: there was nothing."""


@dataclass
class Downloads:
    """What this peer knows about getting state from others."""

    distrusted: dict[PeerId, str] = field(default_factory=dict)
    """Who sent what was wrong, and what: nobody asks them again in this life."""
    fellows: dict[PeerId, None] = field(default_factory=dict)
    """Who is getting the same snapshot, as we heard from them or from a donor."""
    readers: dict[str, dict[PeerId, tuple[str, ...]]] = field(default_factory=dict)
    """Who draws which snapshot from us now, by its root, and where they can be found."""
    began_s: float | None = None
    """When we fell behind."""
    began_version: int = 0
    """The newest version then."""
    rate_bytes_s: float = 0.0
    """Measured over the last download."""
    told_slow: bool = False


@dataclass
class Member:
    """Everything that a peer knows."""

    box: Box
    links: Links
    store: Store
    run: Run
    run_id: str
    engine: Engine
    private: Private
    units: Mapping[str, tuple[Unit, ...]]
    """What rounds of each channel are about, in turn, as long as nobody turns knobs."""
    life: int
    """How often this peer has started."""
    anchor: Anchor
    digest: str
    broker: PeerId
    factors: Factors | None = None
    """How matrices travel in two rounds; none: as they are, in one."""
    at_home: bool = True
    """Whether our anchor is what our region holds, where regions hold states of their own (`home`)."""
    name: str = ""
    history: History = field(default_factory=History)
    past: dict[int, Past] = field(default_factory=dict)
    desks: dict[int, Desk] = field(default_factory=dict)
    """What we have of each open round, by its version."""
    closed: dict[int, Desk] = field(default_factory=dict)
    """Likewise of those that were committed and are not applied yet."""
    starts: dict[int, Vector] = field(default_factory=dict)
    """Weights of earlier anchors that open rounds start from which still want our work."""
    digests: dict[int, str] = field(default_factory=dict)
    """Those of the last anchors that were ours."""
    given_up: list[OpenRound] = field(default_factory=list)
    """Rounds of several that were given up with contributions of ours, whose traces are still with us."""
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the anchor is stepped, and while it is lent."""
    begun: Stint | None = None
    """Work that has touched our private state and is neither counted nor taken back yet."""
    ahead: list[Stint] = field(default_factory=list)
    """Likewise, for the rounds after the open one, in their order."""
    inner: int = 0
    """The newest version that our private state went with in this life."""
    downloads: Downloads = field(default_factory=Downloads)
    late: dict[Contribution, dict[int, memoryview]] = field(default_factory=dict)
    """What we hold, as an owner, of contributions that were late for the last round and come again as they are."""
    left_out: dict[tuple[str, int], Vector] = field(default_factory=dict)
    """As an owner: what is left out of results so far, by unit and chunk."""
    ready: bool = False
    """True once the anchor is worth reporting (a fresh joiner's is not)."""
    leaving: str = ""
    wanted: Settings | None = None
    """As the organiser: the run as its owner wants it now, signed."""
    knocked: list[PeerId] = field(default_factory=list)
    """Doors we knocked at in vain since we last had a broker."""
    rounds_of_knocking: int = 0
    attended_s: float | None = None
    """When a broker last listened to us, until we have complained that none does."""
    attended: bool = False
    """True while a broker listens to us."""
    summoned: bool = False
    """True once a broker has said that it leads, until we are at its door."""
    followed: bool = False
    """True once we have followed another peer in this life: the run was going on without us."""
    memory_bytes: int = 0
    """What the exchange may take of this machine's memory; 0: no limit."""
    samples_s: float = 0.0
    """How fast we worked lately; 0: not known."""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    """Those of the last rounds that we worked for."""
    exchange_s: float = 0.0
    """How long it took from our contribution to the anchor it is in; 0: nobody asks, or the last has none of ours."""
    moved: float = 0.0
    """How far the anchor moved in the last round that we applied, as a part of its length; 0: nobody asks."""
    _made: int = 0
    _measured: tuple[int, int, int] | None = None
    _trips_ms: tuple[tuple[bytes, int], ...] = ()
    _rates_bytes_s: tuple[tuple[bytes, int], ...] = ()
    _layouts: dict[tuple[Key, int, int], Layout] = field(default_factory=dict)
    """Those of the last plans: who carries one out may be a moment behind."""
    _turned: dict[Knobs, tuple[Channel, Unit]] = field(default_factory=dict)
    """The channel at each position of its knobs that we have seen, and what its rounds are about."""
    _ahead: dict[int, tuple[Entry, History]] = field(default_factory=dict)
    """Entries that were checked and are not committed here yet, with the history that they make."""
    _lanes: int = 0
    farewell: bool = False
    changes: Changes = field(default_factory=Changes)

    @property
    def me(self) -> PeerId:
        return self.links.me

    @property
    def channel(self) -> Channel:
        """Return the channel that makes the run's model, as the recipe has it; of a round's own ask `channel_of`.

        Where there are several, they have in common what is not of a single round: barrier, overlap, what work is.
        """
        return rarest(self.run.recipe)

    def turn_of(self, version: int) -> Turn:
        """Return which channel a round is of."""
        return turn_of(self.run.recipe, version)

    def holds(self, key: Key) -> bool:
        """Return whether a round leaves everybody's work for the next."""
        return self.channel.holds(key.version, of_all=key.scope == ALL)

    def makes_model(self, version: int) -> bool:
        """Return whether a round is of the channel that makes the run's model."""
        return makes_model(self.run.recipe, self.turn_of(version).name)

    def channel_of(self, version: int) -> Channel:
        """Return the channel of a round as its knobs stand in it."""
        turn = log.knobs_of(self.history, version)
        if turn is not None:
            return self._at(turn)[0]
        channel, past = self.turn_of(version).channel, self.past.get(version)
        weights = channel.of_weights(version, of_all=past is not None and past.of_all)
        return channel.with_weights() if weights else channel

    def _at(self, turn: Knobs) -> tuple[Channel, Unit]:
        if turn not in self._turned:
            channel = knobs.turned(self.run.recipe, turn)
            self._turned[turn] = (channel, self._all_in(channel.what.codec))
        return self._turned[turn]

    def steps_before(self, version: int) -> int:
        """Return how many local steps the rounds before one have; if they grow, by how much was worked on in them."""
        past = self.past.get(version)
        if past is not None and isinstance(self.run.recipe.work.quota, ByRate):
            return past.samples_before * past.steps // past.round_samples
        changes = [turn.version for turn in self.history.turned if turn.version < version]
        starts = [1, *changes, version]
        return sum(self.channel_of(first).worked(first, end) * self.steps_of(first) for first, end in pairwise(starts))

    def steps_of(self, version: int) -> int:
        """Return how many local steps a round has."""
        return knobs.steps_of(self.run.recipe, log.knobs_of(self.history, version))

    @property
    def touched(self) -> Stint | None:
        """Return the work that our private state was touched by first, if it is neither counted nor taken back."""
        return next(iter(self.stints), None)

    @property
    def stints(self) -> list[Stint]:
        """Return all work that is neither counted nor taken back, in the order of its rounds."""
        return [*([] if self.begun is None else [self.begun]), *self.ahead]

    @property
    def silence_s_max(self) -> float:
        """Return how long a peer may take over one message of a bulk transfer before it is given up."""
        return self.run.upkeep.patience_s_max

    def standing(self) -> list[FromMember]:
        """Return what the broker must hear about our state."""
        if not self.ready:
            return []
        if self._measured is None or self._measured[0] != self.anchor.version:  # once a round: it is no news before
            self._measured = (self.anchor.version, *self.links.line.rates_bytes_s())
            route = self.channel.whom.route
            self._trips_ms = self._round_trips_ms() if isinstance(route, Carried | Regions) else ()
            self._rates_bytes_s = self._link_rates_bytes_s() if isinstance(route, Trees | Rings) else ()
        _, up_bytes_s, down_bytes_s = self._measured
        speed = self.samples_s if self.measures_speed else 0.0
        moved = self.moved if isinstance(self.run.recipe.work.quota, Growing) else 0.0
        measured = (up_bytes_s, down_bytes_s, self.memory_bytes, speed)
        links = (self._trips_ms, self._rates_bytes_s)
        digest = self.digest if self.at_home else ""
        standing = Standing(self.anchor.version, digest, *measured, self.exchange_s, moved, self._waits(), *links)
        return [replace(standing, loss=self._recent_loss())]

    def _recent_loss(self) -> float | UnsetType:
        """Return what our last rounds' losses are on average, where somebody wants to know."""
        mesh = self.channel.mesh
        asked = mesh is not None and mesh.teach_every > 0 and len(self.losses) > 0
        return sum(self.losses) / len(self.losses) if asked else UNSET

    def _waits(self) -> bool:
        """Return whether we have nothing to do but to bring in a contribution that was late."""
        late = self.begun is not None and self.begun.carried and self.begun.own is not None
        return late and all(stint.done >= len(stint.steps) for stint in self.ahead)

    def _round_trips_ms(self) -> tuple[tuple[bytes, int], ...]:
        """Return how far it is to each peer of the roster that we have a link to."""
        trips_s = {peer: self.links.distance_s(PeerId(peer)) for peer in sorted(self.history.members)}
        return tuple((trip_name(peer), round(1e3 * s)) for peer, s in trips_s.items() if s is not None)

    def _link_rates_bytes_s(self) -> tuple[tuple[bytes, int], ...]:
        """Return what the links to others carry that we have sent something lately."""
        rates = ((peer, self.links.rate_bytes_s(PeerId(peer))) for peer in sorted(self.history.members))
        return tuple((trip_name(peer), rate) for peer, rate in rates if rate)

    @property
    def measures_speed(self) -> bool:
        """Return whether anybody wants to know how fast we work."""
        recipe = self.run.recipe
        by_speed = isinstance(recipe.work.quota, BySpeed) or isinstance(self.channel.when, TargetBatch)
        return by_speed or not isinstance(recipe.control, Nobody)

    def check(self, entries: tuple[Entry, ...]) -> None:
        """Raise `BadLog` for entries, told by a broker, that cannot follow on what we know."""
        history = self.history
        for entry in entries:
            if isinstance(entry.record, SettingsChanged | CouncilReformed):
                problem = log.objection(entry.record, history.organiser, self.run_id)
                if problem:
                    raise log.BadLog(f"entry {entry.index}: {problem}")
            history = self._after(history, entry)
            self._ahead[entry.index] = (entry, history)

    def _after(self, history: History, entry: Entry) -> History:
        """Return the history after one more entry; raises `BadLog` for one that cannot follow in this run."""
        if isinstance(entry.record, KnobsTurned):
            problem = knobs.objection(self.run.recipe, entry.record.knobs)
            if problem or entry.record.channel not in self.run.recipe.channel:
                raise log.BadLog(f"entry {entry.index}: {problem or 'there is no such channel'}")
        if isinstance(entry.record, RoundAnnounced):
            key = entry.record.key
            if entry.record.holds != self.holds(key):
                raise log.BadLog(f"entry {entry.index}: whether round {key.version} holds its leases the recipe says")
            turned = log.knobs_of(history, key.version)
            if len(history.under_way) >= knobs.channel_of(self.run.recipe, key.version, turned).room:
                raise log.BadLog(f"entry {entry.index}: round {key.version} is announced while too many are open")
        return log.apply(history, entry)

    def learn(self, entry: Entry, *, again: bool = False) -> None:
        """Take in one more committed entry of the log, and journal it unless it is only remembered."""
        before, round_s = self.history, 0.0
        known = self._ahead.pop(entry.index, None)
        self.history = known[1] if known is not None and known[0] == entry else self._after(before, entry)
        match entry.record:
            case RoundAnnounced(key=key, base=base):
                announced = self.history.under_way[-1]
                home = self.history.homes.of.get(self.me)
                self.past[key.version] = Past(
                    samples_before=before.given_samples,
                    round_samples=sum(announced.quotas),
                    steps=max(announced.quotas) // self.run.recipe.work.batch,
                    start=announced.start,
                    base=base or announced.base_at(home),
                    of_all=key.scope == ALL,
                    whole=key.unit == MODEL,
                    home=home,
                )
                self.at_home = self.at_home and self.past[key.version].base != BEGINS
                self.desks[key.version] = Desk(announced, self.now_s())
            case RoundCommitted(key=key):
                assert before.open is not None
                assert self.history.last is not None
                committed = self._concerning_us(before.open, self.history.last, before.homes)
                self.past[key.version] = replace(self.past[key.version], committed=committed)
                round_s = self.now_s() - self._close(key).began_s
            case RoundVoided():
                for over in before.under_way[len(self.history.under_way) :]:
                    del self.past[over.key.version]
                    if self.desks[over.key.version].own is not None and self.channel_of(over.key.version).room > 1:
                        self.given_up.append(over)
                    self.desks[over.key.version].own = None
                    self._close(over.key)
                    if self.begun is not None and self.begun.of is not None and self.begun.key == over.key:
                        self.begun = None  # it leaves nothing to be taken back
            case RosterChanged(joined=joined):
                self.links.contacts.update({PeerId(m.peer): m.addresses for m in joined})
            case SettingsChanged(run=run):
                self.run = decode_run(run)
                self.links.transport.limit_silence(self.run.upkeep.silence_s_max)
            case EpochStarted(broker=broker):
                self.broker = PeerId(broker)
            case _:
                pass
        if again:
            return
        tokens_per_sample = self.engine.tokens_per_sample
        for event in ledger.events_of(before, self.history, entry.record, tokens_per_sample, round_s):
            self.box.journal.write(event)

    def circles_of(self, announced: OpenRound) -> tuple[Circle, ...]:
        """Return the circles of a round; none: it is one of all."""
        return circles_in(self.channel.whom, announced)

    def _concerning_us(self, announced: OpenRound, closed: ClosedRound, homes: Homes) -> ClosedRound:
        """Return what there is for us in a round that was committed."""
        if announced.bases:
            return closed.for_home(announced, self.past[announced.key.version].home, homes)
        circles = self.circles_of(announced)
        if not circles:
            return closed
        results = results_of(circles)
        number = result_for(results, self.me)
        if number is None or not (number < len(closed.circles) and closed.circles[number]):
            return replace(closed, result="", contributors=())
        own = [circles[each] for each in results[number].circles]
        givers = {giver for circle in own for giver in circle.givers}
        contributors = tuple(peer for peer in closed.contributors if peer in givers)
        part = self._part_of_own(circles, own[0], announced, closed)
        lent = tuple(peer for peer in closed.lent if peer in givers)
        return replace(closed, result=closed.circles[number], contributors=contributors, lent=lent, own=part)

    def _part_of_own(self, circles: Sequence[Circle], ours: Circle, announced: OpenRound, closed: ClosedRound) -> float:
        """Return how much of our own weights stays when we take a result that we are not in; 0: we are, or nothing."""
        if self.me in closed.contributors or self.channel.merge.combine.weights != "mass":
            return 0.0
        mass = announced.masses.get(self.me, 1.0)
        more = came(ours, reach_of(circles), announced.masses, closed.contributors)
        return mass / (mass + more)

    def summon(self, broker: PeerId) -> None:
        """Hear from a broker that it leads; who follows it already need not go anywhere."""
        if not (self.attended and self.broker == broker):
            self.broker, self.summoned = broker, True
            self.changes.notify()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _shares_owned(self, desk: Desk) -> float:
        """Return how many times an equal share of a round we owned."""
        chunks = 0 if desk.owned is None else len(desk.owned.counts)
        return chunks * len(desk.announced.members) / max(1, self.unit_of(desk.key.version).grid.chunks)

    def _close(self, key: Key) -> Desk:
        """Clear the desk of a round that is over, but for what it takes to apply its result."""
        desk = self.desks.pop(key.version)
        self.links.turn(owned=self._shares_owned(desk))
        if desk.owned is not None:
            self._keep_late(desk.owned, key)
        desk.close()
        for earlier in self.closed.values():  # of which the rest can be got otherwise
            earlier.incoming, earlier.made = {}, {}
        if self.anchor.version < key.version <= self.history.version:
            self.closed[key.version] = desk
        else:
            desk.clear()
        return desk

    def leave(self, key: Key) -> None:
        """Clear the desk of a round whose result is applied."""
        desk = self.closed.pop(key.version, None)
        if desk is not None:
            desk.clear()

    def _keep_late(self, owned: Owned, key: Key) -> None:
        """As an owner keep what came too late for a round, so that its maker need not send it again for the next."""
        if self.holds(key):
            return  # what waits is not for this one
        last = self.history.last
        carried = last.carried if last is not None and last.key == key else ()
        # The next round is about another part otherwise, or among others, or of gradients after one of weights.
        whole = not self.in_parts and not isinstance(self.channel.late, StandIn)
        self.late = {c: held for c, held in owned.parts.items() if whole and c.peer in carried and c not in owned.bad}

    def desk_of(self, key: Key) -> Desk | None:
        """Return the desk of a round, if that is open."""
        desk = self.desks.get(key.version)
        return desk if desk is not None and desk.key == key else None

    def desk_over(self, key: Key) -> Desk | None:
        """Return the desk of a round that was committed while we were there, and is not applied yet."""
        desk = self.closed.get(key.version)
        return desk if desk is not None and desk.key == key else None

    @property
    def lanes(self) -> int:
        """Return how many rounds may be open at once in this run, however knobs are turned."""
        if not self._lanes:
            self._lanes = knobs.room_max(self.run.recipe)
        return self._lanes

    def in_lane(self, lane: int) -> Desk | None:
        """Return the desk of the open round whose turn it is in a lane: of as many as may be open one is in each."""
        return next((desk for version, desk in self.desks.items() if version % self.lanes == lane), None)

    def wants_work(self, desk: Desk) -> bool:
        """Return whether a round wants our work still."""
        return desk.own is None and self.desks.get(desk.key.version) is desk and self.me in desk.announced.members

    def gave(self, key: Key) -> bool:
        """Return whether we contributed to a round that was committed, in this life."""
        desk = self.desk_over(key)
        return desk is not None and desk.own is not None

    def take_plan(self, plan: Plan) -> None:
        """Follow a plan if it is newer than the one of its round that we follow."""
        # Where owners feed back what they left out, another one makes another chunk of the same contributions.
        self.desks[plan.key.version].take_plan(plan, anew=isinstance(self.channel.what.owners, Feedback))

    def next_serial(self) -> int:
        """Return a number no other contribution of this peer has: later ones are larger, also after a restart."""
        self._made += 1
        return self.life * LIFE_CONTRIBUTIONS_MAX + self._made

    @property
    def reports(self) -> list[FromMember]:
        """Return what the broker must hear about open rounds."""
        return [report for desk in self.desks.values() for report in desk.reports]

    def report(self, report: Report) -> None:
        """Have the broker told, now and after every reconnection while the plan lasts."""
        desk = self.desk_of(report.key)
        if desk is not None and report not in desk.reports:
            desk.reports.append(report)
            self.changes.notify()

    def carried(self, desk: Desk, plan: Plan, count: int) -> None:
        """Note so many more sums passed on, or results here, and have the broker told now and then that it goes on."""
        of, done, said_s = desk.carrying
        if of != plan_id(plan):
            done, said_s = 0, self.now_s()
        if self.now_s() - said_s >= CARRIED_S:
            said_s = self.now_s()
            desk.reports = [each for each in desk.reports if not isinstance(each, Carrying)]
            self.report(Carrying(*plan_id(plan), done + count))
        desk.carrying = (plan_id(plan), done + count, said_s)

    def unit_of(self, version: int) -> Unit:
        """Return what a round is about."""
        knobs = log.knobs_of(self.history, version)
        if knobs is not None:
            return self._at(knobs)[1]
        turn = self.turn_of(version)
        units, past = self.units[turn.name], self.past.get(version)
        if past is not None and past.whole and ends_whole(self.run.recipe):  # the last one
            return self._all_in(turn.channel.what.codec)
        times, place = divmod(turn.number - 1, len(units))
        return units[place].in_pass(times)

    @property
    def in_parts(self) -> bool:
        """Return whether rounds are about different parts of the model."""
        return any(len(units) > 1 for units in self.units.values())

    def sends_weights(self, key: Key) -> bool:
        """Return whether weights themselves travel in a round: where each has its own, they must in one of all."""
        what = self.channel_of(key.version).what
        own = not self.channel.common and self.channel.regional is None
        return isinstance(what, Params) or (key.scope == ALL and own)

    def transform(self, version: int) -> Frequencies | Polar | None:
        """Return how what a round is about is transformed; None: it is not, or by factors."""
        transform = self.channel_of(version).what.transform
        if isinstance(transform, Dct):
            return Frequencies(transform, self.unit_of(version), self.engine.shapes)
        return self.polar(version)

    def polar(self, version: int) -> Polar | None:
        """Return how the tensors of a round are directions and lengths; None: they are not."""
        return Polar(self.unit_of(version), self.engine.layout) if self.channel_of(version).polar else None

    def grid_of(self, key: Key) -> Grid:
        """Return the chunks that a round is exchanged in."""
        return self.unit_of(key.version).grid

    def given_grid(self, announced: OpenRound) -> Grid:
        """Return the chunks of a contribution to a round: those of its result, or as many for each member."""
        copies = copies_of(self.channel.whom, announced.key, len(announced.members))
        grid = self.grid_of(announced.key)
        return grid if copies == 1 else replace(grid, copies=copies)

    def bulk_of(self, key: Key) -> Bulk:
        """Return what one contribution to a round is on the wire."""
        return _bulk(self.channel_of(key.version).what.codec, self.unit_of(key.version).grid)

    @property
    def bulks(self) -> dict[str, tuple[Bulk, ...]]:
        """Return what one contribution is on the wire at most, of each channel for all units in turn."""
        codecs = {name: longest(channel) for name, channel in self.run.recipe.channel.items()}
        return {name: tuple(_bulk(codecs[name], unit.grid) for unit in units) for name, units in self.units.items()}

    @property
    def whole(self) -> Bulk:
        """Return what a contribution is that is about all of a model."""
        codec = self.channel.what.codec
        return _bulk(codec, self._all_in(codec).grid)

    @property
    def rungs(self) -> tuple[Bulk, ...]:
        """Return what one contribution is on the wire on each rung that knobs may be turned to."""
        control = self.run.recipe.control
        codecs = [] if isinstance(control, Nobody) else [form.codec for form in control.ladder]
        return tuple(_bulk(codec, self._all_in(codec).grid) for codec in codecs)

    def _all_in(self, codec: Codec) -> Unit:
        """Return the unit that is all of the model, in some form."""
        return units_of(Every(steps=1), self.engine.layout, codec, polar=self.channel.polar)[0]

    def layout(self, plan: Plan) -> Layout:
        """Return who sends what to whom under a plan of an open round, or of one that has just ended."""
        found = self._layouts.get(plan_id(plan))
        if found is None:
            desk = self.desk_of(plan.key)
            assert desk is not None, "a plan ends with its round"
            open_ = desk.announced
            how = (plan.gather, self.circles_of(open_), plan.ring, plan.trees, open_.regions)
            found = layout_of(plan.shards, open_.members, *how)
            self._layouts = dict([*self._layouts.items()][1 - LAYOUTS :]) | {plan_id(plan): found}
        return found

    def owning(self, desk: Desk) -> Owned:
        """Return what we hold of a round as one of its owners."""
        if desk.owned is None:
            desk.owned = Owned()
            late, self.late = ({}, self.late) if self.holds(desk.key) else (self.late, {})
            for contribution, held in late.items():
                desk.owned.parts[contribution] = {}
                for index, data in held.items():
                    desk.owned.keep(contribution, index, data)
        return desk.owned

    async def job(self, work: Callable[[], T], vectors: float = 1.0) -> T:
        """Run work on the model's weights that passes over them `vectors` times."""
        return await self.box.compute.run(work, self._passes(vectors))

    async def aside(self, work: Callable[[], T], vectors: float = 1.0) -> T:
        """Run work on other bytes, which need not wait for the model: as much as `vectors` passes over its weights."""
        return await self.box.beside.run(work, self._passes(vectors))

    def _passes(self, vectors: float) -> Cost:
        return Cost(moved_bytes=4.0 * self.engine.size * vectors)


def _bulk(codec: Codec, grid: Grid) -> Bulk:
    return Bulk(grid.chunks, wire_bytes(codec, grid.chunk))


async def unless(work: Coroutine[Any, Any, None], stop: Coroutine[Any, Any, Any]) -> None:
    """Run `work` to its end, or cancel it as soon as `stop` returns."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing  # raises what the work raised
    finally:
        await cancelled(doing, stopping)
