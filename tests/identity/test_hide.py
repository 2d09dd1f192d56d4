"""Delayed, compressed gradients as shipped: without either it is data parallelism, to the bit, and so it begins."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.spec.axes.codec import CacheLines, Fp32
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.work import Constant
from atoll.spec.load import load_recipe
from tests.identity.small import BATCH, ddp, digest_of, trained
from tests.peer.world import events

ROUNDS = 5


def test_everything_sent_and_waited_for_is_data_parallelism_to_the_bit() -> None:
    plain = ddp(outer=Sgd(lr=0.3), rounds=ROUNDS, start_with=2)
    shipped = load_recipe("deco")
    work = replace(shipped.work, batch=BATCH, schedule=Constant())
    run = replace(plain, recipe=replace(shipped, work=work))
    outcome = trained(run, 2)
    assert not events(outcome, journal.KnobsTurned), "nothing is decided before ten rounds are measured"
    assert digest_of(outcome) == digest_of(trained(plain, 2))


@pytest.mark.long
def test_all_cache_lines_are_data_parallelism_to_the_bit() -> None:
    plain = ddp(outer=Sgd(lr=0.3), rounds=ROUNDS, start_with=2)
    what = Grad(codec=CacheLines(keep=1.0), residual=Feedback(), result=Fp32())
    lines = ddp(outer=Sgd(lr=0.3), rounds=ROUNDS, start_with=2, what=what)
    assert digest_of(trained(lines, 2)) == digest_of(trained(plain, 2))
