"""Resume equals the uninterrupted run, bit for bit: whatever moment everybody is stopped or dies at."""

from __future__ import annotations

from functools import cache

import pytest

from atoll import journal
from atoll.sim.faults import Crash, Fault, Leave
from atoll.sim.scenario import Outcome
from atoll.spec.axes.optimizer import AdamW, Assign, Lamb, Sgd
from atoll.spec.axes.work import Cosine
from atoll.spec.run import Run
from tests.few import few_of
from tests.identity.small import ddp, digest_of, diloco, trained
from tests.peer.world import events, once

PEERS = 2
RUNS: dict[str, Run] = {
    "diloco": diloco(
        inner=AdamW(lr=3e-3),
        outer=Sgd(lr=0.7, momentum=0.9, nesterov=True),
        steps=3,
        rounds=5,
        start_with=PEERS,
        schedule=Cosine(warmup_steps=4),
    ),
    "lamb": diloco(inner=Lamb(lr=0.02), outer=Assign(), steps=3, rounds=5, start_with=PEERS),
    "ddp": ddp(outer=AdamW(lr=3e-3), rounds=6, start_with=PEERS, schedule=Cosine(warmup_steps=2)),
}
AFTER_S = {"at the commit": 1e-6, "while it is applied": 0.012, "between rounds": 0.03, "in mid-round": None}


@cache
def undisturbed(name: str) -> Outcome:
    return trained(RUNS[name], PEERS)


def interrupted(name: str, kind: type[Crash] | type[Leave], after_s: float | None) -> tuple[str, str]:
    """Return the final digest of a run and of the same run whose peers were all stopped in the middle."""
    run, whole = RUNS[name], undisturbed(name)
    committed = [at_s for at_s, _ in once(whole, journal.RoundCommitted)]
    at_s = committed[2] + ((committed[3] - committed[2]) / 2 if after_s is None else after_s)
    faults: list[Fault] = [kind(at_s=at_s, peer=peer, restart_after_s=3.0 + peer) for peer in range(PEERS)]
    again = trained(run, PEERS, faults)
    assert len(events(again, journal.PeerStarted)) == 2 * PEERS
    assert [event.version for _, event in once(again, journal.RoundCommitted)] == list(range(1, run.budget.rounds + 1))
    assert [event.contributors for _, event in once(again, journal.RoundCommitted)] == [
        event.contributors for _, event in once(whole, journal.RoundCommitted)
    ]
    return digest_of(whole), digest_of(again)


@pytest.mark.parametrize("when", AFTER_S)
@pytest.mark.parametrize("kind", [Crash, pytest.param(Leave, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", few_of(RUNS, ("diloco",)))
def test_a_run_that_was_stopped_and_resumed_ends_with_the_bits_of_one_that_was_not(
    name: str, kind: type[Crash] | type[Leave], when: str
) -> None:
    whole, resumed = interrupted(name, kind, AFTER_S[when])
    assert resumed == whole


@pytest.mark.parametrize("peer", range(PEERS))
def test_the_crash_of_one_peer_changes_nothing_when_it_is_back_in_time(peer: int) -> None:
    run, whole = RUNS["diloco"], undisturbed("diloco")
    committed = [at_s for at_s, _ in once(whole, journal.RoundCommitted)]
    at_s = (committed[2] + committed[3]) / 2
    again = trained(run, PEERS, [Crash(at_s=at_s, peer=peer, restart_after_s=0.5)])
    assert [len(event.contributors) for _, event in once(again, journal.RoundCommitted)] == [PEERS] * run.budget.rounds
    assert digest_of(again) == digest_of(whole)
