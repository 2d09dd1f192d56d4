"""Where a peer encodes on the device that has its weights, the run comes to the same bits as on the processor."""

from __future__ import annotations

import pytest

from atoll.model import encoder
from atoll.model.compute import Engine
from atoll.model.engine import build_engine
from atoll.sim.faults import Crash, Fault
from atoll.spec.axes.codec import Buckets, CacheLines, E3m0, Fp32, Int8, Significance, Stochastic, Threshold, TopK
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.what import Delta, Feedback, Grad, Hold
from atoll.spec.axes.whom import AllGather
from atoll.spec.run import Run
from tests.identity.small import ddp, diloco, engine_of
from tests.model.toys import ToyData
from tests.peer.world import anchor_of, play

SGD, OUTER = Sgd(lr=0.1), Sgd(lr=0.7, momentum=0.9, nesterov=True)
SPARSE = TopK(keep=8, block=512, values=Buckets(bits=2, width=6.0))
FED_BACK = Delta(codec=SPARSE, result=Fp32(), residual=Feedback(decay=0.95))
RUNS: dict[str, Run] = {
    "int8": diloco(inner=SGD, outer=OUTER, steps=2, rounds=3, start_with=2, what=Delta(codec=Int8())),
    "int8 held": diloco(
        inner=SGD, outer=OUTER, steps=2, rounds=3, start_with=2, what=Delta(codec=Int8(), residual=Hold())
    ),
    "top-k fed back": diloco(inner=SGD, outer=OUTER, steps=2, rounds=3, start_with=2, what=FED_BACK, route=AllGather()),
    "fragments": diloco(inner=SGD, outer=OUTER, steps=2, rounds=4, start_with=2, what=Delta(codec=E3m0()), fragments=2),
    "gradients": ddp(outer=SGD, rounds=3, start_with=2, what=Grad(codec=SPARSE, result=Fp32(), residual=Feedback())),
    "threshold fed back": diloco(
        inner=SGD,
        outer=OUTER,
        steps=2,
        rounds=3,
        start_with=2,
        what=Delta(codec=Threshold(least=1e-4, scaled=True), result=Fp32(), residual=Feedback()),
        route=AllGather(),
    ),
    "significance held": diloco(
        inner=SGD,
        outer=OUTER,
        steps=2,
        rounds=3,
        start_with=2,
        what=Delta(codec=Significance(least=0.005), result=Fp32(), residual=Hold()),
        route=AllGather(),
    ),
    "lines of gradients": ddp(
        outer=SGD,
        rounds=4,
        start_with=2,
        what=Grad(codec=CacheLines(keep=0.1), result=Fp32(), residual=Feedback()),
    ),
    "by chance": ddp(outer=SGD, rounds=3, start_with=2, what=Grad(codec=Stochastic(bits=4))),
}


def on_device(run: Run) -> Engine:
    return build_engine(run, ToyData(), device="cpu", threads=1, encode=True)


def digest(run: Run, *, device: bool, faults: list[Fault]) -> str:
    outcome = play(run, 2, build=on_device if device else engine_of, faults=faults)
    assert [host.lives for host in outcome.hosts] == [1, 1 + len(faults)]
    anchors = [anchor_of(host.disk) for host in outcome.hosts]
    assert {anchor.version for anchor in anchors} == {run.budget.rounds}
    assert len({anchor.digest() for anchor in anchors}) == 1
    return anchors[0].digest()


QUICK = ("top-k fed back", "significance held")


@pytest.fixture(params=[False, True], ids=["passing through", "kept there"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a device have room for what work began from and what was left out, or not."""
    monkeypatch.setattr(encoder, "_has_room", lambda device, size_bytes: request.param)


@pytest.mark.parametrize("name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.long) for each in RUNS])
@pytest.mark.usefixtures("room")
def test_the_run_is_the_same_wherever_contributions_are_encoded(name: str) -> None:
    assert digest(RUNS[name], device=True, faults=[]) == digest(RUNS[name], device=False, faults=[])


@pytest.mark.usefixtures("room")
def test_what_is_left_out_survives_a_crash_as_on_the_processor() -> None:
    # In the second round, when its contribution is made and not committed.
    faults: list[Fault] = [Crash(at_s=0.24, peer=1, restart_after_s=0.1)]
    run = RUNS[QUICK[0]]
    assert digest(run, device=True, faults=faults) == digest(run, device=False, faults=faults)


def test_the_device_is_asked_only_where_it_has_a_form() -> None:
    run = RUNS["int8"]
    assert on_device(run).encoder(Int8()) is not None
    assert on_device(run).encoder(Fp32()) is None
    assert engine_of(run).encoder(Int8()) is None, "on a processor nothing is gained"
