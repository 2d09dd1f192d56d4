"""What every region's state must be, worked out from the log and what journals tell of where work began.

The log says who was in which region, whose work counted and which regions told; journals say from which version each
piece of work began. From these the state of every region and the one above them follow to the bit, version by version.
Where somebody did the same work in two lives, from two places, nobody can tell which of them was sent: from there on a
region's state is known but for rounding. Who is at home where is told here a second time, from announcements alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from atoll import journal
from atoll.journal import Line
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.sim.compute import first_weights
from atoll.sim.expected import contribution, sent
from atoll.sim.retell import Announced, Committed, announcements, commits
from atoll.spec.axes.pace import Regional
from atoll.spec.run import Run
from atoll.swarm.log import Entry, RosterChanged, RoundAnnounced, RoundCommitted
from atoll.sync.merge import Anchor, Pushes, advance, first_anchor

Home = tuple[int, int]
"""The round with which a home began, and the region that it was then."""
EVERYWHERE: Home = (0, 0)
"""Where all are who begin together."""


class State(NamedTuple):
    """What a region holds."""

    own: Anchor
    """Its weights, and what moves them."""
    reference: Vector
    above: Anchor
    sure: bool = True
    """Whether it is known to the bit."""

    def vectors(self) -> dict[str, Vector]:
        """Return all of it as a checkpoint has it."""
        above = {"above" if name == "weights" else f"above.{name}": v for name, v in self.above.vectors().items()}
        return {**self.own.vectors(), **above, "reference": self.reference}


class Homes:
    """The state of every region at every version, and whose it was."""

    def __init__(self, run: Run, size: int, entries: list[Entry], lines: list[Line], honest_until: float) -> None:
        self._run = run
        self._channel = next(iter(run.recipe.channel.values()))
        home = self._channel.regional
        assert home is not None
        self._home: Regional = home
        self._began, self._before = beginnings(lines)
        weights = first_weights(run.seeds.data, size)
        first = first_anchor(self._channel.merge.outer, weights.copy())
        self._states = {EVERYWHERE: State(first, weights.copy(), first_anchor(home.outer, weights.copy()))}
        self._pushes: dict[Home, int] = {}
        self._told = 0
        self._new: set[tuple[str, int]] = set()
        """Who came home with the round after a version: until then it may have held what others do."""
        self.held: dict[int, dict[str, State]] = {}
        """By version, what everybody who is at home somewhere holds."""
        self.at: dict[int, dict[Home, State]] = {0: dict(self._states)}
        """By version, what every region holds."""
        for record, where in walked(entries):
            if isinstance(record, Announced):
                self._announce(record, where)
            elif record.version <= honest_until:
                self._commit(record, where)
            else:
                break

    def of(self, who: str, version: int) -> list[State]:
        """Return what somebody may hold of a version: what its region does; any region's, who is or was in none."""
        held = self.held.get(version, {})
        home = [held[who]] if who in held else []
        return home if home and (who, version) not in self._new else [*home, *self.at.get(version, {}).values()]

    def _announce(self, announced: Announced, where: Mapping[bytes, Home]) -> None:
        version = announced.version - 1
        for group, base in zip(announced.groups, announced.bases, strict=True):
            home = where[group[0]]
            if home not in self._states:
                some = next(iter(self._states.values()))
                self._states[home] = self._anew(some) if base == "above" else some
                self._pushes[home] = 0
            self.at[version][home] = self._states[home]
            for who in map(short, group):
                held = self.held.setdefault(version, {})
                if who not in held or base == "above":
                    held[who] = self._states[home]
                    self._new.add((who, version))

    def _commit(self, committed: Committed, where: Mapping[bytes, Home]) -> None:
        version, announced = committed.version, committed.announced
        groups = {where[group[0]]: [p for p in committed.contributors if p in group] for group in announced.groups}
        came = {home: group for home, group in groups.items() if group}
        if announced.tells is None:
            for home, group in came.items():
                self._push(home, committed, group)
        else:
            self._tell(came, anew=announced.tells == ())
        self.at[version] = dict(self._states)
        anew = announced.tells == ()
        self.held[version] = {short(p): self._states[EVERYWHERE if anew else home] for p, home in where.items()}

    def _push(self, home: Home, committed: Committed, group: list[bytes]) -> None:
        """Take in what some members of a region brought."""
        state, codec = self._states[home], self._channel.what.codec
        total, sure = np.zeros_like(state.reference), state.sure
        for peer in group:
            starts = self._starts(committed, peer)
            begins = self.held[max(starts)][short(peer)] if starts else state
            sure = sure and begins.sure and len(starts) == 1
            given = contribution(self._run, self._channel, begins.own, committed.announced.leases[peer])
            total = total + sent(codec, given)
        merged = sent(self._channel.what.merged(), total / np.float32(len(group)))
        pushes, own = Pushes(len(group), self._pushes[home]), state.own.copy()
        advance(self._channel.merge.outer, own, merged, 1.0, pushes)
        self._states[home] = state._replace(own=own, sure=sure)
        self._pushes[home] += len(group)

    def _starts(self, committed: Committed, peer: bytes) -> set[int]:
        """Return from which versions a contribution may have been made: also by a life that sent it and ended."""
        since, until = committed.announced.since[peer], committed.version
        others = {start for first, start in self._before.get(short(peer), ()) if since <= first <= until}
        return self._began.get((short(peer), until), set()) | others

    def _tell(self, came: Mapping[Home, list[bytes]], *, anew: bool) -> None:
        """Move the state above by what some regions told, and those towards it."""
        total, sure = np.zeros_like(next(iter(self._states.values())).reference), True
        for home in came:
            state = self._states[home]
            total = total + sent(self._channel.what.codec, state.reference - state.own.weights)
            sure = sure and state.sure
        merged = sent(self._channel.what.merged(), total / np.float32(len(came)))
        above = next(iter(self._states.values())).above.copy()
        advance(self._home.outer, above, merged, 1.0, Pushes(len(came), self._told))
        self._told += len(came)
        for home, state in self._states.items():
            self._states[home] = self._heard(state, above, sure=sure and state.sure, told=home in came)
        if anew:
            self._states = {EVERYWHERE: self._anew(next(iter(self._states.values())))}
            self._states[EVERYWHERE] = self._states[EVERYWHERE]._replace(sure=sure)

    def _heard(self, state: State, above: Anchor, *, sure: bool, told: bool) -> State:
        if not told:
            return state._replace(above=above, sure=sure)
        own, keep = state.own.copy(), 1 - self._home.take
        own.weights[:] = own.weights * np.float32(keep) + above.weights * np.float32(1 - keep)
        return State(own, own.weights.copy(), above, sure)

    def _anew(self, state: State) -> State:
        weights = state.above.weights
        own = first_anchor(self._channel.merge.outer, weights.copy())
        return State(own, weights.copy(), state.above, state.sure)


