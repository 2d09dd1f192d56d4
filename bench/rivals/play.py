"""What a benchmark asks of the rivals: an all-reduce, a death in mid-round, a file for everybody.

    with Lab([Host(12.5e6, 12.5e6)] * 4) as lab:
        outcome = allreduce(lab, Rival.GLOO, size_bytes=100_000_000, rounds=4, folder=folder)

Members run on the lab's hosts, one each, and are directed through their stdin and stdout (`member.py` says how). All
hosts share this machine's clock, so a round lasts from the first member's begin to the last one's end. The folder must
be a fresh one; what members said stays there (`N.jsonl`, `N.log`).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Condition, Event, Thread

import msgspec
from bench import usage
from bench.lab import Lab
from bench.rivals import environment

REPOSITORY = Path(__file__).parents[2]
START_S_MAX = 180.0
ROUND_S_MAX = 600.0
"""A round that takes longer hangs."""
SAMPLE_S = 0.5
LIGHTHOUSE = "0.0.0.0:29510"
HEARTBEAT_MS, JOIN_MS = 5000, 60000
"""torchft's defaults: when a replica counts as dead, and how long a quorum waits for one that lives."""
PART_S = 5.0
"""What hivemind's users set as matchmaking time, and its `Optimizer` then takes for this limit as well."""
WARM_ROUNDS = 3
"""Rounds before a death."""
NEVER_S = 160.0
"""Survivors that have not gone on by then are said never to."""
PERMITS = 1000
"""More rounds than anybody plays."""


class MemberEnded(RuntimeError):
    """A member that was to live ended by itself."""


class Rival(StrEnum):
    """Who plays."""

    GLOO = "gloo"
    HIVEMIND = "hivemind"
    HIVEMIND_8BIT = "hivemind-8bit"
    HIVEMIND_QUICK = "hivemind-quick"
    """With a limit on the time between two parts too, as its `Optimizer` sets one."""
    TORCHFT = "torchft"


class Said(msgspec.Struct, frozen=True):
    """What a member says of a round, or that it is ready."""

    ready: bool = False
    round: int = 0
    began_s: float = 0.0
    took_s: float = 0.0
    matched_s: float = 0.0
    ok: bool = False
    members: int = 0
    group: str = ""
    why: str = ""
    digest: str = ""
    grain: str = ""
    off: float | None = None
    cpu_s: float = 0.0

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_s


@dataclass(frozen=True)
class Outcome:
    """What came of a rival's rounds; those before the measured ones are left out."""

    rival: str
    rounds_s: list[float]
    exchange_s: list[float]
    """The same without the time until everybody knew the group: for rivals that look for one in every round."""
    median_s: float
    cpu_s_per_gbit: float
    resident_mb: float
    """The most that the processes of one host held together."""
    failed: int
    """Members' rounds that did not end well."""
    agreed: bool
    """All ended each round with the same bits."""
    close: bool
    """All ended each round with the same values, up to rounding."""
    off: float
    """The largest error of a member against the true mean, as a share of the mean's size."""


@dataclass(frozen=True)
class Death:
    """What became of four members, one of which was killed in mid-round."""

    rival: str
    undisturbed_s: float
    cpu_s_per_gbit: float
    """While nobody died."""
    resident_mb: float
    at_s: float
    """When it died, from the round's begin."""
    claimed: int
    """Survivors that report the very round as done, with everybody's contribution."""
    kept: bool
    """All of them do."""
    kept_alike: bool
    """And all hold the same values after it, up to rounding."""
    reported_s: float | None
    """From the death to the end of the first exchange that all survivors report as done; None for never."""
    alike_s: float | None
    """The same for the first after which they also hold the same values."""
    lines: dict[int, list[Said]] = field(repr=False)
    """What each survivor said from then on."""


@dataclass(frozen=True)
class Spread:
    """What came of one file for everybody."""

    took_s: float
    each_s: list[float]
    cpu_s_per_gbit: float
    agreed: bool


# one rival on a lab's hosts


