"""What must hold, whatever went wrong: checks that read only journals and disks.

    one history   all peers that hold a version hold the same bits, and tell the same of its commit
    no fork       an epoch has one leader
    counted once  everybody works on the samples that are its own by the log, none is in two committed
                  contributions, none that came back is forgotten, nobody's inner state keeps work that does not
                  count, and the anchor is to the bit what the log says it should be: the counting model makes
                  visible what was lost, doubled or added up in another order
    durable       what a journal called committed no council could have forgotten, at any crash and at the end, and
                  its result was on two disks by then
    bad input     nonsense is blamed on who sent it, and on nobody else
    turned        knobs stand alike for everybody in every round, as a policy may turn them, and rounds are as long as
                  they say
    live          after the faults are over, rounds commit again and everybody gets to the newest one; no round
                  waits for a slow member beyond the run's patience, or for one that lacks the state to begin

Each returns the violations it found, as sentences. None of them calls the code it judges, except to read
its file formats and to step the outer optimizer at its scheduled rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.errors import LocalError
from atoll.journal import Line
from atoll.net.identity import short
from atoll.peer.private import opened
from atoll.peer.store import anchor_from_bytes
from atoll.sim import factored
from atoll.sim.compute import MARKS, UNIT, steps_in
from atoll.sim.disk import SimDisk
from atoll.sim.expected import anchors as anchors_of
from atoll.sim.expected import channel_at, channels_of
from atoll.sim.homes import Home, Homes, State, walked
from atoll.sim.lives import Lives, lives_of, sure_until
from atoll.sim.masses import wrongly_named
from atoll.sim.parts import PartByPart, in_parts, told
from atoll.sim.replicas import Replicas
from atoll.sim.retell import Committed, announcements, commits, settings
from atoll.sim.scenario import Host, Outcome
from atoll.spec.axes.codec import Codec, Fp16, Fp32, Int8, MaxN
from atoll.spec.axes.control import Auto, Knobs, Nobody
from atoll.spec.axes.merge import Mean, Rda, Trimmed
from atoll.spec.axes.optimizer import Lamb
from atoll.spec.axes.pace import Blend, Block, Delay, Discard, Shift
from atoll.spec.axes.what import Forget, Grad, LowRank, Params
from atoll.spec.axes.when import Parts, TargetBatch
from atoll.spec.axes.whom import Carried
from atoll.spec.axes.work import Same
from atoll.spec.knobs import objection
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.spec.turns import rarest
from atoll.swarm.log import (
    CouncilChanged,
    CouncilReformed,
    Entry,
    EpochStarted,
    RoundCommitted,
    from_bytes,
    result_root,
)
from atoll.swarm.routes.circles import Circle, circles_in, results_of
from atoll.sync.merge import Anchor

HOLDERS_MIN = 2
"""Disks that must have a result when it is called committed, if two who made it are there."""
SLACK_S = 10.0
"""A round may last so much longer than its patience: machines sleep, and words travel."""
LAG_MAX = 3
"""Whoever is announced in a round is at most so many versions behind the one that it starts from."""
ROUNDING = UNIT / 16
"""So far from what the log says an anchor may be where it does not tell all: far less than any sample moves it."""
SAID_MIN = 20
"""Messages of nonsense of which at least one must have been heard by somebody."""


def violations(run: Run, outcome: Outcome) -> list[str]:
    """Return every broken promise of a play with counting models."""
    entries = log_of_record(outcome)
    return [
        *readable(outcome),
        *one_history(outcome.lines, _at_home(run, entries)),
        *durable(outcome.lines, entries),
        *durable_at_crashes(outcome),
        *held_by_two(outcome, _circles(run, entries)),
        *patient(run, outcome),
        *ready(outcome),
        *leases_as_logged(outcome.lines, entries),
        *counted_once(outcome.lines),
        *none_forgotten(outcome.lines),
        *inner_as_counted(run, outcome, entries),
        *one_commit(outcome.lines),
        *one_leader(outcome),
        *tokens_as_counted(run, outcome.lines, entries),
        *as_the_log_says(run, outcome, entries),
        *as_the_knobs_say(run, outcome.lines, entries),
        *blamed_rightly(outcome),
        *(f"peer {host.place} failed: {error}" for host in outcome.hosts for error in host.failures),
    ]


def readable(outcome: Outcome) -> Iterator[str]:
    """Check that every log and state on a disk can be read: whoever cannot read its own has forgotten all of it."""
    for host in outcome.hosts:
        try:
            from_bytes(host.disk.file("log"), "log")
        except LocalError as error:
            yield f"peer {host.place} cannot read its log any more: {error}"
    for host in outcome.hosts:
        for path, data in _checkpoints(host.disk):
            if isinstance(read := _read(path, data), LocalError):
                yield f"peer {host.place} cannot read its state any more: {read}"


def one_history(lines: list[Line], homes: Mapping[int, Mapping[str, Home]] | None = None) -> Iterator[str]:
    """Check that a version has one anchor, unless it was made in circles, where each has its own.

    Where regions hold states of their own each of them has one.
    """
    known: dict[tuple[int, Home | None], tuple[str, str]] = {}
    own = set[int]() if homes else _in_circles(lines)
    for line in lines:
        match line.event:
            case journal.RoundApplied(version=version, anchor=anchor, astray=False) if version not in own:
                where = (homes or {}).get(version, {}).get(line.peer)
                first, who = known.setdefault((version, where), (anchor, line.peer))
                if first != anchor:
                    yield f"version {version}: {who} holds {first[:8]}, {line.peer} holds {anchor[:8]}"
            case _:
                pass


def _at_home(run: Run, entries: list[Entry]) -> dict[int, dict[str, Home]]:
    """Return where everybody was at home in every version, where regions hold states of their own."""
    if rarest(run.recipe).regional is None:
        return {}
    found: dict[int, dict[str, Home]] = {0: {}}
    for each, where in walked(entries):
        named = {short(peer): home for peer, home in where.items()}
        if isinstance(each, Committed):
            found[each.version] = named if each.announced.tells != () else {}
        elif found.get(each.version - 1):
            found[each.version - 1] = named | found[each.version - 1]  # who came home only then starts from there
    return found


def _in_circles(lines: list[Line]) -> set[int]:
    """Return the versions that were made in circles."""
    return {
        line.event.version for line in lines if isinstance(line.event, journal.RoundCommitted) and line.event.circles
    }


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
        logs = [_entries(log) for log in left.logs]
        known = [_know(log) for log in logs]
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


def _know(log: list[Entry]) -> tuple[int, int]:
    """Return how much a log knows, as voters compare it."""
    return (log[-1].term, len(log)) if log else (0, 0)


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


def _circles(run: Run, entries: list[Entry]) -> dict[int, tuple[Circle, ...]]:
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


def patient(run: Run, outcome: Outcome) -> Iterator[str]:
    """Check that no broker that has contributed itself waits for slower members beyond the run's patience.

    A round that is planned anew, or gets another broker, has reasons of its own to take longer.
    """
    if run.membership.contributors_min > 1:
        return
    true = {short(host.peer) for host in outcome.hosts if not host.skew_s}
    since_s: dict[tuple[int, str], float] = {}
    settled_s: dict[int, float] = {}
    for line in outcome.lines:
        match line.event:
            case journal.ContributionSent(version=version) if line.peer in true:
                since_s.setdefault((version, line.peer), line.at_s)
            case journal.RoundReplanned() | journal.EpochStarted() | journal.RoundVoided() | journal.PeerStarted():
                since_s.clear()
            case journal.RoundSettled(version=version):
                settled_s[version] = line.at_s
                before_s = settled_s.get(version - 1, 0.0)  # until then others may have worked for that one
                waited_s = line.at_s - max(since_s.get((version, line.peer), line.at_s), before_s)
                if waited_s > run.upkeep.patience_s_max + SLACK_S:
                    yield f"version {version} was settled {waited_s:.0f} s after its broker contributed"
            case _:
                pass


def ready(outcome: Outcome) -> Iterator[str]:
    """Check that a round is announced only with members that hold what it starts from, or nearly so.

    Who works on from the round before starts from what it started from then.
    """
    holds = {short(host.peer): 0 for host in outcome.hosts}
    members_of: dict[int, list[str]] = {}
    works_on: dict[int, set[str]] = {}
    announced = committed = 0
    for line in outcome.lines:
        match line.event:
            case (
                journal.RoundApplied(version=version)
                | journal.RoundPassedOver(version=version)
                | journal.StateFetched(version=version)
            ):
                holds[line.peer] = max(version, holds[line.peer])
            case journal.RoundAnnounced(version=version, members=members) if version > announced:
                announced = version
                members_of[version] = members
                for who in members:
                    if who not in works_on.get(version - 1, ()) and holds.get(who, version) < committed - LAG_MAX:
                        yield f"version {version} was announced with {who}, which was only at {holds[who]}"
            case journal.RoundCommitted(version=version, contributors=contributors, carried=carried):
                committed = max(committed, version)
                if carried:
                    works_on[version] = set(members_of.get(version, ())).difference(contributors)
            case _:
                pass


def leases_as_logged(lines: list[Line], entries: list[Entry]) -> Iterator[str]:
    """Check that everybody works on the samples that are its own by the log, and tells of the right ones."""
    leases: dict[tuple[str, int], list[list[int]]] = {}
    handed: dict[int, list[list[int]]] = {}
    counted = {each.version: sorted(each.positions) for each in commits(entries)}
    ages = {each.version: each.staleness if any(each.staleness) else [] for each in commits(entries)}
    carried = {each.version: (_ranges(each.carried), ages[each.version]) for each in commits(entries)}
    for each in announcements(entries):
        handed.setdefault(each.version, []).append(sorted(p for lease in each.leases.values() for p in lease))
        for peer, lease in each.leases.items():
            leases.setdefault((short(peer), each.version), []).append(lease)
    for line in lines:
        match line.event:
            case journal.LeaseTaken(version=version, ranges=ranges):
                if _positions(ranges) not in leases.get((line.peer, version), []):
                    yield f"version {version}: {line.peer} works on other samples than its own"
            case journal.RoundAnnounced(version=version, handed=ranges):
                if _positions(ranges) not in handed.get(version, []):
                    yield f"version {version}: {line.peer} tells of other samples than were handed out"
            case journal.RoundCommitted(version=version, counted=ranges) if version in counted:
                if _positions(ranges) != counted[version]:
                    yield f"version {version}: {line.peer} tells of other samples than were counted"
                if (line.event.carried, line.event.staleness) != carried[version]:
                    yield f"version {version}: {line.peer} tells otherwise of who works on, or of how old its work is"
            case _:
                pass


def _positions(ranges: list[tuple[int, int]]) -> list[int]:
    return [position for first, count in ranges for position in range(first, first + count)]


def _ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Return positions as ranges, joined where they touch."""
    found: list[tuple[int, int]] = []
    for position in sorted(positions):
        first, count = found[-1] if found else (position, 0)
        if first + count == position:
            found[-1:] = [(first, count + 1)]
        else:
            found.append((position, 1))
    return found


