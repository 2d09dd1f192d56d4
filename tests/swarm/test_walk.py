"""Random walks: whatever a broker hears, in whatever order, it never breaks and never commits a version twice.

Most steps are what correct members would say, so that rounds do commit; the others are lies, deaths, restarts
and messages of other plans. The log is slow: a record becomes durable when the walk says so, or is lost.
"""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from atoll.sim.retell import commits
from atoll.spec.axes.pace import RoundsLate
from atoll.spec.axes.what import Grad
from atoll.spec.axes.whom import All, Butterfly, Ring, Rings, Route, Trees
from atoll.spec.run import Run
from atoll.swarm.broker import RESUME_S, step, take_office
from atoll.swarm.log import Entry, History, Key, Member, RoundAnnounced, RoundCommitted, RoundVoided, apply, result_root
from atoll.swarm.messages import Contributed, FromMember, Hello, Holding, Leave, Reduced, Spoiled, Standing, Stuck
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import covers
from atoll.swarm.state import Action, Arrived, Gone, Heard, Logged, Said, Tick, Write
from tests.few import few_of
from tests.swarm.table import BULK, FOUNDING, A, B, C, D, small_run

PEERS = (A, B, C, D)
STEPS = 1500
CHUNK = 12
"""Walks of one test; the first such are quick enough to be taken every time."""


def digest(index: int) -> bytes:
    return bytes([index]) * 32


class Walk:
    """A broker, its slow log, and a drunkard who speaks to it."""

    def __init__(self, seed: int, route: Route, late: int = 0) -> None:
        self.rng = Random(seed)
        self.run = by_route(small_run(rounds=12, start_with=2), route, late)
        self.most = 0
        self.now_s = 0.0
        self.log: list[Entry] = [FOUNDING]
        self.waiting: list[Entry] = []
        self.restart()

    def go(self) -> None:
        rng = self.rng
        for _ in range(STEPS):
            self.now_s += rng.choice([0.0, 0.01, 0.3]) if rng.random() < 0.99 else rng.choice([5.0, 32.0, 700.0])
            kind = rng.random()
            if self.waiting and kind < 0.6:
                entry = self.waiting.pop(0)
                self.log.append(entry)
                self.hear(Logged(entry))
            elif kind < 0.003:
                self.restart()
            elif kind < 0.9:
                self.hear(self.honest(rng.choice(PEERS)))
            else:
                self.hear(self.anything(rng.choice(PEERS)))

    def restart(self) -> None:
        self.waiting.clear()
        history = History()
        for entry in self.log:
            history = apply(history, entry)
        bulks = {"outer": (BULK,)}
        self.broker, first = take_office(A, history.epoch + 1, self.run, 10, history, self.now_s, bulks=bulks)
        self._await(first)

    def hear(self, heard: Heard) -> None:
        self.broker, actions = step(self.broker, heard, self.now_s)
        self._await(actions)
        rounds, open_ = self.broker.rounds, self.broker.history.under_way
        assert len(open_) <= self.broker.setting.room
        if not open_ or not self.broker.epoch:
            assert not rounds
        elif not self.broker.pending and self.now_s >= self.broker.started_s + RESUME_S:
            assert [round_.announced for round_ in rounds] == list(open_)
        self.most = max(self.most, len(rounds))
        for round_ in rounds:
            assert covers(round_.shards, BULK.chunks)
            assert set(round_.owners) <= {*round_.announced.members, A}
            if round_.carried and round_.settled is not None:
                assert {c.peer for c in round_.settled} == set(round_.owners), (
                    "ways are of exactly whom it is settled on"
                )

    def _await(self, actions: list[Action]) -> None:
        writes = [action for action in actions if isinstance(action, Write)]
        assert not (writes and self.waiting), "one record at a time"
        if len(writes) > 1:
            announces, ends = writes  # but an end may come with the announcement that it waited for
            assert isinstance(announces.record, RoundAnnounced)
            assert isinstance(ends.record, RoundCommitted | RoundVoided)
        self.waiting += [Entry(len(self.log) + at, write.record, self.broker.term) for at, write in enumerate(writes)]
        assert self.broker.pending == len(self.waiting)

    def honest(self, peer: bytes) -> Heard:
        """Return what a correct member would say or do now."""
        broker = self.broker
        if peer not in broker.present:
            return Arrived(Member(peer, ("somewhere:1",)), 0)
        version = broker.history.version
        standing = broker.present[peer].standing
        if not broker.rounds or standing is None or standing.version < version:
            return Said(peer, Standing(version, f"anchor-{version}"))
        round_ = self.rng.choice(broker.rounds) if len(broker.rounds) > 1 else broker.rounds[0]
        plan = (round_.key, broker.epoch, round_.attempt)
        if peer not in round_.serials and (peer in round_.owners or not round_.carried):
            return Said(peer, Contributed(*plan, 1))
        if round_.settled is not None and peer in round_.owners and peer not in round_.reduced:
            layout = Layout(round_.shards, round_.announced.members, ring=round_.ring, trees=round_.trees)
            return Said(peer, Reduced(*plan, tuple(digest(index) for _, index in layout.roots(peer))))
        return Said(peer, Holding(*plan, result_root(map(digest, range(BULK.chunks)))))

    def anything(self, peer: bytes) -> Heard:
        rng = self.rng
        kinds: list[Heard] = [
            Arrived(Member(peer, ("elsewhere:1",)), rng.randint(-3, 9)),
            Gone(peer, "died"),
            Tick(),
            *(Said(peer, self.message()) for _ in range(6)),
        ]
        return rng.choice(kinds)

    def message(self) -> FromMember:
        rng = self.rng
        version = self.broker.history.version + rng.randint(-2, 2)
        attempt = self.broker.rounds[-1].attempt if self.broker.rounds else 0
        key = Key(rng.choice(["outer", "outer", "outer", "other"]), version)
        plan = (key, self.broker.epoch - rng.randint(0, 1), attempt + rng.choice([0, 0, 0, -1, 1]))
        messages: list[FromMember] = [
            Standing(version, rng.choice(["one", f"anchor-{version}"])),
            Contributed(*plan, rng.randint(0, 3)),
            Reduced(*plan, (b"x" * 32,) * rng.randint(0, 2)),
            Holding(*plan, rng.choice(["", "root"])),
            Spoiled(key, rng.choice(PEERS), "not finite"),
            Stuck(*plan, rng.choice(PEERS)),
            Leave("bye"),
            Hello("run", 1, rng.randint(-5, 5), 0, ()),
        ]
        return rng.choice(messages)


