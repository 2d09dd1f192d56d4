"""How the council agrees on one log: Raft, as one pure step from what was heard to what to do.

A council member follows, or campaigns, or leads. The leader appends records and sends them on; a record is committed
once a majority has it on disk. Before a member campaigns for real it asks whether the others would follow it
(a trial), and nobody follows a new one while it hears from the present leader; so a member that comes back from
behind a cut disturbs nobody. A leader that no majority answers steps down by itself.

Time is counted in own ticks, not seconds: a machine that was held up itself does not take the others for dead.
How many silent ticks mean that the leader is gone follows from the longest silence it has survived so far.
Members of the council change one at a time, by a record in the log that holds as soon as it is there.
Peers outside the council keep the log as they are told it, and neither campaign nor count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.swarm.log import BadLog, CouncilChanged, CouncilReformed, Entry, Record
from atoll.swarm.state import Note

TICK_S = 0.5
SILENT_TICKS_MIN = 6
"""A leader silent for fewer ticks is never given up."""
SILENT_TICKS_MAX = 40
GAPS = 3.0
"""A leader is given up after this many times the longest silence it came back from."""
GAP_FADES = 0.999
"""How much of that memory a tick leaves."""
BATCH_ENTRIES = 64
TERM_JUMP_MAX = 10**6
"""No honest council gets so far ahead of a member."""
FORKED = "two councils have been at work: was the run re-formed while the old council was alive?"


# what council members say to each other


class Ask(Struct, frozen=True, tag="ask-vote", forbid_unknown_fields=True):
    """Will you follow me? This is how far my log goes. A trial changes nothing for whoever answers."""

    term: int
    last_index: int
    last_term: int
    trial: bool


class Vote(Struct, frozen=True, tag="vote", forbid_unknown_fields=True):
    """I will, or I will not; with the term asked for, or a newer one that I know of."""

    term: int
    granted: bool
    trial: bool


class Replicate(Struct, frozen=True, tag="replicate", forbid_unknown_fields=True):
    """I lead; these follow the entry named; so many entries are committed."""

    term: int
    before_index: int
    before_term: int
    entries: tuple[Entry, ...]
    committed: int


class Replicated(Struct, frozen=True, tag="replicated", forbid_unknown_fields=True):
    """My log agrees with yours up to `match`; where not `ok`, it may agree there."""

    term: int
    ok: bool
    match: int


FromCouncil = Ask | Vote | Replicate | Replicated


# the log in memory


class Log:
    """An immutable log: appending shares what was there, so that it costs the same however long the log is."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._shared: list[Entry] = []
        self._length = 0
        self._councils: tuple[tuple[int, tuple[bytes, ...]], ...] = ()
        grown = self.with_(list(entries))
        self._shared, self._length, self._councils = grown._shared, grown._length, grown._councils

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Entry:
        assert 0 <= index < self._length, "the log does not go there"
        return self._shared[index]

    def slice(self, first: int, end: int | None = None) -> tuple[Entry, ...]:
        """Return the entries from `first` up to, not including, `end`."""
        return tuple(self._shared[first : self._length if end is None else min(end, self._length)])

    def term(self, index: int) -> int:
        """Return the term of an entry; -1 is the place before the log, of term 0."""
        return self[index].term if index >= 0 else 0

    @property
    def last(self) -> tuple[int, int]:
        """Return term and index of the last entry: the larger of two such pairs knows more."""
        return self.term(self._length - 1), self._length - 1

    @property
    def council(self) -> tuple[bytes, ...]:
        """Return who votes: the newest council in the log, committed or not."""
        return self._councils[-1][1] if self._councils else ()

    def councils(self, committed: int) -> list[tuple[bytes, ...]]:
        """Return whose majorities make an entry final: the newest council's and, until somebody's coming is final
        itself, also that of those before; so that most of those who were there know who came.
        """
        index, newest = self._councils[-1]
        before = [members for _, members in self._councils[-2:-1] if index >= committed and set(members) < set(newest)]
        return [newest, *before]

    def seated(self, peer: bytes, committed: int) -> bool:
        """Return whether a peer may still have a vote: it is in the last final council, or in one that came after."""
        for index, members in reversed(self._councils):
            if peer in members:
                return True
            if index < committed:
                return False
        return False

    def with_(self, entries: Sequence[Entry]) -> Log:
        """Return the log with these entries at their places; whatever stood there or later is gone."""
        if not entries:
            return self
        first = entries[0].index
        assert first <= self._length, "there is a gap in the log"
        log = Log.__new__(Log)
        shared = self._shared if first == len(self._shared) else self._shared[:first]
        shared.extend(entries)
        log._shared, log._length = shared, first + len(entries)
        kept = tuple(one for one in self._councils if one[0] < first)
        log._councils = kept + tuple(
            (e.index, e.record.members) for e in entries if isinstance(e.record, CouncilChanged | CouncilReformed)
        )
        return log


