"""An assembly to try the council in: peers, links and disks that fail as a seed has it, and what must hold regardless.

Time is counted in ticks of a calm peer. Links delay, lose, double and reorder; cuts are one-way or two-way. A crash
comes between any two actions: what was written before the last thing sent or called final survives, of what was
written after that some first part does. Every leader does as a broker would: it opens its epoch, and has one record
in flight at a time. `Watch` checks the promises of the log after every step; it knows everything and tells nobody.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from msgspec import Struct

from atoll.swarm.log import CouncilChanged, Entry, EpochStarted, Record, RosterChanged
from atoll.swarm.raft import (
    Action,
    Ask,
    Commit,
    Follow,
    Heard,
    Keep,
    Lead,
    Learned,
    Log,
    Lost,
    Propose,
    Raft,
    Received,
    Save,
    Send,
    Tick,
    Vote,
    majority,
    recall,
    sound,
    step,
)

STORM_TICKS = 100.0
HEALED_TICKS = 200.0
"""Once faults stop, a new record is committed, and known to everybody, within so many ticks."""
COUNCIL_MAX = 7


class Broken(AssertionError):
    """A promise was broken."""


def must(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


class Weather(Struct, frozen=True):
    """How bad the links are, and how unequal the clocks."""

    delay_ticks_max: float = 0.3
    strays: float = 0.0
    """How often a message takes many times as long as others."""
    loss: float = 0.0
    doubled: float = 0.0
    told: float = 1.0
    """How often a leader's word reaches a peer that lags behind."""
    pace_max: float = 1.2


CALM = Weather()


