"""What Erben et al. (VLDB 2024) paid for samples and hours in several clouds, and what more machines gained them.

Published and taken in: prices (their Table 1, April 2023), speeds, where peers were, shares of calls (1/3 within, 8/20
within), what loading data cost. Not published: how much a peer sent. It is taken from one bill of each setting (what
Azure or GC charged for external traffic, over its price), and predicts the others of that setting; a total of the same
bill has it as one of its parts. Apart from them, as ours, stands what an all-reduce of the gradients in fp16 would send
(`traffic`). Of ConvNextLarge's hours the totals for GC and AWS agree only if they are of two machines and leave
internal traffic out, which is our reading: no gate on those. All of it was read in the TeX of the paper
(github.com/cirquit/hivemind-multi-cloud).
"""

from __future__ import annotations

from statistics import median

from bench.plan.row import Gate, Row, table

from atoll.plan.money.bill import Bill, Tariff
from atoll.plan.money.samples import LOADED, group_shares, hour_bill, pair_shares, speedup, usd_1m_samples

SOURCE = "Erben et al. 2024"
BATCH, PEERS = 32_768, {"2+2": 4, "4x2": 8}
"""Samples of a round, and peers of a setting."""
DATA_USD_GB = 0.01
CV, NLP = "ConvNextLarge", "RoBERTaXLM"
REFERENCE = {("2+2", NLP): "azure", ("2+2", CV): "azure", ("4x2", NLP): "gc"}
"""Whose bill for external traffic says how much was sent."""


def rows() -> list[Row]:
    """Return everything published beside what the formulas say."""
    return [*_sample_rows(), *_hour_rows(), *_traffic_rows(), *_speedup_rows()]


def gates() -> list[Gate]:
    """Return what is demanded of them."""
    text = [row for row in _hour_rows() if NLP in row.setting]
    off = (
        _egress_share("4x2", "azure")
        - _bills()["4x2", NLP, "azure", "external"] / _bills()["4x2", NLP, "azure", "total"]
    )
    return [
        _within("cost per million samples", _sample_rows(), 0.03),
        _within("hours of RoBERTaXLM in several clouds", text, 0.05),
        Gate(
            source=SOURCE,
            demand="hours of RoBERTaXLM in several clouds: median error at most 1 %",
            value=(value := median(abs(row.error) for row in text)),
            holds=value <= 0.01,
        ),
        Gate(
            source=SOURCE,
            demand="egress's share of an hour with Azure on four continents, by what GC's peers sent: within 2 points",
            value=off,
            holds=abs(off) <= 0.02,
        ),
        Gate(
            source=SOURCE,
            demand="internal egress is more than half of 8xT4 for RoBERTaXLM",
            value=_inside_share(),
            holds=_inside_share() > 0.5,
        ),
        _within("granularity predicts the gain of more machines", _speedup_rows(), 0.1),
        _within("traffic is that of an all-reduce in fp16", _traffic_rows(), 0.25),
    ]


def _within(what: str, some: list[Row], bound: float) -> Gate:
    worst = max(abs(row.error) for row in some)
    return Gate(source=SOURCE, demand=f"{what}: every row within {bound:.0%}", value=worst, holds=worst <= bound)


def _sample_rows() -> list[Row]:
    """Return dollars per million samples; of RoBERTaXLM only a ratio was printed."""
    found = [
        Row(
            source=SOURCE,
            setting=f"{each['model']} {each['setup']}",
            quantity="$/1M samples",
            reference=float(each["usd_1m_samples"]),
            predicted=_usd_1m(each),
        )
        for each in table("howcw_samples")
        if each["usd_1m_samples"]
    ]
    text = {each["setup"]: _usd_1m(each) for each in table("howcw_samples") if each["model"] == NLP}
    ratios = [
        Row(
            source=SOURCE,
            setting=f"{NLP} {each['setup']} over {each['beside']}",
            quantity="$ ratio",
            reference=float(each["ratio"]),
            predicted=text[each["setup"]] / text[each["beside"]],
        )
        for each in table("howcw_ratios")
    ]
    return found + ratios


def _usd_1m(each: dict[str, str]) -> float:
    """Return what a million samples cost; eight T4 pay for traffic within, as the two and two did (their section 7)."""
    usd_hour = float(each["usd_hour"])
    if each["setup"] == "8xT4 spot":
        usd_hour += _inside_usd(each["model"])
    return usd_1m_samples(int(each["machines"]) * usd_hour, float(each["samples_s"]))


def _inside_usd(model: str) -> float:
    return _part(_hour("2+2", model, "gc"), "2+2", "gc", "internal")


def _inside_share() -> float:
    return _inside_usd(NLP) / (_inside_usd(NLP) + _prices()["gc"]["t4_spot_usd_hour"])


def _egress_share(setting: str, cloud: str) -> float:
    hour = _hour(setting, NLP, cloud)
    return _part(hour, setting, cloud, "external") / _part(hour, setting, cloud, "total")


