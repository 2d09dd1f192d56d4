"""Sums that go up trees and round the rings of clusters: what comes of them, how long it takes, and who may die."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.errors import PeerError
from atoll.peer.desk import Desk
from atoll.peer.follow import check_plan
from atoll.plan.lines import Line
from atoll.plan.traffic import traffic
from atoll.sim.check import violations
from atoll.sim.conns import MATHIS, PACKET_BYTES
from atoll.sim.faults import Crash, Fault, Lie, LossyLink, Partition
from atoll.sim.links import Link
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.codec import Buckets, Codec, Fp16, Fp32, Int8
from atoll.spec.axes.merge import Mean
from atoll.spec.axes.whom import All, Butterfly, Ring, Rings, Route, Trees
from atoll.spec.run import Run
from atoll.swarm.lease import Range
from atoll.swarm.log import Key, OpenRound
from atoll.swarm.messages import Plan
from atoll.swarm.routes.shares import Shard
from atoll.swarm.routes.tree import Tree
from tests.peer import desks
from tests.peer.desks import VERSION, Office, anchor, digest
from tests.peer.test_ring import contributors, first_result, spans
from tests.peer.world import (
    anchor_of,
    assert_sound,
    counting_run,
    events,
    log_of,
    machines,
    name,
    once,
    play,
    round_bytes,
    sized,
)

SIZE = 640
"""Elements of the model: ten chunks."""
ROUNDS = 5
LONG = pytest.mark.long
ROUTES = [
    Trees(),
    Rings(clusters=2),
    pytest.param(Trees(roots=1), marks=LONG),
    pytest.param(Rings(clusters=3), marks=LONG),
]
CODECS = [
    (5, Fp32()),
    *(pytest.param(*each, marks=LONG) for each in ((1, Fp32()), (2, Int8()), (6, Fp16()), (6, Buckets()))),
]


def run_by(route: Route, peers: int, *, codec: Codec | None = None, rounds: int = ROUNDS) -> Run:
    run = counting_run(rounds=rounds, start_with=peers, codec=codec or Fp32())
    ((channel, how),) = run.recipe.channel.items()
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, whom=All(route=route))}))


def played(
    route: Route, peers: int, *, faults: Sequence[Fault] = (), codec: Codec | None = None, rounds: int = ROUNDS
) -> Outcome:
    run = run_by(route, peers, codec=codec, rounds=rounds)
    outcome = play(run, peers, faults=faults, build=sized(SIZE))
    assert_sound(run, outcome, version=rounds)
    return outcome


# what comes of it


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("peers", "codec"), CODECS)
def test_the_anchor_is_to_the_bit_what_the_trees_in_the_log_add_up_to(peers: int, codec: Codec, route: Route) -> None:
    outcome = played(route, peers, codec=codec)
    assert contributors(outcome) == [peers] * ROUNDS
    assert events(outcome, journal.RoundReplanned) == []
    trees = [each.trees for each in commits(log_of(outcome))]
    assert sum(chunks for chunks, _ in trees[-1]) == 10
    assert isinstance(route, Rings) or all(trees), "only clusters wait until all have met"


@pytest.mark.parametrize("route", [*ROUTES, pytest.param(Trees(roots=2, gain=0.0), marks=LONG)])
def test_whatever_the_plan_it_is_the_plain_sum(route: Route) -> None:
    """Of the first round to the bit, where sums are exact; later replicas differ by roundings of their own."""
    plain, other = (played(each, 6) for each in (Butterfly(), route))
    first = [first_result(each) for each in (plain, other)]
    assert np.array_equal(first[0][::2], first[1][::2]), "every other element moves by whole counts"
    anchors = [anchor_of(each.hosts[0].disk).weights for each in (plain, other)]
    assert np.allclose(anchors[0], anchors[1], rtol=1e-6, atol=1e-8)
    assert np.abs(anchors[0]).max() > 1e-3


@LONG
def test_two_in_trees_are_diloco_to_the_bit() -> None:
    one, other = (played(route, 2) for route in (Trees(), Butterfly()))
    assert {anchor_of(h.disk).digest() for h in one.hosts} == {anchor_of(h.disk).digest() for h in other.hosts}


@LONG
def test_rings_of_clusters_of_one_are_a_ring() -> None:
    ring, rings = (played(route, 4) for route in (Ring(), Rings(clusters=4)))
    lasts = [commits(log_of(each))[-1] for each in (ring, rings)]
    assert [len(each.trees) for each in lasts] == [0, 4], "with a root for each"
    ends = [{above[peer] for peer in above} for _, above in lasts[1].trees]
    assert all(len(each) == 3 for each in ends), "everybody but the first has somebody below it"
    one, other = (anchor_of(each.hosts[0].disk).weights for each in (ring, rings))
    assert np.allclose(one, other, rtol=1e-6, atol=1e-8)


@LONG
def test_weights_go_along_with_the_sums() -> None:
    run = run_by(Trees(), 4)
    ((channel, how),) = run.recipe.channel.items()
    merge = replace(how.merge, combine=Mean(weights="samples"))
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, merge=merge)}))
    assert_sound(run, play(run, 4, build=sized(SIZE)), version=ROUNDS)


# how long it takes


DELAY_S = 0.02
Rates = dict[tuple[int, int], float]
"""What the connection between two peers carries in a second; 0: they are near, and only their lines limit it."""


def loss_at(rate_bytes_s: float) -> float:
    """Return the loss at which a connection carries so much."""
    return (MATHIS * PACKET_BYTES / (2 * DELAY_S * rate_bytes_s)) ** 2


def on_links(route: Route, rates: Rates, *, rounds: int, faults: Sequence[Fault] = ()) -> Outcome:
    """Play a run of peers whose lines are no limit, but the connections between them are."""
    count = 1 + max(b for _, b in rates)
    run = run_by(route, count, rounds=rounds)
    outcome = simulate(
        Scenario(
            run=run,
            machines=[replace(each, region=str(i)) for i, each in enumerate(machines(count, rate_bytes_s=1e9))],
            delays_s={(str(a), str(b)): DELAY_S if rate else 1e-3 for (a, b), rate in rates.items()},
            losses={(str(a), str(b)): loss_at(rate) for (a, b), rate in rates.items() if rate},
            seed=1,
            faults=faults,
            build=sized(400_000),
        )
    )
    assert_sound(run, outcome, version=rounds)
    return outcome


def unequal(count: int, seed: int) -> Rates:
    """Return links the fastest of which carry ten times what the slowest do."""
    rng = Random(seed)
    return {(a, b): 5e5 * 10 ** rng.random() for b in range(count) for a in range(b)}


def took_s(outcome: Outcome) -> float:
    """Return what the last round took from the time that it was settled."""
    began_s, ended_s = spans(outcome)[-1]
    return ended_s - began_s


@LONG
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_unequal_links_trees_take_half_the_time_of_a_star_and_less_than_four_fifths_of_a_ring(seed: int) -> None:
    rates = unequal(6, seed)
    ring, trees = (on_links(route, rates, rounds=5) for route in (Ring(), Trees()))
    star_s = 4 * 400_000 / min(rate for pair, rate in rates.items() if 0 in pair)
    assert took_s(trees) <= 0.5 * star_s
    assert took_s(trees) <= 0.8 * took_s(ring)
    last = events(trees, journal.TreesChanged)[-1]
    assert took_s(trees) == pytest.approx(last.forecast_s, rel=0.5), "about as the broker had foretold"


@LONG
def test_a_link_that_becomes_ten_times_slower_is_left_with_less_than_a_fifth_of_its_bytes() -> None:
    rates, at = unequal(6, 2), 6
    calm = on_links(Trees(), rates, rounds=at)
    link = max(rates, key=lambda pair: carried(calm, at, pair) / rates[pair])
    at_s, _ = once(calm, journal.RoundCommitted)[at - 2]
    fault = LossyLink(at_s=at_s, peer=link[0], other=link[1], for_s=1e6, loss=loss_at(rates[link] / 10))
    slowed = on_links(Trees(), rates, rounds=at + 4, faults=[fault])
    changed = [event.version for event in events(slowed, journal.TreesChanged) if event.version > at - 1]
    assert changed[0] <= at + 2, "within a round or two of its being measured"
    assert carried(slowed, changed[0], link) < 0.2 * carried(calm, at, link)


def carried(outcome: Outcome, version: int, link: tuple[int, int]) -> int:
    """Return the chunks that went over a link in a round."""
    one, other = (outcome.hosts[place].peer for place in link)
    (committed,) = [each for each in commits(log_of(outcome)) if each.version == version]
    return sum(chunks for chunks, above in committed.trees if above[one] == other or above[other] == one)


@LONG
def test_rings_of_clusters_of_two_take_half_the_time_of_a_ring_of_clusters_of_one() -> None:
    """Three regions that are slow to reach from each other: with two owners in each, a link carries half the model."""

    def regions(members: int) -> Rates:
        place = [number // members for number in range(3 * members)]
        return {(a, b): 0.0 if place[a] == place[b] else 1e6 for b in range(3 * members) for a in range(b)}

    one, two = (took_s(on_links(Rings(clusters=3), regions(members), rounds=4)) for members in (1, 2))
    assert two == pytest.approx(one / 2, rel=0.15)


# what it moves


@pytest.mark.parametrize("name", ["netstorm", pytest.param("ravnest", marks=LONG)])
def test_all_together_move_what_was_predicted(name: str) -> None:
    parameters, peers, rounds = 200_000, 4, 3
    run = counting_run(name, rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    assert not violations(run, outcome)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    each = [moved.sent_bytes for moved in predicted.moved]
    assert sum(each) == 2 * (peers - 1) * 4 * parameters, "each sends each chunk up once, and it comes down once"
    assert sum(each) == pytest.approx(sum(counted) / rounds, rel=0.02)


# who may die, be late or be out of reach


@LONG
@pytest.mark.parametrize("route", [Trees(), Rings(clusters=2)])
@pytest.mark.parametrize("peer", [0, 1, 4])
def test_whoever_dies_and_comes_back_the_others_go_on(route: Route, peer: int) -> None:
    took_part = [
        contributors(played(route, 5, faults=[Crash(at_s=at_s, peer=peer, restart_after_s=1.5)], rounds=20))
        for at_s in (0.3, 0.45, 0.52, 0.6, 0.9)
    ]
    assert min(min(each) for each in took_part) == 4, "those who are there do not wait for ever"
    assert [each[-1] for each in took_part] == [5] * 5, "who is back is in it again"


@LONG
def test_one_killed_while_sums_go_up_is_left_out_and_the_round_commits_soon() -> None:
    run = run_by(Trees(), 5, rounds=2)
    slow = {"build": sized(200_000), "rate_bytes_s": 1e5}
    calm = play(run, 5, **slow)  # type: ignore[arg-type]
    (began_s, ended_s), *_ = spans(calm)
    outcome = play(run, 5, faults=[Crash(at_s=(began_s + ended_s) / 2, peer=2)], **slow)  # type: ignore[arg-type]
    assert contributors(outcome)[:1] == [4]
    (replanned,) = [event for event in events(outcome, journal.RoundReplanned) if event.version == 1]
    assert "sums go another way" in replanned.why
    assert violations(run, outcome) == []


@LONG
def test_two_that_cannot_reach_each_other_are_not_put_next_to_each_other() -> None:
    outcome = played(Trees(), 5, faults=[Partition(at_s=0.0, side=(1,), others=(2,), for_s=1e6)])
    assert contributors(outcome) == [5] * ROUNDS
    assert all(each.trees for each in commits(log_of(outcome))[1:]), "from the first round on it is known"
    assert all(carried(outcome, version, (1, 2)) == 0 for version in range(2, ROUNDS + 1))


def test_who_passes_on_what_is_no_sum_is_named_and_left_out() -> None:
    run = run_by(Trees(), 4)
    outcome = play(run, 4, faults=[Lie(at_s=0.0, peer=2, what="send:part/summed", for_s=1e6)], build=sized(SIZE))
    assert violations(run, outcome) == []
    liar = name(outcome.hosts[2])
    assert {event.who for event in events(outcome, journal.MessageRefused)} <= {liar}
    last = once(outcome, journal.RoundCommitted)[-1][1]
    assert liar not in last.contributors


@pytest.mark.parametrize(
    ("trees", "owners"),
    [
        ((Tree(63, (0, 0, 0)), Tree(2, (1, 1, 1))), 3),
        ((Tree(64, (0, 0)),), 3),
        ((Tree(64, (1, 2, 0)),), 3),
        ((Tree(64, (0, 0, 9)),), 3),
        ((Tree(64, (0, 0, -1)),), 3),
        ((Tree(64, (0, 0, 0)),), 2),
        ((Tree(65, (0, 0, 0)), Tree(-1, (0, 0, 0))), 3),
    ],
)
def test_a_plan_with_trees_that_are_none_is_refused_before_anybody_follows_it(
    trees: tuple[Tree, ...], owners: int
) -> None:
    async def scene(office: Office) -> None:
        desk = await office.sit(0, anchor())
        members = tuple(sorted(office.history.members))
        key = Key("outer", VERSION + 1)
        opened = OpenRound(key, members, (8,) * 3, (Range(0, 24),), digest(), 0)
        desk.member.desks[key.version] = Desk(opened)
        chunks = desk.member.grid_of(key).chunks
        assert chunks == 64
        shards = tuple(Shard(peer, 0, chunks, place) for place, peer in enumerate(members[:owners]))
        with pytest.raises(PeerError, match="trees that are none"):
            check_plan(desk.member, Plan(key, 1, 0, shards, trees=trees))
        everybody = tuple(Shard(peer, 0, chunks, place) for place, peer in enumerate(members))
        check_plan(desk.member, Plan(key, 1, 0, everybody, trees=(Tree(64, (0, 0, 0)),)))

    desks.play({place: Link(up_bytes_s=1e6, down_bytes_s=1e6) for place in range(3)}, scene)