def counted_once(lines: list[Line]) -> Iterator[str]:
    """Check that no position of the global order is counted in two versions, by what anybody tells."""
    seen: dict[int, int] = {}
    events = (line.event for line in lines)
    told = {(event.version, tuple(event.counted)) for event in events if isinstance(event, journal.RoundCommitted)}
    for version, ranges in sorted(told):
        for position in _positions(list(ranges)):
            if seen.setdefault(position, version) != version:
                yield f"sample {position} is in versions {seen[position]} and {version}"


def none_forgotten(lines: list[Line]) -> Iterator[str]:
    """Check that samples whose lease came back are handed out again before any that nobody has had yet."""
    stories: dict[str, list[tuple[bool, int, tuple[tuple[int, int], ...]]]] = {}
    for line in lines:
        match line.event:
            case journal.RoundAnnounced(version=version, handed=handed, ahead=ahead):
                stories.setdefault(line.peer, []).append((True, version, (*handed, *ahead)))
            case journal.RoundCommitted(version=version, counted=counted):
                stories.setdefault(line.peer, []).append((False, version, tuple(counted)))
            case journal.RoundVoided(version=version):
                stories.setdefault(line.peer, []).append((False, version, ()))
            case _:
                pass
    for story in dict.fromkeys(map(tuple, stories.values())):
        handed_out: set[int] = set()
        done: set[int] = set()
        out: dict[int, set[int]] = {}
        for began, version, ranges in story:
            now = set(_positions(list(ranges)))
            if not began:
                done |= now
                out.pop(version, None)
                continue
            out = {each: handed for each, handed in out.items() if each < version}  # told again after a crash
            waiting = handed_out - done - now - set().union(*out.values())
            if waiting and now - handed_out:
                yield f"sample {min(waiting)} came back and is forgotten in version {version}"
            handed_out |= now
            out[version] = now