# what it hears


class Tick(Struct, frozen=True):
    """Another `TICK_S` has passed for us."""


class Received(Struct, frozen=True):
    """A council member said something."""

    peer: bytes
    message: FromCouncil


class Propose(Struct, frozen=True):
    """Our broker wants a record in the log."""

    record: Record


class Reform(Struct, frozen=True):
    """The organiser's owner says that the council's majority is lost for good; `term` is the newest anybody knows."""

    record: CouncilReformed
    term: int


class Learned(Struct, frozen=True):
    """The broker told us committed entries, as it tells every member."""

    entries: tuple[Entry, ...]


class Lost(Struct, frozen=True):
    """The link to a peer broke: if it leads, there is no need to wait for its silence."""

    peer: bytes


Heard = Tick | Received | Propose | Reform | Learned | Lost


# what it does


class Save(Struct, frozen=True):
    """Put term and vote on disk before anything is sent, and before we lead."""

    term: int
    vote: bytes


class Keep(Struct, frozen=True):
    """Write entries to the log; they are on disk before anything is sent, and before a council member acts on them."""

    entries: tuple[Entry, ...]


class Send(Struct, frozen=True):
    """Tell a council member something; it may get lost."""

    peer: bytes
    message: FromCouncil


class Commit(Struct, frozen=True):
    """These entries are final."""

    entries: tuple[Entry, ...]


class Lead(Struct, frozen=True):
    """We lead from now on."""

    term: int


class Follow(Struct, frozen=True):
    """We do not lead; `leader` does, where it is known."""

    leader: bytes


Action = Save | Keep | Send | Commit | Lead | Follow | Note


# what it knows


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft(Struct, frozen=True, kw_only=True):
    """One peer's part in the council."""

    me: bytes
    term: int = 0
    vote: bytes = b""
    log: Log
    committed: int = 0
    """How many entries are final."""
    role: Role = Role.FOLLOWER
    leader: bytes = b""
    silent: int = 0
    """Ticks since the leader was heard, or since we began to campaign."""
    patience: int = SILENT_TICKS_MIN
    """Ticks of silence after which we act."""
    gap: float = 0.0
    """Longest silence of a leader that came back, in ticks, slowly forgotten."""
    trial: bool = False
    votes: frozenset[bytes] = frozenset()
    next: dict[bytes, int] = {}
    match: dict[bytes, int] = {}
    quiet: dict[bytes, int] = {}
    """As leader: ticks since each other member answered."""

    @property
    def council(self) -> tuple[bytes, ...]:
        return self.log.council

    @property
    def others(self) -> tuple[bytes, ...]:
        return tuple(p for p in self.council if p != self.me)

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def stands(self) -> bool:
        """Return whether we campaign: who is removed is needed until that is final, for its log may be the longest."""
        return self.log.seated(self.me, self.committed)


Step = tuple[Raft, list[Action]]


def recall(
    me: bytes, term: int, vote: bytes, entries: Sequence[Entry], committed: int = 0, chance: float = 0.0
) -> Raft:
    """Return a peer's part as its disk knows it; `committed` may be less than what really is."""
    log = Log(entries)
    known = log.last[0]
    return Raft(
        me=me,
        term=max(term, known),
        vote=vote if term >= known else b"",
        log=log,
        committed=min(committed, len(log)),
        patience=1 if log.council == (me,) else patience_of(0.0, chance),
    )


def step(raft: Raft, heard: Heard, chance: float) -> Step:
    """Return the state after `heard`, and what to do in this order; `chance` in [0, 1) keeps members out of step."""
    match heard:
        case Tick():
            return _tick(raft, chance)
        case Received(peer=peer, message=message):
            return _receive(raft, peer, message, chance)
        case Propose(record=record):
            return _propose(raft, record) if raft.leads else (raft, [])
        case Reform(record=record, term=term):
            return _reform(raft, record, term)
        case Learned(entries=entries):
            return _learn(raft, entries, chance)
        case Lost(peer=peer):
            return _lose(raft, peer, chance)


def sound(message: FromCouncil) -> bool:
    """Return whether a message says something that can be true at all."""
    if message.term < 0:
        return False
    if not isinstance(message, Replicate):
        return True
    places = [entry.index for entry in message.entries]
    after = message.before_index + 1
    return after >= 0 <= message.committed and places == list(range(after, after + len(places)))


