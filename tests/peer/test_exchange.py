"""The exchange as it happens: both ways at once, by measured shares, past dead owners and links that never worked."""

from __future__ import annotations

import gc

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.net.wire import encode
from atoll.peer.desk import Owned
from atoll.peer.member import Member
from atoll.peer.messages import Accepted, Chunk, Got, Missing, PartHead, PartTalk
from atoll.sim.faults import Crash, Fault, LossyLink, Partition, SlowLink
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Outcome, Scenario, World, simulate
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.whom import All, Butterfly
from atoll.spec.fleet import Machine
from atoll.spec.run import identity
from atoll.swarm.messages import Plan, Stuck
from atoll.swarm.routes.shares import chunks_of, peak_bytes
from tests.few import few_of
from tests.peer.stranger import Spy
from tests.peer.test_hostile import chunk_of, first_digest, visited
from tests.peer.world import DELAYS_S, assert_sound, counting_run, events, lines, machines, name, play, sized

SIZE = 400_000
"""Elements; with four bytes each a contribution has 1.6 MB."""
B_BYTES = 4 * SIZE
FAST_BYTES_S = 2_000_000.0
SLOW_BYTES_S = 50_000.0


def fleet(*rates_bytes_s: float) -> list[Machine]:
    equal = machines(len(rates_bytes_s))
    return [replace(m, up_bytes_s=r, down_bytes_s=r) for m, r in zip(equal, rates_bytes_s, strict=True)]


def exchanged(rates_bytes_s: list[float], *, rounds: int = 4, faults: list[Fault] | None = None) -> Outcome:
    """Play a run whose rounds are nothing but exchange."""
    run = counting_run(rounds=rounds, start_with=len(rates_bytes_s), codec=Fp32())
    scenario = Scenario(
        run=run, machines=fleet(*rates_bytes_s), delays_s=DELAYS_S, faults=faults or (), build=sized(SIZE)
    )
    outcome = simulate(scenario)
    assert_sound(run, outcome, version=rounds)
    return outcome


def rounds_s(outcome: Outcome) -> dict[int, float]:
    """Return how long each round took, as the organiser saw it."""
    return {event.version: event.round_s for event in events(outcome, journal.RoundCommitted, peer=0)}


@pytest.mark.long
def test_on_a_fast_and_long_path_one_stream_is_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream carries 1.25 MB per round trip, here 6.25 MB/s of the line's 100."""
    run = counting_run(rounds=3, start_with=2, codec=Fp32())
    scenario = Scenario(
        run=run, machines=fleet(1e8, 1e8), delays_s=dict.fromkeys(DELAYS_S, 0.1), build=sized(3_000_000)
    )
    striped = simulate(scenario)
    assert_sound(run, striped, version=3)
    monkeypatch.setattr("atoll.peer.stripes.STRIPES_MAX", 1)
    assert rounds_s(striped)[3] < 0.7 * rounds_s(simulate(scenario))[3]


def test_a_contribution_that_goes_out_while_it_is_encoded_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.peer.encode.ENCODE_ELEMENTS", SIZE // 16)
    outcome = exchanged([FAST_BYTES_S] * 3, rounds=2, faults=[Crash(at_s=1.0, peer=1, restart_after_s=0.5)])
    whole = [event for event in events(outcome, journal.ContributionSent) if event.version == 2]
    assert len(whole) == 3, "everybody's arrived"


# both ways at once


@pytest.mark.parametrize("peers", [2, pytest.param(3, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)])
def test_a_round_takes_little_longer_than_the_bytes_of_one_direction(peers: int) -> None:
    bound_s = B_BYTES * (1 + (peers - 2) / peers) / SLOW_BYTES_S
    took = rounds_s(exchanged([SLOW_BYTES_S] * peers, rounds=2))
    assert all(bound_s <= took_s <= 1.2 * bound_s for took_s in took.values()), (took, bound_s)


@pytest.mark.long
@pytest.mark.parametrize("pace", [1.0, 1.3])
def test_who_barely_keeps_pace_with_the_others_is_counted_in_again_after_a_crash(pace: float) -> None:
    round_s = B_BYTES * (1 + 1 / 3) / FAST_BYTES_S
    slow_bytes_s = B_BYTES / (pace * round_s)
    crash = Crash(at_s=6 * pace * round_s + 1.0, peer=3, restart_after_s=4 * round_s)
    outcome = exchanged([FAST_BYTES_S, FAST_BYTES_S, FAST_BYTES_S, slow_bytes_s], rounds=15, faults=[crash])
    slow = name(outcome.hosts[3])
    without = [e.version for e in events(outcome, journal.RoundCommitted, peer=0) if slow not in e.contributors]
    assert 0 < len(without) < 7