def beginnings(lines: Iterable[Line]) -> tuple[dict[tuple[str, int], set[int]], dict[str, list[tuple[int, int]]]]:
    """Return from which versions contributions were made, by whom and for which round; and what lives that ended did.

    Of that it says for which round the work was handed out, and from which version it began.
    """
    newest: dict[str, int] = {}
    working: dict[str, tuple[int, int]] = {}
    began: dict[tuple[str, int], set[int]] = {}
    before: dict[str, list[tuple[int, int]]] = {}
    for line in lines:
        match line.event:
            case (
                journal.RoundApplied(version=version)
                | journal.RoundPassedOver(version=version)
                | journal.StateFetched(version=version)
            ):
                newest[line.peer] = version
            case journal.WorkProgressed(version=first):
                if working.get(line.peer, (0, 0))[0] != first:
                    working[line.peer] = first, newest.get(line.peer, 0)
            case journal.PeerStarted() if line.peer in working:
                before.setdefault(line.peer, []).append(working.pop(line.peer))
            case journal.InnerStateRestored():
                working.pop(line.peer, None)
            case journal.ContributionSent(version=version):
                if line.peer in working:
                    began.setdefault((line.peer, version), set()).add(working[line.peer][1])
            case _:
                pass
    return began, before


def walked(entries: list[Entry]) -> Iterable[tuple[Announced | Committed, dict[bytes, Home]]]:
    """Yield the rounds that a log began and ended, in its order, with where everybody is at home in each."""
    began, ended = iter(announcements(entries)), iter(commits(entries))
    homes: dict[bytes, Home] = {}
    where: dict[bytes, Home] = {}
    for entry in entries:
        match entry.record:
            case RosterChanged(joined=joined, left=left):
                gone = set(left) - {member.peer for member in joined}
                homes = {peer: home for peer, home in homes.items() if peer not in gone}
            case RoundAnnounced():
                announced = next(began)
                homes = homes | _entered(announced, homes)
                where = homes
                yield announced, homes
            case RoundCommitted():
                committed = next(ended)
                yield committed, homes | {p: where[p] for p in committed.announced.members}
                homes = {} if committed.announced.tells == () else homes
            case _:
                pass


def _entered(announced: Announced, homes: Mapping[bytes, Home]) -> dict[bytes, Home]:
    """Return where the members of a round are at home: where those of their region are, or in a new place."""
    found: dict[bytes, Home] = {}
    for number, (group, base) in enumerate(zip(announced.groups, announced.bases, strict=True)):
        known = [homes[peer] for peer in group if peer in homes and base != "above"]
        found |= dict.fromkeys(group, known[0] if known else (announced.version, number))
    return found