class Disk:
    """What a crash leaves of a peer."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.term = 0
        self.vote = b""
        self.log = list(entries)
        self._waiting: list[Save | Entry] = []

    def write(self, action: Save | Keep) -> None:
        self._waiting += [action] if isinstance(action, Save) else action.entries

    def sync(self) -> None:
        """Put on disk what was written so far, in the order it was written."""
        for one in self._waiting:
            if isinstance(one, Save):
                self.term, self.vote = one.term, one.vote
            else:
                assert one.index <= len(self.log), "there is a gap in the log file"
                self.log[one.index :] = [one]
        self._waiting = []

    def crash(self, chance: float) -> int:
        """Lose some last part of what was not synced; return how much."""
        lost = round(chance * len(self._waiting))
        self._waiting = self._waiting[: len(self._waiting) - lost]
        self.sync()
        return lost


class Seat:
    """One peer: its part in the council while it is up, and its disk."""

    def __init__(self, peer: bytes, entries: Iterable[Entry] = ()) -> None:
        self.peer = peer
        self.disk = Disk(entries)
        self.raft: Raft | None = None
        self.life = 0
        self.leader = b""
        """Whom it was last told to follow."""
        self.final = len(self.disk.log)
        """How many entries it has ever called final."""
        self.pace = 1.0
        self.held_until = 0.0
        self.doomed: float | None = None
        """Where in its next list of actions it crashes."""

    @property
    def name(self) -> str:
        return self.peer[:1].decode()

    @property
    def leads(self) -> bool:
        return self.raft is not None and self.raft.leads

    @property
    def now(self) -> Raft:
        assert self.raft is not None, "the peer is down"
        return self.raft

    @property
    def idle(self) -> bool:
        """Return whether it leads and nothing it wrote is in flight."""
        return self.leads and self.now.committed == len(self.now.log) and self.now.log.last[0] == self.now.term


class Place(Struct, frozen=True):
    """What an (index, term) must mean in every log."""

    entry: Entry
    before_term: int
    council: tuple[bytes, ...]


class Watch:
    """The promises of the council, checked on everything that ever happens in it."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[bytes, int]] = {}
        self.elected: dict[int, Log] = {}
        self.places: dict[tuple[int, int], Place] = {}
        self.final: list[Entry] = []
        self.final_term: list[int] = []
        self.voted: dict[tuple[bytes, int], bytes] = {}

    def begin(self, entries: Sequence[Entry]) -> None:
        """Take these entries for granted."""
        for i, entry in enumerate(entries):
            self._place(entry, entries[i - 1] if i else None)
        self.final = list(entries)
        self.final_term = [entry.term for entry in entries]

    def stepped(self, seat: Seat, before: Raft, after: Raft, actions: Sequence[Action]) -> None:
        """Check what a step made of a peer's state."""
        must(after.term >= before.term, "terms never go back")
        must(after.term > before.term or before.vote in (b"", after.vote), "a vote stands for its term")
        must(after.committed >= before.committed, "what is final stays final")
        must(after.committed <= len(after.log), "what is final is there")
        begins = after.leads and not (before.leads and before.term == after.term)
        must(begins == (Lead(after.term) in actions), "a peer is told when it begins to lead")
        for action in actions:
            if isinstance(action, Keep):
                self._keep(seat, before, after, action.entries)
        if after.committed > before.committed:
            new = after.log.slice(before.committed, after.committed)
            must(any(a.entries == new for a in actions if isinstance(a, Commit)), "what became final is said to be")

    def lead(self, seat: Seat) -> None:
        """Check a peer that begins to lead."""
        raft, mine = seat.now, (seat.peer, seat.life)
        must(self.voted.setdefault((seat.peer, raft.term), seat.peer) == seat.peer, "nobody votes twice in a term")
        must(self.leaders.setdefault(raft.term, mine) == mine, "a term has one leader")
        for entry, term in zip(self.final, self.final_term, strict=True):
            must(term >= raft.term or _holds(raft.log, entry), "a leader has everything that was final before its term")
        self.elected[raft.term] = raft.log

    def _keep(self, seat: Seat, before: Raft, after: Raft, entries: tuple[Entry, ...]) -> None:
        must(entries[0].index >= before.committed, "no final entry is written over")
        must([e.index for e in entries] == list(range(entries[0].index, len(after.log))), "a log has no gaps")
        must(after.log.slice(entries[0].index) == entries, "what is written is what is known")
        for entry in entries:
            self._place(entry, after.log[entry.index - 1] if entry.index else None)
            must(entry.index >= seat.final or entry == self.final[entry.index], "what was final in one life stays so")

    def _place(self, entry: Entry, before: Entry | None) -> None:
        old = self.places[before.index, before.term].council if before else ()
        council = old
        if isinstance(entry.record, CouncilChanged):
            council = entry.record.members
            must(not old or len(set(old) ^ set(council)) == 1, "the council changes by one member at a time")
        place = Place(entry, before.term if before else 0, council)
        must(place.before_term <= entry.term, "terms in a log never go back")
        must(
            self.places.setdefault((entry.index, entry.term), place) == place,
            "logs that agree in one place agree before",
        )

    def commit(self, raft: Raft, entries: Sequence[Entry], *, leads: bool) -> None:
        """Check what a peer takes for final."""
        for entry in entries:
            if entry.index < len(self.final):
                must(entry == self.final[entry.index], "nobody takes different entries for final")
                continue
            must(entry.index == len(self.final), "what is final has no gaps")
            must(leads, "a leader is the first to call an entry final")
            self.final.append(entry)
            self.final_term.append(raft.term)
            for term, log in self.elected.items():
                must(term <= raft.term or _holds(log, entry), "a later leader has what an earlier one made final")

    def send(self, seat: Seat, send: Send) -> None:
        """Check what a peer says to another."""
        said = send.message
        must(sound(said), "what is said can be true")
        if isinstance(said, Ask) and not said.trial:
            must(self.voted.setdefault((seat.peer, said.term), seat.peer) == seat.peer, "nobody votes twice in a term")
        if isinstance(said, Vote) and said.granted and not said.trial:
            must(self.voted.setdefault((seat.peer, said.term), send.peer) == send.peer, "nobody votes twice in a term")

    def durable(self, leader: Raft, entry: Entry, seats: dict[bytes, Seat]) -> None:
        """Check that a majority has on disk what its leader calls final."""
        have = sum(entry.index < len(log) and log[entry.index] == entry for log in _logs(leader.council, seats))
        must(have >= majority(leader.council), "what is final is on the disks of a majority")


def _holds(log: Log, entry: Entry) -> bool:
    return entry.index < len(log) and log[entry.index] == entry


def _logs(peers: Iterable[bytes], seats: dict[bytes, Seat]) -> list[list[Entry]]:
    return [seats[peer].disk.log for peer in peers]