def test_a_slow_member_sends_and_receives_at_the_same_time_and_soon_owns_nothing() -> None:
    outcome = exchanged([FAST_BYTES_S, FAST_BYTES_S, FAST_BYTES_S, SLOW_BYTES_S], rounds=5)
    took = rounds_s(outcome)
    slow = name(outcome.hosts[3])
    changed = events(outcome, journal.SharesChanged)
    assert changed[-1].shares[slow] == 0
    assert changed[-1].version <= 4
    assert len(changed) <= 2, "and that is that"
    bound_s = B_BYTES / SLOW_BYTES_S
    assert bound_s <= took[5] <= 1.2 * bound_s, "it has only its own contribution to send and the result to receive"
    assert took[1] > 1.3 * bound_s


@pytest.mark.long
def test_a_line_that_becomes_slow_is_found_out_within_three_rounds() -> None:
    slowed = SlowLink(at_s=6.0, peer=2, for_s=1e6, factor=40.0)
    outcome = exchanged([FAST_BYTES_S] * 4, rounds=10, faults=[slowed])
    slow = name(outcome.hosts[2])
    at_s = {line.event.version: line.at_s for line in lines(outcome, journal.RoundAnnounced, peer=0)}  # type: ignore[union-attr]
    first = min(version for version, when_s in at_s.items() if when_s >= 6.0)
    found = [event for event in events(outcome, journal.SharesChanged) if event.shares[slow] == 0]
    assert found
    assert first < found[0].version <= first + 4


@pytest.mark.long
def test_a_line_that_becomes_fast_again_gets_its_share_back_within_three_rounds() -> None:
    """Who owns nothing receives results only, at the pace of those who make them: that says little of its line."""
    rate_bytes_s, healed_s = 200_000.0, 160.0
    slowed = SlowLink(at_s=20.0, peer=2, for_s=healed_s - 20.0, factor=4.0)
    outcome = exchanged([rate_bytes_s] * 4, rounds=9, faults=[slowed])
    slow = name(outcome.hosts[2])
    at_s = {line.event.version: line.at_s for line in lines(outcome, journal.RoundAnnounced, peer=0)}  # type: ignore[union-attr]
    first = min(version for version, when_s in at_s.items() if when_s >= healed_s)
    told = {event.version: event.shares[slow] for event in events(outcome, journal.SharesChanged)}
    assert [share for version, share in told.items() if version < first][-1] == 0
    assert [share for version, share in told.items() if version <= first + 3][-1] > 0.2


@pytest.mark.long
def test_equal_members_keep_equal_shares() -> None:
    assert events(exchanged([FAST_BYTES_S] * 3, rounds=6), journal.SharesChanged) == []


# dead owners


@pytest.mark.parametrize(
    "at_s", [0.5, *(pytest.param(at_s, marks=pytest.mark.long) for at_s in (3.0, 8.0, 12.0, 20.0, 30.0, 36.0, 41.0))]
)
def test_whenever_a_member_dies_in_an_exchange_the_others_commit_that_round(at_s: float) -> None:
    run = counting_run(rounds=3, start_with=3, codec=Fp32())
    scenario = Scenario(
        run=run,
        machines=fleet(*[SLOW_BYTES_S] * 3),
        delays_s=DELAYS_S,
        faults=[Crash(at_s=at_s, peer=2, restart_after_s=80.0)],
        build=sized(SIZE),
    )
    outcome = simulate(scenario)
    assert_sound(run, outcome, version=3)
    bound_s = B_BYTES * (1 + 1 / 3) / SLOW_BYTES_S
    undisturbed_s, again_s = 1.2 * bound_s, 1.2 * B_BYTES / SLOW_BYTES_S
    assert rounds_s(outcome)[1] < undisturbed_s + 10 + again_s


def moved(before: Plan, after: Plan, owner: bytes) -> set[int]:
    return set(chunks_of(after.shards, owner)) - set(chunks_of(before.shards, owner))


async def bring(spy: Spy, plan: Plan, owner: bytes) -> set[int]:
    """Contribute a zero vector to one owner; return the chunks it asked for."""
    stream = await spy.open("part", owner)
    await stream.send(encode(PartHead(plan.key, plan.epoch, plan.attempt, 1)))
    missing = PartTalk.decode(await stream.recv())
    assert isinstance(missing, Missing)
    for index in missing.chunks:
        await stream.send(encode(Chunk(index, memoryview(chunk_of(0.0, index)))))
    while isinstance(answer := PartTalk.decode(await stream.recv()), Got):
        pass
    assert isinstance(answer, Accepted)
    stream.reset()
    return set(missing.chunks)


