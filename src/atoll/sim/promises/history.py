"""One history, and no fork: versions have one anchor and one commit, epochs one leader, and all of it can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atoll import journal
from atoll.errors import LocalError
from atoll.journal import Line
from atoll.net.identity import short
from atoll.sim.homes import Home, walked
from atoll.sim.promises.disks import anchor_in, checkpoints, entries_of, log_on
from atoll.sim.retell import Committed
from atoll.sim.scenario import Outcome
from atoll.spec.run import Run
from atoll.spec.turns import rarest
from atoll.swarm.log import Entry, EpochStarted, from_bytes


def readable(outcome: Outcome) -> Iterator[str]:
    """Check that every log and state on a disk can be read: whoever cannot read its own has forgotten all of it."""
    for host in outcome.hosts:
        try:
            from_bytes(host.disk.file("log"), "log")
        except LocalError as error:
            yield f"peer {host.place} cannot read its log any more: {error}"
    for host in outcome.hosts:
        for path, data in checkpoints(host.disk):
            if isinstance(found := anchor_in(path, data), LocalError):
                yield f"peer {host.place} cannot read its state any more: {found}"


def one_history(lines: list[Line], homes: Mapping[int, Mapping[str, Home]] | None = None) -> Iterator[str]:
    """Check that a version has one anchor, unless it was made in circles, where each has its own.

    Where regions hold states of their own each of them has one.
    """
    known: dict[tuple[int, Home | None], tuple[str, str]] = {}
    own = set[int]() if homes else in_circles(lines)
    for line in lines:
        match line.event:
            case journal.RoundApplied(version=version, anchor=anchor, astray=False) if version not in own:
                where = (homes or {}).get(version, {}).get(line.peer)
                first, who = known.setdefault((version, where), (anchor, line.peer))
                if first != anchor:
                    yield f"version {version}: {who} holds {first[:8]}, {line.peer} holds {anchor[:8]}"
            case _:
                pass


def at_home(run: Run, entries: list[Entry]) -> dict[int, dict[str, Home]]:
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


def in_circles(lines: list[Line]) -> set[int]:
    """Return the versions that were made in circles."""
    return {
        line.event.version for line in lines if isinstance(line.event, journal.RoundCommitted) and line.event.circles
    }


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
    logs = [log_on(host.disk) for host in outcome.hosts]
    logs += [entries_of(log) for left in outcome.remains for log in left.logs]
    for entry in (entry for log in logs for entry in log):
        match entry.record:
            case EpochStarted(epoch=epoch, broker=broker):
                if offices.setdefault(epoch, broker) != broker:
                    yield f"epoch {epoch} has two leaders"
            case _:
                pass
