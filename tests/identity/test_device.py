"""Where a peer encodes on the device that has its weights, the run comes to the same bits as on the processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from torch import Tensor

from atoll.journal import LinksFilled
from atoll.model.compute import Engine, Near
from atoll.model.encoding import cosines, encoder, peaks, products
from atoll.model.encoding.above import Least
from atoll.model.encoding.peaks import least_of
from atoll.model.encoding.wanted import Ends
from atoll.model.engine import build_engine
from atoll.sim.faults import Crash, Fault
from atoll.sim.scenario import Scenario, simulate
from atoll.spec.axes.codec import (
    Buckets,
    CacheLines,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Sign,
    Significance,
    Stochastic,
    Threshold,
    TopK,
    TurnedSign,
)
from atoll.spec.axes.optimizer import Sgd, SignSgd
from atoll.spec.axes.what import Dct, Delta, Feedback, Grad, Hold, LowRank
from atoll.spec.axes.whom import AllGather
from atoll.spec.fleet import Device
from atoll.spec.run import Run
from atoll.sync.merge import Anchor
from tests.few import few_of
from tests.identity.small import BATCH, SAME, apart, ddp, demo, diloco, engine_of, low_rank, mesh
from tests.model.toys import ToyData
from tests.peer.world import DELAYS_S, anchor_of, events, machines, play

SGD, OUTER = Sgd(lr=0.1), Sgd(lr=0.7, momentum=0.9, nesterov=True)
SPARSE = TopK(keep=8, block=512, values=Buckets(bits=2, width=6.0))
MOMENTUM = Grad(codec=TopK(keep=8, block=256), result=Fp32(), residual=Feedback(decay=0.9))
SOME = LowRank(rank=2, least=1.5)
FED_BACK = Delta(codec=SPARSE, result=Fp32(), residual=Feedback(decay=0.95))


def local(what: Delta, **more: Any) -> Run:
    """Return two peers that exchange the way of two local steps."""
    return diloco(inner=SGD, outer=OUTER, steps=2, start_with=2, what=what, **{"rounds": 3, **more})


def each_step(what: Grad, **more: Any) -> Run:
    """Return two peers that exchange gradients."""
    return ddp(outer=SGD, start_with=2, what=what, **{"rounds": 3, **more})


def momenta(what: Grad, **more: Any) -> Run:
    """Return two peers that exchange what is strong in their momenta."""
    return demo(outer=SignSgd(lr=1e-3), start_with=2, what=what, **{"rounds": 3, **more})


IN_PARTS: dict[str, Any] = {"rounds": 4, "route": AllGather(), "fragments": 2}
LARGE = Delta(codec=Threshold(least=1e-4, scaled=True), result=Fp32(), residual=Feedback())
HELD = Delta(codec=Significance(least=0.005), result=Fp32(), residual=Hold())
LINES = Grad(codec=CacheLines(keep=0.1), result=Fp32(), residual=Feedback())
BY_CHANCE = replace(MOMENTUM, codec=CacheLines(keep=0.1, values=Stochastic(bits=4)))
RUNS: dict[str, Run] = {
    "int8": local(Delta(codec=Int8())),
    "int8 held": local(Delta(codec=Int8(), residual=Hold())),
    "a part of signs held": local(Delta(codec=Sign(block=64), residual=Hold(decay=0.7)), rounds=4),
    "top-k fed back": local(FED_BACK, route=AllGather()),
    "fragments held": local(Delta(codec=Int8(), residual=Hold()), rounds=5, fragments=2),
    "signs of fragments held": local(Delta(codec=Sign(block=64), residual=Hold()), rounds=5, fragments=2),
    "turned signs held": local(Delta(codec=TurnedSign(block=64), residual=Hold()), rounds=4),
    "significance of fragments held": local(HELD, **IN_PARTS),
    "fragments": local(Delta(codec=E3m0()), rounds=4, fragments=2),
    "as they are": local(Delta(codec=Fp32())),
    "gradients as they are": each_step(Grad(codec=Fp32())),
    "gradients": each_step(Grad(codec=SPARSE, result=Fp32(), residual=Feedback())),
    "frequencies": momenta(replace(MOMENTUM, transform=Dct(tile=16))),
    "frequencies of fragments": local(replace(FED_BACK, transform=Dct(tile=12)), **IN_PARTS),
    "threshold fed back": local(LARGE, route=AllGather()),
    "significance held": local(HELD, route=AllGather()),
    "lines of gradients": each_step(LINES, rounds=4),
    "by chance": each_step(Grad(codec=Stochastic(bits=4))),
    "lines of frequencies by chance": momenta(replace(BY_CHANCE, transform=Dct(tile=16)), rounds=4),
    "large frequencies of fragments": local(
        replace(FED_BACK, codec=Threshold(least=1e-4), transform=Dct(tile=12)), **IN_PARTS
    ),
}


def on_device(run: Run) -> Engine:
    return build_engine(run, ToyData(), device="cpu", threads=1, encode=True)


def digest(run: Run, *, device: bool, faults: list[Fault]) -> str:
    return ends_on(run, device=device, faults=faults).digest()


def ends_on(run: Run, *, device: bool, faults: list[Fault]) -> Anchor:
    outcome = play(run, 2, build=on_device if device else engine_of, faults=faults)
    assert [host.lives for host in outcome.hosts] == [1, 1 + len(faults)]
    anchors = [anchor_of(host.disk) for host in outcome.hosts]
    assert {anchor.version for anchor in anchors} == {run.budget.rounds}
    assert len({anchor.digest() for anchor in anchors}) == 1
    return anchors[0]


QUICK = ("top-k fed back", "frequencies", "significance held", "signs of fragments held")


@pytest.fixture(
    params=[pytest.param(False, marks=pytest.mark.long, id="passing through"), pytest.param(True, id="kept there")]
)
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a device have room for what work began from and what was left out, or not."""
    monkeypatch.setattr(encoder, "_has_room", lambda device, size_bytes: request.param)


