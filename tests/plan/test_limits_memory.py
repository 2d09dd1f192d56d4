"""Memory: what fits where, what cutting a model over peers asks of their lines, and optimizers really run."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.cost.churn import pipeline_availability
from atoll.plan.cost.memory import PRECISIONS, stages_needed
from atoll.plan.cost.pipeline.closed import boundary_rate_bytes_s, overlapped_s
from atoll.plan.limits import adam, cost, tandem
from atoll.plan.limits import memory as m
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import Scenario, with_value

CARD = 165.2e12 * 0.35


@pytest.mark.parametrize(
    ("gigabytes", "billions"),
    [
        (8, (0.39, 0.62, 0.78, 1.03)), (12, (0.61, 0.98, 1.23, 1.63)), (16, (0.84, 1.34, 1.68, 2.23)),
        (24, (1.29, 2.06, 2.58, 3.43)), (32, (1.74, 2.78, 3.48, 4.63)), (80, (4.4, 7.1, 8.9, 11.8)),
    ],
)  # fmt: skip
def test_a_memory_trains_so_many_parameters_alone(gigabytes: float, billions: tuple[float, ...]) -> None:
    """Our own derivation, worked out beforehand."""
    found = [float(m.most_parameters(gigabytes * 1e9, form)) / 1e9 for form in (16, 10, 8, 6)]
    assert found == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize(
    ("parameters", "hidden", "cards", "servers", "mbit", "on_cable"),
    [(7e9, 4096, 6, 2, 541, 0.037), (70e9, 8192, 59, 18, 1065, 0.019), (405e9, 16384, 338, 102, 2110, 0.0095)],
)
def test_larger_models_need_so_many_peers_in_line_and_such_lines(
    parameters: float, hidden: int, cards: int, servers: int, mbit: float, on_cable: float
) -> None:
    """What was derived beforehand is of one direction; a stage's uplink has both to carry."""
    assert int(stages_needed(parameters, 24e9)) == cards
    assert int(stages_needed(parameters, 80e9)) == servers
    each_way = 8 * float(boundary_rate_bytes_s(CARD, cards, parameters, hidden))
    assert each_way / 1e6 == pytest.approx(mbit, rel=0.01)
    assert 20e6 / each_way == pytest.approx(on_cable, rel=0.03)
    assert 8 * float(tandem.uplink_needed_bytes_s(CARD, parameters, cards, hidden)) == pytest.approx(2 * each_way)


def test_of_two_stages_each_sends_one_way_and_of_one_nothing_is_sent() -> None:
    sent = [float(tandem.uplink_bytes(1000, 64, stages)) for stages in (1, 2, 3, 50)]
    assert sent == [0, 128_000, 256_000, 256_000]


def test_adapters_alone_fit_far_larger_models() -> None:
    found = [float(m.most_parameters(size * 1e9, m.ADAPTERS[1])) / 1e9 for size in (8, 12, 16, 24, 32, 80)]
    assert found == pytest.approx([8.9, 14, 19, 29, 40, 101], rel=0.025)


def test_a_long_pipeline_is_seldom_there_as_a_whole() -> None:
    for stages, expected in ((59, 0.55), (338, 0.033)):
        assert float(pipeline_availability(0.99, stages)) == pytest.approx(expected, abs=0.005)
    rng = np.random.default_rng(4)
    assert m.there_run(0.99, 59, rng) == pytest.approx(0.55, abs=0.02)
    assert m.there_run(0.6, 2, rng) == pytest.approx(0.36, abs=0.02)


@pytest.mark.parametrize(
    ("eight_bits", "form"), [pytest.param(False, "mixed adam", marks=pytest.mark.long), (True, "8-bit adam")]
)
def test_an_optimizer_really_run_learns_and_keeps_so_many_bytes_a_parameter(eight_bits: bool, form: str) -> None:
    held = adam.train(eight_bits=eight_bits)
    assert held.last_loss < 0.01 * held.first_loss
    assert held.bytes_each == pytest.approx(PRECISIONS[form].total, rel=0.02)


@pytest.mark.parametrize(
    ("stages", "compute_s", "hop_s"),
    [(12, 1.0, 0.1), (12, 1.0, 0.45), (12, 1.0, 0.55), (12, 1.0, 20.0), (2, 1.0, 0.7), (2, 1.0, 1.4), (3, 1.0, 0.5)],
)
def test_a_pipeline_played_keeps_the_pace_of_its_devices_or_its_lines(
    stages: int, compute_s: float, hop_s: float
) -> None:
    line_s = hop_s * float(tandem.directions(stages))
    played = tandem.play_s(stages, compute_s, hop_s, 200)
    assert played == pytest.approx(overlapped_s([compute_s] * stages, [line_s] * stages, 200), rel=0.015)


def test_a_delay_makes_the_way_longer_and_the_pace_no_slower() -> None:
    def pace(latency_s: float) -> float:
        return tandem.play_s(6, 1.0, 0.2, 300, latency_s) - tandem.play_s(6, 1.0, 0.2, 200, latency_s)

    assert pace(5.0) == pytest.approx(pace(0.0), rel=0.01)
    assert tandem.play_s(6, 1.0, 0.2, 1, 5.0) - tandem.play_s(6, 1.0, 0.2, 1) == pytest.approx(2 * 5 * 5.0)


def neighbours() -> Scenario:
    """Return 24 peers near each other of which six hold the model together."""
    s = load_scenario("homes")
    changes = {"peers.count": 24.0, "peers.device_memory_gb": 24.0, "peers.up_share": 0.98, "line.cap_gb_month": 0.0}
    for path, value in changes.items() | {"line.up_mbit": 5000.0, "line.down_mbit": 5000.0}.items():
        s = with_value(s, path, value)
    return s


def test_what_no_peer_holds_is_cut_into_pipelines_and_those_are_what_it_costs() -> None:
    s = neighbours()
    crew = m.crew(s)
    assert (int(crew.stages), int(crew.copies)) == (6, 4)
    assert m.judge(s).verdict == "binds"
    slow = with_value(with_value(s, "line.up_mbit", 10.0), "line.down_mbit", 10.0)
    assert m.judge(slow).verdict == "wall"
    assert float(cost.bill(slow).days) > 5 * float(cost.bill(s).days)
    alone = with_value(with_value(slow, "peers.device_memory_gb", 80.0), "model.training_bytes", 10.0)
    assert int(m.crew(alone).stages) == 1
    assert float(cost.losses(alone)["memory"]) == 1.0


def test_what_fits_in_a_smaller_form_is_not_cut() -> None:
    s = with_value(load_scenario("homes"), "model.parameters", 1.5e9)
    assert m.judge(s).verdict == "binds"
    assert int(m.crew(s).stages) == 1


def test_a_model_that_all_peers_together_do_not_hold_is_never_trained() -> None:
    s = with_value(load_scenario("homes"), "peers.count", 6.0)
    assert m.judge(s).verdict == "wall"
    assert "12 peers would hold it together, there are 6" in m.judge(s).binds
    assert float(cost.bill(s).days) == float("inf")