def committed(log: list[Entry]) -> int:
    """Check a log: versions in order, each committed once, by members, no sample used twice; return how many."""
    versions: list[int] = []
    used: list[int] = []
    announced: list[Key] = []
    for entry in log:
        match entry.record:
            case RoundAnnounced(key=key):
                assert key.version == len(versions) + len(announced) + 1
                announced.append(key)
            case RoundVoided(key=key):
                del announced[announced.index(key) :]
            case RoundCommitted(key=key):
                assert announced.pop(0) == key
                versions.append(key.version)
            case _:
                pass
    for committed in commits(log):
        assert committed.contributors
        used += committed.positions
    assert versions == list(range(1, len(versions) + 1))
    assert len(used) == len(set(used))
    return len(versions)


def by_route(run: Run, route: Route, late: int) -> Run:
    channel = replace(run.recipe.channel["outer"], whom=All(route=route))
    if late:
        channel = replace(channel, what=Grad(), overlap=RoundsLate(rounds=late))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


@pytest.mark.parametrize(
    ("route", "late"),
    [
        (Butterfly(), 0),
        (Ring(), 0),
        (Butterfly(), 3),
        pytest.param(Ring(), 1, marks=pytest.mark.long),
        pytest.param(Trees(roots=2, gain=0.0), 0, marks=pytest.mark.long),
        pytest.param(Rings(clusters=2), 0, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("first", few_of(range(0, 100, CHUNK), (0,)))
def test_no_walk_breaks_the_broker_or_commits_a_version_twice(first: int, route: Route, late: int) -> None:
    rounds, most, seeds = [], 0, CHUNK // 2 if late else CHUNK
    for seed in range(first, first + seeds):
        walk = Walk(seed, route, late)
        try:
            walk.go()
            rounds.append(committed(walk.log))
            most = max(most, walk.most)
        except AssertionError as error:
            raise AssertionError(f"walk {seed}, at {walk.now_s:.2f} s: {error}") from error
    assert most == late + 1
    assert sum(rounds) >= 4 * seeds, f"the walk has become too wild to commit anything: {rounds}"
