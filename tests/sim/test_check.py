"""The checks themselves: a sound run passes, and each kind of broken promise is found and named."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.errors import LocalError
from atoll.journal import Line
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import settled, violations
from atoll.sim.compute import MARKS, UNIT
from atoll.sim.faults import Crash
from atoll.sim.loop import VirtualLoop
from atoll.sim.promises.blame import blamed_rightly
from atoll.sim.promises.counted import (
    counted_once,
    inner_as_counted,
    leases_as_logged,
    none_forgotten,
    tokens_as_counted,
)
from atoll.sim.promises.durable import durable, durable_at_crashes, held_by_two
from atoll.sim.promises.history import one_commit, one_history, one_leader
from atoll.sim.promises.waiting import patient, ready
from atoll.sim.scenario import Outcome, World
from atoll.spec.load import recipe_names
from atoll.spec.run import Run
from atoll.swarm.log import (
    EpochStarted,
    RoundCommitted,
    from_bytes,
    to_bytes,
)
from atoll.sync.merge import Anchor
from tests.peer.world import counting_run, log_of, play

PEERS = 3


@pytest.fixture
def run() -> Run:
    return counting_run(rounds=3, start_with=PEERS)


@pytest.fixture
def outcome(run: Run) -> Outcome:
    return play(run, PEERS)


def rewrite(outcome: Outcome, peer: int, path: str, data: bytes) -> None:
    """Put other bytes on a peer's disk after the play."""

    async def main() -> None:
        await outcome.hosts[peer].disk.write(path, data)

    loop = VirtualLoop()
    outcome.hosts[peer].disk._free_s = 0.0
    loop.run(main())


def found_after(run: Run, outcome: Outcome, tamper: Callable[[Vector], None]) -> str:
    """Return what is found once the weights in a newest checkpoint were changed, so that its digest still fits."""
    path = "checkpoint/3.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path)
    weights = anchor.weights.copy()
    tamper(weights)
    rewrite(outcome, 1, path, anchor_to_bytes(Anchor(anchor.version, weights, anchor.outer)))
    (what,) = violations(run, outcome)
    return what


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=pytest.mark.long if at % 3 else ()) for at, name in enumerate(recipe_names())],
)
def test_a_sound_run_breaks_no_promise(recipe: str) -> None:
    run = counting_run(recipe, rounds=5, start_with=PEERS)
    outcome = play(run, PEERS)
    assert violations(run, outcome) == []
    assert settled(outcome) == []


@pytest.mark.parametrize("vector", ["weights", "start", "momentum"])
def test_an_anchor_that_does_not_follow_from_turns_and_parts_is_found(vector: str) -> None:
    run = counting_run("sparta-diloco", rounds=5, start_with=PEERS)
    outcome = play(run, PEERS)
    path = "checkpoint/4.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path).copy()
    anchor.vectors()[vector][5] += UNIT
    rewrite(outcome, 1, path, anchor_to_bytes(anchor))
    assert [what.partition(":")[0] for what in violations(run, outcome)] == ["peer 1, version 4"]


@pytest.mark.parametrize("version", [2, 3])
def test_who_begins_where_it_cannot_or_need_not_is_found(version: int) -> None:
    """After round 1, of a part, peers go on from their own weights; after round 2, of all, from the anchor."""
    run = counting_run("sparta-diloco", rounds=4, start_with=PEERS)
    outcome = play(run, PEERS)
    for at, line in enumerate(outcome.lines):
        if isinstance(line.event, journal.LeaseTaken) and line.event.version == version:
            assert line.event.own == (version == 2)
            outcome.lines[at] = Line(line.at_s, line.peer, replace(line.event, own=not line.event.own))
            break
    said = "began anew without a reason" if version == 2 else "began from weights it cannot have"
    assert f"version {version}: {line.peer} {said}" in violations(run, outcome)


@pytest.mark.parametrize("recipe", ["noloco", "gossip", "moshpit"])
def test_weights_of_a_peers_own_that_do_not_follow_are_found(recipe: str) -> None:
    run = counting_run(recipe, rounds=4, start_with=PEERS)
    outcome = play(run, PEERS)
    path = "checkpoint/3.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path)
    weights = anchor.weights.copy()
    weights[5] += UNIT
    rewrite(outcome, 1, path, anchor_to_bytes(Anchor(anchor.version, weights, anchor.outer)))
    (what,) = violations(run, outcome)
    assert what.startswith("peer 1, version 3: ")


