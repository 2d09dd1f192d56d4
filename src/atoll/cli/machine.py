"""The real world: a peer's box on this machine.

Here, and only here, the openings are filled with the real things: iroh or TLS for the transport, one worker
thread with torch for compute, the file system for the disk. Flags describe this machine; the run
describes the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import platformdirs

from atoll.disk import FileDisk
from atoll.errors import LocalError, SpecError
from atoll.journal import Journal
from atoll.model.compute import Cost, Engine
from atoll.model.worker import WorkerThread
from atoll.net import identity
from atoll.net.transport import DEFAULT_LINKS, LinkKind
from atoll.peer.box import Box
from atoll.spec.run import Folder, Run, Shards
from atoll.units import rate_bytes_s, size_bytes

MEMORY_BYTES_MAX = 2**60
LINE_BYTES_S_MAX = 2**40
"""No machine has more: a larger number is a slip of the pen."""


@dataclass(frozen=True)
class Machine:
    """What a person says about this machine."""

    device: str = "auto"
    threads: int = 0
    """Threads for compute; 0: all cores."""
    host: str = "0.0.0.0"
    port: int = 0
    relay: bool = False
    links: LinkKind = DEFAULT_LINKS
    data: str = ""
    """Where this machine keeps the run's token shards, if not where the run file says."""
    model: str = ""
    """Where this machine keeps the run's pretrained folder, if not where the run file says."""


def memory_bytes(text: str) -> int:
    """Return the bytes that a `--memory` flag names; 0 where none was given: no limit."""
    if not text:
        return 0
    try:
        size = size_bytes(text)
    except OverflowError:  # the float of it is infinite
        size = MEMORY_BYTES_MAX + 1
    except SpecError as error:
        raise SpecError(f"--memory: {error.what}", hint=error.hint) from error
    if not 0 < size <= MEMORY_BYTES_MAX:
        hint = 'write for example "2 GiB" or "500 MB"; leave the flag out for no limit'
        raise SpecError(f"--memory: {text!r} is no memory of a machine", hint=hint)
    return size


def line_bytes_s(text: str) -> int:
    """Return the bytes a second that a `--line` flag names; 0 where none was given: it is measured."""
    if not text:
        return 0
    try:
        rate = rate_bytes_s(text)
    except (SpecError, OverflowError) as error:
        hint = "write for example '100 Mbit/s', the slower of both directions, or leave the flag out"
        raise SpecError(f"--line: {text!r} is no rate", hint=hint) from error
    if not 0 < rate <= LINE_BYTES_S_MAX:
        raise SpecError(f"--line: {text!r} is no line of a machine", hint="'1 Gbit/s', for example")
    return round(rate)


class WallClock:
    """The time of day."""

    def now_s(self) -> float:
        return time.time()


def cache() -> Path:
    """Return where prepared corpora live, shared by all runs of this user."""
    home = os.environ.get("ATOLL_HOME")
    return Path(home) if home else Path(platformdirs.user_cache_dir("atoll"))


def pinned(run: Run, machine: Machine) -> Run:
    """Return the run with its data and pretrained weights named by digest, preparing what is missing."""
    from atoll.data.samples import open_data
    from atoll.model.folder import digest

    local = located(run, machine)
    data = open_data(local.data, run.seeds.data, cache())
    run = msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, digest=data.manifest.digest()))
    if isinstance(local.model, Folder):
        found = digest(Path(local.model.path))
        if local.model.digest and local.model.digest != found:
            raise SpecError(
                f"model.digest: {local.model.path} holds weights {found}, the run names {local.model.digest}",
                hint="point model.path (or --model) at the right folder, or remove model.digest for a new run",
            )
        run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, digest=found))
    return run


def located(run: Run, machine: Machine) -> Run:
    """Return the run with paths that hold on this machine."""
    if machine.data:
        run = msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, source=Shards(path=machine.data)))
    if machine.model and isinstance(run.model, Folder):
        run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, path=machine.model))
    return run


def build_torch(run: Run, machine: Machine) -> Engine:
    """Return the torch engine of a run on this machine, reading its data."""
    from atoll.data.samples import open_data
    from atoll.model.engine import build_engine

    run = located(run, machine)
    data = open_data(run.data, run.seeds.data, cache())
    return build_engine(run, data, device=machine.device, threads=machine.threads or os.cpu_count() or 1)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"{error.filename or folder}: cannot be written ({error.strerror})",
            hint="free some space or choose a folder that you can write to; everything saved before is intact",
        ) from error


def _verified(run: Run, machine: Machine) -> Run:
    """Return the run after comparing its data on this machine with its hashes: nobody trains on damaged text."""
    from atoll.data.samples import open_data
    from atoll.data.shards import verify

    verify(open_data(located(run, machine).data, run.seeds.data, cache()).folder)
    return run


async def real_box(home: Path, machine: Machine) -> Box:
    """Return the box of the peer that lives in `home`."""
    from atoll.net.pair import bind

    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
    me = identity.load(home / "identity.key")
    transport = await bind(
        me.secret, links=machine.links, host=machine.host, port=_port(home, machine), relay=machine.relay
    )
    _keep_port(home, transport.addresses())
    compute, beside = WorkerThread(), WorkerThread("atoll-beside")

    async def build(run: Run) -> Engine:
        return await compute.run(lambda: build_torch(_verified(run, machine), machine), Cost())

    return Box(
        transport=transport,
        compute=compute,
        beside=beside,
        disk=FileDisk(home),
        journal=Journal(identity.short(transport.id), WallClock(), _sink(home / "journal.jsonl")),
        random=Random(int.from_bytes(me.secret[:8], "little") ^ time.time_ns()),
        sign=me.sign,
        build=build,
        device=machine.device,
    )


def _port(home: Path, machine: Machine) -> int:
    """Return the port to listen at: the one asked for, or the one used before, so that old tickets still work."""
    kept = home / "port"
    if machine.port or not kept.is_file():
        return machine.port
    said = kept.read_text(errors="replace")
    return int(said) if said.isdecimal() and int(said) < 2**16 else 0  # torn by a crash: any will do


def _keep_port(home: Path, addresses: list[str]) -> None:
    with writing(home):
        (home / "port").write_text(addresses[0].rpartition(":")[2])


def _sink(path: Path) -> Callable[[bytes], None]:
    """Return a writer of whole lines to the end of a journal file."""
    with writing(path):
        file = path.open("ab", buffering=0)

    def put(line: bytes) -> None:
        try:
            file.write(line)
        except OSError as error:
            raise LocalError(f"{path}: {error.strerror}", hint="free some space and start again") from error

    return put
