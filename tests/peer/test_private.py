"""Private state in one file: the inner optimizer and what the codec left out go together, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors.numpy import load

from atoll import journal
from atoll.errors import LocalError
from atoll.model.compute import Cost, Step, Vector
from atoll.model.held import Held
from atoll.peer import apply
from atoll.peer.member import Member
from atoll.peer.private import Private
from atoll.peer.store import anchor_from_bytes
from atoll.sim.compute import MARKS, CountingEngine, delta_of, first_weights
from atoll.sim.faults import Crash, Fault, Partition
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Codec, Fp32, MaxN, TopK
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import Assign, Sgd
from atoll.spec.axes.what import Delta, Feedback, Grad, Hold, Residual
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, AllGather, Circles, Mesh
from atoll.spec.axes.work import Work
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import anchor_of, assert_sound, counting_run, events, name, once, play, sized

SIZE = 1000
FORGETS = Channel(when=Every(steps=2), what=Delta(), merge=Merge(outer=Sgd(lr=0.7, momentum=0.9, nesterov=True)))
FEEDS_BACK = replace(FORGETS, what=Delta(residual=Feedback()))


def recipe(channel: Channel) -> Recipe:
    return Recipe(work=Work(inner=Sgd(lr=0.1)), channel={"outer": channel})


def engine() -> CountingEngine:
    return CountingEngine(seed=0, size=SIZE, tokens_per_sample=16, sample_cost=Cost(flop=1.0))


def worked(private: Private, model: CountingEngine) -> None:
    """Leave something behind."""
    model.train([Step(samples=(1, 2))])
    assert private.residual is not None
    private.residual.write()[:] = np.arange(SIZE)


def test_both_come_back_together() -> None:
    model = engine()
    private = Private(model, recipe(FEEDS_BACK))
    worked(private, model)
    saved = private.save()
    other = Private(engine(), recipe(FEEDS_BACK))
    other.restore(saved)
    assert other.residual is not None
    assert other.residual.read().tolist() == list(range(SIZE))
    assert other.save() == saved


class Device:
    """Where a peer with one works on what is left out."""

    def __init__(self, value: float) -> None:
        self.values = np.full(SIZE, value, np.float32)

    def bring(self, values: Vector) -> None:
        values[:] = self.values


def test_what_is_left_out_on_a_device_is_saved_and_what_is_restored_is_not_left_there() -> None:
    model = engine()
    private = Private(model, recipe(FEEDS_BACK))
    assert private.residual is not None
    private.residual.move(Device(3.0))
    saved = private.save()
    private.residual.move(Device(5.0))
    private.restore(saved)
    assert private.residual.elsewhere() is None
    assert set(private.residual.read()) == {3.0}
    private.residual.move(Device(6.0))
    private.forget()
    assert private.residual.elsewhere() is None and not private.residual.read().any()


def test_what_is_left_out_on_links_is_saved_from_a_device_and_restored_here() -> None:
    linked = replace(
        FORGETS,
        what=Grad(codec=MaxN(), residual=Feedback(), result=Fp32()),
        whom=Circles(pattern=Mesh()),
    )
    private, one, other = Private(engine(), recipe(linked)), bytes(32), bytes(range(32))
    private.links = {one: Held.of(np.arange(SIZE, dtype=np.float32)), other: Held(SIZE)}
    private.links[other].move(Device(3.0))
    saved = private.save()
    assert load(saved).keys() == {"inner", "digest", f"link {one.hex()}", f"link {other.hex()}"}
    for link in private.links.values():
        link.move(Device(5.0))
    private.restore(saved)
    assert all(link.elsewhere() is None for link in private.links.values())
    assert private.links[one].read().tolist() == list(range(SIZE))
    assert set(private.links[other].read()) == {3.0}
    assert private.save() == saved
    private.forget()
    assert not private.links


def test_what_nothing_is_left_out_of_is_the_engines_own_state() -> None:
    model = engine()
    assert Private(model, recipe(FORGETS)).save() == model.private()


@pytest.mark.parametrize("where", [-1, -2000, 40])
def test_damage_is_seen_and_changes_nothing(where: int) -> None:
    model = engine()
    private = Private(model, recipe(FEEDS_BACK))
    worked(private, model)
    saved = bytearray(private.save())
    saved[where] ^= 0xFF
    before = private.save()
    with pytest.raises(LocalError):
        private.restore(bytes(saved))
    assert private.save() == before


def test_state_of_another_model_is_refused() -> None:
    small = CountingEngine(seed=0, size=10, tokens_per_sample=16, sample_cost=Cost(flop=1.0))
    with pytest.raises(LocalError, match="another model"):
        Private(engine(), recipe(FEEDS_BACK)).restore(Private(small, recipe(FEEDS_BACK)).save())


# in a run


SPARSE = TopK(keep=2, block=16)


def sparse_run(codec: Codec = SPARSE, *, decay: float = 1.0, rounds: int = 8, checkpoint_every: int = 1) -> Run:
    """Return a run that averages, of whose deltas only a part travels at once."""
    run = counting_run("fedavg", rounds=rounds, start_with=4, checkpoint_every=checkpoint_every, patience_s_max=60.0)
    ((channel, how),) = run.recipe.channel.items()
    how = replace(
        how,
        what=Delta(codec=codec, residual=Feedback(decay=decay), result=Fp32()),
        whom=All(route=AllGather()),
        merge=Merge(outer=Assign()),
    )
    return replace(run, recipe=replace(run.recipe, channel={channel: how}))


def left_out(outcome: Outcome, peer: int, version: int) -> Vector:
    """Return what a peer's disk says that its codec left out."""
    private = Private(engine(), recipe(FEEDS_BACK))
    private.restore(outcome.hosts[peer].disk.files()[f"private/{version}.safetensors"])
    assert private.residual is not None
    return private.residual.read()