@pytest.mark.parametrize("name", few_of(RUNS, QUICK))
@pytest.mark.usefixtures("room")
def test_the_run_is_the_same_wherever_contributions_are_encoded(name: str) -> None:
    assert digest(RUNS[name], device=True, faults=[]) == digest(RUNS[name], device=False, faults=[])


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("name", few_of(QUICK, QUICK[:1]))
def test_what_is_left_out_survives_a_crash_as_on_the_processor(name: str) -> None:
    # In the second round, when its contribution is made and not committed.
    faults: list[Fault] = [Crash(at_s=0.24, peer=1, restart_after_s=0.1)]
    run = RUNS[name]
    assert digest(run, device=True, faults=faults) == digest(run, device=False, faults=faults)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("faults", [[], [Crash(at_s=0.24, peer=1, restart_after_s=0.1)]], ids=["calm", "crash"])
def test_matrices_become_factors_there_as_on_the_processor_but_for_the_last_bits(faults: list[Fault]) -> None:
    """What each multiplies is its own affair; what everybody makes of it is the same for both peers (`ends_on`)."""
    run = low_rank(SOME, Feedback(), outer=SGD, rounds=8, start_with=2)
    there, here = (ends_on(run, device=device, faults=faults) for device in (True, False))
    assert apart(there.weights, here.weights) < SAME
    assert there.basis is not None and here.basis is not None and apart(there.basis, here.basis) < 100 * SAME


def test_peers_with_a_device_and_without_one_come_to_the_same_anchor() -> None:
    """Of frequencies and of factors: results become values on a device at one, and on a processor at the other."""
    low = low_rank(SOME, Feedback(), outer=SGD, rounds=6, start_with=2)
    for run in (low, RUNS["frequencies"]):
        built: list[Engine] = []

        def one_of_each(run: Run, built: list[Engine] = built) -> Engine:
            built.append(engine_of(run) if built else on_device(run))
            return built[-1]

        outcome = play(run, 2, build=one_of_each)
        assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
        assert [engine.transforms() is None for engine in built] == [False, True]


