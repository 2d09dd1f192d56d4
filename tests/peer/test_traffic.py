"""What a round costs on the wire: the formula of the butterfly, to the byte where it can be."""

from __future__ import annotations

import pytest

from atoll import journal
from atoll.sim.check import violations
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Codec, Fp16, Fp32, Int8
from atoll.spec.axes.what import Grad
from atoll.swarm.routes.shares import cut
from atoll.sync.grid import grid_of
from tests.few import few_of
from tests.peer.world import counting_run, events, play, sized

SIZE = 200_000
OVERHEAD = 0.02
FAST_BYTES_S = 1e9


def play_sized(recipe: str, peers: int, codec: Codec, *, rounds: int = 3, steps: int = 2) -> Outcome:
    run = counting_run(recipe, rounds=rounds, steps=steps, start_with=peers, codec=codec, checkpoint_every=100)
    return play(run, peers, build=sized(SIZE), rate_bytes_s=FAST_BYTES_S)


def round_bytes(outcome: Outcome, peer: int, rounds: int) -> float:
    """Return what a peer sent per round in contributions and results."""
    return events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes / rounds


@pytest.mark.parametrize(
    ("peers", "codec", "each"),
    few_of(
        [(peers, *form) for peers in (2, 4, 5) for form in ((Fp32(), 4), (Fp16(), 2))],
        ((2, Fp16(), 2), (4, Fp32(), 4), (5, Fp16(), 2)),
    ),
)
def test_a_round_costs_every_peer_the_formula_and_at_most_two_percent_more(peers: int, codec: Codec, each: int) -> None:
    outcome = play_sized("diloco", peers, codec)
    formula = 2 * (peers - 1) / peers * SIZE * each
    total = 0.0
    for peer in range(peers):
        sent = round_bytes(outcome, peer, 3)
        exact = payload_elements(outcome, peer) * each
        assert exact <= sent <= (1 + OVERHEAD) * exact
        assert abs(exact - formula) <= (peers - 2) * grid_of(SIZE).chunk * each, "shards are whole chunks"
        total += sent
    assert peers * formula <= total <= (1 + OVERHEAD) * peers * formula


def payload_elements(outcome: Outcome, peer: int) -> int:
    """Return the elements a peer sends in a round: to each owner its shard, and its own shard to everybody."""
    grid, me = grid_of(SIZE), outcome.hosts[peer].peer
    owners = sorted(host.peer for host in outcome.hosts)
    shards = cut(grid.chunks, owners, [1.0] * len(owners))
    sizes = {shard.owner: sum(b - a for a, b in map(grid.bounds, shard.chunks)) for shard in shards}
    return SIZE - sizes[me] + (len(outcome.hosts) - 1) * sizes[me]


@pytest.mark.parametrize("peers", few_of((2, 4), (4,)))
def test_the_payload_is_exact_and_sixteen_bits_are_exactly_half(peers: int) -> None:
    payload: dict[int, list[int]] = {}
    for codec, each in ((Fp32(), 4), (Fp16(), 2)):
        sent = events(play_sized("diloco", peers, codec, rounds=2), journal.ContributionSent)
        payload[each] = [event.sent_bytes for event in sent]
        assert len(sent) == 2 * peers
        assert sum(payload[each]) == 2 * (peers - 1) * SIZE * each
    assert sorted(payload[4]) == [2 * half for half in sorted(payload[2])]


def test_in_int8_the_payload_is_a_byte_an_element_and_a_step_for_each_block_of_a_chunk() -> None:
    peers, block = 4, 100
    run = counting_run(rounds=2, start_with=peers, codec=Int8(block=block))
    outcome = play(run, peers, build=sized(SIZE), rate_bytes_s=FAST_BYTES_S)
    grid = grid_of(SIZE)
    steps = sum(-(-(end - first) // block) for first, end in map(grid.bounds, range(grid.chunks)))
    sent = [event.sent_bytes for event in events(outcome, journal.ContributionSent)]
    assert sum(sent) == 2 * (peers - 1) * (SIZE + 4 * steps)
    assert not violations(run, outcome), "the anchors are those that the contributions come to in whole steps"


@pytest.mark.long
def test_sparse_contributions_that_everybody_gathers_cost_the_formula_and_at_most_two_percent_more() -> None:
    """(N - 1) c bytes: c is what is kept, in 14 bits each, and a table of four values for each chunk."""
    size, peers, rounds = 4_000_000, 3, 2
    run = counting_run("sparseloco", rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(size), rate_bytes_s=FAST_BYTES_S)
    assert not violations(run, outcome)
    codec = run.recipe.channel["outer"].what.codec
    grid = grid_of(size, codec)
    kept = size // 4096 * 64 + -(-64 * (size % 4096) // 4096)
    exact = (peers - 1) * (-(-kept * 14 // 8) + 16 * grid.chunks)
    for peer in range(peers):
        assert exact <= round_bytes(outcome, peer, rounds) <= (1 + OVERHEAD) * exact


def test_ddp_sends_h_times_the_bytes_of_diloco_per_step_at_equal_codec() -> None:
    h = 7
    diloco = play_sized("diloco", 4, Fp32(), rounds=2, steps=h)
    ddp = play_sized("ddp", 4, Fp32(), rounds=2)
    per_step = {
        name: sum(round_bytes(outcome, peer, 2) for peer in range(4)) / steps
        for name, outcome, steps in (("diloco", diloco, h), ("ddp", ddp, 1))
    }
    assert per_step["ddp"] / per_step["diloco"] == pytest.approx(h, rel=1e-3)
    payload = {
        name: sum(event.sent_bytes for event in events(outcome, journal.ContributionSent)) / steps
        for name, outcome, steps in (("diloco", diloco, h), ("ddp", ddp, 1))
    }
    assert payload["ddp"] == h * payload["diloco"]


def test_ddp_exchanges_gradients_and_diloco_deltas() -> None:
    ddp, diloco = counting_run("ddp"), counting_run("diloco")
    assert isinstance(ddp.recipe.channel["outer"].what, Grad)
    assert ddp.recipe.channel["outer"].when.round_steps == 1
    assert not isinstance(diloco.recipe.channel["outer"].what, Grad)


def test_one_peer_alone_sends_nothing() -> None:
    outcome = play(counting_run(rounds=2), 1)
    assert [event.sent_bytes for event in events(outcome, journal.TrafficCounted)] == [0, 0]
    assert [event.sent_bytes for event in events(outcome, journal.ContributionSent)] == [0, 0]


def test_what_is_sent_is_received() -> None:
    outcome = play_sized("diloco", 3, Fp32())
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1] for peer in range(3)]
    sent, received = sum(c.sent_bytes for c in counted), sum(c.received_bytes for c in counted)
    assert sent == pytest.approx(received, rel=1e-3)
