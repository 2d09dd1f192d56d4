"""What contributions to several open rounds leave out: whichever of them count, and whoever crashes, it adds up."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.peer.private import opened
from atoll.sim.compute import MARKS, first_weights
from atoll.sim.expected import contribution
from atoll.sim.faults import Crash, Fault, Leave, Partition, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.merge import Merge, Sum
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import RoundsLate
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.whom import All, AllGather
from atoll.spec.axes.work import Constant
from atoll.spec.run import Run
from tests.peer.world import anchor_of, assert_sound, counting_run, events, log_of, play, sized

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


def gap(run: Run, outcome: Outcome) -> float:
    """Return how far what is in the anchor and what is left are from what the leases that count came to."""
    anchor = anchor_of(outcome.hosts[0].disk)
    assert anchor.version == ROUNDS
    moved = (first_weights(run.seeds.data, SIZE).astype(np.float64) - anchor.weights) / RATE
    disks = [host.disk.files() for host in outcome.hosts]
    left = sum(opened(files[f"private/{ROUNDS}.safetensors"])[1]["residual"].astype(np.float64) for files in disks)
    (channel,) = run.recipe.channel.values()
    leases = [each.announced.leases[peer] for each in commits(log_of(outcome)) for peer in each.contributors]
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


@pytest.mark.parametrize(
    ("trouble", "every"),
    [
        ("crashed", 7),
        *(pytest.param(each, every, marks=pytest.mark.long) for each in TROUBLES for every in (1, 4, 7)),
    ],
)
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
