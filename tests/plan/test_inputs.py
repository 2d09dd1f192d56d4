"""What the tables say of a machine's energy and carbon, and of one that says little."""

from __future__ import annotations

import pytest

from atoll.facts.book import load_facts
from atoll.facts.rows import Gpu
from atoll.plan.carbon.energy import machines_drawn
from atoll.plan.carbon.inputs import inputs_of
from atoll.spec.fleet import Device, Machine
from atoll.spec.terms import Rented


def _machine(flop_s: float, *, region: str = "here", terms: Rented | None = None, **said: str) -> Machine:
    return Machine(
        name="one",
        region=region,
        device=Device(flop_s=flop_s),
        up_bytes_s=1e6,
        down_bytes_s=1e6,
        disk_bytes=10**9,
        gpu=said.get("gpu", ""),
        grid=said.get("grid", ""),
        site=said.get("site", ""),
        terms=terms,
    )


def test_a_machine_that_says_everything_is_taken_at_its_word() -> None:
    facts = load_facts()
    found = inputs_of(_machine(989e12, gpu="H100 SXM5", grid="FR", site="aws"), facts)
    assert (found.most_w, found.host_w, found.pue) == ((700,) * 3, (400, 575, 650), (1.04, 1.15, 1.15))
    assert found.carbon_g_kwh == (20.3, 34.5, 58.7)
    assert found.made_g[1] == pytest.approx(14652 + 103500)
    assert {row.table for row in found.rows} == {"gpus", "hosts", "embodied", "sites", "grids"}
    assert all((row.table, row.key) in facts.used for row in found.rows)


def test_a_machine_that_says_nothing_is_like_others_of_its_speed_somewhere_in_the_world() -> None:
    found = inputs_of(_machine(160e12), load_facts())
    gpu, host, _, site, grid = found.rows
    assert (gpu.key, host.key, site.key, grid.key) == ("RTX 4090", "consumer", "home", "WORLD")
    assert found.most_w == (450, 450, 450)


def test_a_machine_in_a_cloud_region_has_the_grid_of_that_region() -> None:
    assert inputs_of(_machine(1e15, region="aws:eu-north-1"), load_facts()).rows[-1].key == "SE-SE3"


@pytest.mark.parametrize(
    ("machine", "site"),
    [
        (_machine(1e15, region="gcp:europe-west1"), "google"),
        (_machine(1e15, region="AWS:eu-north-1"), "aws"),
        (_machine(1e15, terms=Rented(usd_hour=1.0, operator="azure")), "microsoft"),
        (_machine(1e15, region="aws:eu-north-1", terms=Rented(usd_hour=1.0, operator="oci")), "oracle"),
        (_machine(1e15, region="aws:eu-north-1", terms=Rented(usd_hour=1.0, operator="lambda")), "aws"),
        (_machine(1e15, region="aws:eu-north-1", site="lab"), "lab"),
        (_machine(160e12, terms=Rented(usd_hour=0.4, operator="vast")), "industry"),
        (_machine(160e12, region="a:b"), "home"),
    ],
)
def test_the_building_is_that_of_who_rents_it_out_or_whose_region_it_is_in(machine: Machine, site: str) -> None:
    assert inputs_of(machine, load_facts()).rows[3].key == site


def test_the_computer_around_a_small_card_is_no_server_of_eight_large_ones() -> None:
    facts = load_facts()
    for gpu in facts.rows(Gpu):
        host = facts.host(gpu)
        assert gpu.power_w is None or host.power_w <= 2.5 * gpu.power_w, gpu.name
    assert facts.host(facts.gpu("T4")).power_w == 100 < facts.host(facts.gpu("H100")).power_w == 575


def test_a_gpu_whose_power_nobody_publishes_draws_what_one_of_its_speed_does() -> None:
    found = inputs_of(_machine(918e12, gpu="TPU v6e"), load_facts())
    assert found.most_w[1] == 700 and found.rows[0].key == "H100 SXM5"


def test_what_is_known_goes_straight_into_what_is_drawn() -> None:
    found = inputs_of(_machine(165.2e12, gpu="RTX 4090", grid="PL", site="home"), load_facts())
    low, middle, high = (
        machines_drawn(
            count=1,
            most_w=found.most_w[end],
            busy=1.0,
            host_w=found.host_w[end],
            pue=found.pue[end],
            hours=24.0,
            carbon_g_kwh=found.carbon_g_kwh[end],
            made_g=found.made_g[end],
        ).carbon_g
        for end in range(3)
    )
    assert low < middle < high
    assert middle == pytest.approx(0.55 * 24 * 672.9 + (10962 + 32270) * 24 / 43800, rel=1e-3)
