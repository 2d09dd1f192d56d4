"""What a journal says of a recipe's trial, and the report that shows several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.journal import Event, Line
from atoll.observe.comparison import HEAD, Comparison, Entry, is_ddp, rows, table, text
from atoll.observe.page import page
from atoll.observe.trial import fold_trial, gain_kept
from atoll.spec.axes.codec import Fp16
from atoll.spec.axes.pace import OneRound
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import Butterfly
from atoll.spec.load import demo_run, load_recipe, recipe_names
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run

PEERS = ("aa", "bb")


def told(losses: list[float | None]) -> list[Line]:
    """Return the journal of two peers and a round of 10 s for each loss after the first: 4 s of work, then exchange."""
    lines = [Line(0.0, peer, journal.PeerStarted(run="r", device="cpu")) for peer in PEERS]
    lines.append(Line(5.0, "aa", journal.Evaluated(version=0, loss=losses[0], tokens=10)))
    for version, loss in enumerate(losses[1:], start=1):
        lines += _round(version, 5.0 + 10.0 * (version - 1))
        lines.append(Line(15.5 + 10.0 * (version - 1), "aa", journal.Evaluated(version=version, loss=loss, tokens=10)))
    rounds, end_s = len(losses) - 1, 6.0 + 10.0 * (len(losses) - 1)
    lines.append(Line(end_s, "aa", journal.Evaluated(version=rounds, loss=3.125, tokens=99)))
    lines.append(Line(end_s, "aa", journal.RunFinished(version=rounds, samples=2 * rounds, tokens=200 * rounds)))
    return lines


def _round(version: int, at_s: float) -> list[Line]:
    of: Any = {"channel": "outer", "version": version}
    announced = journal.RoundAnnounced(**of, members=list(PEERS), samples=2, first=0)
    committed = journal.RoundCommitted(**of, contributors=list(PEERS), samples=2, tokens=200, result="")
    work = journal.WorkProgressed(**of, steps=3, steps_of=3, loss=4.0, tokens=100, took_s=4.0)
    events: list[tuple[float, str, Event]] = [(at_s, "aa", announced)]
    events += [(at_s + 4.0, peer, work) for peer in PEERS]
    events.append((at_s + 10.0, "aa", committed))
    for peer, times in (("aa", 1), ("bb", 2)):
        events.append((at_s + 10.0, peer, journal.RoundApplied(**of, anchor="")))
        sent = 100 * times * version
        counted = journal.TrafficCounted(sent_bytes=sent, received_bytes=sent // 2, round_sent_bytes=sent - 10)
        events.append((at_s + 10.0, peer, counted))
    return [Line(at, peer, event) for at, peer, event in events]


def test_a_point_says_where_the_run_stood_after_its_round() -> None:
    trial = fold_trial("x", told([6.0, 5.0, 4.0]))
    assert [(p.version, p.tokens, p.at_s, p.loss) for p in trial.points] == [
        (0, 0, 0.0, 6.0),
        (1, 200, 10.0, 5.0),
        (2, 400, 20.0, 4.0),
    ]
    assert [p.worst_bytes for p in trial.points] == [0, 300, 600], "the busier of the two, both ways"


def test_the_whole_is_the_last_look_the_busiest_peer_and_the_share_of_time_computed() -> None:
    trial = fold_trial("x", told([6.0, 5.0, 4.0]))
    assert trial.held_out == 3.125, "the last look is at all held-out text"
    assert (trial.tokens, trial.rounds, trial.contributors, trial.steps, trial.took_s) == (400, 2, 2.0, 6, 20.0)
    assert (trial.sent_bytes, trial.received_bytes) == (400, 200)
    assert trial.computing == pytest.approx(16.0 / 40.0)
    assert trial.finished


def test_what_a_peer_moved_before_it_came_back_does_not_count_for_earlier_rounds() -> None:
    lines = told([6.0, 5.0, 4.0])
    lines += [
        Line(26.0, "bb", journal.PeerStarted(run="r", device="cpu")),
        Line(26.0, "bb", journal.TrafficCounted(sent_bytes=1000, received_bytes=0, round_sent_bytes=0)),
    ]
    assert [p.worst_bytes for p in fold_trial("x", lines).points] == [0, 300, 1600]


def test_who_was_away_did_not_fail_to_compute() -> None:
    lines = told([6.0, 5.0, 4.0])
    lines.insert(-1, Line(15.0, "bb", journal.PeerStopped(why="its owner wants the machine")))
    assert fold_trial("x", lines).computing == pytest.approx(16.0 / (20.0 + 15.0))


def test_a_loss_that_is_no_number_has_no_point() -> None:
    assert [p.version for p in fold_trial("x", told([6.0, None, 4.0])).points] == [0, 2]


@pytest.mark.parametrize(
    ("loss", "solo", "ddp", "gain"),
    [(4.0, 5.0, 4.0, 1.0), (4.5, 5.0, 4.0, 0.5), (5.0, 5.0, 4.0, 0.0), (4.0, 4.0, 5.0, None), (None, 5.0, 4.0, None)],
)
def test_the_gain_kept_is_that_of_ddp_over_one_peer_alone(
    loss: float | None, solo: float, ddp: float, gain: float | None
) -> None:
    assert gain_kept(loss, solo, ddp) == gain


def under(recipe: str) -> Run:
    """Return a run of a shipped recipe, and of its own for one peer alone."""
    run = demo_run()
    return replace(run, recipe=load_recipe(recipe)) if recipe in recipe_names() else run


def compared(*labels: str, runs: Mapping[str, Run] | None = None) -> Comparison:
    trials = [fold_trial(label, told([6.0, 5.0 - i, 4.0 - i])) for i, label in enumerate(labels)]
    known = {label: under(label) for label in labels} | dict(runs or {})
    return Comparison(
        name="demo <1>",
        fleet="lan",
        fleet_about="four workstations",
        peers=2,
        parameters=1000,
        tokens=400,
        seed=7,
        device="cpu",
        command="atoll compare run.toml --recipes ddp,diloco",
        kept="compare.runs",
        entries=tuple(Entry(trial=trial, run=known[trial.label]) for trial in trials),
    )


def test_the_table_has_a_line_for_each_recipe_and_says_what_gain_is() -> None:
    said = text(compared("solo", "ddp", "diloco"))
    assert [line.split()[0] for line in said.splitlines()[3:7]] == ["recipe", "solo", "ddp", "diloco"]
    assert "(loss of solo - loss) / (loss of solo - loss of ddp)" in said
    assert "Gain kept" not in text(compared("diloco", "sparseloco"))


def test_why_a_recipe_was_not_finished_is_said_and_of_one_that_was_nothing() -> None:
    ended, lines = Line(99.0, "aa", journal.PeerStopped(why="training diverged in round 2")), told([5.0, 4.0])
    cut, whole = fold_trial("ddp", [*lines[:-1], ended]), fold_trial("ddp", [*lines, ended])
    assert (cut.finished, cut.why) == (False, "training diverged in round 2")
    assert (whole.finished, whole.why) == (True, "")
    found = compared("ddp", "diloco")
    found = replace(found, entries=(replace(found.entries[0], trial=cut), found.entries[1]))
    assert "ddp was not finished: training diverged in round 2." in text(found)


def test_what_belongs_to_one_column_stands_below_its_head() -> None:
    head, *lines = text(compared("solo", "sparse-butterfly")).splitlines()[3:6]
    assert {len(line) for line in lines} == {len(head)}
    assert [line.index("  ") for line in (head, *lines)] == [len("recipe"), len("solo"), len("sparse-butterfly")]
    assert head.rindex("rounds") + len("rounds") == lines[0].index(" 2 ") + len(" 2")


def test_the_table_fits_a_terminal_of_120_columns() -> None:
    found = compared("solo", "ddp", "diloco", "sparse-butterfly")
    solo, *others = found.entries
    worse = replace(solo, trial=replace(solo.trial, held_out=5.0))
    above, *lines = text(replace(found, entries=(worse, *others))).splitlines()[2:8]
    assert above.split() == ["held-out", "gain", "peers", "in", "virtual", "consensus"]
    assert max(map(len, lines)) <= 120


def test_a_column_in_which_nobody_has_anything_to_say_is_left_out() -> None:
    head, line = table(compared("diloco"))
    assert set(HEAD) - set(head) == {"gain kept"}
    assert len(line) == len(head)


def test_bytes_are_told_as_part_of_ddps() -> None:
    assert [row.bytes_of_ddp for row in rows(compared("solo", "ddp", "diloco"))] == [None, 1.0, 1.0]


def with_channel(name: str, **changes: Any) -> Recipe:
    recipe = load_recipe(name)
    return replace(recipe, channel={"outer": replace(recipe.channel["outer"], **changes)})


def test_of_the_shipped_recipes_one_is_what_the_others_are_measured_against() -> None:
    assert [name for name in recipe_names() if is_ddp(load_recipe(name))] == ["ddp"]


@pytest.mark.parametrize(
    "changes",
    [
        {"when": Every(steps=2)},
        {"overlap": OneRound(eager=False)},
        {"what": replace(load_recipe("ddp").channel["outer"].what, codec=Fp16())},
        {"what": replace(load_recipe("ddp").channel["outer"].what, result=Fp16())},
        {"what": load_recipe("diloco").channel["outer"].what},
    ],
)
def test_whoever_exchanges_less_or_later_is_not_ddp(changes: dict[str, Any]) -> None:
    assert not is_ddp(with_channel("ddp", **changes))


def test_the_baseline_is_known_by_what_it_does_and_not_by_its_name() -> None:
    run = demo_run()
    mine = replace(run, recipe=with_channel("ddp", whom=replace(run.recipe.channel["outer"].whom, route=Butterfly(8))))
    found = compared("solo", "ddp", "mine", runs={"ddp": run, "mine": mine})
    assert found.baseline is not None and found.baseline.label == "mine"
    assert "loss of solo - loss of mine" in text(found)
    assert compared("solo", "ddp", runs={"ddp": run, "solo": mine}).baseline is None, "alone it is no baseline"


def test_the_report_is_one_file_with_everything_that_made_it() -> None:
    html = page(compared("solo", "ddp", "diloco"))
    for said in ("demo &lt;1&gt;", "world 7", "--recipes ddp,diloco", "four workstations", "consensus distance"):
        assert said in html
    assert html.count("<figure>") == 4
    assert not re.search(r"<(script|link|img|iframe)|src=|@import", html), "it needs nothing from elsewhere"


def test_the_same_comparison_gives_the_same_file() -> None:
    assert page(compared("ddp", "diloco")) == page(compared("ddp", "diloco"))
