"""Durable: what a journal called committed no council could have forgotten, and its result was on two disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from blake3 import blake3
from msgspec import Struct

from atoll import journal
from atoll.journal import Line
from atoll.net.identity import short
from atoll.sim.promises.disks import entries_of, knows
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome
from atoll.spec.run import Run
from atoll.spec.turns import rarest
from atoll.swarm.log import CouncilChanged, CouncilReformed, Entry, RoundCommitted, result_root
from atoll.swarm.routes.circles import Circle, circles_in, results_of

HOLDERS_MIN = 2
"""Disks that must have a result when it is called committed, if two who made it are there."""


def durable(lines: list[Line], entries: list[Entry]) -> Iterator[str]:
    """Check that whatever was called committed is in the log."""
    logged = {e.record.key.version: e.record.result for e in entries if isinstance(e.record, RoundCommitted)}
    for line in lines:
        match line.event:
            case journal.RoundCommitted(version=version, result=result) if logged.get(version) != result:
                yield f"version {version} was called committed but is not in the log"
            case _:
                pass


def durable_at_crashes(outcome: Outcome) -> Iterator[str]:
    """Check that at every crash no restart of all from disk could have forgotten what had been called committed.

    It could have, if a council member whose log lacks the commit might still win a majority of its council.
    """
    peers = {bytes(host.peer): host.place for host in outcome.hosts}
    for left in outcome.remains:
        called = _called_committed(outcome.lines[: left.lines])
        logs = [entries_of(log) for log in left.logs]
        known = [knows(log) for log in logs]
        for place, log in enumerate(logs):
            council = [peers[p] for p in _council(log) if p in peers]
            votes = sum(known[other] <= known[place] for other in council)
            lacking = sorted(called - _commits(log))
            if place in council and 2 * votes > len(council) and lacking:
                yield f"when peer {left.place} crashed, {place} could have led without version {lacking[0][0]}"


def _called_committed(lines: list[Line]) -> set[tuple[int, str]]:
    events = (line.event for line in lines)
    return {(event.version, event.result) for event in events if isinstance(event, journal.RoundCommitted)}


def _commits(log: list[Entry]) -> set[tuple[int, str]]:
    return {(e.record.key.version, e.record.result) for e in log if isinstance(e.record, RoundCommitted)}


def _council(log: list[Entry]) -> tuple[bytes, ...]:
    changes = [e.record.members for e in log if isinstance(e.record, CouncilChanged | CouncilReformed)]
    return changes[-1] if changes else ()


def held_by_two(outcome: Outcome, circles: Mapping[int, Sequence[Circle]] | None = None) -> Iterator[str]:
    """Check that a result was safe on two disks when a journal first called it committed.

    One is enough where no two were there who were to have it. Whoever contributed was there, unless the broker that
    settled the round lost it after the round was announced. What a stranger or a liar says it holds a broker has to
    believe.
    """
    honest = {short(host.peer) for host in outcome.hosts if not host.lied}
    for version, lines in _courses(outcome.lines).items():
        commit = lines[-1].event
        there = _there(version, lines)
        if not isinstance(commit, journal.RoundCommitted) or not honest.issuperset(_members(lines)):
            continue
        files = outcome.held.get(version, {}).items()
        made = results_of(tuple((circles or {}).get(version, ())))
        takers = [{short(peer) for peer in each.takers} & there for each in made]
        wanted = [len(those) for those in takers] or [max(1, len(there))]
        for root, those in zip(commit.circles or [commit.result], wanted, strict=True):
            holders = sum(len(places) for data, places in files if _root(data) == root)
            if root and holders < min(HOLDERS_MIN, those):
                yield f"version {version} was called committed with {holders} holders of its result"


def circles_of(run: Run, entries: list[Entry]) -> dict[int, tuple[Circle, ...]]:
    """Return the circles of every version that was made in some."""
    whom = rarest(run.recipe).whom
    rounds = {each.version: each.announced for each in commits(entries)}
    found = {version: circles_in(whom, each) for version, each in rounds.items()}
    return {version: circles for version, circles in found.items() if circles}


def _courses(lines: list[Line]) -> dict[int, list[Line]]:
    """Return of each version what was written from its announcement until somebody first called it committed."""
    began: dict[int, int] = {}
    courses: dict[int, list[Line]] = {}
    for at, line in enumerate(lines):
        match line.event:
            case journal.RoundAnnounced(version=version):
                began.setdefault(version, at)
            case journal.RoundCommitted(version=version) if version in began and version not in courses:
                courses[version] = lines[began[version] : at + 1]
            case _:
                pass
    return courses


def _members(course: list[Line]) -> set[str]:
    announced = (line.event for line in course if isinstance(line.event, journal.RoundAnnounced))
    return {who for event in announced for who in event.members}


def _there(version: int, course: list[Line]) -> set[str]:
    """Return which contributors were surely there for the broker that settled a round last."""
    settled_by, contributors = "", set[str]()
    for line in course:
        if isinstance(line.event, journal.RoundSettled) and line.event.version == version:
            settled_by, contributors = line.peer, set(line.event.contributors)
    lost = (line.event for line in course if line.peer == settled_by and isinstance(line.event, journal.PeerLost))
    return contributors - {event.who for event in lost}


class _ResultEnd(Struct, frozen=True):
    """How a result file ends, before the length of this."""

    digests: list[bytes]
    spans: list[tuple[int, int]]


def _root(data: bytes) -> str:
    """Return the digest root of a result as a disk has it; empty: it is none, or damaged."""
    body = len(data) - 4 - int.from_bytes(data[-4:], "little")
    try:
        end = msgspec.msgpack.decode(data[body:-4], type=_ResultEnd)
    except msgspec.MsgspecError:
        return ""
    digests = [blake3(data[first : first + size]).digest() for first, size in end.spans]
    return result_root(digests) if digests == end.digests else ""
