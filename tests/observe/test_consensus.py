"""How far apart peers were, in table, data, notes and plot: what journals of real training say, and nothing more."""

from __future__ import annotations

from functools import cache
from statistics import mean

import pytest
from msgspec.structs import replace

from atoll.journal import Line, RoundApplied
from atoll.observe.comparison import Comparison, Entry, data, notes, rows, table, text
from atoll.observe.consensus import common
from atoll.observe.page import apart_curves, page
from atoll.observe.trial import fold_trial
from atoll.spec.load import load_recipe, recipe_names
from tests.identity.small import shipped, trained

PEERS = 2
RUNS = {
    "sparta": shipped("sparta", steps=200, rounds=3, start_with=PEERS),
    "diloco": shipped("diloco", steps=2, rounds=2, start_with=PEERS),
    "streaming": shipped("streaming", steps=6, rounds=3, start_with=PEERS),
    "noloco": shipped("noloco", steps=2, rounds=2, start_with=PEERS),
}
OWN_MODELS = {"bacombo", "dlion", "gossip", "gossip-pga", "halos", "hfa", "moshpit", "noloco", "sgp", "wagma"}
OWN_WEIGHTS = {"async-local-sgd", "auto", "decoupled", "desloc", "dga", "dreamddp", "eager", "gaia"} | {
    "held-bit",
    "loscar",
    "sparta",
    "sparta-diloco",
    "streaming",
}


@cache
def played(recipe: str) -> list[Line]:
    """Return the journal of a small run that was really trained."""
    return trained(RUNS[recipe], PEERS).lines


def compared(lines: dict[str, list[Line]]) -> Comparison:
    entries = tuple(Entry(trial=fold_trial(label, each), run=RUNS[label]) for label, each in lines.items())
    return Comparison(
        name="small",
        fleet="lan",
        fleet_about="",
        peers=PEERS,
        parameters=1000,
        tokens=400,
        seed=0,
        device="cpu",
        command="atoll compare run.toml",
        kept="compare.runs",
        entries=entries,
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compared({label: played(label) for label in RUNS})


def applied(recipe: str) -> list[RoundApplied]:
    return [line.event for line in played(recipe) if isinstance(line.event, RoundApplied)]


def column(comparison: Comparison) -> dict[str, str]:
    """Return what the table has of it, by recipe."""
    head, *body = table(comparison)
    return {cells[0]: cells[head.index("consensus distance")] for cells in body}


def test_weights_of_ones_own_between_parts_are_as_far_apart_as_the_journal_says(comparison: Comparison) -> None:
    told = [event.apart for event in applied("sparta") if event.version == 3]
    assert len(told) == PEERS and min(told) > 0
    distance = rows(comparison)[0].consensus_distance
    assert distance == pytest.approx(mean(told))


def test_models_of_ones_own_are_as_far_apart_as_the_journal_says(comparison: Comparison) -> None:
    told = [event.apart for event in applied("noloco") if event.version == 2]
    assert rows(comparison)[3].consensus_distance == pytest.approx(mean(told))


def test_where_all_go_on_from_one_anchor_the_distance_is_zero_by_its_digests(comparison: Comparison) -> None:
    assert len({event.anchor for event in applied("diloco") if event.version == 2}) == 1
    assert rows(comparison)[1].consensus_distance == 0.0
    assert column(comparison)["diloco"] == "0"


def test_a_common_anchor_alone_is_no_distance(comparison: Comparison) -> None:
    assert rows(comparison)[2].consensus_distance is None
    assert column(comparison)["streaming"] == "-"


def test_data_notes_and_plot_say_the_same(comparison: Comparison) -> None:
    distances = {row.trial.label: row.consensus_distance for row in rows(comparison)}
    assert {each["label"]: each["consensus_distance"] for each in data(comparison)["recipes"]} == distances
    curves = apart_curves(comparison, {label: place for place, label in enumerate(RUNS)})
    assert [list(RUNS)[curve.place or 0] for curve in curves] == ["sparta", "noloco"]
    for label, curve in zip(("sparta", "noloco"), curves, strict=True):
        assert curve.y[-1] == pytest.approx(100 * (distances[label] or 0.0))
        assert column(comparison)[label] == f"{curve.y[-1]:.2g} %"
    said = "\n".join(notes(comparison))
    assert "whole models were last averaged (sparta, noloco)" in said
    assert "Consensus distance 0 (diloco)" in said
    assert "sparta, streaming: after every round all have the same anchor" in said
    assert "nobody measured (streaming)" in said
    assert "At 0: diloco. Not measured: streaming." in page(comparison)


def test_a_promise_that_did_not_hold_is_told_and_is_no_zero() -> None:
    lines = played("diloco")
    place = max(place for place, line in enumerate(lines) if isinstance(line.event, RoundApplied))
    event = lines[place].event
    assert isinstance(event, RoundApplied)
    strayed = [*lines[:place], replace(lines[place], event=replace(event, anchor="another")), *lines[place + 1 :]]
    found = compared({"diloco": strayed})
    assert rows(found)[0].consensus_distance is None
    assert "diloco: after 1 of 2 rounds some peers had another anchor than the others." in text(found)


def test_of_the_shipped_recipes_it_is_known_what_all_have_alike() -> None:
    alike = {name: common(load_recipe(name)) for name in recipe_names()}
    assert {name for name, each in alike.items() if each == "nothing"} == OWN_MODELS
    assert {name for name, each in alike.items() if each == "anchor"} == OWN_WEIGHTS
