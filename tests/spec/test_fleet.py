"""Fleet files: machines, links and what is said when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.spec.fleet import Always, Churn, Processor, expand, fleet_names, latency_s, link, load_fleet, schema

FLEET = """
name = "two"

[defaults]
up = "20 Mbit"
down = "250 Mbit"
device = { flops = "10 TFLOP", efficiency = 0.5 }

[[machine]]
name = "home"
count = 3
region = "eu"
availability = { kind = "churn", up = "6 h", down = "30 min" }

[[machine]]
name = "lab"
region = "us"
up = "1 Gbit"
device = { flops = "1 PFLOP", memory = "80 GB" }

[links]
latency_within = "2 ms"

[[link]]
between = ["eu", "us"]
latency = "40 ms"
loss = 0.001
"""


def test_quantities_become_plain_numbers_and_defaults_fill_the_gaps(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    home, _, _, lab = expand(load_fleet(tmp_path / "fleet.toml"))
    assert (home.name, home.region, home.up_bytes_s, home.down_bytes_s) == ("home-0", "eu", 2.5e6, 31.25e6)
    assert home.device.flop_s == 10e12
    assert home.availability == Churn(up_s=21600.0, down_s=1800.0)
    assert (lab.name, lab.up_bytes_s, lab.availability) == ("lab", 125e6, Always())
    assert (lab.device.flop_s, lab.device.efficiency, lab.device.memory_bytes) == (1e15, 0.5, 80 * 10**9)


def test_a_processor_is_said_only_where_cores_may_bind(tmp_path: Path) -> None:
    said = 'processor = { cores = 2, links = "tls", send_s_gbit = 0.5, passes = "3 GB", computer = "one" }'
    (tmp_path / "fleet.toml").write_text(FLEET.replace('name = "lab"', f'name = "lab"\n{said}'))
    home, _, _, lab = expand(load_fleet(tmp_path / "fleet.toml"))
    assert home.processor is None
    assert lab.processor == Processor(cores=2.0, links="tls", send_s_gbit=0.5, pass_bytes_s=3e9, computer="one")


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("{ cores = 0 }", "cores: 0.0 is out of range"),
        ("{ cores = 2, receive_s_gbit = -1 }", "receive_s_gbit: -1.0 is out of range"),
        ('{ cores = 2, passes = "0 GB" }', "passes: 0 is out of range"),
        ('{ cores = 2, links = "quic" }', "links"),
    ],
)
def test_an_impossible_processor_is_refused_with_its_place(tmp_path: Path, said: str, what: str) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace('name = "lab"', f'name = "lab"\nprocessor = {said}'))
    with pytest.raises(SpecError) as refused:
        load_fleet(tmp_path / "fleet.toml")
    assert "processor" in str(refused.value) and what in str(refused.value)


def test_a_group_expands_to_numbered_machines(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    assert [m.name for m in expand(load_fleet(str(tmp_path / "fleet.toml")))] == ["home-0", "home-1", "home-2", "lab"]


def test_latency_is_the_same_in_both_directions_and_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    fleet = load_fleet(tmp_path / "fleet.toml")
    assert latency_s(fleet, "eu", "us") == latency_s(fleet, "us", "eu") == 0.04
    assert latency_s(fleet, "eu", "eu") == 0.002
    assert latency_s(fleet, "eu", "mars") == 0.04
    assert link(fleet, "us", "eu").loss == 0.001


@pytest.mark.parametrize("name", fleet_names())
def test_every_shipped_fleet_loads_by_name(name: str) -> None:
    fleet = load_fleet(name)
    assert fleet.name == name
    assert fleet.about
    assert expand(fleet)


@pytest.mark.parametrize("name", fleet_names())
def test_the_first_machine_of_a_shipped_fleet_can_organise_a_run(name: str) -> None:
    assert not expand(load_fleet(name))[0].nat, "everybody calls the organiser first"


def test_shipped_fleets_have_as_many_machines_as_they_say() -> None:
    counts = {name: len(expand(load_fleet(name))) for name in fleet_names()}
    assert counts == {"homes": 8, "lan": 4, "regions": 8, "spot": 8, "town": 16, "volunteers": 64}


def test_between_regions_one_connection_carries_what_one_stream_was_measured_to() -> None:
    """By the formula of Mathis et al. with packets of 1,400 bytes: the comment of the file, done again."""
    fleet = load_fleet("regions")
    measured_gbit = {("us", "eu"): 0.21, ("us", "asia"): 0.13, ("us", "australia"): 0.12}
    measured_gbit |= {("eu", "asia"): 0.08, ("eu", "australia"): 0.07, ("asia", "australia"): 0.16}
    for (one, other), gbit in measured_gbit.items():
        between = link(fleet, one, other)
        carried_bytes_s = 1.22 * 1400 / (2 * between.latency_s * between.loss**0.5)
        assert carried_bytes_s * 8 / 1e9 == pytest.approx(gbit, rel=0.03)


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        ('up = "20 Mbit"', 'up = "20 Mbits"', "fleet.toml: defaults.up: '20 Mbits' is not a rate", '"100 Mbit"'),
        ('"40 ms"', '"40 parsecs"', "fleet.toml: link[0].latency: '40 parsecs' is not a time", "write a number"),
        ('"10 TFLOP"', '"10 horses"', "fleet.toml: defaults.device.flops: '10 horses' is not a speed", "10 TFLOP"),
        ("count = 3", "cuont = 3", "fleet.toml: machine[0]: unknown key 'cuont'", "did you mean 'count'?"),
        ("count = 3", "count = 0", "fleet.toml: machine[0].count: 0 is out of range", "at least 1"),
        ("0.5", "1.5", "fleet.toml: defaults.device.efficiency: 1.5 is out of range", "at most 1"),
        ('"us"]', '"uk"]', "fleet.toml: link[0].between[1]: no machine is in region 'uk'", "regions here: eu, us"),
        ("loss = 0.001", "loss = 1.0", "fleet.toml: link[0].loss: 1.0 is out of range", "less than 1"),
        ('name = "lab"', 'name = "home"', "fleet.toml: machine[0].name: 'home' is used twice", "name each group once"),
        ("[defaults]", "[defaults]\nspeed = 1", "fleet.toml: defaults: unknown key 'speed'", "known keys: device"),
        (
            '"churn"',
            '"chrun"',
            'fleet.toml: machine[0].availability.kind: unknown kind "chrun"',
            "did you mean 'churn'?",
        ),
        ('name = "lab"', "", "fleet.toml: machine[1]: missing key 'name'", 'name = "..."'),
    ],
)
def test_a_mistake_in_a_fleet_is_named_by_key_path(tmp_path: Path, old: str, new: str, what: str, hint: str) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_fleet(tmp_path / "fleet.toml")
    assert caught.value.what.replace(f"{tmp_path}/", "").startswith(what)
    assert hint in caught.value.hint


def test_an_unknown_fleet_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="no fleet is called 'home'") as caught:
        load_fleet("home")
    assert "did you mean 'homes'?" in caught.value.hint


def test_the_schema_of_a_fleet_lets_defaults_carry_a_machines_keys() -> None:
    described = schema()
    assert "up" in described["properties"]["defaults"]["properties"]
    assert described["$defs"]["Machine"]["required"] == ["name"]