def _inner(run: Run, private: bytes) -> bytes:
    """Return the inner state in saved private state: beside other things or alone."""
    channel, control = rarest(run.recipe), run.recipe.control
    parts = (isinstance(each.when, Parts) for each in run.recipe.channel.values())
    own = not isinstance(channel.overlap, Block) or any(parts)
    own = own or (isinstance(control, Auto) and any(rung.overlap != Block() for rung in control.ladder))
    goes_on = own and not isinstance(channel.what, Grad)
    return opened(private)[0] if goes_on or channel.what.residual != Forget() else private


def inner_as_counted(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check that the inner state saved with a checkpoint has no steps of work that was not counted.

    It may have fewer than were counted: what a crash took is lost, and the journal says so.
    """
    batch = run.recipe.work.batch
    committed = commits(entries)
    for host in outcome.hosts:
        if host.gone:
            continue  # it may have died before it could take its work back
        for path, _ in _checkpoints(host.disk):
            private = host.disk.file(path.replace("checkpoint/", "private/"))
            version = int(path.removeprefix("checkpoint/").removesuffix(".safetensors"))
            counted = _samples_of(bytes(host.peer), version, committed) // batch
            try:
                steps = steps_in(_inner(run, private)) if private else 0
            except LocalError as error:
                yield f"peer {host.place} cannot read its inner state any more: {error}"
                continue
            if steps > counted:
                yield f"peer {host.place}, version {version}: {steps} steps in its inner state, {counted} were counted"


def _samples_of(peer: bytes, version: int, committed: list[Committed]) -> int:
    """Return how many samples of a peer are in the versions up to this one."""
    theirs = (each for each in committed if peer in each.contributors and each.version <= version)
    counted = (each for each in theirs if not each.announced.holds)
    return sum(len(each.announced.leases[peer]) for each in counted)


def one_commit(lines: list[Line]) -> Iterator[str]:
    """Check that everybody who tells of a version's commit tells the same: whose contributions, which result."""
    known: dict[int, tuple[tuple[object, ...], str]] = {}
    for line in lines:
        match line.event:
            case journal.RoundCommitted(version=version) as event:
                told = (tuple(event.contributors), event.result, event.samples, event.tokens)
                first, who = known.setdefault(version, (told, line.peer))
                if first != told:
                    yield f"version {version} was committed differently for {who} and {line.peer}"
            case _:
                pass


def one_leader(outcome: Outcome) -> Iterator[str]:
    """Check that nobody's log, at the end or at any crash, has two leaders of one epoch between them."""
    offices: dict[int, bytes] = {}
    logs = [_log(host.disk) for host in outcome.hosts]
    logs += [_entries(log) for left in outcome.remains for log in left.logs]
    for entry in (entry for log in logs for entry in log):
        match entry.record:
            case EpochStarted(epoch=epoch, broker=broker):
                if offices.setdefault(epoch, broker) != broker:
                    yield f"epoch {epoch} has two leaders"
            case _:
                pass


def tokens_as_counted(run: Run, lines: list[Line], entries: list[Entry]) -> Iterator[str]:
    """Check that the samples and tokens a journal tells of are those of the committed leases."""
    samples = {each.version: len(each.positions) for each in commits(entries)}
    for line in lines:
        match line.event:
            case journal.RoundCommitted(version=version) as event if version in samples:
                counted = samples[version]
                if (event.samples, event.tokens) != (counted, counted * run.data.context):
                    yield f"version {version}: {line.peer} told of {event.samples} samples, the log has {counted}"
            case _:
                pass


def blamed_rightly(outcome: Outcome) -> Iterator[str]:
    """Check that refused messages are blamed on who sent nonsense, and on nobody else."""
    liars = {short(host.peer) for host in outcome.hosts if host.lied}
    blamed: dict[str, str] = {}
    for line in outcome.lines:
        if isinstance(line.event, journal.MessageRefused | journal.JoinRefused):
            blamed.setdefault(line.event.who, line.event.why)
    for who in sorted(outcome.vandals):
        if outcome.vandals[who] >= SAID_MIN and who not in blamed:
            yield f"{who} said {outcome.vandals[who]} messages of nonsense and no journal blames it"
    honest = {short(host.peer): host for host in outcome.hosts if not host.lied and not host.gone}
    for who in sorted(honest.keys() & blamed.keys() - liars):
        yield f"peer {honest[who].place}, which is honest, is blamed: {blamed[who]}"


def as_the_log_says(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint on every disk against the anchor that follows from the log alone, to the bit.

    Which of a peer's lives a contribution is from no log tells; but it must be the same one in every chunk. In int8
    that does not show: each block rounds the marks of a life to steps of its own. Where peers do not wait for results,
    or for each other, no log tells from which weights each of them went on, and where a step is as long as its tensor,
    marks move all of it: there the anchor must be right but for rounding. Where sums are carried each chunk is added up
    in an order of its own: where marks are not whole counts, they are the same but for rounding.
    """
    channels = channels_of(run, entries)
    if channels[0].regional is not None:
        yield from _as_regions_say(run, outcome, entries)
        return
    if not channels[0].common:
        yield from _as_journals_say(run, outcome, entries)
        return
    if isinstance(channels[0].what.transform, LowRank):
        yield from _as_lives_say(run, outcome, entries)
        return
    if in_parts(run):
        yield from _part_by_part(run, outcome, entries)
        return
    if not all(_told_by_the_log(channel) for channel in channels.values()):
        return  # that all agree is checked elsewhere
    mixes = any(isinstance(channel.merge.outer, Lamb) for channel in channels.values())
    polar = channels[0].polar
    steps = any(isinstance(codec, Int8) for channel in channels.values() for codec in _forms(channel))
    marked = not steps and not mixes and not polar
    discards = isinstance(channels[0].late, Discard)
    waits = discards and all(isinstance(channel.overlap, Block) for channel in channels.values())
    gap_max = 0.0 if waits and not mixes else ROUNDING
    whole = not isinstance(channels[0].what, Params)  # of weights a mean is of no whole counts
    marks_apart_max = (gap_max if whole else ROUNDING) if isinstance(channels[0].whom.route, Carried) else 0.0
    honest_until, lives = _known_until(outcome, entries, lived=polar)
    expected: dict[int, Anchor] = {}
    for host, anchor in _saved(outcome):
        expected = expected or anchors_of(run, len(anchor.weights), entries, honest_until, lives)
        if anchor.version in expected:
            whose = f"peer {host.place}, version {anchor.version}"
            yield from _differences(whose, anchor, expected[anchor.version], gap_max)
            if marked and np.ptp(anchor.weights[MARKS]) > marks_apart_max:
                yield f"{whose}: chunks are made of different contributions of one peer"
        elif anchor.version <= honest_until:
            yield f"peer {host.place} holds version {anchor.version}, which the log does not have"


def _as_journals_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against the weights that its own peer must have, to the bit."""
    channel = next(iter(run.recipe.channel.values()))
    if channel.merge.combine.weights == "mass":
        yield from wrongly_named(channel.whom, entries)
    if isinstance(channel.what.codec, MaxN):
        return  # how much goes over a link is its sender's own choice
    replicas: Replicas | None = None
    for host, anchor in _saved(outcome):
        if replicas is None:
            replicas = Replicas(run, len(anchor.weights), entries, _honest_until(outcome, entries))
            replicas.follow(outcome.lines)
        known = replicas.of(short(host.peer), anchor.version)
        if known is not None:
            yield from _differences(f"peer {host.place}, version {anchor.version}", anchor, known, 0.0)


def _as_regions_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against the state of its peer's region, and the one above it, to the bit where known."""
    homes: Homes | None = None
    for host, anchor in _saved(outcome):
        if homes is None:
            homes = Homes(run, len(anchor.weights), entries, outcome.lines, _honest_until(outcome, entries))
        whose = f"peer {host.place}, version {anchor.version}"
        known = homes.of(short(host.peer), anchor.version)
        problems = [[*_differences(whose, anchor, each, 0.0 if each.sure else ROUNDING)] for each in known]
        if all(problems):
            yield from problems[0] if problems else ()


def _as_lives_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint, directions and all, as far as it is known which life made which contribution."""
    if next(iter(run.recipe.channel.values())).what.residual != Forget():
        return  # what a residual makes of a life's marks no log tells
    until, lives = _known_until(outcome, entries, lived=True)
    expected: dict[int, Anchor] = {}
    for host, anchor in _saved(outcome):
        expected = expected or factored.anchors(run, len(anchor.weights), entries, until, lives)
        known = expected.get(anchor.version)
        if known is not None and known.digest() != anchor.digest():
            yield f"peer {host.place}, version {anchor.version}: not what the log adds up to"


def _part_by_part(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against what parts come to in turn, to the bit."""
    parts: PartByPart | None = None
    if not all(told(channel) for channel in run.recipe.channel.values()):
        return  # from which weights each of them went on no log tells; that all agree is checked elsewhere
    lived = any(channel.polar for channel in run.recipe.channel.values())
    until, lives = _known_until(outcome, entries, lived=lived)
    for host, anchor in _saved(outcome):
        if parts is None:
            parts = PartByPart(run, len(anchor.weights), entries, outcome.lines, until, lives)
            yield from parts.problems
        if anchor.version in parts.anchors:
            whose = f"peer {host.place}, version {anchor.version}"
            yield from _differences(whose, anchor, parts.anchors[anchor.version], 0.0)


def as_the_knobs_say(run: Run, lines: list[Line], entries: list[Entry]) -> Iterator[str]:
    """Check that knobs were turned only where a policy may, the same for everybody, and that leases follow them."""
    found = settings(entries)
    for version, knobs in found.items():
        if problem := objection(run.recipe, knobs):
            yield f"version {version}: {problem}"
    for line in lines:
        match line.event:
            case journal.KnobsTurned(version=version) as told:
                logged = found.get(version)
                each = {short(peer): rung for peer, rung in logged.each} if logged is not None else {}
                knobs = Knobs(rung=told.rung, steps=told.steps, delay=told.delay, lr=told.lr)
                if logged is None or replace(logged, each=()) != knobs or each != told.each:
                    yield f"version {version}: {line.peer} turned knobs to what the log does not have"
            case _:
                pass
    if isinstance(run.recipe.control, Nobody) or not isinstance(run.recipe.work.quota, Same):
        return
    channels = channels_of(run, entries)
    for announced in announcements(entries):
        when = channel_at(channels, announced.version).when
        steps, shared = when.round_steps, isinstance(when, TargetBatch)
        if not shared and any(len(lease) != steps * run.recipe.work.batch for lease in announced.leases.values()):
            yield f"version {announced.version} is not of {steps} steps, as its knobs say"
        if any(announced.ahead.values()) and isinstance(channel_at(channels, announced.version).overlap, Block):
            yield f"version {announced.version} lets members go on, where its knobs say to wait"


def _forms(channel: Channel) -> list[Codec]:
    """Return in which forms contributions and results travel."""
    return [channel.what.codec, *channel.forms.values()]


def _told_by_the_log(channel: Channel) -> bool:
    """Return whether an anchor follows from leases and contributors alone."""
    what, overlap = channel.what, channel.overlap
    if not isinstance(channel.merge.combine, Mean | Trimmed | Rda) or what.transform is not None:
        return False  # what a life's marks do to lengths and frequencies no log tells
    if channel.polar and not (isinstance(overlap, Block) and isinstance(channel.late, Discard)):
        return False  # nor from which weights marks were told
    if what.residual != Forget() or not all(isinstance(codec, Fp32 | Fp16 | Int8) for codec in _forms(channel)):
        return False  # what a block or a residual makes of a life's marks no log tells
    if any(isinstance(codec, Int8) for codec in _forms(channel)):  # rounding moves whole steps
        return isinstance(overlap, Block) and isinstance(channel.late, Discard)
    return not isinstance(overlap, Delay) or overlap.reconcile in (Blend(), Shift())


def _differences(whose: str, anchor: Anchor, expected: Anchor | State, gap_max: float) -> Iterator[str]:
    """Return in what an anchor differs from the expected one, the marks of its contributors' lives left out."""
    gaps = [np.abs(anchor.vectors()[name] - vector) for name, vector in expected.vectors().items()]
    for gap in gaps:
        gap[MARKS] = 0.0
    if any((gap > gap_max).any() for gap in gaps):
        yield f"{whose}: {max(float(gap.max()) for gap in gaps):.2e} away from what the log adds up to"


def _honest_until(outcome: Outcome, entries: list[Entry]) -> float:
    """Return the last version before a stranger or a liar contributed: what those put in nobody can recompute."""
    honest = {bytes(host.peer) for host in outcome.hosts if not host.lied}
    strange = (each for each in commits(entries) if not honest.issuperset(each.contributors))
    return min((each.version - 1 for each in strange), default=math.inf)


def _known_until(outcome: Outcome, entries: list[Entry], *, lived: bool) -> tuple[float, Lives]:
    """Return up to which version anchors can be worked out; and which lives made them, where that shows in them."""
    until = _honest_until(outcome, entries)
    lives = lives_of(outcome) if lived else {}
    return (min(until, sure_until(lives, entries)) if lived else until), lives


def settled(outcome: Outcome, room: int = 1) -> list[str]:
    """Return what keeps the world from being at peace: peers that are not on the highest version and digest.

    Where several rounds may be open they may be behind by all but one.
    """
    top = max((host.version for host in outcome.hosts), default=0)
    here = [host for host in outcome.hosts if (host.here or host.alive) and not host.gone]
    own = top in _in_circles(outcome.lines)
    anchors = sorted({host.anchor for host in here if host.version == top and not own})
    behind = [host.place for host in here if host.version <= top - room]
    problems = [f"peers {behind} are behind version {top}"] if behind else []
    return problems + ([f"{len(anchors)} anchors of version {top}"] if len(anchors) > 1 else [])


def log_of_record(outcome: Outcome) -> list[Entry]:
    """Return the log that any council would have to agree to: of all that are on disk, the one that knows most."""
    return max((_log(host.disk) for host in outcome.hosts), key=_know)


def _log(disk: SimDisk) -> list[Entry]:
    return _entries(disk.file("log"))


def _entries(log: bytes) -> list[Entry]:
    """Return what a log holds: nothing when it cannot be read, which `readable` finds."""
    try:
        return from_bytes(log, "log")[0]
    except LocalError:
        return []


def _checkpoints(disk: SimDisk) -> list[tuple[str, bytes]]:
    files = disk.files().items()
    return [(path, data) for path, data in files if path.startswith("checkpoint/") and path.endswith(".safetensors")]


def _saved(outcome: Outcome) -> Iterator[tuple[Host, Anchor]]:
    """Yield the anchors on everybody's disk that can be read; what cannot `readable` finds."""
    for host in outcome.hosts:
        for path, data in _checkpoints(host.disk):
            if isinstance(read := _read(path, data), Anchor):
                yield host, read


def _read(path: str, data: bytes) -> Anchor | LocalError:
    try:
        return anchor_from_bytes(data, path)
    except LocalError as error:
        return error