TROUBLES: dict[str, list[Fault]] = {
    "none": [],
    "crashed at work": [Crash(at_s=2.2, peer=2, restart_after_s=0.5)],
    "crashed in the exchange": [Crash(at_s=2.62, peer=2, restart_after_s=0.5)],
    "the organiser crashed": [Crash(at_s=2.3, peer=0, restart_after_s=0.5)],
    "cut off": [Partition(at_s=2.0, side=(2,), for_s=3.0)],
}


@pytest.mark.parametrize("trouble", few_of(TROUBLES, ("crashed at work", "the organiser crashed", "cut off")))
def test_everything_counted_is_in_the_anchor_or_still_left_out_and_nothing_is_in_both(trouble: str) -> None:
    """Whatever crashes: what the leases that count came to is what the anchor moved by and what is left with peers."""
    run = sparse_run()
    outcome = play(run, 4, faults=TROUBLES[trouble], build=sized(SIZE))
    commits = [event for _, event in once(outcome, journal.RoundCommitted)]
    assert all(len(event.contributors) == 4 for event in commits), "so that the anchor moves by a fourth of each"
    assert not events(outcome, journal.ResidualLost)
    assert_all_is_somewhere(run, outcome, np.zeros(SIZE))


def test_who_crashed_and_kept_nothing_of_a_contribution_that_counts_loses_what_was_left_out_and_says_so() -> None:
    run = sparse_run(rounds=12, checkpoint_every=6)
    outcome = play(run, 4, faults=[Crash(at_s=3.4, peer=2, restart_after_s=3.0)], build=sized(SIZE))
    assert_sound(run, outcome, version=12)
    lost = events(outcome, journal.ResidualLost, peer=2)
    assert lost
    counted = {e.version for _, e in once(outcome, journal.RoundCommitted) if name(outcome.hosts[2]) in e.contributors}
    assert {event.version for event in lost} <= counted


# owners


def owned_run(*, rounds: int = 8, residual: Residual | None = None) -> Run:
    """Return the same run by shares: owners choose of the mean again, and feed back what they leave out."""
    run = sparse_run(rounds=rounds)
    ((channel, how),) = run.recipe.channel.items()
    what = Delta(codec=SPARSE, residual=residual or Feedback(), owners=Feedback())
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, what=what, whom=All())}))


@pytest.fixture
def desks(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, Member]:
    """Return the desks of all peers of a play by peer, as they were last seen to apply a round."""
    seen: dict[bytes, Member] = {}
    keep = apply._keep_left_out

    def keep_and_see(member: Member, *rest: Any) -> None:
        keep(member, *rest)
        seen[member.me] = member

    monkeypatch.setattr(apply, "_keep_left_out", keep_and_see)
    return seen