def majority(council: Sequence[bytes]) -> int:
    """Return how many of a council decide."""
    return len(council) // 2 + 1


def patience_of(gap: float, chance: float) -> int:
    """Return after how many silent ticks to act: by what silence is usual here, and spread so that one goes first."""
    usual = min(SILENT_TICKS_MAX, max(SILENT_TICKS_MIN, round(GAPS * gap)))
    return usual + int(chance * SILENT_TICKS_MIN)


def _longest(raft: Raft, silent: int) -> float:
    """Return the longest silence that somebody came back from; who was given up meanwhile had no claim to patience."""
    return max(raft.gap, float(silent)) if silent < raft.patience else raft.gap


# time


def _tick(raft: Raft, chance: float) -> Step:
    raft = replace(raft, gap=raft.gap * GAP_FADES)
    if raft.leads:
        return _tick_leader(raft, chance)
    if not raft.stands:
        return raft, []
    raft = replace(raft, silent=raft.silent + 1)
    if raft.silent < raft.patience:
        return raft, []
    notes: list[Action] = []
    if raft.leader:
        why = (
            f"the broker has been silent for {raft.silent * TICK_S:.1f} s; "
            f"the longest silence it came back from was {raft.gap * TICK_S:.1f} s"
        )
        notes = [Note(journal.BrokerLost(who=short(raft.leader), epoch=raft.term, why=why)), Follow(b"")]
    raft, actions = _campaign(replace(raft, leader=b""), chance, trial=True)
    return raft, notes + actions


def _tick_leader(raft: Raft, chance: float) -> Step:
    raft = replace(raft, quiet={p: raft.quiet.get(p, 0) + 1 for p in raft.others})
    answering = (raft.me in raft.council) + sum(ticks < raft.patience for ticks in raft.quiet.values())
    if answering < majority(raft.council):
        here = f"{answering} of {len(raft.council)} council members answer"
        why = f"only {here}: without a majority nothing can be committed; rounds go on when they are back"
        note = Note(journal.BrokerSteppedDown(epoch=raft.term, why=why))
        return _follow(raft, b"", chance, [note])
    return raft, [_replicate(raft, peer) for peer in raft.others]


def _lose(raft: Raft, peer: bytes, chance: float) -> Step:
    """Be ready to campaign soon after the link to the leader broke."""
    if raft.leads or peer != raft.leader or not raft.stands:
        return raft, []
    soon = 1 + int(chance * SILENT_TICKS_MIN)
    note = Note(journal.BrokerLost(who=short(peer), epoch=raft.term, why="the link to the broker broke"))
    return replace(raft, leader=b"", silent=0, patience=soon), [note, Follow(b"")]


# elections


def _campaign(raft: Raft, chance: float, *, trial: bool) -> Step:
    raft = replace(
        raft,
        role=Role.CANDIDATE,
        trial=trial,
        votes=frozenset({raft.me}).intersection(raft.council),
        silent=0,
        # A trial disturbs nobody and may be repeated soon; the others need a moment to miss the leader too.
        patience=1 + int(chance * SILENT_TICKS_MIN) if trial else patience_of(raft.gap, chance),
    )
    actions: list[Action] = []
    if not trial:
        raft = replace(raft, term=raft.term + 1, vote=raft.me)
        actions.append(Save(raft.term, raft.vote))
    if len(raft.votes) >= majority(raft.council):
        won, more = _win(raft, chance)
        return won, actions + more
    last_term, last_index = raft.log.last
    ask = Ask(raft.term + 1 if trial else raft.term, last_index, last_term, trial)
    return raft, actions + [Send(peer, ask) for peer in raft.others]


def _win(raft: Raft, chance: float) -> Step:
    """Go on after a majority agreed: from the trial to the real vote, from there to the lead."""
    if raft.trial:
        return _campaign(raft, chance, trial=False)
    raft = replace(
        raft,
        role=Role.LEADER,
        leader=raft.me,
        next=dict.fromkeys(raft.others, len(raft.log)),
        match={},
        quiet={},
        patience=patience_of(raft.gap, 0.0),
    )
    agreed = f"{len(raft.votes)} of {len(raft.council)} council members chose it"
    note = Note(journal.BrokerElected(who=short(raft.me), epoch=raft.term, why=agreed))
    return raft, [note, Lead(raft.term), *(_replicate(raft, peer) for peer in raft.others)]


