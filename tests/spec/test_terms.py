"""What a fleet file says for planning alone: named GPUs, where machines stand, and on which terms."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from atoll.errors import SpecError
from atoll.facts.book import load_facts
from atoll.plan.knowledge import knowledge_of
from atoll.spec.fleet import Machine, expand, load_fleet, played, schema
from atoll.spec.terms import Owned, Rented

FLEET = """
name = "two"

[defaults]
up = "20 Mbit"
down = "250 Mbit"
device = { flops = "10 TFLOP", efficiency = 0.5 }

[[machine]]
name = "box"
device = { gpu = "rtx-4090" }
grid = "FR"
site = "home"
terms = { kind = "owned", electricity = "0.30 usd/kWh", price_usd = 1599, years = 4 }

[[machine]]
name = "card"
device = { gpu = "H100", efficiency = 0.45, memory = "70 GB", power = "500 W" }
grid = "aws:eu-north-1"
terms = { kind = "rented", provider = "aws", market = "spot" }

[[machine]]
name = "old"
terms = { kind = "rented", usd_hour = 0.4 }
"""


def _fleet(folder: Path, text: str = FLEET) -> list[Machine]:
    (folder / "fleet.toml").write_text(text)
    return expand(load_fleet(folder / "fleet.toml"))


def test_a_named_gpu_brings_speed_memory_power_and_efficiency_from_the_table(tmp_path: Path) -> None:
    box, card, old = _fleet(tmp_path)
    assert (box.gpu, box.power_w, box.grid, box.site) == ("RTX 4090", 450.0, "FR", "home")
    assert (box.device.flop_s, box.device.memory_bytes, box.device.efficiency) == (165.2e12, 24 * 10**9, 0.35)
    assert (card.gpu, card.device.flop_s, card.grid) == ("H100 SXM5", 989e12, "SE-SE3")
    assert (card.device.efficiency, card.device.memory_bytes, card.power_w) == (0.45, 70 * 10**9, 500.0)
    assert (old.gpu, old.power_w, old.device.flop_s, old.device.efficiency) == ("", None, 10e12, 0.5)


def test_terms_are_owned_or_rented_at_a_said_or_at_a_listed_price(tmp_path: Path) -> None:
    box, card, old = _fleet(tmp_path)
    assert box.terms == Owned(usd_kwh=0.30, price_usd=1599, years=4)
    listed = load_facts().price("aws", "H100", "spot").usd_hour
    assert card.terms == Rented(usd_hour=listed, provider="aws", market="spot", operator="aws")
    assert old.terms == Rented(usd_hour=0.4)


def test_a_price_that_the_file_says_is_the_price_whoever_rents_the_machine_out(tmp_path: Path) -> None:
    said = FLEET.replace('provider = "aws", market = "spot"', 'usd_hour = 1.25, provider = "aws", market = "spot"')
    _, card, _ = _fleet(tmp_path, said)
    assert card.terms == Rented(usd_hour=1.25, market="spot", operator="aws"), "no list is asked for it any more"
    assert knowledge_of([card], load_facts())["rent"].middle.tolist() == [1.25]
    unlisted = said.replace('provider = "aws"', 'provider = "somebody"')
    assert _fleet(tmp_path, unlisted)[1].terms == Rented(usd_hour=1.25, market="spot", operator="somebody")


def test_electricity_may_be_a_row_of_the_table(tmp_path: Path) -> None:
    box, *_ = _fleet(tmp_path, FLEET.replace('"0.30 usd/kWh"', '"germany residential"'))
    assert box.terms == Owned(usd_kwh=0.39, electricity="germany residential", price_usd=1599, years=4)


def test_a_users_facts_decide_what_names_mean_and_remember_being_asked(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("provider,gpu,market,usd_hour\naws,H100,spot,1.5\n")
    (tmp_path / "fleet.toml").write_text(FLEET)
    facts = load_facts(tmp_path / "prices.csv")
    assert expand(load_fleet(tmp_path / "fleet.toml", facts))[1].terms == Rented(
        usd_hour=1.5, provider="aws", market="spot", operator="aws"
    )
    assert {("gpus", "RTX 4090"), ("prices", "aws / H100 SXM5 / spot"), ("grids", "FR")} <= set(facts.used)


def test_what_is_said_for_planning_changes_nothing_that_is_played(tmp_path: Path) -> None:
    lines = [line for line in FLEET.splitlines() if not line.startswith(("grid", "site", "terms"))]
    box, silent = _fleet(tmp_path)[0], _fleet(tmp_path, "\n".join(lines))[0]
    assert box != silent
    assert played(box) == played(silent)
    fields = (
        "name",
        "region",
        "device",
        "up_bytes_s",
        "down_bytes_s",
        "disk_bytes",
        "nat",
        "availability",
        "processor",
    )
    assert tuple(msgspec.to_builtins(played(box))) == fields, "kept trials are found by these bytes"


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        ('"rtx-4090"', '"rtx 4900"', "machine[0].device.gpu: 'rtx 4900' is not in the table of gpus", "'RTX 4090'"),
        ('"FR"', '"XY"', "machine[0].grid: 'XY' is not in the table of grids", "grids.csv"),
        ('"home"', '"hmoe"', "machine[0].site: 'hmoe' is not in the table of sites", "'home'"),
        ("0.30 usd/kWh", "0.30 eur", "machine[0].terms.electricity: '0.30 eur' is not a price", "usd/kWh"),
        ("0.30 usd/kWh", "1e999 usd/kWh", "machine[0].terms.electricity: '1e999 usd/kWh' is out of range", "0.30"),
        (
            "0.30 usd/kWh",
            "nan usd/kWh",
            "machine[0].terms.electricity: 'nan usd/kWh' is not a quantity",
            "0.30 usd/kWh",
        ),
        ("years = 4", "years = 0", "machine[0].terms.years: 0.0 is out of range", "above 0"),
        ("price_usd = 1599", "price_usd = -1", "machine[0].terms.price_usd: -1.0 is out of range", "at least 0"),
        ('"owned"', '"leased"', 'machine[0].terms.kind: unknown kind "leased"', '"owned", "rented"'),
        ('"aws", market', '"lambda", market', "machine[1].terms.provider: no price of 'lambda'", "known: "),
        ('"spot"', '"spots"', 'machine[1].terms.market: unknown choice "spots"', "'spot'"),
        ('"500 W"', '"500 V"', "machine[1].device.power: '500 V' is not a power", '"450 W"'),
        ("usd_hour = 0.4", 'provider = "aws"', "machine[2].terms.provider: the price of a machine", "device.gpu"),
        (", usd_hour = 0.4", "", "machine[2].terms.usd_hour: no price is said", "usd_hour = 0.4"),
        ('flops = "10 TFLOP", ', "", "machine[2].device.flops: nothing is said", 'gpu = "RTX 4090"'),
    ],
)
def test_a_mistake_is_named_with_its_place_and_how_to_put_it_right(
    tmp_path: Path, old: str, new: str, what: str, hint: str
) -> None:
    assert old in FLEET
    with pytest.raises(SpecError) as caught:
        _fleet(tmp_path, FLEET.replace(old, new, 1))
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_the_schema_of_a_fleet_knows_the_terms() -> None:
    described = schema()["$defs"]
    assert {"Owned", "Rented"} <= set(described)
    assert {"grid", "site", "terms"} <= set(described["Machine"]["properties"])
    assert "gpu" in described["Device"]["properties"]
