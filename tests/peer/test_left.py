"""What contributions to several open rounds leave out: whichever of them count, and whoever crashes, it adds up."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.peer.private import opened
from atoll.peer.store import anchor_from_bytes
from atoll.sim.case import Calm, scenario_of
from atoll.sim.check import violations
from atoll.sim.compute import MARKS, first_weights
from atoll.sim.expected import contribution
from atoll.sim.faults import Crash, Fault, Leave, Partition, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome, simulate
from atoll.sim.skies import case_of
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.merge import Merge, Sum
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import RoundsLate
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.whom import All, AllGather
from atoll.spec.axes.work import Constant
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import assert_sound, counting_run, events, log_of, play, sized

SIZE, ROUNDS, LATE, RATE = 1000, 30, 3, 0.5


def late_run(*, every: int, needs: int = 1) -> Run:
    """Return a run of sparse gradients, several rounds late, whose anchor moves by their sum."""
    run = counting_run(
        "ddp",
        rounds=ROUNDS,
        start_with=4,
        checkpoint_every=every,
        patience_s_max=1.0,
        contributors_min=needs,
    )
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(
        channel,
        what=Grad(codec=TopK(keep=2, block=16), residual=Feedback(), result=Fp32()),
        whom=All(route=AllGather()),
        merge=Merge(outer=Sgd(lr=RATE), combine=Sum()),
        overlap=RoundsLate(rounds=LATE),
    )
    work = replace(run.recipe.work, schedule=Constant())
    return replace(run, recipe=replace(run.recipe, work=work, channel={name: channel}))


def gap(run: Run, outcome: Outcome, version: int = ROUNDS) -> float:
    """Return how far what is in the anchor and what is left are from what the leases that count came to."""
    disks = [host.disk.files() for host in outcome.hosts]
    path = f"checkpoint/{version}.safetensors"
    anchor = anchor_from_bytes(disks[0][path], path)
    moved = (first_weights(run.seeds.data, anchor.weights.size).astype(np.float64) - anchor.weights) / RATE
    left = sum(opened(files[f"private/{version}.safetensors"])[1]["residual"].astype(np.float64) for files in disks)
    (channel,) = run.recipe.channel.values()
    entries = max((log_of(outcome, host.place) for host in outcome.hosts), key=len)
    before = [each for each in commits(entries) if each.version <= version]
    leases = [each.announced.leases[peer] for each in before for peer in each.contributors]
    counted = np.sum([contribution(run, channel, anchor, lease) for lease in leases], axis=0, dtype=np.float64)
    assert np.abs(left).max() > 0.01 * np.abs(counted).max(), "hardly anything is left out: this shows little"
    apart = np.abs(moved + left - counted)
    apart[MARKS] = 0.0
    return float(apart.max() / np.abs(counted).max())


TROUBLES: dict[str, list[Fault]] = {
    "none": [],
    "too slow for a while": [SlowCompute(at_s=0.6, peer=2, for_s=2.0, factor=40.0)],
    "crashed": [Crash(at_s=at_s, peer=2, restart_after_s=0.3) for at_s in (0.71, 1.33, 2.14)],
    "the organiser crashed": [Crash(at_s=1.01, peer=0, restart_after_s=0.4)],
    "cut off": [Partition(at_s=0.8, side=(2,), for_s=4.0)],
}
DROPPED = {"too slow for a while", "crashed", "cut off"}
"""In which contributions are not counted that others followed."""


@pytest.mark.parametrize(("trouble", "every"), few_of(product(TROUBLES, (1, 4, 7)), (("crashed", 7),)))
def test_what_was_sent_and_what_is_left_come_to_what_was_counted(trouble: str, every: int) -> None:
    run = late_run(every=every)
    outcome = play(run, 4, faults=TROUBLES[trouble], build=sized(SIZE))
    assert_sound(run, outcome, version=ROUNDS)
    assert not events(outcome, journal.ResidualLost)
    assert not events(outcome, journal.PrivateStateReset)
    assert trouble not in DROPPED or events(outcome, journal.ContributionDropped)
    assert gap(run, outcome) < 1e-4


@pytest.mark.long
def test_rounds_that_are_given_up_take_along_what_they_left() -> None:
    run = late_run(every=4, needs=4)
    outcome = play(run, 4, faults=[Leave(at_s=0.9, peer=3, restart_after_s=1.0)], build=sized(SIZE))
    assert_sound(run, outcome, version=ROUNDS)
    assert len(events(outcome, journal.RoundVoided, peer=0)) > 1
    assert gap(run, outcome) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("family", ["ebb", "pair", "regent", "doubt", "blackout", "relay", "rift", "rot"])
def test_no_storm_takes_anything_of_what_was_left_out_or_counts_it_twice(family: str) -> None:
    sure = 0
    for seed in (*range(8), 28):
        case, own = case_of(family, seed), late_run(every=1).recipe
        ((name, channel),) = own.channel.items()
        late = replace(channel, overlap=RoundsLate(rounds=1 + seed % 5))
        recipe = replace(own, work=replace(own.work, batch=8), channel={name: late})
        case = replace(case, run=replace(case.run, recipe=recipe, upkeep=replace(case.run.upkeep, checkpoint_every=1)))
        outcome = simulate(scenario_of(case, Calm(case)))
        assert violations(case.run, outcome) == [], (family, seed)
        versions = set.intersection(*(saved(host.disk.files()) for host in outcome.hosts))
        if versions and not events(outcome, journal.ResidualLost) and not events(outcome, journal.PrivateStateReset):
            assert gap(case.run, outcome, max(versions)) < 1e-4, (family, seed)
            sure += 1
    assert sure >= 4, "somebody lost what it had in most of them: this shows little"


def saved(files: dict[str, bytes]) -> set[int]:
    """Return the versions of which a disk has both the anchor and what goes with it."""
    parts = [path.removesuffix(".safetensors").partition("/") for path in files]
    whole = [(top, int(name)) for top, _, name in parts if name.isdigit()]  # others were being written
    anchors, private = ({version for top, version in whole if top == folder} for folder in ("checkpoint", "private"))
    return anchors & private
