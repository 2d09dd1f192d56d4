"""What the tables say of egress, failures and saves, and of lines that a fleet file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll.facts.book import load_facts
from atoll.plan.cost.told import notes
from atoll.plan.money.bill import bill
from atoll.plan.money.inputs import failures_hour, keeping, tariffs
from atoll.spec.fleet import Churn, Device, Fleet, Machine, expand, load_fleet
from atoll.spec.terms import Owned, Rented

ONE = Machine(
    name="one",
    region="here",
    device=Device(flop_s=1e14),
    up_bytes_s=1e6,
    down_bytes_s=1e6,
    disk_bytes=10**9,
)
SPOT = Rented(usd_hour=1.0, market="spot")


def test_traffic_is_priced_by_where_it_comes_from_and_a_home_sends_for_nothing() -> None:
    traffic_gb = {("aws:ap-northeast-1", "flat"): 10.0, ("flat", "aws:ap-northeast-1"): 10.0}
    paid = bill([], traffic_gb=traffic_gb, tariffs=tariffs(traffic_gb, load_facts()))
    assert [part.usd for part in paid.parts] == pytest.approx([1.14, 0.0])
    between = tariffs([("aws:ap-northeast-1", "aws:us-east-1"), ("aws:us-east-1", "aws:ap-northeast-1")], load_facts())
    assert [each.usd_gb for each in between] == [0.09, 0.02]


@pytest.mark.parametrize(
    ("machine", "row"),
    [
        (replace(ONE, gpu="V100 SXM2 16GB", terms=SPOT), ("spot", "any / V100 SXM2 16GB / 1 / 1")),
        (replace(ONE, gpu="H100 SXM5", terms=SPOT), ("failures", "spot")),
        (replace(ONE, terms=SPOT), ("failures", "spot")),
        (replace(ONE, gpu="H100 SXM5", terms=Owned(usd_kwh=0.1)), ("failures", "datacenter")),
        (replace(ONE, gpu="RTX 4090", terms=Rented(usd_hour=0.4)), ("failures", "datacenter")),
        (replace(ONE, gpu="RTX 4090"), ("failures", "volunteer")),
        (ONE, ("failures", "volunteer")),
    ],
)
def test_a_machine_fails_as_others_like_it_do_and_the_book_remembers_which(
    machine: Machine, row: tuple[str, str]
) -> None:
    facts = load_facts()
    low, middle, high = failures_hour(machine, facts)
    assert 0 < low < middle < high
    assert [key for key in facts.used if key[0] in ("spot", "failures")] == [row]


def test_a_machine_that_says_how_it_comes_and_goes_is_taken_at_its_word() -> None:
    facts = load_facts()
    rates = failures_hour(replace(ONE, terms=SPOT, availability=Churn(up_s=7200, down_s=60)), facts)
    assert rates == (0.5, 0.5, 0.5) and not facts.used


def test_more_machines_and_shorter_lives_want_saves_more_often() -> None:
    cards = [replace(ONE, name=str(number), gpu="V100 SXM2 16GB", terms=SPOT) for number in range(8)]
    seldom, middle, often = keeping(cards, load_facts(), save_s=10.0)
    assert seldom.best_s > middle.best_s > often.best_s and seldom.best_lost < middle.best_lost < often.best_lost
    assert keeping(cards[:2], load_facts(), save_s=10.0)[1].best_s == pytest.approx(2 * middle.best_s, rel=0.03)


def test_llama_3s_fleet_is_stopped_every_three_hours() -> None:
    fleet = [replace(ONE, gpu="H100 SXM5", terms=Rented(usd_hour=2.0))] * 16384
    _, middle, _ = keeping(fleet, load_facts(), save_s=30.0)
    assert middle.young_s / 60 == pytest.approx(13.6, abs=0.1)


FLEET = """
name = "two"
[defaults]
up = "4 Gbit"
down = "4 Gbit"
device = { flops = "100 TFLOP" }
[[machine]]
name = "virginia"
region = "aws:us-east-1"
[[machine]]
name = "ireland"
region = "aws:eu-west-1"
[[machine]]
name = "flat"
device = { gpu = "RTX 4090" }
up = "500 Mbit"
[[link]]
between = ["aws:us-east-1", "aws:eu-west-1"]
latency = "36 ms"
"""


def _fleet(folder: Path, text: str) -> tuple[Fleet, list[Machine]]:
    (folder / "two.toml").write_text(text)
    fleet = load_fleet(folder / "two.toml")
    return fleet, expand(fleet)


def test_lines_like_those_that_are_known_need_no_note(tmp_path: Path) -> None:
    assert notes(*_fleet(tmp_path, FLEET), load_facts()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"36 ms"', '"5 ms"', "aws:eu-west-1 to aws:us-east-1: 5 ms one way"),
        ('"36 ms"', '"36 s"', "3.6e+04 ms one way"),
        ('up = "4 Gbit"', 'up = "40 Gbit"', "5.0 GB/s up, 64 streams carried"),
        ('"500 Mbit"', '"5 Gbit"', "flat: 625.0 MB/s up from a home; the fastest known (fibre 1000)"),
    ],
)
def test_lines_that_nobody_has_seen_get_one(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = notes(*_fleet(tmp_path, FLEET.replace(old, new)), load_facts())
    assert found and any(said in each for each in found), found
