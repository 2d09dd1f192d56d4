"""Traces: files of changes, nodes that come and go, and markets drawn from statistics."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from bench.plan.row import PUBLISHED

from atoll.errors import SpecError
from atoll.plan.money.draw import Zone, draw
from atoll.plan.money.policy import Interrupted, Stay
from atoll.plan.money.replay import Job, compared, replay
from atoll.plan.money.trace import Change, Event, describe, gang_trace, laid_out, read, read_nodes, region_of


def test_bamboos_traces_have_the_statistics_that_they_are_known_for() -> None:
    """Of the events themselves (github.com/uclasystem/bamboo); the statistics are our own counting."""
    p3, g4dn = (describe(read_nodes(PUBLISHED / f"bamboo_{name}_nodes.csv")) for name in ("p3", "g4dn"))
    assert (p3.removals, p3.bulk_max, p3.nodes_max) == (167, 6, 32)
    assert (p3.hours, p3.removals_hour, p3.life_mean_h, p3.life_median_h, p3.nodes_mean) == pytest.approx(
        (11.4, 14.7, 1.46, 0.98, 24), abs=0.05
    )
    assert p3.removals_node_hour == pytest.approx(0.61, abs=0.005)
    assert (g4dn.removals, g4dn.nodes_max) == (74, 24)
    assert (g4dn.hours, g4dn.removals_hour, g4dn.life_mean_h, g4dn.nodes_mean) == pytest.approx(
        (10.8, 6.9, 1.65, 12.6), abs=0.05
    )
    assert g4dn.removals_node_hour == pytest.approx(0.55, abs=0.005)


def test_a_gang_is_up_while_enough_nodes_are_there() -> None:
    hour = 3_600_000
    events = [Event(0, "add", "a"), Event(0, "add", "b"), Event(2 * hour, "remove", "a"), Event(3 * hour, "add", "c")]
    events += [Event(5 * hour, "remove", "b")]
    found = gang_trace(events, "zone", 2, 0.91, 1.0)
    assert found.up[:, 0].tolist() == [True, True, False, True, True, False]
    published = read_nodes(PUBLISHED / "bamboo_p3_nodes.csv")
    shares = [gang_trace(published, "p3", gang, 0.91, 1 / 60).up.mean() for gang in (8, 16, 24, 32)]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.95 and shares[-1] < 0.25, "the larger the scarcer"


def test_a_gang_of_nodes_can_be_replayed_as_any_market() -> None:
    market = gang_trace(read_nodes(PUBLISHED / "bamboo_p3_nodes.csv"), "p3", 24, 0.91, 0.05)
    found = replay(market, Job(work_h=4, machines=24, move_h=0.05, save_every_h=0.25), Stay("p3"))
    assert found.is_done and found.sent_away > 5 and found.lost_h > 0 and found.waited_h > 0
    assert found.usd == pytest.approx(24 * 0.91 * (found.finish_h - found.waited_h))


def test_a_file_of_changes_is_laid_out_in_steps(tmp_path: Path) -> None:
    file = tmp_path / "market.csv"
    file.write_text(
        "time_h,zone,usd_hour,available\n0,a,2.0,4\n0,b,1.0,4\n1.25,b,1.5,0\n1.75,b,1.5,4\n3,a,2.5,2\n", "utf-8"
    )
    found = read(file, step_h=1.0, needed=3)
    assert found.zones == ("a", "b") and found.steps == 4
    assert found.usd_hour.tolist() == [[2, 1], [2, 1], [2, 1.5], [2.5, 1.5]]
    assert found.up.tolist() == [[True, True], [True, False], [True, True], [False, True]]
    assert read(file, step_h=1.0, needed=1).up[:, 0].all()


def test_what_is_no_trace_is_refused_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "market.csv"
    for text, said in (
        ("when,where\n", "not a trace"),
        ("time_h,zone,usd_hour,available\n0,a,cheap,4\n", r"market.csv: line 2, column usd_hour: 'cheap' is none"),
        ("time_h,zone,usd_hour,available\n0,a,nan,4\n", "line 2, column usd_hour: 'nan' is none"),
        ("time_h,zone,usd_hour,available\n0,a,1,4\n1,a,inf,4\n", "line 3, column usd_hour: 'inf' is none"),
        ("time_h,zone,usd_hour,available\n-1,a,1,4\n", "column time_h: '-1' is none"),
        ("time_h,zone,usd_hour,available\n0,a,1,2.5\n", "column available: '2.5' is none"),
        ("time_h,zone,usd_hour,available\n0,a,1\n", "line 2: 3 cells"),
        ("time_h,zone,usd_hour,available\n", "rows"),
        ("time_h,zone,usd_hour,available\n0,a,1,1\n2,b,1,1\n", "hour 0"),
        ("time_h,zone,usd_hour,available\n0,a,1,1\n2,a,1,1\n1,a,1,1\n", "order"),
    ):
        file.write_text(text, "utf-8")
        with pytest.raises(SpecError, match=said):
            read(file, step_h=1.0)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read(tmp_path / "none.csv", step_h=1.0)


def test_what_is_no_trace_of_nodes_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    for text, said in (
        ("0,added,node1\n", "line 1: 'added' is neither"),
        ("0,add,a\nsoon,add,b\n", "line 2: 'soon,add,b' is no event"),
        ("0,add\n", "line 1: '0,add' is no event"),
        ("0,add,a\n5,remove,b\n", "remove 'b' at 5 ms"),
        ("0,add,a\n5,add,a\n", "add 'a' at 5 ms"),
    ):
        file.write_text(text, "utf-8")
        with pytest.raises(SpecError, match=said):
            read_nodes(file)
    with pytest.raises(SpecError, match="nobody left"):
        describe([Event(0, "add", "a")])


def test_zones_know_their_regions() -> None:
    assert [region_of(name) for name in ("us-east-1a", "us-central1-b", "eu-west", "spot")] == [
        "us-east-1",
        "us-central1",
        "eu-west",
        "spot",
    ]


def test_a_drawn_market_has_the_statistics_that_were_asked_for() -> None:
    zones = [
        Zone(name="a", usd_hour=7.0, up_fraction=0.6, up_mean_h=2.3, up_median_h=0.54),
        Zone(name="b", usd_hour=11.0, up_fraction=0.88, up_mean_h=6.1, up_median_h=1.03),
    ]
    found = draw(zones, days=3000, on_demand_usd_hour=25.0, seed=4, step_h=0.25)
    daily = np.abs(np.diff(np.log(found.usd_hour[::96]), axis=0))
    assert np.median(daily) == pytest.approx(0.009, rel=0.1)
    assert 0.035 < np.quantile(daily, 0.95) < 0.06
    assert found.usd_hour.max() <= 25
    for number, zone in enumerate(zones):
        up = found.up[:, number]
        runs_h = [sum(1 for _ in run) * 0.25 for is_up, run in groupby(up) if is_up]
        assert up.mean() == pytest.approx(zone.up_fraction, abs=0.04)
        assert np.mean(runs_h) > 2.5 * np.median(runs_h), "most runs are short, few are very long"
    again = draw(zones, days=30, on_demand_usd_hour=25.0, seed=4)
    assert (again.up == draw(zones, days=30, on_demand_usd_hour=25.0, seed=4).up).all()
    assert (again.up != draw(zones, days=30, on_demand_usd_hour=25.0, seed=5).up).any()


def test_static_choices_and_hindsight_stand_beside_the_policies() -> None:
    zones = [Zone(name=f"zone-{n}a", usd_hour=usd) for n, usd in enumerate((7.0, 8.0, 12.0))]
    market = draw(zones, days=10, on_demand_usd_hour=25.0, seed=2, step_h=0.5)
    found = compared(market, Job(work_h=72, on_demand_usd_hour=25.0, move_h=0.5), [Interrupted()])
    assert len(found.static) == 4 and found.best_static is not None
    assert found.hindsight_usd <= min(found.outcomes[0].usd, found.best_static.usd)
    assert found.best_static.usd < found.static[-1].usd, "spot is cheaper than on demand"
    assert found.hindsight_usd >= 72 * market.usd_hour.min()


def test_changes_in_the_same_moment_are_taken_in_order() -> None:
    found = laid_out([Change(0, "a", 1.0, 1), Change(0, "a", 2.0, 0), Change(1, "a", 2.0, 1)], 1.0)
    assert found.usd_hour[:, 0].tolist() == [2.0, 2.0] and found.up[:, 0].tolist() == [False, True]
