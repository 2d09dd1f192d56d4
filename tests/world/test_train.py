"""Training with real peers: processes, iroh on loopback, torch, the file system; killed for real."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from atoll import journal
from atoll.cli.machine import Machine, build_torch
from atoll.model.compute import Step
from atoll.net.pulse import Rhythm
from atoll.spec.load import load_run
from atoll.spec.run import Run
from tests.world.shore import (
    HERE,
    Calm,
    Peer,
    Shore,
    counted,
    counted_without,
    one_history,
    processes_below,
    seats,
    wait_for,
)

MICRO = 64
LARGE = ("data.context=32", "model.size=tiny", f"recipe.work.micro_batch={MICRO}", f"recipe.work.batch={MICRO}")
ENDLESS = 100_000
"""Rounds of a run that the test ends."""


def test_training_on_this_machine_ends_with_a_summary_and_exit_code_0(calm: Calm) -> None:
    assert calm.done.returncode == 0, calm.done.stderr
    summary = json.loads(calm.done.stdout)
    tokens = calm.rounds * 2 * 2 * 2 * 16
    assert (summary["state"], summary["rounds"], summary["tokens"]) == ("finished", calm.rounds, tokens)
    assert [peer["contributions"] for peer in summary["peers"]] == [calm.rounds] * 2
    assert summary["held_out"] < summary["loss_first"]
    assert (summary["lost"], summary["refused"]) == ([], [])
    assert "atoll join atoll1" in calm.done.stderr
    assert sorted(one_history(calm.peers)) == list(range(1, calm.rounds + 1))
    for peer in calm.peers:
        assert peer.version() == calm.rounds
        assert (peer.folder / "checkpoint" / f"{calm.rounds}.safetensors").is_file()
    assert processes_below(calm.home) == []


def test_ctrl_c_leaves_cleanly_and_the_resumed_run_ends_on_the_same_bits(shore: Shore, calm: Calm) -> None:
    home = shore.folder / "home"
    peers = [shore.give(peer.folder, key) for peer, key in zip(seats(home, 2), calm.keys, strict=True)]
    watched = shore.start(*shore.train(calm.run, home, 2), output="said.log")
    wait_for(lambda: peers[0].version() >= 3, "the third round", by=watched)
    assert isinstance(watched, subprocess.Popen)
    watched.send_signal(signal.SIGINT)
    assert watched.wait(30) == 130
    assert processes_below(home) == []
    assert [peer.saw(journal.PeerStopped)[-1].why for peer in peers] == ["asked to leave (SIGTERM)"] * 2
    assert 3 <= peers[0].version() < calm.rounds
    resume = (shore.folder / "said.log").read_text().rpartition("resume with: ")[2]
    done = shore.atoll(*shlex.split(resume)[1:])
    assert done.returncode == 0, done.stderr
    assert one_history(peers) == one_history(calm.peers)


@pytest.mark.long
def test_a_run_outlives_who_started_it_and_others_can_still_join(shore: Shore) -> None:
    home = shore.folder / "home"
    watched = shore.start(*shore.train(shore.run_file(rounds=ENDLESS), home, 2))
    peers = seats(home, 2)
    wait_for(lambda: peers[1].version() >= 2, "the second round", by=watched)
    watched.kill()
    watched.wait()
    version = peers[0].version()
    alone = processes_below(home)
    assert sorted(_command(process) for process in alone) == ["peer", "peer"]
    assert [process.children() for process in alone] == [[], []]
    late = shore.start("join", peers[1].ticket(), "--home", str(shore.folder / "late"), *HERE, output="late.log")
    [joiner] = seats(shore.folder / "late", 1)
    wait_for(lambda: joiner.saw(journal.ContributionSent), "the joiner's work", by=late)
    with_it = wait_for(lambda: counted(peers[0], joiner.name(), version), "a round that counts it", by=late)[0]
    assert len(with_it.contributors) == 3
    wait_for(lambda: all(p.version() >= with_it.version for p in (*peers, joiner)), "everybody's end of that round")
    _end(*peers, joiner)
    assert late.wait(30) == 0
    one_history([*peers, joiner])
    assert all(with_it.version in peer.anchors() for peer in (*peers, joiner))


@pytest.mark.long
def test_a_killed_member_is_gone_without_and_counted_again_when_it_is_back(shore: Shore) -> None:
    run = shore.run_file(rounds=ENDLESS, start_with=3, contributors_min=2)
    first = shore.organise(run, shore.folder / "0")
    ticket = first.ticket()
    others = [shore.join(ticket, shore.folder / str(seat)) for seat in (1, 2)]
    victim = others[1]
    wait_for(lambda: victim.version() >= 2, "the second round", by=victim.process)
    name, version = victim.name(), victim.version()
    victim.kill()
    without = wait_for(lambda: counted_without(first, name, version), "a round without it", by=first.process)
    assert len(without[0].contributors) == 2
    again = shore.join(ticket, victim.folder)
    back = wait_for(lambda: counted(first, name, without[0].version), "a round with it again", by=again.process)
    assert again.saw(journal.PeerStarted)[-1].resumed_version is not None
    assert len(back[0].contributors) == 3
    wait_for(lambda: again.version() >= back[0].version, "its own end of that round", by=again.process)
    _end(first, others[0], again)
    assert back[0].version in one_history([first, others[0], again])
    assert [peer.ended() for peer in (first, others[0], again)] == [0, 0, 0]


def test_a_killed_organiser_takes_the_run_up_again_and_to_its_end(shore: Shore) -> None:
    shore.warm = True
    run = shore.run_file(rounds=30, contributors_min=2)
    first = shore.organise(run, shore.folder / "0")
    member = shore.join(first.ticket(), shore.folder / "1")
    wait_for(lambda: first.version() >= 2, "the second round", by=first.process)
    first.kill()
    version = first.version()
    assert version < 30
    first = shore.organise(run, first.folder)
    assert [member.ended(), first.ended()] == [0, 0]
    started = first.saw(journal.PeerStarted)
    assert [event.resumed_version is None for event in started] == [True, False]
    assert sorted(one_history([first, member])) == list(range(1, 31))
    assert [first.version(), member.version()] == [30, 30]
    assert {len(event.contributors) for event in first.saw(journal.RoundCommitted)} == {2}


def test_whoever_looks_on_is_told_when_the_organiser_dies_and_nothing_is_left_behind(shore: Shore) -> None:
    home = shore.folder / "home"
    watched = shore.start(*shore.train(shore.run_file(rounds=ENDLESS), home, 2), output="said.log")
    first, second = seats(home, 2)
    wait_for(lambda: second.version() >= 1, "the first round", by=watched)
    first.kill()
    assert watched.wait(60) == 1
    said = (shore.folder / "said.log").read_text()
    assert "error: peer 0 ended unexpectedly" in said
    assert str(first.folder / "output.log") in said.rpartition("hint: ")[2]
    assert second.saw(journal.PeerStopped)
    assert processes_below(home) == []


@pytest.mark.long
def test_a_peer_that_computes_for_long_is_not_taken_for_dead(shore: Shore) -> None:
    _compute_for(shore, 20.0)


@pytest.mark.long
def test_a_peer_that_computes_for_a_minute_is_not_taken_for_dead(shore: Shore) -> None:
    _compute_for(shore, 60.0)


@pytest.mark.long
def test_nobody_is_taken_for_dead_in_half_an_hour_on_a_saturated_machine() -> None:
    command = [sys.executable, "-m", "bench.saturate", "--minutes", "30", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=45 * 60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["lost"] == []


def _compute_for(shore: Shore, block_s: float) -> None:
    """Let two peers train for one step of at least `block_s`, in which nothing else of theirs computes, beside a third.

    The third comes when they are at it, and has nothing to do: those two count silence in ticks of their own, so if
    computing kept them from answering they would not notice it of each other.
    """
    run = shore.run_file(rounds=1, steps=1)
    batch = _batch_of(load_run(run, overrides=LARGE), 1.5 * block_s)
    words = [word for change in (*LARGE, f"recipe.work.batch={batch}") for word in ("--set", change)]
    home = shore.folder / "home"
    watched = shore.start(*shore.train(run, home, 2), *words, output="said.log")
    busy = seats(home, 2)
    wait_for(lambda: all(peer.saw(journal.LeaseTaken) for peer in busy), "the work of both", by=watched)
    idle = shore.join(busy[0].ticket(), shore.folder / "idle")
    assert watched.wait(60 + 6 * block_s) == 0, (shore.folder / "said.log").read_text()
    assert idle.ended() == 0
    for peer in busy:
        [step] = peer.saw(journal.WorkProgressed)
        assert (step.steps_of, step.took_s > block_s) == (1, True)
        assert len(peer.saw(journal.ContributionSent)) == 1
    done_s = min(_when(peer, journal.WorkProgressed) for peer in busy)
    joined_s = _when(busy[0], journal.PeerJoined, who=idle.name())
    assert done_s - joined_s > 2 * Rhythm().improbable_s(), "it was let in and had time to miss them"
    for peer in (*busy, idle):
        gone = (journal.PeerLost, journal.RoundReplanned)
        assert [line for line in peer.lines() if line.at_s < done_s and isinstance(line.event, gone)] == []


def _when(peer: Peer, kind: type[journal.Event], **fields: str) -> float:
    """Return when something was first seen by a peer."""
    seen = (line for line in peer.lines() if isinstance(line.event, kind))
    return next(line.at_s for line in seen if all(getattr(line.event, key) == fields[key] for key in fields))


def _batch_of(run: Run, step_s: float) -> int:
    """Return the batch whose step takes this long on this machine, were it idle."""
    engine = build_torch(run, Machine(device="cpu", threads=1))
    took_s = 0.0
    for first in range(0, 4 * MICRO, MICRO):  # the first warms up
        began_s = time.process_time()
        engine.train([Step(samples=tuple(range(first, first + MICRO)), rate=1.0)])
        took_s = time.process_time() - began_s
    return MICRO * round(step_s / took_s)


def _command(process: psutil.Process) -> str:
    """Return which `atoll` command a process is."""
    words: list[str] = process.cmdline()
    return words[words.index("atoll.cli.main") + 1]


def _end(*peers: Peer) -> None:
    """Ask all peers to leave, and wait until they have."""
    for peer in peers:
        peer.leave()
    for peer in peers:
        peer.ended()