def test_a_circle_whose_result_nobody_kept_is_found() -> None:
    run = counting_run("noloco", rounds=3, start_with=4)
    outcome = play(run, 4)
    assert violations(run, outcome) == []
    kept = {version: dict(list(files.items())[:1]) for version, files in outcome.held.items()}
    found = violations(run, replace(outcome, held=kept))
    assert "version 1 was called committed with 0 holders of its result" in found


def test_two_anchors_of_one_version_are_found(run: Run, outcome: Outcome) -> None:
    at = next(i for i, line in enumerate(outcome.lines) if isinstance(line.event, journal.RoundApplied))
    line = outcome.lines[at]
    assert isinstance(line.event, journal.RoundApplied)
    outcome.lines[at] = Line(line.at_s, line.peer, replace(line.event, anchor="0" * 64))
    assert len(list(one_history(outcome.lines))) == PEERS - 1
    assert any(what.startswith("version 1: ") for what in violations(run, outcome))


def test_a_commit_that_is_not_in_the_log_is_found(run: Run, outcome: Outcome) -> None:
    entries = log_of(outcome)
    last = max(i for i, entry in enumerate(entries) if isinstance(entry.record, RoundCommitted))
    for place in range(PEERS):
        rewrite(outcome, place, "log", b"".join(to_bytes(entry) for entry in entries[:last]))
    found = violations(run, outcome)
    assert "version 3 was called committed but is not in the log" in found
    assert any("which the log does not have" in what for what in found)


def test_a_commit_with_another_result_is_found(outcome: Outcome) -> None:
    entries = [
        replace(entry, record=replace(entry.record, result="f" * 64))
        if isinstance(entry.record, RoundCommitted) and entry.record.key.version == 2
        else entry
        for entry in log_of(outcome)
    ]
    assert set(durable(outcome.lines, entries)) == {"version 2 was called committed but is not in the log"}


def test_a_commit_that_a_crash_could_have_taken_back_is_found_even_when_it_is_made_again() -> None:
    run = counting_run(rounds=6, start_with=PEERS)
    outcome = play(run, PEERS, faults=[Crash(at_s=1.2, peer=0, restart_after_s=2.0)])
    assert list(durable_at_crashes(outcome)) == []
    (left,) = outcome.remains
    forgetful = replace(outcome, remains=[replace(left, logs=[without_last_commit(log) for log in left.logs])])
    found = list(durable_at_crashes(forgetful))
    assert found
    assert all("could have led without version" in what for what in found)
    assert list(durable(outcome.lines, log_of(outcome))) == [], "at the end nothing shows"


def without_last_commit(log: bytes) -> bytes:
    """Return a log up to before its last commit."""
    entries, _ = from_bytes(log, "log")
    commits = [i for i, entry in enumerate(entries) if isinstance(entry.record, RoundCommitted)]
    return b"".join(to_bytes(entry) for entry in entries[: commits[-1] if commits else None])


def test_what_a_minority_forgets_in_a_crash_is_no_broken_promise() -> None:
    run = counting_run(rounds=6, start_with=PEERS)
    outcome = play(run, PEERS, faults=[Crash(at_s=1.2, peer=1, restart_after_s=2.0)])
    (left,) = outcome.remains
    logs = [left.logs[0], b"", left.logs[2]]
    assert list(durable_at_crashes(replace(outcome, remains=[replace(left, logs=logs)]))) == []


def test_a_result_that_only_one_disk_has_when_it_is_called_committed_is_found(run: Run, outcome: Outcome) -> None:
    assert list(held_by_two(outcome)) == []
    one, two, *_ = outcome.held[2]  # each as its chunks came there
    (place,) = outcome.held[2][one]
    alone = replace(outcome, held=outcome.held | {2: {one: [place]}})
    torn = replace(outcome, held=outcome.held | {2: {one: [place], two[:-1]: outcome.held[2][two]}})
    for held in (alone, torn):
        assert list(held_by_two(held)) == ["version 2 was called committed with 1 holders of its result"]
    settled_by = next(line.peer for line in outcome.lines if isinstance(line.event, journal.RoundSettled))
    commit = next(i for i, line in enumerate(outcome.lines) if _commits(line, 2))
    others = [short(host.peer) for host in outcome.hosts if short(host.peer) != settled_by]
    for who in others:
        alone.lines.insert(commit, Line(0.0, settled_by, journal.PeerLost(who=who, why="silent")))
    assert list(held_by_two(alone)) == [], "nobody else was there"


