"""What disks hold after a play: logs and checkpoints, read as their owners would read them."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.errors import LocalError
from atoll.peer.store import anchor_from_bytes
from atoll.sim.disk import SimDisk
from atoll.sim.scenario import Host, Outcome
from atoll.swarm.log import Entry, from_bytes
from atoll.sync.merge import Anchor


def log_of_record(outcome: Outcome) -> list[Entry]:
    """Return the log that any council would have to agree to: of all that are on disk, the one that knows most."""
    return max((log_on(host.disk) for host in outcome.hosts), key=knows)


def log_on(disk: SimDisk) -> list[Entry]:
    return entries_of(disk.file("log"))


def entries_of(log: bytes) -> list[Entry]:
    """Return what a log holds: nothing when it cannot be read, which `readable` finds."""
    try:
        return from_bytes(log, "log")[0]
    except LocalError:
        return []


def knows(log: list[Entry]) -> tuple[int, int]:
    """Return how much a log knows, as voters compare it."""
    return (log[-1].term, len(log)) if log else (0, 0)


def checkpoints(disk: SimDisk) -> list[tuple[str, bytes]]:
    files = disk.files().items()
    return [(path, data) for path, data in files if path.startswith("checkpoint/") and path.endswith(".safetensors")]


def saved(outcome: Outcome) -> Iterator[tuple[Host, Anchor]]:
    """Yield the anchors on everybody's disk that can be read; what cannot `readable` finds."""
    for host in outcome.hosts:
        for path, data in checkpoints(host.disk):
            if isinstance(found := anchor_in(path, data), Anchor):
                yield host, found


def anchor_in(path: str, data: bytes) -> Anchor | LocalError:
    try:
        return anchor_from_bytes(data, path)
    except LocalError as error:
        return error