def _follow(raft: Raft, leader: bytes, chance: float, before: list[Action] | None = None) -> Step:
    """Stop leading or campaigning, and follow `leader` where one is known."""
    changed = raft.role is Role.LEADER or leader != raft.leader
    raft = replace(
        raft, role=Role.FOLLOWER, leader=leader, silent=0, votes=frozenset(), patience=patience_of(raft.gap, chance)
    )
    return raft, [*(before or []), *([Follow(leader)] if changed else [])]


def _newer(raft: Raft, term: int, chance: float) -> Step:
    """Move to a newer term, in which we have voted for nobody."""
    raft, actions = _follow(replace(raft, term=term, vote=b""), b"", chance)
    return raft, [Save(term, b""), *actions]


def _receive(raft: Raft, peer: bytes, message: FromCouncil, chance: float) -> Step:
    if message.term > raft.term + TERM_JUMP_MAX:
        return raft, []
    match message:
        case Ask():
            return _answer(raft, peer, message, chance)
        case Vote():
            return _count(raft, peer, message, chance)
        case Replicate():
            return _append(raft, peer, message, chance)
        case Replicated():
            return _acknowledge(raft, peer, message, chance)


def _answer(raft: Raft, peer: bytes, ask: Ask, chance: float) -> Step:
    # who does not stand does not count the silence either, and cannot tell that its leader is there
    hears = raft.stands and raft.leader not in (b"", peer) and raft.silent < SILENT_TICKS_MIN
    content = raft.leads or hears
    knows_enough = (ask.last_term, ask.last_index) >= raft.log.last
    if ask.trial:
        granted = not content and knows_enough and ask.term > raft.term
        return raft, [Send(peer, Vote(ask.term if granted else raft.term, granted, True))]
    if content or ask.term < raft.term:
        return raft, [Send(peer, Vote(raft.term, False, False))]
    actions: list[Action] = []
    if ask.term > raft.term:
        raft, actions = _newer(raft, ask.term, chance)
    granted = knows_enough and raft.vote in (b"", peer)
    if granted and not raft.vote:
        raft = replace(raft, vote=peer, silent=0)
        actions.append(Save(raft.term, peer))
    return raft, [*actions, Send(peer, Vote(raft.term, granted, False))]


def _count(raft: Raft, peer: bytes, vote: Vote, chance: float) -> Step:
    if not vote.granted and vote.term > raft.term:
        return _newer(raft, vote.term, chance)
    wanted = raft.term + 1 if raft.trial else raft.term
    counts = raft.role is Role.CANDIDATE and vote.granted and vote.trial == raft.trial and vote.term == wanted
    if not counts or peer not in raft.council:
        return raft, []
    raft = replace(raft, votes=raft.votes | {peer})
    return _win(raft, chance) if len(raft.votes) >= majority(raft.council) else (raft, [])


# the log


def _propose(raft: Raft, record: Record) -> Step:
    entry = Entry(len(raft.log), record, raft.term)
    raft = replace(raft, log=raft.log.with_([entry]))
    sends: list[Action] = [_replicate(raft, peer) for peer in raft.others]
    raft = replace(raft, next=raft.next | dict.fromkeys(raft.others, len(raft.log)))
    raft, commits = _advance(raft)
    return raft, [Keep((entry,)), *sends, *commits]


def _reform(raft: Raft, record: CouncilReformed, term: int) -> Step:
    """Put a new council, of us alone, in place of the old one; what is in our log is final from now on."""
    assert record.members == (raft.me,), "whoever re-forms a council begins it"
    term = max(raft.term, term) + 1
    raft = replace(raft, term=term, vote=raft.me, role=Role.LEADER, leader=raft.me, next={}, match={}, quiet={})
    entry = Entry(len(raft.log), record, term)
    raft, commits = _advance(replace(raft, log=raft.log.with_([entry])))
    why = "the organiser re-formed the council: its majority was lost for good"
    note = Note(journal.BrokerElected(who=short(raft.me), epoch=term, why=why))
    return raft, [Save(term, raft.me), Keep((entry,)), note, *commits, Lead(term)]


def _replicate(raft: Raft, peer: bytes) -> Send:
    first = min(raft.next.get(peer, len(raft.log)), len(raft.log))
    entries = raft.log.slice(first, first + BATCH_ENTRIES)
    return Send(peer, Replicate(raft.term, first - 1, raft.log.term(first - 1), entries, raft.committed))


