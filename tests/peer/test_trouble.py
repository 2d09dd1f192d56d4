"""This machine's own troubles: a full disk, damaged files, training that diverges. Each is named, none spreads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.disk import Disk
from atoll.errors import LocalError, SpecError
from atoll.model.compute import Step, Trained
from atoll.peer import follow
from atoll.peer.store import anchor_from_bytes
from atoll.sim.compute import CountingEngine
from atoll.sim.faults import FullDisk, Leave
from atoll.sim.scenario import Outcome, World, start
from atoll.spec.run import Run, Seeds, canonical
from tests.peer.world import anchor_of, counting_run, events, lines, play

Hands = Callable[[Disk], Coroutine[Any, Any, None]]
"""Something done to a disk while its peer is away."""


def nothing_lost(outcome: Outcome, version: int) -> None:
    """Check that all disks ended with one anchor of `version`."""
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {version}
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1


# a full disk


@pytest.mark.parametrize("peer", [0, 1])
@pytest.mark.parametrize("at_s", [0.7, 1.1])
def test_a_full_disk_says_so_and_when_there_is_space_again_nothing_is_lost(peer: int, at_s: float) -> None:
    run = counting_run(rounds=8, start_with=3)
    said: list[LocalError] = []

    def enough(world: World) -> bool:
        host = world.hosts[peer]
        if isinstance(host.failed, LocalError) and not said:
            said.append(host.failed)
            host.disk.capacity_bytes = 2**62
            start(world, host)
        return False

    outcome = play(run, 3, faults=[FullDisk(at_s=at_s, peer=peer, for_s=1000.0)], enough=enough)
    assert "the disk is full" in str(said[0])
    assert "free some space" in said[0].hint
    nothing_lost(outcome, 8)
    first, again = events(outcome, journal.PeerStarted, peer=peer)
    assert first.resumed_version is None
    began_s = lines(outcome, journal.PeerStarted, peer=peer)[1].at_s
    applied = [line for line in lines(outcome, journal.CheckpointSaved, peer=peer) if line.at_s < began_s]
    assert again.resumed_version == len(applied), "it goes on from the last checkpoint it had saved"


# damaged files


def meddled(hands: Hands, peer: int = 1, rounds: int = 8) -> Outcome:
    """Play a run in which a peer leaves, has its disk meddled with, and is started again."""
    began: list[asyncio.Task[None]] = []

    async def meddle(world: World) -> None:
        await hands(world.hosts[peer].disk)
        start(world, world.hosts[peer])

    def enough(world: World) -> bool:
        host = world.hosts[peer]
        if not began and host.task is not None and not host.alive:
            began.append(asyncio.ensure_future(meddle(world)))
        return host.failed is not None

    run = counting_run(rounds=rounds, start_with=2)
    return play(run, 2, faults=[Leave(at_s=1.5, peer=peer)], enough=enough)


async def flip(disk: Disk, path: str, place: int = -1) -> None:
    """Flip one bit of a file, as a dying drive does."""
    data = bytearray(await disk.read(path))
    data[place if place >= 0 else len(data) // 2] ^= 1
    await disk.write(path, bytes(data))


async def newest(disk: Disk, folder: str) -> str:
    names = [name for name in await disk.names(folder) if not name.endswith(".new")]
    return f"{folder}/{max(names, key=lambda name: int(name.partition('.')[0]))}"


def test_a_checkpoint_with_a_flipped_byte_is_refused_by_name_and_nothing_else_is_harmed() -> None:
    async def hands(disk: Disk) -> None:
        spoiled.append(await newest(disk, "checkpoint"))
        await flip(disk, spoiled[0])

    spoiled: list[str] = []
    outcome = meddled(hands)
    failed, files = outcome.hosts[1].failed, outcome.hosts[1].disk.files()
    assert isinstance(failed, LocalError)
    assert str(failed).startswith(f"{spoiled[0]}: damaged")
    assert "delete this file" in failed.hint
    others = [path for path in files if path.startswith("checkpoint/") and path != spoiled[0]]
    assert others
    assert all(anchor_from_bytes(files[path], path) for path in others)


def test_with_the_damaged_checkpoint_deleted_the_peer_falls_back_to_the_one_before() -> None:
    async def hands(disk: Disk) -> None:
        await disk.remove(await newest(disk, "checkpoint"))

    outcome = meddled(hands)
    assert outcome.hosts[1].failed is None
    nothing_lost(outcome, 8)


def test_a_peer_whose_folder_is_gone_downloads_everything_anew() -> None:
    async def hands(disk: Disk) -> None:
        for name in await disk.names(""):
            await disk.remove(name)

    outcome = meddled(hands)
    assert outcome.hosts[1].failed is None
    nothing_lost(outcome, 8)


def test_damaged_private_state_starts_from_zero_and_the_journal_says_so() -> None:
    async def hands(disk: Disk) -> None:
        for name in await disk.names("private"):
            await disk.write(f"private/{name}", b"spoiled")

    outcome = meddled(hands)
    (reset,) = events(outcome, journal.PrivateStateReset, peer=1)
    assert reset.why.startswith("private/")
    nothing_lost(outcome, 8)


def test_damaged_results_are_not_used() -> None:
    async def hands(disk: Disk) -> None:
        await disk.remove("checkpoint")
        for name in await disk.names("results"):
            await flip(disk, f"results/{name}")

    outcome = meddled(hands)
    assert outcome.hosts[1].failed is None
    nothing_lost(outcome, 8)


@pytest.mark.parametrize("peer", [0, 1])
@pytest.mark.parametrize("place", [1, 20])
def test_a_damaged_log_is_refused_by_name(peer: int, place: int) -> None:
    outcome = meddled(lambda disk: flip(disk, "log", place), peer=peer)
    failed = outcome.hosts[peer].failed
    assert isinstance(failed, LocalError)
    assert "the log is damaged at byte 0" in str(failed)


def test_the_folder_of_another_run_is_refused_and_left_as_it_is() -> None:
    async def hands(disk: Disk) -> None:
        await disk.write("run.json", canonical(replace(counting_run(), seeds=Seeds(data=5))))

    outcome = meddled(hands, peer=0)
    failed = outcome.hosts[0].failed
    assert isinstance(failed, SpecError)
    assert "--home" in failed.hint
    assert outcome.hosts[0].disk.files()["run.json"] == canonical(replace(counting_run(), seeds=Seeds(data=5)))


def test_who_is_turned_away_by_its_own_broker_waits_before_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_s: list[float] = []
    known = follow._identity

    def mistaken(told: bytes) -> str:
        asked_s.append(asyncio.get_running_loop().time())
        return known(told) if len(asked_s) > 8 else "another"

    monkeypatch.setattr(follow, "_identity", mistaken)
    outcome = play(counting_run(rounds=2, start_with=1), 1)
    assert anchor_of(outcome.hosts[0].disk).version == 2
    assert all(later - before > follow.RETRY_S / 2 for before, later in pairwise(asked_s))


# training


class Diverging(CountingEngine):
    """A counting model that explodes after a few steps."""

    def train(self, steps: Sequence[Step]) -> Trained:
        trained = super().train(steps)
        if self.steps > 4:
            self.assign(np.full(self.size, np.nan, np.float32))
        return trained


def test_a_peer_whose_training_diverges_says_so_and_leaves_while_the_others_go_on() -> None:
    built: list[CountingEngine] = []

    def build(run: Run) -> CountingEngine:
        kind = Diverging if len(built) == 2 else CountingEngine
        built.append(kind(seed=run.seeds.data, size=256, tokens_per_sample=16))
        return built[-1]

    run = counting_run(rounds=6, start_with=3)
    outcome = play(run, 3, build=build)
    (ill,) = [host for host in outcome.hosts if host.failed is not None]
    assert isinstance(ill.failed, LocalError)
    assert "diverged in round 3" in str(ill.failed)
    assert "learning rate" in ill.failed.hint
    assert {anchor_of(host.disk).version for host in outcome.hosts if host is not ill} == {6}
