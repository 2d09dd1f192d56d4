"""What must hold, whatever went wrong: checks that read only journals and disks.

    one history   all peers that hold a version hold the same bits
    counted once  no sample is in two committed contributions, and the anchor is exactly what the log says it
                  should be: the counting model makes a contribution that was lost or doubled visible
    durable       what a journal called committed is in the organiser's log, after every crash and at the end
    live          after the faults are over, rounds commit again and everybody gets to the newest one

Each returns the violations it found, as sentences. None of them calls the code it judges, except to read
its file formats and to step the outer optimizer at its scheduled rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from atoll import journal
from atoll.journal import Line
from atoll.peer.store import anchor_from_bytes
from atoll.sim.compute import delta_of, first_weights
from atoll.sim.disk import SimDisk
from atoll.sim.scenario import Outcome
from atoll.spec.recipe import Delta
from atoll.spec.run import Run
from atoll.swarm.log import Entry, RoundAnnounced, RoundCommitted, from_bytes
from atoll.sync.merge import Anchor, advance, outer_names
from atoll.sync.schedule import rate

TOLERANCE = 2.0**-14
"""Rounding of many fp32 steps stays far below; one sample more or less (at least 2^-12 / peers) stands out."""


def violations(run: Run, outcome: Outcome) -> list[str]:
    """Return every broken promise of a play with counting models."""
    entries = _log(outcome.hosts[0].disk)
    return [
        *one_history(outcome.lines),
        *durable(outcome.lines, entries),
        *durable_at_crashes(outcome),
        *counted_once(entries),
        *as_the_log_says(run, outcome, entries),
        *(f"peer {host.place} failed: {error}" for host in outcome.hosts for error in host.failures),
    ]


def one_history(lines: list[Line]) -> Iterator[str]:
    """Check that a version has one anchor."""
    known: dict[tuple[str, int], tuple[str, str]] = {}
    for line in lines:
        match line.event:
            case journal.RoundApplied(channel=channel, version=version, anchor=anchor):
                first, who = known.setdefault((channel, version), (anchor, line.peer))
                if first != anchor:
                    yield f"version {version}: {who} holds {first[:8]}, {line.peer} holds {anchor[:8]}"
            case _:
                pass


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
    """Check that whatever had been called committed was still in the log when its keeper crashed."""
    for left in outcome.remains:
        if left.place == 0:
            entries = from_bytes(left.log, "log")[0]
            yield from (f"after a crash, {what}" for what in durable(outcome.lines[: left.lines], entries))


def counted_once(entries: list[Entry]) -> Iterator[str]:
    """Check that no position of the global order is in two committed contributions."""
    seen: dict[int, int] = {}
    leases: dict[bytes, list[int]] = {}
    for entry in entries:
        match entry.record:
            case RoundAnnounced() as announced:
                leases = _positions(announced)
            case RoundCommitted() as committed:
                for position in (p for peer in committed.contributors for p in leases[peer]):
                    if position in seen:
                        yield f"sample {position} is in versions {seen[position]} and {committed.key.version}"
                    seen[position] = committed.key.version
            case _:
                pass


def _positions(announced: RoundAnnounced) -> dict[bytes, list[int]]:
    """Return each member's leased positions."""
    leases = zip(announced.members, announced.leases, strict=True)
    return {peer: [position for r in lease for position in r.positions] for peer, lease in leases}


def as_the_log_says(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint on every disk against the anchor that follows from the log alone."""
    expected = _expected(run, outcome, entries)
    for host in outcome.hosts:
        for path, data in _checkpoints(host.disk):
            anchor = anchor_from_bytes(data, path)
            if anchor.version not in expected:
                yield f"peer {host.place} holds version {anchor.version}, which the log does not have"
                continue
            gap = float(np.abs(anchor.weights - expected[anchor.version]).max())
            if gap > TOLERANCE:
                yield f"peer {host.place}, version {anchor.version}: {gap:.2e} away from what the log adds up to"


def _expected(run: Run, outcome: Outcome, entries: list[Entry]) -> dict[int, NDArray[np.float64]]:
    """Return the weights of every version, from leases and contributors alone."""
    channel = next(iter(run.recipe.channel.values()))
    size = _size(outcome)
    weights = first_weights(run.seeds.data, size)
    zeros = {name: np.zeros_like(weights) for name in outer_names(channel.merge.outer)}
    anchor = Anchor(0, weights, zeros)
    by_version: dict[int, NDArray[np.float64]] = {0: weights.astype(np.float64)}
    leases: dict[bytes, list[int]] = {}
    for entry in entries:
        match entry.record:
            case RoundAnnounced() as announced:
                leases = _positions(announced)
            case RoundCommitted(contributors=contributors):
                deltas = [delta_of(run.seeds.data, size, leases[peer]).astype(np.float64) for peer in contributors]
                if not isinstance(channel.what, Delta):
                    deltas = [d / len(leases[p]) for d, p in zip(deltas, contributors, strict=True)]
                merged = np.mean(deltas, axis=0).astype(np.float32)
                anchor = advance(channel.merge.outer, anchor, merged, _factor(run, anchor.version + 1))
                by_version[anchor.version] = anchor.weights.astype(np.float64)
            case _:
                pass
    return by_version


def _factor(run: Run, version: int) -> float:
    """Return the factor on the outer rate in a run whose budget is in rounds."""
    channel = next(iter(run.recipe.channel.values()))
    if not channel.merge.scheduled:
        return 1.0
    return rate(run.recipe.work.schedule, (version - 1) * channel.when.steps, (version - 1) / run.budget.rounds)


def _size(outcome: Outcome) -> int:
    for host in outcome.hosts:
        for path, data in _checkpoints(host.disk):
            return len(anchor_from_bytes(data, path).weights)
    return 2


def settled(outcome: Outcome) -> list[str]:
    """Return what keeps the world from being at peace: peers that are not on the highest version and digest."""
    top = max((host.version for host in outcome.hosts), default=0)
    anchors = sorted({host.anchor for host in outcome.hosts if host.alive and host.version == top})
    behind = [host.place for host in outcome.hosts if host.alive and host.version < top]
    problems = [f"peers {behind} are behind version {top}"] if behind else []
    return problems + ([f"{len(anchors)} anchors of version {top}"] if len(anchors) > 1 else [])


def _log(disk: SimDisk) -> list[Entry]:
    return from_bytes(disk.files().get("log", b""), "log")[0]


def _checkpoints(disk: SimDisk) -> list[tuple[str, bytes]]:
    files = disk.files().items()
    return [(path, data) for path, data in files if path.startswith("checkpoint/") and path.endswith(".safetensors")]