def _commits(line: Line, version: int) -> bool:
    return isinstance(line.event, journal.RoundCommitted) and line.event.version == version


def test_a_round_that_waits_longer_than_its_patience_is_found(run: Run, outcome: Outcome) -> None:
    hasty = replace(run, upkeep=replace(run.upkeep, patience_s_max=20.0))
    assert list(patient(hasty, outcome)) == []
    at, line = next((i, x) for i, x in enumerate(outcome.lines) if isinstance(x.event, journal.RoundSettled))
    outcome.lines[at] = Line(line.at_s + 40.0, line.peer, line.event)
    (what,) = patient(hasty, outcome)
    assert what.endswith("s after its broker contributed")
    assert list(patient(replace(run, upkeep=replace(run.upkeep, patience_s_max=40.0)), outcome)) == []


def test_a_round_that_is_announced_with_somebody_far_behind_is_found(outcome: Outcome) -> None:
    assert list(ready(outcome)) == []
    channel, who = "outer", [short(outcome.hosts[0].peer)]
    commit = next(line.event for line in outcome.lines if isinstance(line.event, journal.RoundCommitted))
    for version in (7, 8):
        late = journal.RoundAnnounced(channel=channel, version=version, members=who, samples=1, first=0)
        outcome.lines.extend(Line(9.0, who[0], event) for event in (replace(commit, version=version - 1), late))
    assert list(ready(outcome)) == [f"version 8 was announced with {who[0]}, which was only at 3"]


def test_a_version_that_is_committed_in_two_ways_is_found(outcome: Outcome) -> None:
    at = next(i for i, line in enumerate(outcome.lines) if isinstance(line.event, journal.RoundCommitted))
    line = outcome.lines[at]
    assert isinstance(line.event, journal.RoundCommitted)
    assert list(one_commit(outcome.lines)) == []
    outcome.lines[at] = Line(line.at_s, line.peer, replace(line.event, contributors=line.event.contributors[1:]))
    assert len(list(one_commit(outcome.lines))) == PEERS - 1


def test_two_leaders_of_one_epoch_are_found(outcome: Outcome) -> None:
    assert list(one_leader(outcome)) == []
    entries = [
        replace(entry, record=replace(entry.record, broker=b"x" * 32))
        if isinstance(entry.record, EpochStarted)
        else entry
        for entry in log_of(outcome)
    ]
    rewrite(outcome, 1, "log", b"".join(to_bytes(entry) for entry in entries))
    assert "epoch 1 has two leaders" in list(one_leader(outcome))


def test_tokens_that_were_not_committed_are_found(run: Run, outcome: Outcome) -> None:
    assert list(tokens_as_counted(run, outcome.lines, log_of(outcome))) == []
    at = next(i for i, line in enumerate(outcome.lines) if isinstance(line.event, journal.RoundCommitted))
    line = outcome.lines[at]
    assert isinstance(line.event, journal.RoundCommitted)
    outcome.lines[at] = Line(line.at_s, line.peer, replace(line.event, tokens=line.event.tokens + 1))
    (what,) = tokens_as_counted(run, outcome.lines, log_of(outcome))
    assert what.startswith("version 1: ")


def test_blame_on_an_honest_peer_is_found_and_so_is_none_on_a_vandal(outcome: Outcome) -> None:
    assert list(blamed_rightly(outcome)) == []
    honest = short(outcome.hosts[1].peer)
    outcome.lines.append(Line(9.0, "somebody", journal.MessageRefused(who=honest, why="a made-up reason")))
    assert list(blamed_rightly(outcome)) == ["peer 1, which is honest, is blamed: a made-up reason"]
    unblamed = replace(outcome, lines=[], vandals={"ffffffff": 100})
    assert list(blamed_rightly(unblamed)) == ["ffffffff said 100 messages of nonsense and no journal blames it"]


def announced(version: int, *handed: tuple[int, int]) -> Line:
    event = journal.RoundAnnounced(
        channel="outer", version=version, members=[], samples=0, first=0, handed=list(handed)
    )
    return Line(0.0, "somebody", event)


def committed(version: int, *counted: tuple[int, int]) -> Line:
    event = journal.RoundCommitted(
        channel="outer",
        version=version,
        contributors=[],
        samples=0,
        tokens=0,
        result="",
        round_s=0.0,
        counted=list(counted),
        returned=[],
    )
    return Line(0.0, "somebody", event)


