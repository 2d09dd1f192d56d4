"""Sums that go round: what comes of them, who may die, and who may come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Cost, Step, Trained, Vector
from atoll.peer.results import sound_result
from atoll.sim.check import violations
from atoll.sim.compute import CountingEngine
from atoll.sim.faults import Crash, Fault, Lie, Partition, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Entrance, Outcome, Scenario, key_of, simulate
from atoll.spec.axes.codec import Buckets, Codec, Fp16, Fp32, Int8
from atoll.spec.axes.merge import Mean
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import Delay, OneRound, Overlap, Shift
from atoll.spec.axes.whom import All, Ring
from atoll.spec.run import Run
from atoll.swarm.policy.patience import STALL_S
from atoll.sync.codec import decoded
from atoll.sync.grid import grid_of
from tests.few import few_of
from tests.peer.world import (
    anchor_of,
    assert_sound,
    counting_run,
    events,
    lines,
    log_of,
    machines,
    name,
    once,
    play,
    sized,
)

SIZE = 640
"""Elements of the model: ten chunks."""
ROUNDS = 5


def ring_run(peers: int, *, codec: Codec | None = None, rounds: int = ROUNDS, **more: float) -> Run:
    run = counting_run(rounds=rounds, start_with=peers, codec=codec or Fp32(), **more)  # type: ignore[arg-type]
    ((channel, how),) = run.recipe.channel.items()
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, whom=All(route=Ring()))}))


def played(peers: int, *, faults: Sequence[Fault] = (), codec: Codec | None = None) -> Outcome:
    run = ring_run(peers, codec=codec)
    outcome = play(run, peers, faults=faults, build=sized(SIZE))
    assert_sound(run, outcome, version=ROUNDS)
    return outcome


def contributors(outcome: Outcome) -> list[int]:
    return [len(event.contributors) for _, event in once(outcome, journal.RoundCommitted)]


# what comes of it


@pytest.mark.parametrize("codec", [Fp32(), Fp16(), Int8(), Buckets()])
@pytest.mark.parametrize("peers", few_of((1, 2, 5), (1, 5)))
def test_a_ring_keeps_every_promise_and_the_anchor_is_to_the_bit_what_its_order_adds_up_to(
    peers: int, codec: Codec
) -> None:
    outcome = played(peers, codec=codec)
    assert contributors(outcome) == [peers] * ROUNDS
    assert events(outcome, journal.RoundReplanned) == []
    assert [len(each.ring) for each in commits(log_of(outcome))] == [peers] * ROUNDS


def test_more_members_than_chunks_go_round_too() -> None:
    run = ring_run(5)
    outcome = play(run, 5, build=sized(130))
    assert_sound(run, outcome, version=ROUNDS)
    assert contributors(outcome) == [5] * ROUNDS


class Gaussian(CountingEngine):
    """A model whose training moves it by normal deviates that its first sample decides."""

    def train(self, steps: Sequence[Step]) -> Trained:
        trained = super().train(steps)
        self._moved[:] = 0
        self._assigned -= deviates(steps[0].samples[0], self.size)
        return trained


def deviates(first: int, size: int) -> Vector:
    return np.random.default_rng(first).standard_normal(size, np.float32)


def mean_error(peers: int, codec: Codec, *, size: int = 2**18) -> float:
    """Return how far the result of a round of normal deviates is from their mean, as a part of its length."""
    run = ring_run(peers, codec=codec, rounds=1)
    ((channel, how),) = run.recipe.channel.items()
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, when=replace(how.when, steps=1))}))
    run = replace(run, recipe=replace(run.recipe, work=replace(run.recipe.work, batch=1)))
    outcome = play(run, peers, build=lambda run: Gaussian(seed=run.seeds.data, size=size, sample_cost=Cost(flop=6e9)))
    (result,) = {result for data in outcome.held[1] if (result := sound_result(data)) is not None}
    assert len({event.anchor for event in events(outcome, journal.RoundApplied)}) == 1, "replicas are one model"
    assert len(events(outcome, journal.RoundApplied)) == peers
    grid = grid_of(size, codec)
    counts = [end - first for first, end in map(grid.bounds, range(grid.chunks))]
    merged = np.concatenate([decoded(codec, chunk, count) for chunk, count in zip(result.chunks, counts, strict=True)])
    (announced,) = [each.announced for each in commits(log_of(outcome))]
    true = np.mean([deviates(lease[0], size) for lease in announced.leases.values()], axis=0, dtype=np.float64)
    return float(np.linalg.norm(merged - true) / np.linalg.norm(true))


@pytest.mark.parametrize(
    ("peers", "error"), [(2, 0.0166), (4, 0.0213), (8, 0.0286), pytest.param(14, 0.0371, marks=pytest.mark.long)]
)
def test_eight_bits_at_every_hop_cost_what_was_worked_out_for_them(peers: int, error: float) -> None:
    """Replicas are the same to the bit, and the mean of normal deviates is off by this part of its length."""
    assert mean_error(peers, Buckets()) == pytest.approx(error, rel=0.03)


def test_a_ring_in_fp32_is_the_mean_but_for_rounding() -> None:
    assert mean_error(4, Fp32(), size=2**14) < 1e-6


@pytest.mark.parametrize(
    "overlap", [Delay(steps=1), Delay(steps=2, reconcile=Shift()), OneRound(), OneRound(eager=False)]
)
def test_peers_may_go_on_while_sums_go_round(overlap: Overlap) -> None:
    run = ring_run(3)
    ((channel, how),) = run.recipe.channel.items()
    how = replace(how, overlap=overlap, merge=replace(how.merge, outer=Sgd(lr=0.7)))
    run = replace(run, recipe=replace(run.recipe, channel={channel: how}))
    assert_sound(run, play(run, 3, build=sized(SIZE)), version=ROUNDS)


def test_weights_go_round_with_the_sums() -> None:
    run = ring_run(3)
    ((channel, how),) = run.recipe.channel.items()
    merge = replace(how.merge, combine=Mean(weights="samples"))
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, merge=merge)}))
    assert_sound(run, play(run, 3, build=sized(SIZE)), version=ROUNDS)


def test_two_that_go_round_in_fp32_are_diloco_to_the_bit() -> None:
    one, other = (play(run, 2, build=sized(SIZE)) for run in (ring_run(2), counting_run(rounds=ROUNDS, start_with=2)))
    assert {anchor_of(h.disk).digest() for h in one.hosts} == {anchor_of(h.disk).digest() for h in other.hosts}


def test_more_than_two_add_up_in_another_order_than_an_owner_does() -> None:
    diloco = counting_run(rounds=ROUNDS, start_with=4)
    one, other = (first_result(play(run, 4, build=sized(SIZE))) for run in (ring_run(4), diloco))
    assert np.array_equal(one[::2], other[::2]), "every other element moves by whole counts"
    assert not np.array_equal(one, other)


def first_result(outcome: Outcome) -> Vector:
    (whole,) = {b"".join(result.chunks) for data in outcome.held[1] if (result := sound_result(data)) is not None}
    return np.frombuffer(whole, "<f4")


def test_once_members_know_how_far_they_are_apart_sums_cross_the_ocean_twice_and_rounds_are_shorter() -> None:
    run = ring_run(8, rounds=4)
    keys = [key_of(1, place).peer for place in range(8)]
    regions = ["west" if sorted(keys).index(key) % 2 else "east" for key in keys]
    outcome = simulate(
        Scenario(
            run=run,
            machines=[replace(each, region=region) for each, region in zip(machines(8), regions, strict=True)],
            delays_s={("west", "west"): 0.005, ("east", "east"): 0.005, ("west", "east"): 0.1},
            seed=1,
            build=sized(SIZE),
        )
    )
    assert_sound(run, outcome, version=4)
    west = {host.peer for host, region in zip(outcome.hosts, regions, strict=True) if region == "west"}
    rings = [each.ring for each in commits(log_of(outcome))]
    crossings = [sum((ring[at - 1] in west) != (peer in west) for at, peer in enumerate(ring)) for ring in rings]
    assert crossings[0] > 2, "in the first round only the broker has links, and knows who is far from itself"
    assert crossings[-1] == 2
    took_s = [ended_s - began_s for began_s, ended_s in spans(outcome)]
    assert took_s[-1] < took_s[0] - 0.08 * (crossings[0] - 2), "each crossing takes a tenth of a second"


# who may die, be late or be out of reach


@pytest.mark.parametrize("peer", few_of((0, 1, 3), (1,)))
def test_whoever_dies_and_comes_back_the_others_go_on(peer: int) -> None:
    for at_s in (0.3, 0.45, 0.52, 0.6, 0.9):
        played(4, faults=[Crash(at_s=at_s, peer=peer, restart_after_s=1.5)])


def test_one_killed_while_sums_go_round_is_left_out_and_the_round_commits_soon() -> None:
    """On slow lines the first exchange lasts from 0.2 to about 12 s; one that is lost is missed in 2.5 s."""
    run = ring_run(5, rounds=3)
    slow = {"build": sized(200_000), "rate_bytes_s": 1e5}
    calm = play(run, 5, **slow)  # type: ignore[arg-type]
    (began_s, ended_s), *_ = spans(calm)
    at_s = (began_s + ended_s) / 2
    outcome = play(run, 5, faults=[Crash(at_s=at_s, peer=2)], **slow)  # type: ignore[arg-type]
    assert contributors(outcome)[:1] == [4]
    (replanned,) = [event for event in events(outcome, journal.RoundReplanned) if event.version == 1]
    assert "sums go another way" in replanned.why
    (_, committed_s), *_ = spans(outcome)
    assert committed_s - at_s < 2.5 + (ended_s - began_s) + 5.0 < STALL_S


def spans(outcome: Outcome) -> list[tuple[float, float]]:
    """Return when each round was settled first, and when it was committed."""
    settled: dict[int, float] = {}
    for line in outcome.lines:
        if isinstance(line.event, journal.RoundSettled):
            settled.setdefault(line.event.version, line.at_s)
    return [(settled[event.version], at_s) for at_s, event in once(outcome, journal.RoundCommitted)]


def test_one_that_is_far_too_slow_is_not_waited_for() -> None:
    run = ring_run(4, patience_s_max=5.0)
    outcome = play(run, 4, faults=[SlowCompute(at_s=0.0, peer=2, for_s=1e4, factor=1000.0)], build=sized(SIZE))
    assert contributors(outcome)[:2] == [3, 3]
    assert name(outcome.hosts[2]) not in once(outcome, journal.RoundCommitted)[0][1].contributors


def test_two_that_cannot_reach_each_other_go_round_apart() -> None:
    outcome = played(5, faults=[Partition(at_s=0.0, side=(1,), others=(2,), for_s=1e6)])
    assert contributors(outcome) == [5] * ROUNDS
    rings = [each.ring for each in commits(log_of(outcome))]
    apart = {outcome.hosts[1].peer, outcome.hosts[2].peer}
    assert all(len(ring) == 5 for ring in rings[1:]), "from the first round on it is known"
    for ring in rings:
        assert all({ring[at - 1], peer} != apart for at, peer in enumerate(ring))


def test_where_no_ring_is_possible_the_broker_adds_up_what_it_is_sent() -> None:
    for codec in (Fp32(), Int8()):
        outcome = played(3, faults=[Partition(at_s=0.0, side=(1,), others=(2,), for_s=1e6)], codec=codec)
        assert contributors(outcome) == [3] * ROUNDS
        assert all(each.ring == () for each in commits(log_of(outcome)))


def test_who_passes_on_what_is_no_sum_is_named_and_left_out() -> None:
    run = ring_run(4)
    outcome = play(run, 4, faults=[Lie(at_s=0.0, peer=2, what="send:part/summed", for_s=1e6)], build=sized(SIZE))
    assert violations(run, outcome) == []
    liar = name(outcome.hosts[2])
    assert {event.who for event in events(outcome, journal.MessageRefused)} == {liar}
    for _, event in once(outcome, journal.RoundCommitted):
        assert liar not in event.contributors
        assert len(event.contributors) == 3


# who may come


def test_a_joiner_is_counted_in_the_next_round_and_ends_equal_to_the_others() -> None:
    run = ring_run(3, codec=Buckets(), rounds=8)
    outcome = play(run, 4, entrances=[Entrance(peer=3, round=2)], build=sized(SIZE))
    assert_sound(run, outcome, version=8)
    joiner = outcome.hosts[3].peer
    first = next(each for each in commits(log_of(outcome)) if joiner in each.contributors)
    who = name(outcome.hosts[3])
    joined = [line for line in outcome.lines if isinstance(line.event, journal.PeerJoined) and line.event.who == who]
    later = [event.version for at_s, event in once(outcome, journal.RoundAnnounced) if at_s > joined[0].at_s]
    assert first.version == later[0], "the first that was announced once it was in"
    assert set(first.ring) == {host.peer for host in outcome.hosts}


def test_a_joiner_gets_its_state_while_the_others_work_and_holds_up_no_round() -> None:
    """The last round without it and the first with it are as long as the others."""
    run = ring_run(3, codec=Buckets(), rounds=16)
    work = replace(run.recipe.work, batch=40)
    run = replace(run, recipe=replace(run.recipe, work=work))
    outcome = play(run, 4, entrances=[Entrance(peer=3, round=11)], build=sized(SIZE))
    (fetched,) = lines(outcome, journal.StateFetched, peer=3)
    assert isinstance(fetched.event, journal.StateFetched)
    began_s = [at_s for at_s, _ in once(outcome, journal.RoundAnnounced)]
    sent_s = [line.at_s for line in lines(outcome, journal.ContributionSent) if line.at_s > fetched.at_s]
    assert max(at_s for at_s in began_s if at_s < fetched.at_s) < fetched.at_s - fetched.event.took_s
    assert min(sent_s) < min(at_s for at_s in began_s if at_s > fetched.at_s), "a round was open, and at work"
    took_s = [later - earlier for earlier, later in pairwise(began_s)]
    assert max(took_s[1:]) < 1.05 * min(took_s[1:])