def test_it_is_the_device_that_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both ways, of every round: 3 of frequencies, and 2 that are one step of factors, at each of two peers."""
    done: Counter[str] = Counter()

    def counted(name: str, form: Callable[..., object], *given: object) -> object:
        done[name] += 1
        return form(*given)

    forms = [(cosines, ("frequencies", "values")), (products, ("directions", "along", "subtract", "orthonormal"))]
    for module, names in (*forms, (products, ("unit_columns",))):
        for name in names:
            monkeypatch.setattr(module, name, partial(counted, name, getattr(module, name)))
    digest(RUNS["frequencies"], device=True, faults=[])
    assert done == {"frequencies": 6, "values": 6}
    done.clear()
    digest(low_rank(SOME, Feedback(), outer=SGD, rounds=2, start_with=2), device=True, faults=[])
    assert done == {"directions": 2, "along": 2, "subtract": 2, "orthonormal": 2, "unit_columns": 2}


# over each link by itself


OVER_LINKS = {
    "as they are": MaxN(least=0.5),
    "halves": MaxN(least=0.5, values=Fp16()),
    "bounded": MaxN(least=30.0, most=95.0),
}
STEP_S, RATE_BYTES_S, SLOWER = 0.1, 1e5, 5
"""How long three peers' steps take, and how fast the lines of two of them are; the third's is slower."""
Left = tuple[list[dict[str, bytes]], list[dict[str, float]]]
"""What runs leave on everybody's disk, and which parts went over links."""


def over_links(codec: MaxN, *, device: bool, faults: list[Fault], rounds: int = 5) -> Left:
    """Return what becomes of gradients that go over links of different room."""
    what = Grad(codec=codec, residual=Feedback(decay=0.9), result=Fp32())
    run = mesh(what, outer=Sgd(lr=0.3), rounds=rounds, start_with=3)
    flop_s = engine_of(run).cost(BATCH).flop / STEP_S
    fleet = [replace(each, device=Device(flop_s=flop_s)) for each in machines(3, rate_bytes_s=RATE_BYTES_S)]
    fleet[2] = replace(fleet[2], up_bytes_s=RATE_BYTES_S / SLOWER, down_bytes_s=RATE_BYTES_S / SLOWER)
    build = on_device if device else engine_of
    outcome = simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, seed=1, build=build, faults=faults))
    assert [host.lives for host in outcome.hosts] == [1, 1 + len(faults), 1]
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {rounds}
    kept = ("checkpoint/", "private/")
    disks = [
        {path: data for path, data in host.disk.files().items() if path.startswith(kept)} for host in outcome.hosts
    ]
    return disks, [event.parts for event in events(outcome, LinksFilled)]


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("name", few_of(OVER_LINKS, ("halves",)))
def test_links_of_different_room_get_the_same_and_leave_the_same_wherever_it_is_made(name: str) -> None:
    disks, parts = over_links(OVER_LINKS[name], device=True, faults=[])
    assert (disks, parts) == over_links(OVER_LINKS[name], device=False, faults=[])
    later = [part for each in parts[6:] for part in each.values()]
    assert min(later) < 0.5 < max(later), "links differ"
    assert all(any(b"link " in data for path, data in disk.items() if "private/" in path) for disk in disks)


@pytest.mark.usefixtures("room")
def test_what_is_left_out_on_links_survives_a_crash_as_on_the_processor() -> None:
    faults: list[Fault] = [Crash(at_s=3.4, peer=1, restart_after_s=0.1)]
    there, here = (over_links(MaxN(least=0.5), device=device, faults=faults) for device in (True, False))
    assert there == here


def test_it_is_the_device_that_looks_for_what_a_link_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rounds of work, at each of three peers for two links."""
    searched: list[Near] = []

    def counted(codec: MaxN, near: Near, unit: Sequence[Ends], bad: Tensor) -> Least:
        searched.append(near)
        return least_of(codec, near, unit, bad)

    monkeypatch.setattr(peaks, "least_of", counted)
    over_links(MaxN(least=0.5), device=True, faults=[], rounds=3)
    assert len(searched) == 2 * 3 * 2
    assert {near.keep is None for near in searched[:6]} == {True}, "nothing is known of links at first"
    assert {near.keep is None for near in searched[6:]} == {False}
    over_links(MaxN(least=0.5), device=False, faults=[], rounds=3)
    assert len(searched) == 2 * 3 * 2


def test_only_a_device_is_asked() -> None:
    run = RUNS["int8"]
    assert on_device(run).encoder(Fp32()) is not None
    assert engine_of(run).transforms() is None
    assert engine_of(run).encoder(Int8()) is None, "on a processor nothing is gained"