class Assembly:
    """Peers of one run, up or down, and whatever is between them."""

    def __init__(self, peers: int, council: int, seed: int = 0, weather: Weather = CALM) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.now = 0.0
        self.watch = Watch()
        self.seen: Counter[str] = Counter()
        self.trace: deque[tuple[float, str, object]] = deque(maxlen=60)
        self.cuts: set[tuple[bytes, bytes]] = set()
        ids = [bytes([ord("A") + i]) * 32 for i in range(peers)]
        first = (Entry(0, CouncilChanged(tuple(ids[:council]))),)
        self.watch.begin(first)
        self.seats = {p: Seat(p, first if i < council else ()) for i, p in enumerate(ids)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        for seat in self.seats.values():
            self.start(seat)
            self.at(self.random.random(), partial(self._tick, seat))

    # time

    def at(self, after: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + after, self._number, event))

    def run(self, ticks: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; return whether `until` came true meanwhile."""
        end = self.now + ticks
        while not (until and until()):
            if self._events[0][0] > end:
                self.now = end
                return False
            self.now, _, event = heapq.heappop(self._events)
            event()
        return True

    def _tick(self, seat: Seat) -> None:
        if seat.held_until > self.now:
            self.at(seat.held_until - self.now, partial(self._tick, seat))
            return
        self.at(seat.pace, partial(self._tick, seat))
        if seat.raft is not None:
            self.hear(seat, Tick())
        if seat.leads:
            self._tell(seat)

    # peers

    def start(self, seat: Seat) -> None:
        """Start a peer from its disk; it remembers only some of what was final."""
        seat.life += 1
        seat.doomed = None
        seat.leader = b""
        disk, known = seat.disk, min(seat.final, len(seat.disk.log))
        stale = self.random.randint(0, known) if seat.life > 1 else known
        seat.raft = recall(seat.peer, disk.term, disk.vote, disk.log, stale, self.random.random())
        self.trace.append((self.now, seat.name, f"starts: term {disk.term}, {len(disk.log)} entries, {stale} final"))

    def crash(self, seat: Seat) -> None:
        if seat.raft is None:
            return
        self.seen["down"] += 1
        self.seen["write lost"] += seat.disk.crash(self.random.choice([0.0, 1.0, self.random.random()])) > 0
        seat.raft = None
        self.trace.append((self.now, seat.name, "crashes"))
        for other in self.seats.values():
            if self.random.random() < 0.5:
                self.at(self.random.random(), partial(self._arrive, other, seat.peer, Lost(seat.peer)))

    def hear(self, seat: Seat, heard: Heard) -> None:
        """Let a peer hear something and act on it, as far as it gets."""
        before = seat.now
        self.trace.append((self.now, seat.name, heard))
        raft, actions = step(before, heard, self.random.random())
        self.watch.stepped(seat, before, raft, actions)
        seat.raft = raft
        if seat.doomed is not None and actions:
            self._perform(seat, actions[: round(seat.doomed * len(actions))])
            self.crash(seat)
            return
        self._perform(seat, actions)
        must(seat.leader == raft.leader and seat.leads == (seat.leader == seat.peer), "a peer is told whom to follow")
        if raft.leads and not (before.leads and before.term == raft.term):
            self.seen["elected"] += 1
            self.hear(seat, Propose(EpochStarted(raft.term, seat.peer)))

    def _perform(self, seat: Seat, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Save() | Keep():
                    seat.disk.write(action)
                case Send(peer=peer, message=message):
                    seat.disk.sync()
                    self.watch.send(seat, action)
                    self._post(seat.peer, peer, Received(seat.peer, message))
                case Commit(entries=entries):
                    if seat.peer in seat.now.council:  # others can be told again
                        seat.disk.sync()
                    self._commit(seat, entries)
                case Lead():
                    seat.disk.sync()
                    self.watch.lead(seat)
                    seat.leader = seat.peer
                case Follow(leader=leader):
                    seat.leader = leader

    def _commit(self, seat: Seat, entries: tuple[Entry, ...]) -> None:
        self.watch.commit(seat.now, entries, leads=seat.leader == seat.peer)
        seat.final = max(seat.final, entries[-1].index + 1)
        if seat.leader != seat.peer:
            return
        for entry in entries:
            self.watch.durable(seat.now, entry, self.seats)
        for other in self.seats.values():
            if other is not seat and self.random.random() < 0.5:
                self._post(seat.peer, other.peer, Learned(entries))

    def _tell(self, seat: Seat) -> None:
        """Bring peers up to date that say how far they are, as a broker does."""
        raft = seat.now
        for other in self.seats.values():
            lags = other.raft is not None and other.raft.committed < raft.committed
            if lags and (other.peer not in raft.council) and self.random.random() < self.weather.told:
                entries = raft.log.slice(other.now.committed, raft.committed)
                self._post(seat.peer, other.peer, Learned(entries))

    # links

    def _post(self, sender: bytes, peer: bytes, heard: Heard) -> None:
        for _ in range(1 + (self.random.random() < self.weather.doubled)):
            if self.random.random() >= self.weather.loss:
                delay = self.random.random() * self.weather.delay_ticks_max
                delay *= 20 if self.random.random() < self.weather.strays else 1
                self.at(delay, partial(self._arrive, self.seats[peer], sender, heard))

    def _arrive(self, seat: Seat, sender: bytes, heard: Heard) -> None:
        if seat.held_until > self.now:
            self.at(seat.held_until - self.now, partial(self._arrive, seat, sender, heard))
        elif seat.raft is not None and ((sender, seat.peer) not in self.cuts or isinstance(heard, Lost)):
            self.hear(seat, heard)

    def cut(self, senders: Iterable[Seat], receivers: Iterable[Seat], *, both: bool = True) -> None:
        """Let nothing through from some to others, and back."""
        for a in senders:
            for b in receivers:
                self.cuts |= {(a.peer, b.peer), (b.peer, a.peer)} if both else {(a.peer, b.peer)}

    def heal(self) -> None:
        """Mend links, clocks and disks, and start everybody who is down."""
        self.weather = CALM
        self.cuts.clear()
        for seat in self.seats.values():
            seat.held_until = self.now
            seat.doomed = None
            seat.pace = 1.0 + (CALM.pace_max - 1.0) * self.random.random()
            if seat.raft is None:
                self.start(seat)

    # what brokers do

    @property
    def leader(self) -> Seat | None:
        """Return the leader of the newest term that has one."""
        leaders = [seat for seat in self.seats.values() if seat.leads]
        return max(leaders, key=lambda seat: seat.now.term, default=None)

    def propose(self, seat: Seat, record: Record) -> None:
        assert seat.idle, "a broker has one record in flight at a time"
        self.hear(seat, Propose(record))

    def record(self) -> Record:
        """Return a record unlike any before."""
        self._number += 1
        return RosterChanged(self._number, ())

    def elect(self, ticks: float = HEALED_TICKS) -> Seat:
        """Wait for a leader that has begun its epoch."""
        must(self.run(ticks, lambda: self.leader is not None and self.leader.idle), "a leader is elected in time")
        assert self.leader is not None
        return self.leader

    def commit(self, seat: Seat, record: Record | None = None, ticks: float = 10.0) -> Entry:
        """Have a leader put a record into the log, and wait for it to be final."""
        index = len(seat.now.log)
        self.propose(seat, record or self.record())
        entry = seat.now.log[index]
        must(self.run(ticks, lambda: len(self.watch.final) > index), "a record is final in time")
        must(self.watch.final[index] == entry, "the record proposed is the one that is final")
        return entry

    def settle(self, ticks: float = HEALED_TICKS) -> None:
        """Wait until a record proposed from here on is final for everybody."""
        wanted, began = self.record(), self.now

        def known() -> bool:
            leader = self.leader
            if leader and leader.idle and wanted not in (e.record for e in self.watch.final[-3:]):
                self.propose(leader, wanted)
            return any(e.record == wanted and self._all_know(e.index) for e in self.watch.final[-3:])

        must(self.run(ticks, known), "once faults stop, a new record is final for everybody in time")
        self.seen["settled after, longest"] = max(self.seen["settled after, longest"], round(self.now - began))

    def _all_know(self, index: int) -> bool:
        return all(seat.raft is not None and seat.raft.committed > index for seat in self.seats.values())


# storms

STRIKES = ("doom", "doom", "crash", "stampede", "one-way cut", "two-way cut", "split", "mend", "mend", "hold")


def storm(seed: int) -> Counter[str]:
    """Try one random schedule of faults; return what happened in it, and raise `Broken` if a promise was."""
    random = Random(seed)
    peers = random.randint(3, 7)
    council = random.choice([1, 2, 3, peers, peers])
    peers += random.randint(0, 2)
    weather = Weather(
        delay_ticks_max=random.choice([0.3, 1.0, 4.0]),
        loss=random.choice([0.0, 0.05, 0.3]),
        strays=random.choice([0.0, 0.1]),
        doubled=random.choice([0.0, 0.2]),
        told=0.3,
    )
    assembly = Assembly(peers, council, random.randrange(2**32), weather)
    try:
        _rage(assembly, random)
        assembly.heal()
        assembly.settle()
    except Exception as error:
        raise Broken(f"{error}\n{_story(assembly)}\nto replay: {_REPLAY.format(seed)}") from error
    assembly.seen["entries"] += len(assembly.watch.final)
    return assembly.seen


_REPLAY = "PYTHONPATH=src:. python -c 'from tests.swarm.assembly import storm; storm({})'"


def _story(assembly: Assembly) -> str:
    return "\n".join(f"{at:8.2f} {name} {what}" for at, name, what in assembly.trace)


def _rage(assembly: Assembly, random: Random) -> None:
    for seat in assembly.seats.values():
        seat.pace = random.choice([1.0, 1.0, random.uniform(0.5, 2.5)])
    assembly.run(random.choice([2.0, 20.0]))
    fury = random.choice([2.0, 8.0, 20.0])
    end = assembly.now + STORM_TICKS
    while assembly.now < end:
        assembly.run(random.expovariate(1.0))
        for seat in assembly.seats.values():
            if seat.idle and random.random() < 0.7:
                assembly.propose(seat, _some_record(assembly, seat, random))
        if random.random() < 1 / fury:
            _strike(assembly, random)


def _some_record(assembly: Assembly, seat: Seat, random: Random) -> Record:
    """Return a plain record, or the council with one member more or fewer: perhaps the leader itself."""
    council = seat.now.council
    outside = [p for p in assembly.seats if p not in council]
    luck = random.random()
    if luck < 0.25 and outside and len(council) < COUNCIL_MAX:
        assembly.seen["member added"] += 1
        return CouncilChanged((*council, random.choice(outside)))
    if luck < 0.5 and len(council) > 1:
        gone = seat.peer if random.random() < 0.4 else random.choice(council)
        assembly.seen["leader removed" if gone == seat.peer else "member removed"] += 1
        return CouncilChanged(tuple(p for p in council if p != gone))
    return assembly.record()


def _strike(assembly: Assembly, random: Random) -> None:
    """Do one bad thing, or undo one; leaders attract lightning."""
    seats = list(assembly.seats.values())
    seat = assembly.leader if random.random() < 0.4 and assembly.leader else random.choice(seats)
    what = random.choice(STRIKES)
    assembly.seen[what] += 1
    match what:
        case "doom":
            seat.doomed = random.random()
            _restart_later(assembly, seat, random)
        case "crash":
            assembly.crash(seat)
            _restart_later(assembly, seat, random)
        case "stampede":
            for one in seats:
                if not one.leads and one.raft is not None:
                    assembly.hear(one, Lost(one.raft.leader))
        case "one-way cut" | "two-way cut":
            some = random.sample(seats, random.randint(1, len(seats) - 1))
            assembly.cut(*random.choice([([seat], some), (some, [seat])]), both=what == "two-way cut")
        case "split":
            some = random.sample(seats, len(seats) // 2)
            assembly.cut(some, [s for s in seats if s not in some])
        case "mend":
            assembly.cuts.clear()
        case "hold":
            seat.held_until = assembly.now + random.choice([3.0, 15.0, 40.0])


def _restart_later(assembly: Assembly, seat: Seat, random: Random) -> None:
    def restart() -> None:
        if seat.raft is None:
            assembly.start(seat)

    assembly.at(random.expovariate(random.choice([2.0, 0.1])), restart)
