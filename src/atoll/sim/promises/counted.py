"""Counted once: everybody works on its own samples, none counts twice, and none that came back is forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from atoll import journal
from atoll.errors import LocalError
from atoll.journal import Line
from atoll.net.identity import short
from atoll.peer.private import opened
from atoll.sim.compute import steps_in
from atoll.sim.promises.disks import checkpoints
from atoll.sim.retell import Committed, announcements, commits
from atoll.sim.scenario import Outcome
from atoll.spec.axes.control import Auto
from atoll.spec.axes.pace import Block
from atoll.spec.axes.what import Forget, Grad
from atoll.spec.axes.when import Parts
from atoll.spec.run import Run
from atoll.spec.turns import rarest
from atoll.swarm.log import Entry


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


def inner_as_counted(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check that the inner state saved with a checkpoint has no steps of work that was not counted.

    It may have fewer than were counted: what a crash took is lost, and the journal says so.
    """
    batch = run.recipe.work.batch
    committed = commits(entries)
    for host in outcome.hosts:
        if host.gone:
            continue  # it may have died before it could take its work back
        for path, _ in checkpoints(host.disk):
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


def _inner(run: Run, private: bytes) -> bytes:
    """Return the inner state in saved private state: beside other things or alone."""
    channel, control = rarest(run.recipe), run.recipe.control
    parts = (isinstance(each.when, Parts) for each in run.recipe.channel.values())
    own = not isinstance(channel.overlap, Block) or any(parts)
    own = own or (isinstance(control, Auto) and any(rung.overlap != Block() for rung in control.ladder))
    goes_on = own and not isinstance(channel.what, Grad)
    return opened(private)[0] if goes_on or channel.what.residual != Forget() else private


def _samples_of(peer: bytes, version: int, committed: list[Committed]) -> int:
    """Return how many samples of a peer are in the versions up to this one."""
    theirs = (each for each in committed if peer in each.contributors and each.version <= version)
    counted = (each for each in theirs if not each.announced.holds)
    return sum(len(each.announced.leases[peer]) for each in counted)


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
