"""Other rules than a mean, in whole runs: everybody comes to the same bits, and a peer that sends rubbish is held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Step, Trained, Vector
from atoll.sim.compute import CountingEngine, first_weights
from atoll.sim.faults import Crash, Partition
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.merge import CentredClip, Combine, Mean, MeanPresent, MedianNormClip, Rda, Trimmed
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.when import Fragments
from atoll.spec.axes.whom import All, AllGather, Butterfly, Route
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import anchor_of, assert_sound, counting_run, events, play, sized

SIZE, PEERS, ROUNDS = 640, 5, 4
"""Ten chunks, and eight tensors that do not end where they do."""
ANYWHERE: list[tuple[Combine, Route]] = [
    (rule, route)
    for rule in (Trimmed(drop=0.2), MedianNormClip(over="chunk"), CentredClip(over="chunk"), Rda())
    for route in (Butterfly(), AllGather())
]
SUMMED: list[tuple[Combine, Route]] = [(Rda(), Butterfly(group=2))]
"""What groups add up and pass on."""
GATHERED: list[tuple[Combine, Route]] = [
    (rule, AllGather())
    for rule in (MedianNormClip(), MedianNormClip(over="whole"), CentredClip(), CentredClip(over="tensor"))
]


OFTEN = [ANYWHERE[0], ANYWHERE[3], SUMMED[0], GATHERED[0]]


def ruled(combine: Combine, route: Route, *, rounds: int = ROUNDS, sparse: bool = False) -> Run:
    run = counting_run(rounds=rounds, start_with=PEERS, codec=Fp32())
    ((name, channel),) = run.recipe.channel.items()
    what = replace(channel.what, codec=TopK(keep=8, block=64), result=Fp32()) if sparse else channel.what
    merge = replace(channel.merge, combine=combine, outer=Sgd(lr=1.0))
    channel = replace(channel, whom=All(route=route), merge=merge, what=what)
    return replace(run, recipe=replace(run.recipe, channel={name: channel}))


@pytest.mark.parametrize(
    ("combine", "route"),
    few_of([*ANYWHERE, *SUMMED, *GATHERED], OFTEN),
)
def test_every_rule_brings_all_to_one_anchor_on_its_routes(combine: Combine, route: Route) -> None:
    run = ruled(combine, route)
    outcome = play(run, PEERS, build=sized(SIZE))
    assert_sound(run, outcome, version=ROUNDS)
    plain = play(ruled(Mean(), route), PEERS, build=sized(SIZE))
    assert anchor_of(outcome.hosts[0].disk).digest() != anchor_of(plain.hosts[0].disk).digest()


@pytest.mark.parametrize(
    "combine", [Trimmed(drop=0.2), pytest.param(MedianNormClip(over="chunk"), marks=pytest.mark.long), Rda()]
)
def test_by_either_route_a_rule_over_chunks_makes_the_same(combine: Combine) -> None:
    ends = [play(ruled(combine, route), PEERS, build=sized(SIZE)) for route in (Butterfly(), AllGather())]
    assert len({anchor_of(end.hosts[0].disk).digest() for end in ends}) == 1


def test_the_mean_of_those_present_divides_by_fewer() -> None:
    run = ruled(MeanPresent(), AllGather(), sparse=True)
    outcome = play(run, PEERS, build=sized(SIZE))
    assert_sound(run, outcome, version=ROUNDS)
    plain = play(ruled(Mean(), AllGather(), sparse=True), PEERS, build=sized(SIZE))
    start = first_weights(run.seeds.data, SIZE)
    moved, less = (np.abs(anchor_of(end.hosts[0].disk).weights - start).sum() for end in (outcome, plain))
    assert moved > 1.5 * less


@pytest.mark.parametrize("peer", [1, pytest.param(3, marks=pytest.mark.long)])
def test_whoever_dies_while_tensors_are_measured_the_others_go_on(peer: int) -> None:
    run = ruled(MedianNormClip(), AllGather())
    for at_s in (0.45, 0.52, 0.6):
        outcome = play(run, PEERS, build=sized(SIZE), faults=[Crash(at_s=at_s, peer=peer, restart_after_s=1.5)])
        assert_sound(run, outcome, version=ROUNDS)


def test_where_one_peer_alone_can_be_reached_it_makes_all_of_a_result() -> None:
    """Others take nothing of it over when it dies: a part of a tensor is no use."""
    run = ruled(MedianNormClip(), AllGather(), rounds=6)
    cuts = [
        Partition(at_s=0.0, side=(one,), others=tuple(range(one + 1, PEERS)), for_s=1e6) for one in range(1, PEERS - 1)
    ]
    for at_s in (0.5, 1.0):
        outcome = play(run, PEERS, build=sized(SIZE), faults=[*cuts, Crash(at_s=at_s, peer=1, restart_after_s=1.0)])
        assert_sound(run, outcome, version=6)


@pytest.mark.parametrize(("combine", "route"), [(MedianNormClip(), AllGather()), (Rda(), Butterfly())])
def test_fragments_are_measured_by_their_own_tensors(combine: Combine, route: Route) -> None:
    run = ruled(combine, route)
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(channel, when=Fragments(steps=4, count=2))
    run = replace(run, recipe=replace(run.recipe, channel={name: channel}))
    assert_sound(run, play(run, PEERS, build=sized(SIZE)), version=ROUNDS)


# hostile peers


class Loud(CountingEngine):
    """A counting model whose weights go through the roof, finite all the same."""

    def train(self, steps: Sequence[Step]) -> Trained:
        trained = super().train(steps)
        self.assign(self.weights() + np.float32(1e30))
        return trained


def with_one_loud(combine: Combine, route: Route) -> tuple[Outcome, Vector]:
    """Return how a run went in which the third peer is loud, and how far it moved each weight."""
    built: list[CountingEngine] = []
    run = ruled(combine, route)

    def build(run: Run) -> CountingEngine:
        kind = Loud if len(built) == 2 else CountingEngine
        built.append(kind(seed=run.seeds.data, size=SIZE, tokens_per_sample=16))
        return built[-1]

    outcome = play(run, PEERS, build=build)
    anchors = [anchor_of(host.disk) for host in outcome.hosts]
    assert len({anchor.digest() for anchor in anchors}) == 1
    assert all(len(event.contributors) == PEERS for event in events(outcome, journal.RoundCommitted, peer=0))
    return outcome, np.abs(anchors[0].weights - first_weights(run.seeds.data, SIZE))


@pytest.mark.parametrize(
    ("combine", "route"),
    [
        (Trimmed(drop=0.2), Butterfly()),
        (MedianNormClip(over="chunk"), Butterfly()),
        (CentredClip(over="chunk"), Butterfly()),
        (MedianNormClip(), AllGather()),
        (CentredClip(), AllGather()),
    ],
)
def test_a_peer_that_sends_1e30_is_held_by_every_robust_rule(combine: Combine, route: Route) -> None:
    _, moved = with_one_loud(combine, route)
    assert moved.max() < 1.0, "a round of honest work moves a weight by about a hundredth"


def test_a_mean_is_carried_away_by_it() -> None:
    assert with_one_loud(Mean(), Butterfly())[1].max() > 1e28