def test_after_a_take_over_an_owner_asks_only_for_the_chunks_that_moved_to_it() -> None:
    run = counting_run(rounds=6, start_with=3)

    async def enter(world: World, door: SimTransport) -> None:
        spy = Spy(world, door)
        await spy.join(first_digest(run))
        spy.take_parts()
        _, before = await spy.counted_in()
        lost, kept = (host.peer for host in (world.hosts[1], world.hosts[0]))
        assert await bring(spy, before, kept) == set(chunks_of(before.shards, kept))
        await spy.say(Stuck(before.key, before.epoch, before.attempt, lost))
        await spy.until(lambda: spy.plan is not None and spy.plan.attempt > before.attempt)
        after = spy.plan
        assert after is not None
        assert lost not in after.owners
        assert moved(before, after, kept), "something moved"
        assert await bring(spy, after, kept) == moved(before, after, kept)
        await spy.leave()

    visited(enter, run)


# links that never worked


def test_two_peers_that_cannot_reach_each_other_train_through_a_third_without_planning_twice() -> None:
    run = counting_run(rounds=8, start_with=3)
    apart = Partition(at_s=0.0, side=(1,), others=(2,), for_s=1e6)
    outcome = play(run, 3, faults=[apart])
    assert_sound(run, outcome, version=8)
    committed = events(outcome, journal.RoundCommitted, peer=0)
    assert all(len(event.contributors) == 3 for event in committed)
    assert {event.version for event in events(outcome, journal.RoundReplanned)} <= {1}
    told = {(event.by, event.who) for event in events(outcome, journal.PeerUnreachable)}
    pair = {name(outcome.hosts[1]), name(outcome.hosts[2])}
    assert told
    assert all({by, who} == pair for by, who in told)
    assert all(event.round_s < 5 for event in committed[1:]), "the others are as fast as ever"


# memory


def held_bytes(member: Member) -> int:
    """Return the size of everything the exchange holds at one peer; what stands in two places counts once."""
    held: list[memoryview] = []
    for desk in (*member.desks.values(), *member.closed.values()):
        held += desk.own.chunks.values() if desk.own is not None else ()
        held += [kept.data for kept in desk.incoming.values()]
        if desk.owned is not None:
            held += [data for parts in desk.owned.parts.values() for data in parts.values()]
            held += [kept.data for kept in desk.owned.reduced.values()]
            held += [kept.data for kept in desk.owned.sums.values()]
    return sum(len(data) for data in {id(data): data for data in held}.values())


@pytest.mark.parametrize(("peers", "group"), few_of([(2, 64), (4, 64), (4, 2)], ((4, 64),)))
def test_the_exchange_holds_what_the_published_formula_says(peers: int, group: int) -> None:
    run = counting_run(rounds=1, start_with=peers, codec=Fp32())
    ((channel, how),) = run.recipe.channel.items()
    route = All(route=Butterfly(group=group))
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, whom=route)}))
    peaks: dict[bytes, int] = {}

    def enough(world: World) -> bool:
        # By type, not isinstance: that would wake what torch keeps for those who still use it.
        here = {host.peer for host in world.hosts}
        for member in [each for each in gc.get_objects() if type(each) is Member]:
            if member.run_id == identity(run) and member.me in here:
                peaks[member.me] = max(peaks.get(member.me, 0), held_bytes(member))
        return False

    outcome = simulate(
        Scenario(
            run=run,
            machines=fleet(*[SLOW_BYTES_S] * peers),
            delays_s=DELAYS_S,
            build=sized(SIZE),
            enough=enough,
        )
    )
    assert_sound(run, outcome, version=1)
    groups = -(-peers // group)
    members = peers // groups
    formula = peak_bytes(B_BYTES, 1 / members, members, groups=groups, sum_bytes=4.0 * SIZE)
    assert len(peaks) == peers
    assert all(0.9 * formula <= peak <= 1.1 * formula for peak in peaks.values()), (formula, peaks)


def test_what_an_owner_held_of_a_round_is_gone_with_it_before_anybody_collects_garbage() -> None:
    """A peer's collector runs seldom, and every round holds several models' worth of parts.

    On a bad line a member holds its result before its owners hear so: they are called off when the round is over.
    """
    run = counting_run(rounds=4, start_with=4, codec=Fp32())
    gc.collect()
    before = owned_now()
    gc.disable()
    try:
        outcome = play(run, 4, faults=[LossyLink(at_s=0.0, peer=3, for_s=1000.0, loss=0.2)])
        assert owned_now() == before
    finally:
        gc.enable()
    assert_sound(run, outcome, version=4)


def owned_now() -> int:
    """Return how many rounds' parts there are in memory."""
    return sum(type(each) is Owned for each in gc.get_objects())