@dataclass
class Company:
    """The members of a rival, one on each host, and what they say."""

    lab: Lab
    module: str
    words: Callable[[int], Sequence[str]]
    folder: Path
    beside: Sequence[str] = ()
    """A command that runs on host 0 meanwhile."""
    paths: Sequence[Path] = ()
    """Where members find what their own environment lacks."""
    said: list[list[Said]] = field(default_factory=list)
    resident_bytes: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _extra: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _heard: Condition = field(default_factory=Condition)
    _over: Event = field(default_factory=Event)

    def __enter__(self) -> Company:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            if self.beside:
                self._extra.append(self._start(0, self.beside, "beside"))
            for index in range(len(self.lab.hosts)):
                command = [str(environment.python()), "-m", self.module, *self.words(index)]
                self._processes.append(self._start(index, command, str(index)))
                self.said.append([])
                Thread(target=self._listen, args=(index,), daemon=True).start()
            Thread(target=self._sample, daemon=True).start()
            self.wait(lambda: all(said for said in self.said), START_S_MAX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for index in range(len(self._processes)):
            self.kill(index)
        for process in (*self._processes, *self._extra):
            process.kill()
            process.wait()

    def allow(self, rounds: int = 1) -> None:
        """Let everybody play so many more rounds."""
        for process in self._processes:
            if process.poll() is None and process.stdin is not None:
                process.stdin.write(b"go\n" * rounds)
                process.stdin.flush()

    def play(self, number: int) -> list[Said]:
        """Let everybody play one round, and return what they say of it."""
        self.allow()
        self.wait(lambda: all(said[-1].round == number for said in self.said), ROUND_S_MAX)
        return [said[-1] for said in self.said]

    def wait(self, done: Callable[[], bool], limit_s: float, living: Sequence[int] | None = None) -> None:
        """Wait until something was said, and for no longer than everybody who is to live does."""
        deadline_s = time.monotonic() + limit_s
        living = range(len(self._processes)) if living is None else living
        with self._heard:
            while not done():
                for index in living:
                    if self._processes[index].poll() is not None:
                        raise MemberEnded(f"{self.module}: member {index} ended: {self._words_of(index)}")
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{self.module}: nothing for {limit_s:.0f} s: {self._words_of(0)}")
                self._heard.wait(0.2)

    def kill(self, index: int) -> float:
        """End all processes of a host without a word, and return when."""
        spared = {process.pid for process in self._extra}
        for pid in usage.processes(self._space(index)):
            if pid not in spared:
                os.kill(pid, signal.SIGKILL)
        return time.time()

    def _start(self, index: int, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
        paths = os.pathsep.join(map(str, (REPOSITORY, *self.paths)))
        env |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("wb") as log:
            return self.lab.start(
                index, command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.folder
            )

    def _listen(self, index: int) -> None:
        stdout = self._processes[index].stdout
        assert stdout is not None, "members are started with a pipe"
        with (self.folder / f"{index}.jsonl").open("wb", buffering=0) as kept:
            for line in stdout:
                if line.startswith(b"{"):
                    kept.write(line)
                    with self._heard:
                        self.said[index].append(msgspec.json.decode(line, type=Said))
                        self._heard.notify_all()

    def _sample(self) -> None:
        """Keep the most memory that a host's processes were seen to hold, looking at one host after the other."""
        while True:
            for index in range(len(self._processes)):
                if self._over.wait(SAMPLE_S):
                    return
                self.resident_bytes = max(self.resident_bytes, usage.held_bytes(usage.processes(self._space(index))))

    def _space(self, index: int) -> Path:
        return Path("/run/netns") / self.lab.space(index)

    def _words_of(self, index: int) -> str:
        return (self.folder / f"{index}.log").read_text(errors="replace")[-2000:]


def company(lab: Lab, rival: Rival, size_bytes: int, folder: Path, *, timeout_s: float, members_min: int) -> Company:
    """Return a rival's members, set as well as can be."""
    size = ["--size-bytes", str(size_bytes)]
    limits = ["--timeout-s", str(timeout_s), "--members-min", str(members_min)]
    match rival:
        case Rival.GLOO:
            return Company(lab, "bench.rivals.gloo_member", lambda index: size, folder)
        case Rival.HIVEMIND | Rival.HIVEMIND_8BIT | Rival.HIVEMIND_QUICK:
            own = {Rival.HIVEMIND_8BIT: ["--codec", "8bit"], Rival.HIVEMIND_QUICK: ["--part-timeout-s", str(PART_S)]}
            words = [*size, *limits, "--folder", str(folder), *own.get(rival, [])]
            return Company(lab, "bench.rivals.hivemind_member", lambda index: [*words, *declared(lab, index)], folder)
        case Rival.TORCHFT:
            beside = lighthouse(members_min)
            return Company(lab, "bench.rivals.torchft_member", lambda index: [*size, *limits], folder, beside)


def declared(lab: Lab, index: int) -> list[str]:
    """Return how hivemind is told what a line carries: it believes what is declared."""
    rate = lab.hosts[index].up_bytes_s
    return ["--rate", str(rate)] if rate else []


def lighthouse(members_min: int) -> list[str]:
    """Return the command of torchft's lighthouse."""
    program = environment.python().with_name("torchft_lighthouse")
    limits = ["--heartbeat_timeout_ms", str(HEARTBEAT_MS), "--join_timeout_ms", str(JOIN_MS)]
    return [str(program), "--bind", LIGHTHOUSE, "--min_replicas", str(members_min), *limits]


# what is measured


def allreduce(lab: Lab, rival: Rival, size_bytes: int, rounds: int, folder: Path, *, unmeasured: int = 1) -> Outcome:
    """Play so many rounds among all hosts of a lab, and return what came of those after the first `unmeasured`."""
    members = len(lab.hosts)
    with company(lab, rival, size_bytes, folder, timeout_s=ROUND_S_MAX / 2, members_min=members) as playing:
        played = [playing.play(number) for number in range(1, rounds + 1)]
        resident_mb = playing.resident_bytes / 1e6
    counted = played[unmeasured:]
    rounds_s = [_took_s(each) for each in counted]
    return Outcome(
        rival=str(rival),
        rounds_s=rounds_s,
        exchange_s=[_exchange_s(each) for each in counted],
        median_s=statistics.median(rounds_s),
        cpu_s_per_gbit=_cpu_s_per_gbit(played, size_bytes, unmeasured),
        resident_mb=resident_mb,
        failed=sum(not said.ok for each in counted for said in each),
        agreed=all(len({said.digest for said in each}) == 1 for each in counted),
        close=all(len({said.grain for said in each}) == 1 for each in counted),
        off=max((said.off for each in counted for said in each if said.off is not None), default=float("nan")),
    )


def _cpu_s_per_gbit(played: Sequence[Sequence[Said]], size_bytes: int, unmeasured: int) -> float:
    """Return the processor time of all members for what they sent in the rounds after the first few."""
    spent_s = sum(said.cpu_s for said in played[-1]) - sum(said.cpu_s for said in played[unmeasured - 1])
    return spent_s / (8e-9 * 2 * (len(played[0]) - 1) * size_bytes * (len(played) - unmeasured))


def _took_s(said: Sequence[Said]) -> float:
    return max(each.ended_s for each in said) - min(each.began_s for each in said)


def _exchange_s(said: Sequence[Said]) -> float:
    return max(each.ended_s for each in said) - min(each.began_s + each.matched_s for each in said)


def kill(lab: Lab, rival: Rival, size_bytes: int, folder: Path, *, timeout_s: float = 30.0, victim: int = 2) -> Death:
    """Kill a member half-way into a round, and return how the others went on."""
    everybody = range(len(lab.hosts))
    survivors = [index for index in everybody if index != victim]
    with company(lab, rival, size_bytes, folder, timeout_s=timeout_s, members_min=2) as playing:
        calm = [playing.play(number) for number in range(1, WARM_ROUNDS + 1)]
        undisturbed_s = statistics.median(_took_s(each) for each in calm[1:])
        resident_mb = playing.resident_bytes / 1e6
        began_s = time.time()
        playing.allow(PERMITS)
        time.sleep(undisturbed_s / 2)
        died_s = playing.kill(victim)

        def since() -> dict[int, list[Said]]:
            return {index: [said for said in playing.said[index] if said.ended_s > died_s] for index in survivors}

        try:
            playing.wait(lambda: _first_s(since(), alike=True) is not None, NEVER_S, survivors)
        except (TimeoutError, MemberEnded):
            pass  # never, then: what they said until then is in the lines
        after = since()
    first = [said[0] for said in after.values() if said and said[0].began_s < died_s]
    claimed = sum(said.ok and said.members == len(everybody) for said in first)
    kept = claimed == len(survivors)
    return Death(
        rival=str(rival),
        undisturbed_s=undisturbed_s,
        cpu_s_per_gbit=_cpu_s_per_gbit(calm, size_bytes, unmeasured=1),
        resident_mb=resident_mb,
        at_s=died_s - began_s,
        claimed=claimed,
        kept=kept,
        kept_alike=kept and len({said.grain for said in first}) == 1,
        reported_s=_since(died_s, _first_s(after, alike=False)),
        alike_s=_since(died_s, _first_s(after, alike=True)),
        lines=after,
    )


def _first_s(lines: dict[int, list[Said]], *, alike: bool) -> float | None:
    """Return the end of the first exchange that all report as done, and hold the same values after where asked to."""
    tables = [{said.group: said for said in each if said.ok} for each in lines.values()]
    common = set.intersection(*(set(table) for table in tables))
    ends_s = [
        max(table[group].ended_s for table in tables)
        for group in sorted(common)
        if not alike or len({table[group].grain for table in tables}) == 1
    ]
    return min(ends_s, default=None)


def _since(died_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else at_s - died_s


def spread(lab: Lab, size_bytes: int, folder: Path, *, tuned: bool = True) -> Spread:
    """Let libtorrent bring a file from host 0 to all others, and return when the last had it."""
    words = ["--size-bytes", str(size_bytes), "--folder", str(folder), *([] if tuned else ["--defaults"])]
    with Company(lab, "bench.rivals.torrent_member", lambda index: words, folder) as playing:
        ready = [said[-1] for said in playing.said]
        said = playing.play(1)
    began_s = min(each.began_s for each in said)
    gbit = 8e-9 * size_bytes * (len(lab.hosts) - 1)
    return Spread(
        took_s=_took_s(said),
        each_s=[each.ended_s - began_s for each in said[1:]],
        cpu_s_per_gbit=sum(after.cpu_s - before.cpu_s for after, before in zip(said, ready, strict=True)) / gbit,
        agreed=len({each.digest for each in said}) == 1,
    )
