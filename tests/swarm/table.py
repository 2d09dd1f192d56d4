"""A table to try a broker at: its log is durable at once, members say what the test has them say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from atoll.sim.retell import Announced, Committed, announcements, commits
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.what import Delta
from atoll.spec.axes.when import Every
from atoll.spec.axes.work import Work
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget, Membership, Run, Upkeep
from atoll.swarm.broker import step, take_office
from atoll.swarm.log import (
    CouncilChanged,
    Entry,
    History,
    Key,
    Member,
    apply,
    result_root,
)
from atoll.swarm.messages import (
    Contributed,
    FromMember,
    Holding,
    Leave,
    Plan,
    Reduced,
    Spoiled,
    Standing,
    Stuck,
)
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import Bulk, Shards, cut
from atoll.swarm.state import Action, Arrived, Gone, Heard, Logged, Note, Round, Said, Tell, Tick, Write

BULK = Bulk(60, 1000)
A, B, C, D, E = (bytes([x]) * 32 for x in (1, 2, 3, 4, 5))
"""Peers in canonical order; A is the broker and its own member."""

FOUNDING = Entry(0, CouncilChanged((A,)))
T = TypeVar("T")


def small_run(
    *,
    rounds: int = 0,
    tokens: int = 0,
    start_with: int = 1,
    contributors_min: int = 1,
    patience_s_max: float = 3600.0,
    membership: Membership | None = None,
) -> Run:
    """Return a run of two steps of two samples a round."""
    channel = Channel(when=Every(steps=2), what=Delta(), merge=Merge(outer=Sgd(lr=0.7)))
    return Run(
        name="small",
        recipe=Recipe(work=Work(inner=AdamW(lr=1e-3), batch=2), channel={"outer": channel}),
        budget=Budget(rounds=rounds or (0 if tokens else 10), tokens=tokens),
        membership=membership or Membership(start_with=start_with, contributors_min=contributors_min),
        upkeep=Upkeep(patience_s_max=patience_s_max),
    )


def alike(*owners: bytes) -> Shards:
    """Return shards of equal size."""
    return cut(BULK.chunks, owners, [1.0] * len(owners))


class Table:
    """A broker in office, its log, and everything it did."""

    def __init__(
        self, run: Run | None = None, log: list[Entry] | None = None, now_s: float = 0.0, plan: Plan | None = None
    ) -> None:
        self.now_s = now_s
        self.log: list[Entry] = list(log or [FOUNDING])
        self.did: list[Action] = []
        history = History()
        for entry in self.log:
            history = apply(history, entry)
        term = history.epoch + 1
        bulks, plans = {"outer": (BULK,)}, () if plan is None else (plan,)
        self.broker, first = take_office(A, term, run or small_run(), 10, history, now_s, bulks=bulks, plans=plans)
        self._do(first)
        self.tick(0.5)

    def restarted(self, after_s: float = 1.0) -> Table:
        """Return the table of a broker that died and came back with this one's log."""
        return Table(self.broker.run, self.log, self.now_s + after_s)

    def hear(self, heard: Heard) -> list[Action]:
        """Let the broker hear something; every record it asks for is durable at once. Return what it did."""
        self.broker, actions = step(self.broker, heard, self.now_s)
        return self._do(actions)

    def _do(self, actions: list[Action]) -> list[Action]:
        done: list[Action] = []
        for action in actions:
            done.append(action)
            if isinstance(action, Write):
                entry = Entry(len(self.log), action.record, self.broker.term)
                self.log.append(entry)
                done += self.hear(Logged(entry))
                self.did.append(action)
            else:
                self.did.append(action)
        return done

    # what happens

    def tick(self, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        return self.hear(Tick())

    def arrive(self, *peers: bytes) -> None:
        for peer in peers:
            self.hear(Arrived(Member(peer, (f"host-{peer[0]}:1",)), 0))

    def say(self, peer: bytes, message: FromMember) -> list[Action]:
        return self.hear(Said(peer, message))

    def stand(self, *peers: bytes, version: int | None = None, anchor: str = "") -> None:
        version = self.broker.history.version if version is None else version
        for peer in peers:
            self.say(peer, Standing(version, anchor or f"anchor-{version}"))

    def join(self, *peers: bytes) -> None:
        """Arrive, and stand at the newest version."""
        self.arrive(*peers)
        self.stand(*peers)

    def go(self, *peers: bytes, why: str = "its link died") -> None:
        for peer in peers:
            self.hear(Gone(peer, why))

    def leave(self, peer: bytes) -> None:
        self.say(peer, Leave("its owner wants the machine"))

    def contribute(self, *peers: bytes, serial: int = 1) -> None:
        self._all_say(peers, Contributed(*self.plan_id(), serial))

    def reduce(self, *owners: bytes) -> None:
        for owner in owners:
            self.say(owner, Reduced(*self.plan_id(), self._digests(owner)))

    def hold(self, *peers: bytes, result: str = "") -> None:
        self._all_say(peers, Holding(*self.plan_id(), result or self.root()))

    def _all_say(self, peers: Iterable[bytes], message: FromMember) -> None:
        for peer in peers:
            self.say(peer, message)

    def spoil(self, owner: bytes, culprit: bytes) -> list[Action]:
        return self.say(owner, Spoiled(self.round.key, culprit, "not finite"))

    def stuck(self, peer: bytes, owner: bytes) -> list[Action]:
        return self.say(peer, Stuck(*self.plan_id(), owner))

    def finish_round(self, *peers: bytes) -> None:
        """Do everything that is left of the open round."""
        self.contribute(*peers)
        self.reduce(*self.round.owners)
        self.hold(*peers)
        self.stand(*peers)

    # what can be seen

    @property
    def round(self) -> Round:
        assert self.broker.round is not None, "no round is open"
        return self.broker.round

    def plan_id(self) -> tuple[Key, int, int]:
        return self.round.key, self.broker.epoch, self.round.attempt

    def root(self) -> str:
        return result_root(self._digest(index) for index in range(BULK.chunks))

    def _digests(self, owner: bytes) -> tuple[bytes, ...]:
        round_ = self.round
        members, trees = round_.announced.members, round_.trees
        layout = Layout(round_.shards, members, gather=round_.gather, ring=round_.ring, trees=trees)
        return tuple(self._digest(index) for _, index in layout.roots(owner))

    def _digest(self, index: int) -> bytes:
        return bytes([index, self.round.attempt]) * 16

    def records(self, kind: type[T]) -> list[T]:
        return [entry.record for entry in self.log if isinstance(entry.record, kind)]

    def announced(self) -> list[Announced]:
        return announcements(self.log)

    def committed(self) -> list[Committed]:
        return commits(self.log)

    def roster(self) -> list[bytes]:
        return sorted(self.broker.history.members)

    def told(self, peer: bytes, kind: type[T]) -> list[T]:
        tells = [action for action in self.did if isinstance(action, Tell) and action.peer == peer]
        return [tell.message for tell in tells if isinstance(tell.message, kind)]

    def settled_of(self, peer: bytes) -> list[bytes]:
        """Return on whom the plan that a peer was told last is settled."""
        settled = self.plan_of(peer).settled or ()
        return [p for p, serial in zip(self.round.announced.members, settled, strict=True) if serial is not None]

    def plan_of(self, peer: bytes) -> Plan:
        return self.told(peer, Plan)[-1]

    def notes(self, kind: type[T]) -> list[T]:
        return [action.event for action in self.did if isinstance(action, Note) and isinstance(action.event, kind)]