def _append(raft: Raft, peer: bytes, said: Replicate, chance: float) -> Step:
    """As a follower, make our log agree with the leader's, as far as this message goes."""
    if said.term < raft.term:
        return raft, [Send(peer, Replicated(raft.term, False, len(raft.log) - 1))]
    actions: list[Action] = []
    if said.term > raft.term:
        raft, actions = _newer(raft, said.term, chance)
    if raft.leads:
        return raft, actions  # nobody else can lead in our term: not worth an answer
    if raft.leader == peer:
        raft = replace(raft, gap=_longest(raft, raft.silent))
    raft, follows = _follow(raft, peer, chance)
    actions += follows
    length = len(raft.log)
    if said.before_index >= length or raft.log.term(said.before_index) != said.before_term:
        maybe = min(length - 1, said.before_index - 1)
        return raft, [*actions, Send(peer, Replicated(raft.term, False, maybe))]
    raft, keeps = _take(raft, said.entries)
    match = said.before_index + len(said.entries)
    raft, commits = _commit_to(raft, min(said.committed, match + 1))
    return raft, [*actions, *keeps, Send(peer, Replicated(raft.term, True, match)), *commits]


def _take(raft: Raft, entries: Sequence[Entry]) -> Step:
    """Add what we do not have yet; what contradicts it was never committed and goes."""
    new = [e for e in entries if e.index >= len(raft.log) or raft.log.term(e.index) != e.term]
    if not new:
        return raft, []
    fresh = tuple(entries[new[0].index - entries[0].index :])
    if fresh[0].index < raft.committed:
        raise BadLog(f"entry {fresh[0].index} is committed here and differs there", hint=FORKED)
    return replace(raft, log=raft.log.with_(fresh)), [Keep(fresh)]


def _acknowledge(raft: Raft, peer: bytes, said: Replicated, chance: float) -> Step:
    if said.term > raft.term:
        return _newer(raft, said.term, chance)
    if not raft.leads or said.term < raft.term or said.match >= len(raft.log):
        return raft, []
    gap = _longest(raft, raft.quiet.get(peer, 0))
    raft = replace(raft, quiet=raft.quiet | {peer: 0}, gap=gap, patience=patience_of(gap, 0.0))
    if not said.ok:
        raft = replace(raft, next=raft.next | {peer: max(0, said.match + 1)})
        return raft, [_replicate(raft, peer)]
    match = max(said.match, raft.match.get(peer, -1))
    behind = match + 1 < len(raft.log)
    raft = replace(raft, match=raft.match | {peer: match}, next=raft.next | {peer: match + 1})
    raft, actions = _advance(raft)
    return raft, actions + ([_replicate(raft, peer)] if behind and said.match == match else [])


def _advance(raft: Raft) -> Step:
    """Commit what a majority has, provided it is of our own term; older entries are committed with it."""
    most = min(_reached(raft, council) for council in raft.log.councils(raft.committed))
    if most < raft.committed or raft.log.term(most) != raft.term:
        return raft, []
    raft, actions = _commit_to(raft, most + 1)
    if raft.me not in raft.council:
        raft, follows = _follow(raft, b"", 0.0)
        actions += follows
    return raft, actions


def _reached(raft: Raft, council: tuple[bytes, ...]) -> int:
    """Return how far a majority of a council has our log."""
    reached = sorted(len(raft.log) - 1 if p == raft.me else raft.match.get(p, -1) for p in council)
    return reached[len(reached) - majority(council)]


def _commit_to(raft: Raft, committed: int) -> Step:
    if committed <= raft.committed:
        return raft, []
    entries = raft.log.slice(raft.committed, committed)
    return replace(raft, committed=committed), [Commit(entries)]


def _learn(raft: Raft, entries: tuple[Entry, ...], chance: float) -> Step:
    """Take in committed entries that a broker told us, where they go on from those we know to be final."""
    entries = tuple(e for e in entries if e.index >= raft.committed)
    if not entries or entries[0].index > raft.committed:
        return raft, []  # with a gap, an entry of ours in between that never was committed would pass for final
    actions: list[Action] = []
    if entries[-1].term > raft.term:
        why = f"the council is in epoch {entries[-1].term}: it has gone on without us"
        if raft.leads:
            actions.append(Note(journal.BrokerSteppedDown(epoch=raft.term, why=why)))
        raft, follows = _newer(raft, entries[-1].term, chance)
        actions += follows
    elif raft.leads:
        return raft, []
    raft, keeps = _take(raft, entries)
    if keeps and raft.role is Role.CANDIDATE:  # those who vote may be others now
        raft, follows = _follow(raft, raft.leader, chance)
        actions += follows
    raft, commits = _commit_to(raft, entries[-1].index + 1)
    return raft, [*actions, *keeps, *commits]