@pytest.mark.parametrize("residual", few_of((Feedback(), Hold(), Hold(shared=0.25)), (Hold(shared=0.25),)))
def test_what_owners_leave_out_of_results_is_kept_until_it_comes(
    residual: Residual, desks: dict[bytes, Member]
) -> None:
    """What the leases came to is what the anchor moved by, what is left with peers, and what is left with owners."""
    run = owned_run(residual=residual)
    outcome = play(run, 4, build=sized(SIZE))
    assert not events(outcome, journal.ResidualLost)
    owners = left_with_owners(desks)
    assert np.abs(owners).max() > 0
    assert len([member for member in desks.values() if member.left_out]) == 4, "everybody owns some chunks"
    assert_all_is_somewhere(run, outcome, owners)


@pytest.mark.parametrize(
    "trouble",
    few_of((name for name in TROUBLES if name != "the organiser crashed"), ("crashed in the exchange", "cut off")),
)
def test_where_peers_hold_all_that_results_leave_out_nothing_is_lost_whoever_crashes(
    trouble: str, desks: dict[bytes, Member]
) -> None:
    run = owned_run(residual=Hold(shared=1.0))
    outcome = play(run, 4, faults=TROUBLES[trouble], build=sized(SIZE))
    commits = [event for _, event in once(outcome, journal.RoundCommitted)]
    assert all(len(event.contributors) == 4 for event in commits), "so that the anchor moves by a fourth of each"
    assert not left_with_owners(desks).any()
    assert_all_is_somewhere(run, outcome, np.zeros(SIZE))


def left_with_owners(desks: dict[bytes, Member]) -> NDArray[np.float64]:
    """Return what owners keep, as much as it is of all contributions together."""
    owners = np.zeros(SIZE)
    for member in desks.values():
        for (_, index), vector in member.left_out.items():
            owners[slice(*member.units["outer"][0].grid.bounds(index))] += 4.0 * vector
    return owners


def assert_all_is_somewhere(run: Run, outcome: Outcome, owners: NDArray[np.float64]) -> None:
    """Check that what was counted is in the anchor, left with peers or left with owners, and once."""
    rounds = run.budget.rounds
    assert_sound(run, outcome, version=rounds)
    name = f"checkpoint/{rounds}.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[name], name).weights
    moved = 4.0 * (first_weights(run.seeds.data, SIZE).astype(np.float64) - anchor)
    left = np.sum([left_out(outcome, peer, rounds) for peer in range(4)], axis=0, dtype=np.float64)
    assert np.abs(left).max() > 0
    counted = delta_of(run.seeds.data, SIZE, list(range(rounds * 4 * 2 * 2))).astype(np.float64)
    gap = np.abs(moved + left + owners - counted)
    gap[MARKS] = 0.0
    assert gap.max() < 1e-3 * np.abs(counted).max()


LOSSES = {name: TROUBLES[name] for name in TROUBLES if name.startswith(("crashed", "the organiser"))} | {
    "cut off for long": [Partition(at_s=2.0, side=(2,), for_s=6.0)]
}


@pytest.mark.parametrize("trouble", few_of(LOSSES, ("crashed at work",)))
def test_when_an_owner_is_lost_so_is_what_it_left_out_and_the_run_goes_on(trouble: str) -> None:
    run = owned_run(rounds=12)
    outcome = play(run, 4, faults=LOSSES[trouble], build=sized(SIZE))
    assert_sound(run, outcome, version=12)
    lost = events(outcome, journal.ResidualLost)
    assert lost and all(event.chunks for event in lost)


def test_owners_that_keep_everything_leave_nothing_out() -> None:
    run = owned_run()
    ((channel, how),) = run.recipe.channel.items()
    whole = Delta(codec=TopK(keep=16, block=16), residual=Feedback(), owners=Feedback())
    sent, plain = (
        replace(run, recipe=replace(run.recipe, channel={channel: replace(how, what=what)}))
        for what in (whole, Delta())
    )
    one, other = (anchor_of(play(each, 4, build=sized(SIZE)).hosts[0].disk) for each in (sent, plain))
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-6)
