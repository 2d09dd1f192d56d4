"""One run under several recipes: what of a run file stays, and what is each recipe's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.optimizer import AdamW, Assign, Lamb, Muon, Sgd
from atoll.spec.axes.what import Delta
from atoll.spec.axes.work import Constant
from atoll.spec.load import load_recipe, load_run, recipe_names
from atoll.spec.run import Run
from atoll.spec.variant import alone, budget_tokens, round_tokens, variants, with_tokens

RUN = """
name = "small"

[recipe]
base = "diloco"

[recipe.work]
batch = 4
clip = 0.5
inner = { lr = 7e-3 }
schedule = { warmup_steps = 3, floor = 0.2 }

[recipe.channel.outer]
when = { steps = 6 }
merge = { outer = { lr = 0.9, momentum = 0.5 } }

[data]
context = 32

[budget]
rounds = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def under(file: Path, recipe: str, *overrides: str) -> Run:
    (variant,) = variants(file, [recipe], overrides)
    return variant.run


def test_the_work_stays_and_the_method_is_the_recipes_own(file: Path) -> None:
    run, shipped = under(file, "sparseloco"), load_recipe("sparseloco")
    work, channel = run.recipe.work, run.recipe.channel["outer"]
    assert (work.batch, work.clip, channel.when.round_steps) == (4, 0.5, 6)
    assert isinstance(work.inner, AdamW) and work.inner.lr == 7e-3
    assert channel.merge == shipped.channel["outer"].merge
    assert channel.what == shipped.channel["outer"].what


def test_the_recipe_the_file_starts_from_keeps_all_it_says(file: Path) -> None:
    assert under(file, "diloco") == under(file, "own") == load_run(file)


def test_gradients_are_exchanged_at_every_step_with_the_rate_of_the_file_and_unclipped(file: Path) -> None:
    run = under(file, "ddp")
    channel = run.recipe.channel["outer"]
    assert channel.when.round_steps == 1
    assert isinstance(channel.merge.outer, AdamW) and channel.merge.outer.lr == 7e-3
    assert run.recipe.work.clip == 0.0


def test_muon_takes_the_rate_for_what_it_leaves_to_adamw(file: Path) -> None:
    inner = under(file, "muloco").recipe.work.inner
    shipped = load_recipe("muloco").work.inner
    assert isinstance(inner, Muon) and isinstance(shipped, Muon)
    assert (inner.lr, inner.adamw.lr) == (shipped.lr, 7e-3)


def test_lamb_inside_hands_its_rate_to_the_common_lamb(file: Path) -> None:
    outer = under(file, "dedloc", "recipe.work.inner={kind='lamb', lr=7e-3}").recipe.channel["outer"].merge.outer
    shipped = load_recipe("dedloc").channel["outer"].merge.outer
    assert isinstance(outer, Lamb) and isinstance(shipped, Lamb)
    assert (outer.lr, outer.eps) == (7e-3, shipped.eps)


def test_another_kind_of_optimizer_or_schedule_keeps_its_own_numbers(file: Path) -> None:
    work = under(file, "fedavg").recipe.work
    assert isinstance(work.inner, Sgd) and work.inner.lr == 0.1
    assert work.schedule == Constant(warmup_steps=3)


def test_every_shipped_recipe_takes_the_run(file: Path) -> None:
    runs = [each.run for each in variants(file, recipe_names())]
    assert {run.recipe.work.batch for run in runs} == {4}
    assert {run.data for run in runs} == {runs[0].data}


def test_set_changes_work_by_the_same_rule_and_the_method_of_all(file: Path) -> None:
    sets = [
        "recipe.work.inner.lr=1e-3",
        "recipe.channel.outer.when.steps=3",
        "recipe.channel.outer.what.codec.kind=fp16",
    ]
    ddp, sparse = (each.run.recipe.channel["outer"] for each in variants(file, ["ddp", "opendiloco"], sets))
    assert isinstance(ddp.merge.outer, AdamW) and ddp.merge.outer.lr == 1e-3
    assert (ddp.when.round_steps, sparse.when.round_steps) == (1, 3)
    assert ddp.what.codec == sparse.what.codec != Fp32()


