"""Work that did not count leaves nothing behind: the same lease worked again gives the bits of an undisturbed run."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from atoll import journal
from atoll.sim.faults import Crash, Fault, Leave, Partition, Pause, SlowCompute
from atoll.sim.scenario import Outcome
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.run import Membership
from tests.few import few_of
from tests.identity.small import digest_of, diloco, trained
from tests.peer.world import assert_sound, counting_run, events, name, once, play

PEERS = 2
RUN = msgspec.structs.replace(
    diloco(
        inner=AdamW(lr=3e-3),
        outer=Sgd(lr=0.7, momentum=0.9, nesterov=True),
        steps=3,
        rounds=5,
        start_with=PEERS,
    ),
    membership=Membership(start_with=PEERS, contributors_min=PEERS),
)


@cache
def undisturbed() -> Outcome:
    return trained(RUN, PEERS)


@pytest.mark.parametrize(
    ("kind", "part"), few_of([(Crash, 0.4), (Crash, 0.8), (Leave, 0.4), (Leave, 0.8)], ((Crash, 0.4), (Leave, 0.8)))
)
def test_a_round_that_was_given_up_and_done_again_ends_with_the_bits_of_one_that_was_not(
    kind: type[Crash] | type[Leave], part: float
) -> None:
    whole = undisturbed()
    committed = [at_s for at_s, _ in once(whole, journal.RoundCommitted)]
    at_s = committed[2] + part * (committed[3] - committed[2])
    again = trained(RUN, PEERS, [kind(at_s=at_s, peer=1, restart_after_s=60.0)])
    assert {event.version for event in events(again, journal.RoundVoided)} == {4}
    assert {event.version for event in events(again, journal.InnerStateRestored, peer=0)} == {4}
    leases = [event.ranges for event in events(again, journal.LeaseTaken, peer=0) if event.version == 4]
    assert len(leases) >= 2
    assert leases[0] == leases[-1]
    assert digest_of(again) == digest_of(whole)


class _Private(msgspec.Struct):
    """What a counting model keeps to itself."""

    steps: int


TROUBLES: dict[str, list[Fault]] = {
    "slow": [SlowCompute(at_s=2.0, peer=2, for_s=12.0, factor=40.0)],
    "paused": [Pause(at_s=2.0, peer=2, for_s=9.0)],
    "cut off": [Partition(at_s=2.0, side=(2,), for_s=9.0)],
    "crashed at work": [Crash(at_s=2.2, peer=2, restart_after_s=8.0)],
    "crashed in the exchange": [Crash(at_s=2.62, peer=2, restart_after_s=8.0)],
}


@pytest.mark.parametrize("checkpoint_every", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("trouble", few_of(TROUBLES, ("paused", "crashed at work")))
def test_the_inner_optimizer_has_seen_exactly_what_was_counted(trouble: str, checkpoint_every: int) -> None:
    """A counting model counts the steps its inner state has seen; the log says how many of them count."""
    run = counting_run(rounds=32, steps=6, start_with=3, checkpoint_every=checkpoint_every, patience_s_max=6.0)
    outcome = play(run, 3, faults=TROUBLES[trouble])
    assert_sound(run, outcome, version=32)
    counted = [
        event.version
        for _, event in once(outcome, journal.RoundCommitted)
        if name(outcome.hosts[2]) in event.contributors
    ]
    assert 0 < len(counted) < 32
    private = outcome.hosts[2].disk.files()["private/32.safetensors"]
    seen = msgspec.msgpack.decode(private, type=_Private).steps
    if "crashed" not in trouble:
        assert seen == 6 * len(counted)
        dropped = events(outcome, journal.ContributionDropped, peer=2)
        assert dropped
        assert {event.samples for event in dropped} == {12}
        assert {e.version for e in dropped} <= {e.version for e in events(outcome, journal.InnerStateRestored, peer=2)}
    else:  # what was not saved with a checkpoint is gone, but nothing is in it that does not count
        assert 6 * len(counted) - 6 * checkpoint_every <= seen <= 6 * len(counted)
        assert seen % 6 == 0
