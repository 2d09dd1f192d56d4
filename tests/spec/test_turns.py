"""Several channels in one row of rounds: whose a round is, and what does not go together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import Every, Fragments, Named
from atoll.spec.load import load_recipe, load_run, recipe_names
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Run
from atoll.spec.turns import ends_whole, in_order, rarest, round_steps, shares, starts_apart, turn_of

RUN = """
name = "small"
budget = { rounds = 3 }

[recipe]
base = "sparta-diloco"
"""


def load(tmp_path: Path, *overrides: str) -> Run:
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    return load_run(file, overrides=overrides)


def with_steps(*steps: int) -> Recipe:
    """Return a recipe of channels that are due after so many steps each."""
    channels = {f"every-{n}": Channel(when=Every(steps=n), what=Params(), merge=Merge(outer=Assign())) for n in steps}
    return replace(load_recipe("diloco"), channel=channels)


@pytest.mark.parametrize("steps", [(1, 4), (4, 1), (2, 6), (3,), (1, 2, 8), (5, 20, 10)])
def test_the_rarest_channel_that_is_due_has_the_round_and_counts_its_own(steps: tuple[int, ...]) -> None:
    recipe, counts = with_steps(*steps), Counter[str]()
    assert round_steps(recipe) == min(steps)
    for version in range(1, 121):
        due = [n for n in steps if version * min(steps) % n == 0]
        counts[f"every-{max(due)}"] += 1
        turn = turn_of(recipe, version)
        assert (turn.name, turn.number) == (f"every-{max(due)}", counts[f"every-{max(due)}"])
        assert turn.channel is recipe.channel[turn.name]
    assert {name: round(120 * share) for name, share in shares(recipe).items()} == counts


@pytest.mark.parametrize("name", recipe_names())
def test_of_a_single_channel_every_round_is_its_own(name: str) -> None:
    recipe = load_recipe(name)
    if len(recipe.channel) == 1:
        ((only, channel),) = recipe.channel.items()
        turns = [turn_of(recipe, version) for version in range(1, 9)]
        assert turns == [(only, channel, version) for version in range(1, 9)]
        assert rarest(recipe) is channel
        assert not starts_apart(recipe)


def test_parts_take_turns_by_the_rounds_of_their_own_channel() -> None:
    recipe = load_recipe("sparta-diloco")
    assert [name for name, _ in in_order(recipe)] == ["sparse", "outer"]
    assert turn_of(recipe, 99).unit == "fragment 98"
    assert turn_of(recipe, 100).unit == "model"
    assert turn_of(recipe, 101).unit == "fragment 99", "the outer round takes no part's turn"
    assert starts_apart(recipe)


def test_where_parts_are_only_averaged_the_last_round_is_of_all() -> None:
    (channel,) = with_steps(4).channel.values()
    parts = (Fragments(steps=4, count=2), Named(steps=4, names=("norm",)))
    recipes = [replace(with_steps(4), channel={"one": replace(channel, when=when)}) for when in parts]
    assert all(ends_whole(recipe) for recipe in recipes)
    assert not ends_whole(with_steps(4))


def test_a_rarest_channel_that_assigns_weights_starts_where_all_are() -> None:
    assert not starts_apart(with_steps(1, 4))


SPARSE, OUTER = "recipe.channel.sparse", "recipe.channel.outer"


@pytest.mark.parametrize(
    ("override", "path"),
    [
        (f"{OUTER}.when.steps=1", f"{OUTER}.when"),
        (f"{SPARSE}.when={{kind='fragments', steps=600, count=200}}", f"{OUTER}.when"),
        (f"{SPARSE}.what={{kind='delta'}}", f"{SPARSE}.merge.outer"),
        (f"{SPARSE}.merge.outer={{kind='sgd', lr=0.7}}", f"{SPARSE}.merge.outer"),
        (f"{OUTER}.when={{kind='fragments', steps=400, count=2}}", f"{OUTER}.when"),
        (f"{OUTER}.merge.outer={{kind='adamw', lr=0.7}}", f"{OUTER}.merge.outer"),
        (f"{OUTER}.merge.outer={{kind='delayed-nesterov', lr=0.7, every=2}}", f"{OUTER}.merge.outer"),
        (f"{OUTER}.overlap={{kind='delay', steps=1}}", f"{OUTER}.overlap"),
        (f"{OUTER}.barrier={{kind='quorum'}}", f"{OUTER}.barrier"),
        (f"{SPARSE}.barrier={{kind='quorum'}}", f"{SPARSE}.barrier"),
        (f"{OUTER}.late={{kind='carry'}}", f"{OUTER}.barrier"),
        (f"{OUTER}.whom={{kind='all', route={{kind='ring'}}}}", f"{OUTER}.whom"),
        (f"{OUTER}.merge.combine.weights='tokens^2/steps'", f"{OUTER}.merge.combine.weights"),
        ("recipe.work.quota={kind='by-speed'}", "recipe.work.quota"),
        ("recipe.control={kind='auto', ladder=[]}", "recipe.control"),
        (f"{OUTER}.what={{kind='delta', codec={{kind='int8'}}, residual={{kind='hold'}}}}", f"{OUTER}.what.residual"),
        (f"{SPARSE}.when.count=100000", f"{SPARSE}.when.count"),
    ],
)
def test_channels_that_cannot_be_one_row_of_rounds_are_refused(tmp_path: Path, override: str, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, override)
    assert f": {path}: " in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "override",
    [
        "recipe.channel.outer.merge.combine={kind='rda'}",
        "recipe.channel.outer.what.transform={kind='dct'}",
        "recipe.channel.outer.what={kind='delta', codec={kind='top-k'}, owners={kind='feedback'}}",
    ],
)
def test_elements_by_lot_are_refused_where_tensors_are_needed_or_owners_remember(tmp_path: Path, override: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN.replace("sparta-diloco", "diloco"))
    when = "recipe.channel.outer.when={kind='fragments', steps=8, count=8, pattern='drawn'}"
    with pytest.raises(SpecError) as caught:
        load_run(file, overrides=[when, override])
    assert ": recipe.channel.outer.when.pattern: " in caught.value.what


def test_no_channel_at_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "a"\nbudget = { rounds = 1 }\n[recipe]\nwork = { inner = { kind = "sgd", lr = 1.0 } }\n')
    with pytest.raises(SpecError) as caught:
        load_run(file, overrides=["recipe.channel={}"])
    assert "recipe.channel: no channel is given" in caught.value.what


def test_a_part_by_lot_is_said_in_the_words_of_a_recipe_file(tmp_path: Path) -> None:
    run = load(tmp_path, "recipe.channel.sparse.when.count=100")
    assert run.recipe.channel["sparse"].when == Fragments(steps=200, count=100, pattern="drawn")
