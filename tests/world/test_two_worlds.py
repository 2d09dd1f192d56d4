"""One peer, two worlds: the same run, seed and roster give the same bits over iroh and in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll import journal
from atoll.cli.machine import Machine, build_torch, pinned
from atoll.peer.store import anchor_from_bytes
from atoll.sim.retell import Committed, commits
from atoll.sim.scenario import Entrance, Host, Outcome, Scenario, key_of, simulate
from atoll.spec.fleet import Device
from atoll.spec.fleet import Machine as Imagined
from atoll.spec.load import load_run
from atoll.spec.run import canonical
from atoll.swarm.log import from_bytes
from tests.world.shore import Calm, Peer, Shore, one_history, wait_for

SEED = 11
ROUNDS = 16


def test_a_run_reaches_the_same_anchor_over_iroh_and_in_virtual_time(shore: Shore, calm: Calm) -> None:
    words = ("--fleet", "lan", "--peers", "2", "--seed", str(calm.seed), "--real-compute", "--device", "cpu", "--json")
    journals = shore.folder / "sim.jsonl"
    done = shore.atoll("sim", str(calm.run), *words, "--journal", str(journals))
    assert done.returncode == 0, done.stderr
    lines = list(journal.read(journals))
    real = one_history(calm.peers)
    assert _anchors(lines) == real
    assert json.loads(done.stdout)["anchor"] == real[calm.rounds]
    assert _losses(lines) == {name: loss for peer in calm.peers for name, loss in _losses(peer.lines()).items()}


@pytest.mark.long
def test_so_does_a_run_that_a_peer_joins_in_the_middle(shore: Shore) -> None:
    path = shore.run_file(rounds=ROUNDS, contributors_min=2)
    peers = _join_in_the_middle(shore, path)
    real = one_history(peers)
    rounds = peers[0].rounds()
    joined = min(version for version, members in rounds.items() if len(members) == 3)
    assert 3 < joined < ROUNDS, "the peer joined in the middle"

    outcome = _imagine(path, Entrance(peer=2, round=joined - 1))
    assert [host.failed for host in outcome.hosts] == [None, None, None]
    logs = [_records(peers[0].folder / "log"), _records(outcome.hosts[0])]
    assert logs[0] == logs[1]
    assert _anchors(outcome.lines) == real
    assert sorted(real) == list(range(1, ROUNDS + 1))
    assert {_saved(peer) for peer in peers} == {_saved(host) for host in outcome.hosts} == {real[ROUNDS]}


def _join_in_the_middle(shore: Shore, path: Path) -> list[Peer]:
    """Train with two peers and, after a few rounds, a third; return all when they have ended.

    The two are stopped, clocks and all, while the third gets ready: so the run is not over before it comes.
    """
    for place in range(3):
        shore.give(shore.folder / str(place), key_of(SEED, place))
    first = shore.organise(path, shore.folder / "0")
    ticket = first.ticket()
    second = shore.join(ticket, shore.folder / "1")
    wait_for(lambda: first.version() >= 3, "the third round", by=first.process)
    for peer in (first, second):
        peer.pause()
    (shore.folder / "2" / "run.json").write_bytes(canonical(pinned(load_run(path), Machine())))
    third = shore.join(ticket, shore.folder / "2")
    wait_for(lambda: third.saw(journal.PeerStarted), "the third peer", by=third.process)
    for peer in (first, second):
        peer.resume()
    peers = [first, second, third]
    assert [peer.ended() for peer in peers] == [0, 0, 0]
    return peers


def _imagine(path: Path, entrance: Entrance) -> Outcome:
    """Play the run on slow machines with quick links: a round takes minutes, joining takes less."""
    machine = Machine(device="cpu", threads=1)
    desk = Imagined(
        name="desk",
        region="here",
        device=Device(flop_s=1e6),
        up_bytes_s=1e8,
        down_bytes_s=1e8,
        disk_bytes=10**9,
    )
    return simulate(
        Scenario(
            run=pinned(load_run(path), machine),
            machines=[desk] * 3,
            delays_s={("here", "here"): 1e-4},
            seed=SEED,
            entrances=[entrance],
            build=lambda run: build_torch(run, machine),
        )
    )


def _records(log: Path | Host) -> list[Committed]:
    """Return who was in each round, on which samples and from which anchor, and whose work was counted."""
    data = log.read_bytes() if isinstance(log, Path) else log.disk.files()["log"]
    return commits(from_bytes(data, "log")[0])


def _anchors(lines: list[journal.Line]) -> dict[int, str]:
    """Return the anchor of each version; all peers of the world have the same."""
    applied = [line.event for line in lines if isinstance(line.event, journal.RoundApplied)]
    anchors = {event.version: event.anchor for event in applied}
    assert all(anchors[event.version] == event.anchor for event in applied)
    return anchors


def _losses(lines: list[journal.Line]) -> dict[str, list[float | None]]:
    """Return each peer's losses, step by step."""
    losses: dict[str, list[float | None]] = {}
    for line in lines:
        if isinstance(line.event, journal.WorkProgressed):
            losses.setdefault(line.peer, []).append(line.event.loss)
    return losses


def _saved(peer: Peer | Host) -> str:
    """Return the digest of the last checkpoint on a peer's disk."""
    path = f"checkpoint/{ROUNDS}.safetensors"
    data = (peer.folder / path).read_bytes() if isinstance(peer, Peer) else peer.disk.files()[path]
    return anchor_from_bytes(data, path).digest()