def test_a_sample_in_two_committed_contributions_is_found() -> None:
    lines = [announced(1, (0, 8)), committed(1, (0, 4)), announced(2, (3, 5), (8, 3)), committed(2, (3, 1), (8, 3))]
    assert list(counted_once(lines)) == ["sample 3 is in versions 1 and 2"]
    assert list(counted_once(lines[:3])) == []
    assert list(counted_once([*lines[:3], committed(2, (4, 4))])) == []


def test_a_sample_that_came_back_and_is_not_handed_out_again_is_found() -> None:
    lines = [announced(1, (0, 8)), committed(1, (0, 4)), announced(2, (4, 3))]
    assert list(none_forgotten([*lines, announced(2, (4, 8))])) == []
    assert list(none_forgotten([*lines, announced(2, (7, 8))])) == ["sample 4 came back and is forgotten in version 2"]


def test_who_works_on_the_samples_of_another_or_tells_of_others_is_found(outcome: Outcome) -> None:
    entries = log_of(outcome)
    assert list(leases_as_logged(outcome.lines, entries)) == []
    who = short(outcome.hosts[1].peer)
    for event, what in (
        (journal.LeaseTaken(channel="outer", version=2, ranges=[(0, 4)]), "works on other samples than its own"),
        (announced(2, (0, 4)).event, "tells of other samples than were handed out"),
        (committed(2, (0, 4)).event, "tells of other samples than were counted"),
    ):
        assert list(leases_as_logged([Line(0.0, who, event)], entries)) == [f"version 2: {who} {what}"]


def test_inner_state_with_work_that_was_not_counted_is_found(run: Run, outcome: Outcome) -> None:
    assert list(inner_as_counted(run, outcome, log_of(outcome))) == []
    path = "private/3.safetensors"
    private = msgspec.msgpack.decode(outcome.hosts[1].disk.file(path))
    private["steps"] += 1
    rewrite(outcome, 1, path, msgspec.msgpack.encode(private))
    (what,) = violations(run, outcome)
    assert what.startswith("peer 1, version 3: ")
    assert what.endswith("were counted")


def test_files_that_their_peer_cannot_read_any_more_are_found(run: Run, outcome: Outcome) -> None:
    log = bytearray(outcome.hosts[2].disk.file("log"))
    log[20] ^= 0xFF
    rewrite(outcome, 2, "log", bytes(log))
    rewrite(outcome, 1, "checkpoint/3.safetensors", b"torn")
    found = violations(run, outcome)
    assert [what[:35] for what in found] == [
        "peer 2 cannot read its log any more",
        "peer 1 cannot read its state any mo",
    ]


def test_one_sample_more_or_less_in_an_anchor_is_found(run: Run, outcome: Outcome) -> None:
    def one_sample_more(weights: Vector) -> None:
        weights[1:] += np.float32(8 * UNIT / PEERS)

    assert found_after(run, outcome, one_sample_more).startswith("peer 1, version 3: ")


def test_one_bit_of_an_anchor_is_found(run: Run, outcome: Outcome) -> None:
    def one_bit(weights: Vector) -> None:
        weights[7] = np.nextafter(weights[7], np.float32(9))

    assert found_after(run, outcome, one_bit).endswith("away from what the log adds up to")


def test_chunks_of_two_contributions_of_one_peer_are_found(run: Run, outcome: Outcome) -> None:
    def another_life(weights: Vector) -> None:
        weights[MARKS][0] += np.float32(UNIT / PEERS)

    assert found_after(run, outcome, another_life).endswith("chunks are made of different contributions of one peer")


def test_a_peer_that_failed_in_an_earlier_life_is_found(run: Run, outcome: Outcome) -> None:
    outcome.hosts[2].failures.append(LocalError("no memory"))
    assert violations(run, outcome) == ["peer 2 failed: no memory"]


def test_peers_that_are_not_at_peace_are_named(run: Run) -> None:
    said: list[list[str]] = []

    def enough(world: World) -> bool:
        if any(host.version < 2 for host in world.hosts) or said:
            return bool(said)
        now = Outcome("", 0.0, 0, [], world.hosts, [])
        said.append(settled(now))
        world.hosts[1].version, before = 1, world.hosts[1].version
        said.append(settled(now))
        world.hosts[1].version, world.hosts[2].anchor = before, "other"
        said.append(settled(now))
        return True

    play(run, PEERS, enough=enough)
    assert said == [[], ["peers [1] are behind version 2"], ["2 anchors of version 2"]]