def _hour_rows() -> list[Row]:
    """Return what a machine's hour cost, part by part, without the bills that traffic was taken from."""
    found = []
    for each in table("howcw_hours"):
        setting, model, cloud, what = each["setting"], each["model"], each["cloud"], each["what"]
        if what == "external" and REFERENCE[setting, model] == cloud:
            continue
        found.append(
            Row(
                source=SOURCE,
                setting=f"{model} {setting} {cloud} x{each['machines']}",
                quantity=f"$/h {what}",
                reference=float(each["usd_hour"]),
                predicted=int(each["machines"]) * _part(_hour(setting, model, cloud), setting, cloud, what),
            )
        )
    return found


def _traffic_rows() -> list[Row]:
    """Return what a peer sent by the bills, beside what the gradients of so many rounds come to."""
    found = []
    for each in table("howcw_loads"):
        peers = PEERS[each["setting"]]
        round_gb = 2 * (peers - 1) / peers * 2 * float(each["parameters"]) / 1e9
        found.append(
            Row(
                source=SOURCE,
                setting=f"{each['model']} {each['setting']}",
                quantity="traffic GB/h",
                basis="ours",
                reference=_sent_gb_hour(each["setting"], each["model"]),
                predicted=round_gb * float(each["samples_s"]) * 3600 / BATCH,
            )
        )
    return found


def _speedup_rows() -> list[Row]:
    return [
        Row(
            source=SOURCE,
            setting=f"{each['model']} {each['machine']} {each['from']} to {each['to']}",
            quantity="gain",
            reference=float(each["speed_to"]) / float(each["speed_from"]),
            predicted=speedup(float(each["granularity"]), float(each["to"]) / float(each["from"])),
        )
        for each in table("howcw_speedups")
    ]


def _hour(setting: str, model: str, cloud: str) -> Bill:
    """Return the hour of a setting: two and two in one region with GC's partner, or two on each of four continents."""
    prices, sent = _prices(), _sent_gb_hour(setting, model)
    loaded = next(r for r in table("howcw_loads") if (r["setting"], r["model"]) == (setting, model))
    if setting == "2+2":
        other = cloud if cloud != "gc" else "aws"
        places, shares = ["gc/us"] * 2 + [f"{other}/us"] * 2, pair_shares(["gc/us"] * 2 + [f"{other}/us"] * 2)
    else:
        places = [f"{cloud}/{where}" for where in ("us", "eu", "asia", "oceania") for _ in range(2)]
        shares = group_shares(places)
    tariffs = [Tariff(source=a, target=b, usd_gb=_usd_gb(a, b, prices)) for a, b in shares]
    tariffs.append(Tariff(source=LOADED, usd_gb=DATA_USD_GB))
    usd_hour = {place: prices[place.split("/")[0]]["t4_spot_usd_hour"] for place in places}
    return hour_bill(places, usd_hour, shares, sent, tariffs, float(loaded["data_usd_hour"]) / DATA_USD_GB)


def _usd_gb(source: str, target: str, prices: dict[str, dict[str, float]]) -> float:
    """Return what the source's cloud asks."""
    price, near, far = prices[source.split("/")[0]], source.split("/")[1], target.split("/")[1]
    if source == target:
        return price["within_usd_gb"]
    if near == far:
        return price["us_usd_gb"]
    return price["oceania_usd_gb"] if "oceania" in (near, far) else price["continents_usd_gb"]


def _sent_gb_hour(setting: str, model: str) -> float:
    """Return what a peer sends in an hour, from the one bill of a setting that is not predicted."""
    cloud, price = REFERENCE[setting, model], _prices()[REFERENCE[setting, model]]
    mean_usd_gb = 2 / 3 * price["us_usd_gb"]
    if setting == "4x2":
        mean_usd_gb = 6 / 20 * price["continents_usd_gb"] + 6 / 20 * price["oceania_usd_gb"]
    return _bills()[setting, model, cloud, "external"] / mean_usd_gb


def _bills() -> dict[tuple[str, str, str, str], float]:
    """Return what hours cost by setting, model, cloud and part."""
    return {(r["setting"], r["model"], r["cloud"], r["what"]): float(r["usd_hour"]) for r in table("howcw_hours")}


def _part(hour: Bill, setting: str, cloud: str, what: str) -> float:
    """Return a part of what one machine of a cloud costs in an hour."""
    own = [part for part in hour.parts if part.site.startswith(f"{cloud}/")]
    loading = [part for part in hour.parts if part.site == LOADED and f"{cloud}/" in part.name]
    machines = 2 if setting == "2+2" else 8
    match what:
        case "internal":
            picked = [part for part in own if part.kind == "egress" and _is_inside(part.name)]
        case "external":
            picked = [part for part in own if part.kind == "egress" and not _is_inside(part.name)]
        case _:
            picked = own + loading
    return sum(part.usd for part in picked) / machines


def _is_inside(name: str) -> bool:
    source, target = name.split(" -> ")
    return source == target


def _prices() -> dict[str, dict[str, float]]:
    return {
        each["cloud"]: {name: float(value) for name, value in each.items() if "usd" in name}
        for each in table("howcw_prices")
    }
