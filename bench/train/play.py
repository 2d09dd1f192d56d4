"""One training on a lab: who held which weights when, and what that took.

Weights are left in files while training goes on and judged when it is over. Time begins with the first local step of
anybody, all being ready; weights count from when the last member has them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import numpy as np
from bench import usage
from bench.lab import Lab
from bench.rivals.play import Company, MemberEnded, declared, lighthouse
from bench.swarm import Swarm
from bench.train.setting import Setting, System
from bench.train.task import Judge, hand_out, run_of
from safetensors.numpy import load_file

from atoll import journal
from atoll.model.compute import Vector
from atoll.spec.axes.codec import Fp16

LOOK_S = 0.2
SAMPLE_S = 0.5
START_S_MAX = 120.0


@dataclass(frozen=True)
class Held:
    """Weights that all members had."""

    round: int
    at_s: float
    """From the first local step."""
    path: Path

    def weights(self) -> Vector:
        found: Vector = np.load(self.path) if self.path.suffix == ".npy" else load_file(self.path)["weights"]
        return found


@dataclass
class Played:
    """What one training left."""

    held: list[Held] = field(default_factory=list)
    agreed: bool = True
    """All members had the same weights, bit for bit, whenever they were kept."""
    failed: str = ""
    rounds: int = 0
    took_s: float = 0.0
    """Until the last round was over."""
    cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    """What the rest of this machine used meanwhile, the pretended network included."""
    sent_gbit: float = 0.0
    resident_mb: float = 0.0


def played(lab: Lab, setting: Setting, judge: Judge, folder: Path) -> Played:
    """Train."""
    match setting.system:
        case System.OURS:
            return _ours(lab, setting, folder)
        case _:
            return _theirs(lab, setting, judge, folder)


# what it takes


@contextmanager
def _gauged(lab: Lab, into: Played) -> Iterator[None]:
    """Count what all hosts use and send meanwhile."""
    spaces = [Path("/run/netns") / lab.space(index) for index in range(len(lab.hosts))]
    over = Event()

    def look() -> None:
        while True:
            for space in spaces:
                if over.wait(SAMPLE_S):
                    return
                into.resident_mb = max(into.resident_mb, usage.held_bytes(usage.processes(space)) / 1e6)

    cpu_s, sent, busy_s = _cpu_s(spaces), _sent_bytes(spaces), usage.busy_s()
    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        into.cpu_s = _cpu_s(spaces) - cpu_s
        into.other_cpu_s = usage.busy_s() - busy_s - into.cpu_s
        into.sent_gbit = 8e-9 * (_sent_bytes(spaces) - sent)


def _cpu_s(spaces: list[Path]) -> float:
    return sum(usage.cpu_s(usage.processes(space)) for space in spaces)


def _sent_bytes(spaces: list[Path]) -> int:
    """Return what has left the hosts' cards, headers and all."""
    return sum(usage.card_bytes(pids[0])[1] for pids in map(usage.processes, spaces) if pids)


# ours


class Learners(Swarm):
    """Real peers that train."""

    def program(self) -> list[str]:
        return ["atoll.cli.main", "peer", "--threads", "1", "--device", "cpu"]

    def checkpoint(self, index: int, version: int) -> Path:
        return self.folder / "peers" / str(index) / "checkpoint" / f"{version}.safetensors"


def _ours(lab: Lab, setting: Setting, folder: Path) -> Played:
    text = run_of("train", len(lab.hosts), setting.rates, setting.codec)
    done = Played()
    with Learners(lab, folder, text, elements=0, links=setting.links) as swarm:
        for index in range(len(lab.hosts)):
            swarm.start(index)
        swarm.until(lambda: any(True for _ in swarm.events(0, journal.RoundAnnounced)), START_S_MAX)
        with _gauged(lab, done):
            kept = _keep(swarm, setting.rounds)
        began_s = min(at_s for index in swarm.processes for at_s, _ in swarm.events(index, journal.LeaseTaken))
        applied = [
            {event.version: (at_s, event.anchor) for at_s, event in swarm.events(index, journal.RoundApplied)}
            for index in swarm.processes
        ]
    for version, path in kept.items():
        there = [each[version] for each in applied]
        done.held.append(Held(version, max(at_s for at_s, _ in there) - began_s, path))
        done.agreed &= len({anchor for _, anchor in there}) == 1
    done.rounds, done.took_s = setting.rounds, done.held[-1].at_s
    return done


def _keep(swarm: Learners, rounds: int) -> dict[int, Path]:
    """Wait for so many rounds, and keep every anchor that the first peer saves: a second name for its file."""
    kept: dict[int, Path] = {}

    def over() -> bool:
        version = len(kept) + 1
        found = swarm.checkpoint(0, version)
        if version <= rounds and found.exists():
            kept[version] = swarm.folder / f"weights-{version}.safetensors"
            os.link(found, kept[version])
        return len(kept) == rounds and all(swarm.checkpoint(index, rounds).exists() for index in swarm.processes)

    swarm.until(over)
    return kept


# theirs


def _theirs(lab: Lab, setting: Setting, judge: Judge, folder: Path) -> Played:
    folder.mkdir(parents=True, exist_ok=True)
    paths = hand_out(judge, folder, setting.rates, setting.keep_every)
    done = Played()
    with _company(lab, setting, folder, paths) as company:
        with _gauged(lab, done):
            company.allow()
            try:
                company.wait(lambda: all(said[-1].round >= setting.rounds for said in company.said), setting.limit_s)
            except (MemberEnded, TimeoutError) as error:
                done.failed = str(error).splitlines()[0][:200]
        rounds = [{said.round: said for said in each if said.round} for each in company.said]
    began_s = min((said.began_s for each in rounds for said in each.values()), default=time.time())
    for number in sorted(set.intersection(*map(set, rounds))):
        there = [each[number] for each in rounds]
        done.rounds, done.took_s = number, max(said.ended_s for said in there) - began_s
        if number % setting.keep_every == 0:
            done.held.append(Held(number, done.took_s, folder / f"weights-{number}.npy"))
            done.agreed &= len({said.digest for said in there}) == 1
    return done


def _company(lab: Lab, setting: Setting, folder: Path, paths: list[Path]) -> Company:
    """Return a rival's members."""
    words = ["--folder", str(folder), *(["--half"] if isinstance(setting.codec, Fp16) else [])]
    rates = setting.rates
    match setting.system:
        case System.DDP:
            return Company(lab, "bench.rivals.ddp_trainer", lambda index: words, folder, paths=paths)
        case System.HIVEMIND:
            words += ["--matchmaking-s", str(setting.matchmaking_s), *(["--delayed"] if setting.delayed else [])]
            return Company(
                lab, "bench.rivals.hivemind_trainer", lambda i: [*words, *declared(lab, i)], folder, paths=paths
            )
        case System.TORCHFT:
            words += ["--outer-lr", str(rates.outer_lr), "--outer-momentum", str(rates.outer_momentum)]
            words += ["--fragments", str(setting.fragments), "--delay", str(setting.delay)]
            beside = lighthouse(len(lab.hosts))
            return Company(lab, "bench.rivals.torchft_trainer", lambda index: words, folder, beside, paths)
        case System.OURS:
            raise AssertionError("ours are no rivals")
