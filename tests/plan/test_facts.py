"""The shipped tables, looking things up in them, and laying a user's file over them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.facts.book import GROWS, Facts, load_facts
from atoll.facts.read import plain, shipped
from atoll.facts.rows import (
    KINDS,
    Day,
    Efficiency,
    Gpu,
    Grid,
    Home,
    Line,
    Price,
    Region,
    Row,
    Spot,
    age_days,
    spread,
)
from atoll.facts.say import say_rows, say_used

TODAY = date(2026, 11, 17)
BASES = {"list", "vendor", "measured", "published", "computed", "mapping", "estimate"}
FACTS = load_facts()


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_row_has_a_name_of_its_own_a_source_a_date_and_a_basis(kind: type[Row]) -> None:
    rows = FACTS.rows(kind)
    assert len(rows) == len(shipped(kind)) > 0, "two rows have the same name"
    for row in rows:
        assert row.source and row.basis in BASES, row
        assert 0 < (age_days(row, TODAY) or 0) < 20 * 365, row
        assert row.basis != "estimate" or "estimate" in row.source or "hosts may" in row.source, row


def test_the_names_that_rows_use_of_each_other_are_there() -> None:
    for gpu in FACTS.rows(Gpu):
        assert FACTS.efficiency(gpu).mfu and FACTS.host(gpu).power_w and FACTS.made(gpu).carbon_g > 5000
    for price in FACTS.rows(Price):
        assert FACTS.gpu(price.gpu).name == price.gpu and price.market in ("on_demand", "spot")
    for spot in FACTS.rows(Spot):
        assert FACTS.gpu(spot.gpu).name == spot.gpu and 0 < spot.up_part < 1
    for region in FACTS.rows(Region):
        assert FACTS.find(Grid, region.grid)
    for grid in FACTS.rows(Grid):
        assert len(FACTS.day(grid.day)) == 24
    for line in FACTS.rows(Line):
        assert FACTS.find(Region, line.origin) and FACTS.find(Region, line.destination)


def test_every_gpu_is_there_with_the_speed_that_training_sees() -> None:
    assert len(FACTS.rows(Gpu)) == 84
    assert FACTS.gpu("RTX 4090").flop_s == 165.2e12, "half of the fp16 rate: sums are kept in fp32"
    assert FACTS.gpu("H100").flop_s == 989e12, "dense, not the sparse figure"
    assert 50 * FACTS.gpu("RTX 3080").flop_s == pytest.approx(4 * FACTS.gpu("H100 PCIe").flop_s, rel=0.02)


def test_a_gpu_without_a_row_of_its_own_was_made_like_any() -> None:
    assert FACTS.made(FACTS.gpu("H100")).carbon_g == pytest.approx(14652)
    assert FACTS.made(FACTS.gpu("RTX 2060")).component == "gpu"


def test_datacenter_failures_are_what_llama_3_counted() -> None:
    failure = FACTS.failure("datacenter")
    assert failure.rate_hour == pytest.approx(419 / (54 * 24 * 16384), rel=1e-3)
    assert 1 / (failure.rate_hour * 16384) == pytest.approx(3.09, rel=0.01), "hours between two of them"


def test_each_shape_of_a_day_has_24_hours_around_one() -> None:
    shapes = {row.shape for row in FACTS.rows(Day)}
    assert shapes == {"flat", "solar", "thermal"}
    for shape in shapes:
        assert sum(FACTS.day(shape)) == pytest.approx(24)
    assert max(FACTS.day("flat")) == min(FACTS.day("flat")) == 1


def test_the_lines_of_a_population_of_homes_add_up() -> None:
    assert sum(home.share or 0 for home in FACTS.rows(Home)) == pytest.approx(1)


@given(st.sampled_from([row.name for row in FACTS.rows(Gpu)]), st.randoms(use_true_random=False))
def test_a_name_is_known_however_it_is_spaced_dashed_and_capitalised(name: str, dice: random.Random) -> None:
    said = "".join(dice.choice((char.lower(), char.upper())) for char in name).replace(" ", dice.choice(("-", "_", "")))
    assert FACTS.gpu(said).name == name
    assert plain(said) == plain(name)


def test_a_gpu_answers_to_its_other_names_wherever_gpus_are_named() -> None:
    assert FACTS.gpu("H100") == FACTS.gpu("H100 SXM") == FACTS.gpu("h100-sxm5")
    assert FACTS.price("aws", "H100", "spot") == FACTS.price("AWS", "h100 sxm5", "Spot")
    assert FACTS.embodied("V100").carbon_g == pytest.approx(9780)
    assert FACTS.spot("V100", zone="aws:us-east-1a").up_part == 0.167


@pytest.mark.parametrize(
    ("ask", "what", "hint"),
    [
        (lambda facts: facts.gpu("RTX 4900"), "'RTX 4900' is not in the table of gpus", "'RTX 4090'"),
        (lambda facts: facts.grid("mars"), "'mars' is not in the table of grids", "grids.csv of your own"),
        (lambda facts: facts.price("lambda", "RTX 4090", "spot"), "no price of 'lambda'", "vast on_demand 0.3862"),
        (lambda facts: facts.price("aws", "RTX 2060", "spot"), "no price of 'aws'", "prices.csv"),
        (lambda facts: facts.egress("moon", "home"), "'moon / internet / any' is not in the table", "egress.csv"),
        (lambda facts: say_rows(facts, "gpu", TODAY), "no table is called 'gpu'", "'gpus'"),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest(
    ask: Callable[[Facts], object], what: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        ask(load_facts())
    assert what in caught.value.what and hint in caught.value.hint


@pytest.mark.parametrize(
    ("origin", "destination", "usd_gb"),
    [
        ("aws:us-east-1", "aws:us-east-1", 0.01),
        ("aws:us-east-1", "aws:eu-west-1", 0.02),
        ("aws:ap-northeast-1", "aws:us-east-1", 0.09),
        ("aws:us-east-1", "aws:ap-northeast-1", 0.02),
        ("aws:us-east-1", "gcp:us-central1", 0.09),
        ("aws:sa-east-1", "home", 0.15),
        ("gcp:us-central1", "gcp:us-west1", 0.01),
        ("gcp:us-central1", "gcp:europe-west4", 0.08),
        ("gcp:australia-southeast1", "gcp:us-west1", 0.15),
        ("gcp:us-west1", "gcp:australia-southeast1", 0.15),
        ("gcp:asia-southeast2", "gcp:us-west1", 0.15),
        ("aws:us-east-1", "aws:ap-southeast-2", 0.02),
        ("azure:eastus", "azure:westeurope", 0.05),
        ("azure:japaneast", "lambda", 0.12),
        ("lambda", "aws:us-east-1", 0.0),
        ("home", "home", 0.0),
    ],
)
def test_leaving_costs_by_where_the_bytes_come_from(origin: str, destination: str, usd_gb: float) -> None:
    assert load_facts().egress(origin, destination).usd_gb == usd_gb


def test_a_cloud_region_has_the_grid_of_where_it_is() -> None:
    assert FACTS.grid("aws:eu-west-3").code == "FR"
    assert FACTS.grid("gcp:us-central1").code == "gcp:us-central1", "what its operator publishes"
    assert FACTS.grid("PL").carbon_g_kwh > 15 * FACTS.grid("fr").carbon_g_kwh


def test_offers_come_cheapest_first() -> None:
    offers = FACTS.prices("H100", market="spot")
    assert [each.usd_hour for each in offers] == sorted(each.usd_hour for each in offers)
    assert {each.market for each in offers} == {"spot"} and len(offers) > 3


def test_what_was_asked_is_remembered_once_and_said_with_its_age() -> None:
    facts = load_facts()
    facts.gpu("h100")
    facts.gpu("H100 SXM5")
    facts.line("aws:us-east-1", "aws:eu-west-1")
    facts.rows(Price)
    assert list(facts.used) == [("gpus", "H100 SXM5"), ("links", "aws:us-east-1 / aws:eu-west-1")]
    head, oldest, newest = say_used(facts, TODAY)
    assert head.split() == ["table", "row", "value", "age", "basis", "source"]
    assert oldest.startswith("links") and "1477 d" in oldest and oldest.endswith("skyplane")
    assert newest.startswith("gpus") and "flop_s 9.89e+14" in newest and "87 d" in newest


def test_a_whole_table_is_said_with_its_spread() -> None:
    lines = say_rows(FACTS, "failures", TODAY)
    assert len(lines) == 4
    assert "rate_hour 1.973e-05 (1.85e-05..2.097e-05)" in lines[1]


def test_a_users_row_replaces_what_it_says_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("name,power_w\nh100,600\n")
    gpu = load_facts(tmp_path).gpu("H100")
    assert (gpu.name, gpu.power_w, gpu.flop_s) == ("H100 SXM5", 600, 989e12)
    assert (gpu.basis, gpu.source, age_days(gpu, TODAY)) == ("said", "gpus.csv", None)


def test_who_says_a_number_without_its_spread_knows_it_exactly(tmp_path: Path) -> None:
    assert spread(FACTS.price("aws", "H100", "spot"), "usd_hour") == (1.976, 2.5482, 9.4944)
    (tmp_path / "prices.csv").write_text(
        "provider,gpu,market,usd_hour,source,as_of\naws,H100,spot,0.5,my bill,2026-11\n"
    )
    price = load_facts(tmp_path / "prices.csv").price("aws", "H100", "spot")
    assert spread(price, "usd_hour") == (0.5, 0.5, 0.5)
    assert (price.source, age_days(price, TODAY)) == ("my bill", 16)


def test_a_new_row_is_found_like_any_other_and_the_last_file_is_strongest(tmp_path: Path) -> None:
    for folder, flop_s in (("one", "1e15"), ("two", "2e15")):
        (tmp_path / folder).mkdir()
        text = f"name,also,flop_s,memory_bytes,family\nX900,the new one,{flop_s},99e9,datacenter\n"
        (tmp_path / folder / "gpus.csv").write_text(text)
    (tmp_path / "two" / "prices.csv").write_text("provider,gpu,market,usd_hour\nme,The New One,spot,0.1\n")
    facts = load_facts(tmp_path / "one", tmp_path / "two")
    assert (facts.gpu("the-new-one").flop_s, facts.efficiency(facts.gpu("x900")).mfu) == (2e15, 0.4)
    assert facts.price("me", "X900", "spot").usd_hour == 0.1
    assert len(facts.rows(Gpu)) == 85


def test_a_row_may_be_changed_by_any_of_its_names_and_given_new_ones(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("name,also,power_w\nRTX 3080,my card,300\n")
    (tmp_path / "sites.csv").write_text("site,pue\ngcp,1.2\n")
    (tmp_path / "prices.csv").write_text("provider,gpu,market,usd_hour\nme,my card,spot,0.05\n")
    facts = load_facts(tmp_path)
    assert (facts.gpu("my card").name, facts.gpu("rtx 3080 10gb").power_w) == ("RTX 3080 10GB", 300)
    assert facts.site("google").pue == facts.site("gcp").pue == 1.2
    assert facts.price("me", "RTX 3080", "spot").usd_hour == 0.05


def test_a_name_moves_to_the_row_that_took_it_last(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("name,also\nA100 SXM4 40GB,A100\n")
    assert (FACTS.gpu("A100").name, load_facts(tmp_path).gpu("A100").name) == ("A100 SXM4 80GB", "A100 SXM4 40GB")


@pytest.mark.parametrize("ones", ["1,1", "1.0,1", ","])
def test_a_row_that_is_named_by_numbers_is_found_however_they_are_written(tmp_path: Path, ones: str) -> None:
    (tmp_path / "spot.csv").write_text(f"zone,gpu,gpus,nodes,up_part,up_s\nany,T4,{ones},0.5,100\n")
    assert load_facts(tmp_path).spot("T4").down_s == 100


@pytest.mark.parametrize(
    ("name", "text", "what", "hint"),
    [
        ("gpus.csv", "name,watts\nT4,80\n", "gpus.csv: line 1, column watts: is unknown", "columns are"),
        ("gpus.csv", "name,powr_w\nT4,80\n", "gpus.csv: line 1, column powr_w: is unknown", "'power_w'"),
        ("gpus.csv", "name,power_w,power_w\nT4,80,80\n", "gpus.csv: line 1, column power_w: is there twice", "columns"),
        ("gpus.csv", "power_w\n80\n", "gpus.csv: line 1, column name: is missing", "named by name"),
        (
            "gpus.csv",
            "name,power_w\n\nT4,80 W\n",
            "gpus.csv: line 3, column power_w: '80 W' is not a number",
            "unit is w",
        ),
        ("gpus.csv", "name,power_w\nT4,-1\n", "gpus.csv: line 2, column power_w: -1 is out of range", "at least 0"),
        ("gpus.csv", "name,power_w\nT4,nan\n", "gpus.csv: line 2, column power_w: nan is out of range", "finite"),
        ("gpus.csv", "name,power_w\nT4,1,2\n", "gpus.csv: line 2: 3 cells", "2 columns"),
        ("gpus.csv", "name,power_w\nX900,1\n", "gpus.csv: line 2, column flop_s: is empty", "a new row of gpus"),
        ("sites.csv", "site,pue_low\nhome,1.2\n", "sites.csv: line 2, column pue: 1.0 is not between 1.2", "pue_low"),
        ("sites.csv", "site,pue,as_of\nhome,1,soon\n", "sites.csv: line 2, column as_of: 'soon' is no date", "2026-08"),
        ("sites.csv", "site,pue,as_of\nhome,1,2026-13\n", "column as_of: '2026-13' is no date", "2026-08"),
        ("sites.csv", "site,pue\nhome,0.5\n", "sites.csv: line 2, column pue: 0.5 is out of range", "at least 1"),
        ("sites.csv", "site,pue\nhome,1\nHome,2\n", "line 3, column site: is a row that", "everything of a row in one"),
        ("efficiency.csv", "family,mfu\namd,0\n", "line 2, column mfu: 0 is out of range", "above 0 and at most 1"),
        ("efficiency.csv", "family,mfu\namd,40\n", "line 2, column mfu: 40 is out of range", "at most 1"),
        ("gpus.csv", "name,flop_s\nT4,0\n", "gpus.csv: line 2, column flop_s: 0 is out of range", "above 0"),
        ("gpus.csv", "name,also\nT4,A10\n", "gpus.csv: line 2, column also: 'a10' is a row itself", "leave the name"),
        ("spot.csv", "zone,gpu,gpus,nodes,up_part,up_s\nany,T4,1,1,0,9\n", "column up_part: 0 is out", "above 0"),
        ("grids.csv", "code,utc_h\nFR,nan\n", "column utc_h: nan is out of range", "-12 and at most 14"),
        ("days.csv", "shape,hour,part\nmine,0.5,1\n", "days.csv: line 2, column hour: 0.5 is not a whole", "point"),
        ("days.csv", "shape,hour,part\nmine,24,1\n", "days.csv: line 2, column hour: 24 is out of range", "most 23"),
        ("days.csv", "shape,hour,part\nmine,0,1\n", "days.csv: the shape 'mine' has 1 of 24 hours", "every hour"),
        ("days.csv", "shape,hour,part\nsolar,0,9\n", "which come to 31.863", "all together are 24"),
        ("sites.csv", "site,pue\n" + "x" * 200_000 + ",1\n", "sites.csv: line 2: cannot be read as CSV", "commas"),
        ("gpu.csv", "name\nT4\n", "gpu.csv: no table is called so", "'gpus.csv'"),
    ],
)
def test_a_mistake_in_a_users_file_is_named_by_line_and_column(
    tmp_path: Path, name: str, text: str, what: str, hint: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        load_facts(tmp_path / name)
    assert what in caught.value.what and hint in caught.value.hint


def test_a_file_that_is_not_there_or_says_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        load_facts(tmp_path / "gpus.csv")
    with pytest.raises(SpecError, match="no table is in this folder"):
        load_facts(tmp_path)
    (tmp_path / "gpus.csv").write_bytes(b"\xff")
    with pytest.raises(SpecError, match="it is not UTF-8"):
        load_facts(tmp_path)


def test_what_training_reaches_is_a_range_for_every_family() -> None:
    for row in FACTS.rows(Efficiency):
        low, middle, high = spread(row, "mfu")
        assert 0 < low < middle < high < 1


def test_what_more_peers_than_were_tried_lose_is_an_estimate_that_grows() -> None:
    facts = load_facts()
    four, eight, sixteen = (facts.loss("diloco", peers, 30) for peers in (4, 8, 16))
    assert four is not None
    assert eight is not None
    assert sixteen is not None
    least, likely, most = (2**power for power in GROWS)
    assert least < eight.gap / four.gap < most, "what was measured is within what is taken for possible"
    assert sixteen.gap / eight.gap == pytest.approx(likely)
    assert (eight.basis, sixteen.basis) == ("measured", "estimate")
    assert sixteen.gap_low < sixteen.gap < sixteen.gap_high  # type: ignore[operator]
    assert sixteen.gap_high / sixteen.gap_low > eight.gap_high / eight.gap_low  # type: ignore[operator]
    assert facts.loss("diloco", 8, 31) is None
    assert facts.loss("ddp", 1000, 1) == facts.loss("ddp", 8, 1)