def test_what_set_put_another_kind_in_the_place_of_is_kept_by_nobody(file: Path) -> None:
    another = "recipe.work.schedule={kind='constant',warmup_steps=5}"
    for each in variants(file, ["diloco", "fedavg"], [another]):
        assert each.run.recipe.work.schedule == Constant(warmup_steps=5)


def test_set_for_one_recipe_changes_no_other(file: Path) -> None:
    one, other = variants(file, ["diloco", "opendiloco"], ["opendiloco:recipe.work.batch=2"])
    assert (one.run.recipe.work.batch, other.run.recipe.work.batch) == (4, 2)


def test_a_recipe_file_is_called_by_its_name(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    (variant,) = variants(file, [str(tmp_path / "mine.toml")])
    assert variant.label == "mine"
    assert isinstance(variant.run.recipe.channel["outer"].merge.outer, Assign)


def test_what_a_recipe_file_says_is_meant_and_the_run_file_fills_in_the_rest(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    recipe = under(file, str(tmp_path / "mine.toml")).recipe
    assert isinstance(recipe.work.inner, AdamW) and recipe.work.inner.lr == 1e-3
    assert recipe.channel["outer"].when.round_steps == 2
    assert (recipe.work.batch, recipe.work.clip) == (4, 0.5)
    flags = ["recipe.channel.outer.when.steps=3", "mine:recipe.work.inner.lr=2e-3"]
    recipe = under(file, str(tmp_path / "mine.toml"), *flags).recipe
    assert isinstance(recipe.work.inner, AdamW) and recipe.work.inner.lr == 2e-3
    assert recipe.channel["outer"].when.round_steps == 3


MINE = """
[work]
inner = { kind = "adamw", lr = 1e-3 }

[channel.outer]
when = { kind = "every", steps = 2 }
what = { kind = "delta" }
merge = { outer = { kind = "assign" } }
"""


@pytest.mark.parametrize(
    ("recipes", "sets", "what", "hint"),
    [
        (["dilco"], [], "no recipe is called 'dilco'", "did you mean 'diloco'?"),
        (["ddp", "ddp"], [], "'ddp' is named twice", "once"),
        (["ddp", "recipes/solo.toml"], [], "'solo' is what one peer alone is called", "another name"),
        (["ddp"], ["diloco:recipe.work.batch=1"], "'diloco' is not compared", "ddp"),
        (["ddp"], ["recipe.base=diloco"], "the recipes are those of --recipes", "name it there"),
        (["ddp"], ["recipe.work.bacth=1"], "unknown key 'bacth'", "batch"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    file: Path, recipes: list[str], sets: list[str], what: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refused:
        variants(file, recipes, sets)
    assert what in refused.value.what
    assert hint in refused.value.hint


def test_alone_is_plain_training_with_the_runs_own_optimizer(file: Path) -> None:
    run = alone(file).run
    channel = run.recipe.channel["outer"]
    assert run.recipe.work == load_run(file).recipe.work
    assert channel.what == Delta()
    assert isinstance(channel.merge.outer, Assign)


def test_all_recipes_get_the_same_tokens_in_whole_rounds_of_the_longest(file: Path) -> None:
    runs = [each.run for each in variants(file, ["ddp", "diloco"])]
    own, peers = load_run(file), 3
    assert [round_tokens(run, peers) for run in runs] == [3 * 4 * 32, 3 * 6 * 4 * 32]
    assert budget_tokens(own, runs, peers) == 5 * 3 * 6 * 4 * 32
    assert budget_tokens(own, runs, peers, 1000) == 3 * 6 * 4 * 32, "up to a whole round"
    given = [with_tokens(run, 4608, peers, 4) for run in runs]
    assert {run.budget.tokens for run in given} == {4608}
    assert [run.upkeep.evaluate_every for run in given] == [3, 1]


def test_a_run_waits_for_as_many_peers_as_there_are(file: Path) -> None:
    file.write_text(RUN + "\n[membership]\nstart_with = 8\ncontributors_min = 4\n")
    together, solo = (
        with_tokens(run, 4608, peers, 4).membership for run, peers in ((under(file, "ddp"), 6), (alone(file).run, 1))
    )
    assert (together.start_with, together.contributors_min) == (6, 4)
    assert (solo.start_with, solo.contributors_min) == (1, 1)
