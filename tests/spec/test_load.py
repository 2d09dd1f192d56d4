"""Run files: what is accepted, and what a person is told when something is not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.spec.axes.codec import Fp16, Quaternary
from atoll.spec.axes.optimizer import Accumulate, AdamW, Sgd
from atoll.spec.axes.what import ByInputs, Delta, Grad, Hold
from atoll.spec.axes.when import Every, TargetBatch
from atoll.spec.load import decode_run, demo_run, load_recipe, load_run, recipe_names, recipe_text, schema
from atoll.spec.recipe import Finer, Recipe
from atoll.spec.run import Folder, Run, Shards, canonical, identity
from atoll.spec.shelf import recipe_heads

RUN = """
name = "small"

[recipe]
base = "diloco"

[recipe.work]
batch = 4

[recipe.channel.outer.when]
steps = 10

[budget]
rounds = 3
"""


def load(tmp_path: Path, text: str, *overrides: str) -> Run:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return load_run(file, overrides=overrides)


def refused(tmp_path: Path, text: str, *overrides: str) -> tuple[str, str]:
    """Return what is said about a run file that must be refused, with the folder left out."""
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text, *overrides)
    return caught.value.what.replace(f"{tmp_path}/", ""), caught.value.hint


def outer(run: Run) -> Any:
    return run.recipe.channel["outer"]


def test_a_run_changes_single_keys_of_its_base_recipe(tmp_path: Path) -> None:
    run, base = load(tmp_path, RUN), load_recipe("diloco")
    assert run.recipe.work.batch == 4
    assert outer(run).when == Every(steps=10)
    assert run.recipe.work.inner == base.work.inner
    assert outer(run).merge == base.channel["outer"].merge


def test_another_kind_replaces_the_whole_table_instead_of_merging_into_it(tmp_path: Path) -> None:
    run = load(tmp_path, RUN + '[recipe.work.inner]\nkind = "sgd"\nlr = 0.5\n')
    assert run.recipe.work.inner == Sgd(lr=0.5)


def test_a_table_without_kind_merges_into_the_kind_of_the_base(tmp_path: Path) -> None:
    run = load(tmp_path, RUN + "[recipe.work.inner]\nlr = 0.5\n")
    assert run.recipe.work.inner == AdamW(lr=0.5, betas=(0.9, 0.95), weight_decay=0.1)


def test_a_base_recipe_may_be_a_file_beside_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(recipe_text("ddp"))
    run = load(tmp_path, 'name = "x"\n[budget]\nrounds = 1\n[recipe]\nbase = "mine.toml"\n')
    assert outer(run).what == Grad()


def test_paths_in_overrides_are_those_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.toml").write_text(recipe_text("ddp"), "utf-8")
    monkeypatch.chdir(tmp_path / "here")
    sets = ["recipe.base=mine.toml", 'data.source={kind="shards", path="text"}', "model.kind=folder", "model.path=../m"]
    plain = 'name = "x"\n[budget]\nrounds = 1\n[recipe]\nbase = "diloco"\n'
    run = load(tmp_path, plain, *sets)
    assert run.recipe == load_recipe("ddp")
    assert isinstance(run.data.source, Shards) and Path(run.data.source.path) == tmp_path / "here" / "text"
    assert isinstance(run.model, Folder) and Path(run.model.path).resolve() == tmp_path / "m"
    assert load(tmp_path, plain, "recipe.base=ddp").recipe == run.recipe, "a name stays a name"


def test_a_batch_smaller_than_what_goes_at_once_goes_at_once(tmp_path: Path) -> None:
    work = load(tmp_path, RUN, "recipe.work.micro_batch=32").recipe.work
    assert (work.batch, work.at_once) == (4, 4)
    assert load(tmp_path, RUN, "recipe.work.micro_batch=3").recipe.work.at_once == 3


def test_overrides_go_on_top_and_take_toml_values_or_bare_words(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        RUN,
        "recipe.work.batch=16",
        "recipe.channel.outer.what.codec.kind=fp16",
        "data.source={kind='corpus', name='austen', tokenizer='bytes'}",
        "seeds.model=7",
    )
    assert run.recipe.work.batch == 16
    assert outer(run).what == Delta(codec=Fp16())
    assert run.data.source.tokenizer == "bytes"  # type: ignore[union-attr]
    assert run.seeds.model == 7


def test_overrides_can_change_a_kind_and_its_keys_together(tmp_path: Path) -> None:
    run = load(tmp_path, RUN, "recipe.work.inner.kind=sgd", "recipe.work.inner.lr=0.1")
    assert run.recipe.work.inner == Sgd(lr=0.1)


def test_an_override_of_another_kind_replaces_what_the_file_says_for_the_kind_of_its_base(tmp_path: Path) -> None:
    text = RUN + "[recipe.work.inner]\nbetas = [0.8, 0.9]\n"
    assert load(tmp_path, text, "recipe.work.inner={kind='sgd',lr=0.1}").recipe.work.inner == Sgd(lr=0.1)
    another = "recipe.channel.outer.when={kind='target-batch',samples=128}"
    assert outer(load(tmp_path, RUN, another, "recipe.base=dedloc")).when == TargetBatch(samples=128)
    same = "recipe.channel.outer.when.kind=every"
    assert outer(load(tmp_path, RUN, same)).when == Every(steps=10)


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        ("", "mine.toml: missing key 'work'"),
        ('base = "ddp"', "mine.toml: 'base' belongs into a run file, and this is a recipe"),
        ("chanel = 3", "mine.toml: unknown key 'chanel'"),
    ],
)
def test_what_is_wrong_with_a_recipe_file_is_said_of_it(tmp_path: Path, recipe: str, what: str) -> None:
    (tmp_path / "mine.toml").write_text(recipe)
    assert refused(tmp_path, RUN.replace('"diloco"', '"mine.toml"'))[0] == what


def test_a_channel_that_its_base_spells_otherwise_is_asked_about(tmp_path: Path) -> None:
    text = '[recipe.channel.outter]\nwhat = { kind = "delta" }\nwhen = { kind = "every", steps = 10 }'
    said, advice = refused(tmp_path, RUN.replace("[recipe.channel.outer.when]\nsteps = 10", text))
    assert said == "run.toml: recipe.channel.outter: missing key 'merge'"
    assert advice.startswith("add a table [recipe.channel.outter.merge] with ")
    assert advice.endswith("(did you mean 'outer'?)")


def test_a_number_in_quotes_is_wanted_without_them(tmp_path: Path) -> None:
    said, advice = refused(tmp_path, RUN + '[recipe.work.inner]\nlr = "0.7"\n')
    assert (said, advice) == (
        'run.toml: recipe.work.inner.lr: "0.7" is not a finite number',
        "write a finite number without quotes",
    )


@pytest.mark.parametrize(("steps", "allowed"), [("0", "at least 1"), ("99999999999999999999", f"at most {2**53}")])
def test_a_number_out_of_range_is_told_the_end_that_it_is_beyond(tmp_path: Path, steps: str, allowed: str) -> None:
    said, advice = refused(tmp_path, RUN, f"recipe.channel.outer.when.steps={steps}")
    assert said == f"--set: recipe.channel.outer.when.steps: {steps} is out of range"
    assert advice == f"it must be {allowed}"


def test_a_million_may_be_written_as_1e6(tmp_path: Path) -> None:
    assert load(tmp_path, RUN.replace("rounds = 3", "tokens = 1e6")).budget.tokens == 1_000_000


def test_relative_paths_are_seen_from_the_run_files_folder(tmp_path: Path) -> None:
    text = RUN + '[data.source]\nkind = "shards"\npath = "shards"\n[model]\nkind = "folder"\npath = "/models/a"\n'
    run = load(tmp_path, text)
    assert run.data.source == Shards(path=str(tmp_path / "shards"))
    assert run.model == Folder(path="/models/a")


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        (
            "steps = 10",
            "stepz = 10",
            "run.toml: recipe.channel.outer.when: unknown key 'stepz' for kind \"every\"",
            "known keys: steps (did you mean 'steps'?)",
        ),
        (
            "steps = 10",
            'kind = "evry"\nsteps = 10',
            'run.toml: recipe.channel.outer.when.kind: unknown kind "evry"',
            'known kinds: "every", "fragments", "named", "tensors", "with-moments", "target-batch" '
            "(did you mean 'every'?)",
        ),
        (
            "batch = 4",
            'inner = { kind = "adam", lr = 1.0 }',
            'run.toml: recipe.work.inner.kind: unknown kind "adam"',
            'known kinds: "adamw", "sgd", "lamb", "muon", "accumulate" (did you mean \'adamw\'?)',
        ),
        (
            "batch = 4",
            'inner = { kind = "lamb", lr = 1.0, momentum = 0.9 }',
            "run.toml: recipe.work.inner: unknown key 'momentum' for kind \"lamb\"",
            "known keys: lr, betas, eps, weight_decay",
        ),
        (
            "batch = 4",
            'inner = { kind = "sgd" }',
            "run.toml: recipe.work.inner: missing key 'lr' for kind \"sgd\"",
            "add for example: lr = 0.1",
        ),
        (
            "batch = 4",
            'batch = "4"',
            'run.toml: recipe.work.batch: "4" is not a whole number',
            "write a whole number without quotes",
        ),
        (
            "batch = 4",
            "batch = true",
            "run.toml: recipe.work.batch: true is not a whole number",
            "write a whole number",
        ),
        ("batch = 4", "clip = nan", "run.toml: recipe.work.clip: nan is not a finite number", "write a finite number"),
        (
            '"diloco"',
            '"dilico"',
            "run.toml: recipe.base: no recipe is called 'dilico'",
            f"known recipes: {', '.join(recipe_names())} (did you mean 'diloco'?), or the path of a .toml file",
        ),
        (
            "[budget]",
            "[budgett]",
            "run.toml: unknown key 'budgett'",
            "known keys: name, recipe, budget, model, data, membership, seeds, upkeep (did you mean 'budget'?)",
        ),
        ('name = "small"', "", "run.toml: missing key 'name'", 'add for example: name = "..."'),
        (
            "[budget]",
            "[budget",
            "run.toml: line 13, column 8: expected ']' at the end of a table declaration",
            "[budget",
        ),
        (
            "rounds = 3",
            'rounds = 3\n[data.source]\nname = "austen"',
            "run.toml: data.source: missing key 'kind'",
            'known kinds: "corpus", "shards" (did you mean kind = "corpus"?)',
        ),
    ],
)
def test_a_mistake_is_named_by_file_and_key_path_with_what_is_allowed(
    tmp_path: Path, old: str, new: str, what: str, hint: str
) -> None:
    said, advice = refused(tmp_path, RUN.replace(old, new))
    assert said == what
    assert advice.endswith(hint)


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("budget.tokens=5", "budget"),
        ("budget.rounds=0", "budget"),
        ("budget.rounds=-1", "budget.rounds"),
        ("name=../up", "name"),
        ("model={kind='fresh', size='2m'}", "model.size"),
        ("model={kind='fresh', size={dim=64, layers=2, heads=3, kv_heads=1, ffn=8}}", "model.size.heads"),
        ("model={kind='fresh', size={dim=64, layers=2, heads=4, kv_heads=3, ffn=8}}", "model.size.kv_heads"),
        ("model={kind='fresh', size={dim=12, layers=2, heads=4, kv_heads=4, ffn=8}}", "model.size.heads"),
        ("model={kind='fresh', size={dim=64, layers=0, heads=4, kv_heads=4, ffn=8}}", "model.size.layers"),
        ("model={kind='folder', path=''}", "model.path"),
        ("model={kind='folder', path='a', adapter={rank=0}}", "model.adapter.rank"),
        ("data.context=4", "data.context"),
        ("data.source={kind='corpus', tokenizer='bpe-12'}", "data.source.tokenizer"),
        ("recipe.work.micro_batch=-1", "recipe.work.micro_batch"),
        ("recipe.work.inner.lr=0", "recipe.work.inner.lr"),
        ("recipe.work.inner.betas=[0.9, 1.0]", "recipe.work.inner.betas[1]"),
        ("recipe.work.schedule.floor=2", "recipe.work.schedule.floor"),
        ("recipe.work.inner={kind='accumulate'}", "recipe.channel.outer.what"),
        ("recipe.channel.outer.what={kind='grad'}", "recipe.channel.outer.what"),
        ("recipe.channel.outer.when.steps=0", "recipe.channel.outer.when.steps"),
        ("recipe.channel.outer.merge.outer.momentum=1", "recipe.channel.outer.merge.outer.momentum"),
        ("recipe.channel.outer.merge.outer.momentum=0", "recipe.channel.outer.merge.outer.nesterov"),
        ("recipe.channel.outer.what.codec={kind='top-k'}", "recipe.channel.outer.what.result"),
        (
            "recipe.channel.outer.what={kind='delta', codec={kind='sign'}, result={kind='fp32'}}",
            "recipe.channel.outer.what.result",
        ),
        ("recipe.channel.outer.what.owners={kind='feedback', decay=2}", "recipe.channel.outer.what.owners.decay"),
        ("recipe.channel.outer.what.codec={kind='top-k', block=1000}", "recipe.channel.outer.what.codec.block"),
        ("recipe.channel.outer.what.codec={kind='top-k', keep=0}", "recipe.channel.outer.what.codec.keep"),
        (
            "recipe.channel.outer.what.codec={kind='top-k', values={kind='buckets', bits=9}}",
            "recipe.channel.outer.what.codec.values.bits",
        ),
        ("recipe.channel.outer.what.codec={kind='stochastic', bits=1}", "recipe.channel.outer.what.codec.bits"),
        ("recipe.channel.outer.what.codec={kind='e3m0', block=8}", "recipe.channel.outer.what.codec.block"),
        ("recipe.channel.outer.what.codec={kind='turned-sign', block=100}", "recipe.channel.outer.what.codec.block"),
        (
            "recipe.channel.outer.what={kind='delta', codec={kind='fp16'}, result={kind='turned-sign'}}",
            "recipe.channel.outer.what.result",
        ),
        (
            "recipe.channel.outer.what={kind='delta', codec={kind='threshold', least=1, values={kind='turned-sign'}}, "
            "result={kind='fp32'}}",
            "recipe.channel.outer.what.codec.values",
        ),
        ("recipe.channel.outer.what.residual={kind='feedback', decay=1.5}", "recipe.channel.outer.what.residual.decay"),
        ("recipe.channel.outer.what.residual={kind='hold', decay=1.5}", "recipe.channel.outer.what.residual.decay"),
        ("recipe.channel.outer.when={kind='fragments', steps=10, count=3}", "recipe.channel.outer.when.steps"),
        ("recipe.channel.outer.when={kind='fragments', steps=10, count=0}", "recipe.channel.outer.when.count"),
        ("recipe.channel.outer.when={kind='target-batch', samples=64}", "recipe.channel.outer.when"),
        ("recipe.work.quota={kind='by-speed', least=0}", "recipe.work.quota.least"),
        ("recipe.work.quota={kind='by-rate', most=1000, power=-1}", "recipe.work.quota.power"),
        ("recipe.channel.outer.overlap={kind='delay', steps=0}", "recipe.channel.outer.overlap.steps"),
        ("recipe.channel.outer.barrier={kind='quorum', contributors=0}", "recipe.channel.outer.barrier.contributors"),
        (
            "recipe.channel.outer.barrier={kind='quorum', grace={kind='slack', part=1.5}}",
            "recipe.channel.outer.barrier.grace.part",
        ),
        (
            "recipe.channel.outer.barrier={kind='quorum', grace={kind='seconds', s=-1.0}}",
            "recipe.channel.outer.barrier.grace.s",
        ),
        (
            "recipe.channel.outer.merge.outer={kind='delayed-nesterov', lr=0.7, every=0}",
            "recipe.channel.outer.merge.outer.every",
        ),
        (
            "recipe.channel.outer.merge.outer={kind='delayed-nesterov', lr=0.7, every=4, spread=0.3}",
            "recipe.channel.outer.merge.outer.spread",
        ),
        ("recipe.channel.outer.overlap={kind='delay', steps=10}", "recipe.channel.outer.overlap.steps"),
        (
            "recipe.channel.outer.merge.combine={kind='mean', weights='mass'}",
            "recipe.channel.outer.merge.combine.weights",
        ),
        ("recipe.channel.outer.late={kind='stand-in'}", "recipe.channel.outer.late"),
        (
            "recipe.channel.outer.overlap={kind='delay', steps=11, reconcile={kind='shift'}}",
            "recipe.channel.outer.overlap.steps",
        ),
        (
            "recipe.channel.outer.overlap={kind='delay', steps=1, reconcile={kind='blend', keep=1.5}}",
            "recipe.channel.outer.overlap.reconcile.keep",
        ),
        ("recipe.channel.outer.merge.combine={kind='mean-present'}", "recipe.channel.outer.merge.combine"),
        ("recipe.channel.outer.merge.combine={kind='trimmed', drop=0.5}", "recipe.channel.outer.merge.combine.drop"),
        ("recipe.channel.outer.merge.combine={kind='median-norm-clip'}", "recipe.channel.outer.merge.combine.over"),
        ("recipe.channel.outer.merge.combine={kind='centred-clip'}", "recipe.channel.outer.merge.combine.over"),
        (
            "recipe.channel.outer.merge.combine={kind='centred-clip', over='chunk', radius=0}",
            "recipe.channel.outer.merge.combine.radius",
        ),
        ("recipe.channel.outer.what.transform={kind='dct', tile=1}", "recipe.channel.outer.what.transform.tile"),
        ("recipe.channel.outer.merge.outer={kind='sign-sgd', lr=0}", "recipe.channel.outer.merge.outer.lr"),
        ("recipe.channel.outer.what.codec={kind='threshold', least=-1}", "recipe.channel.outer.what.codec.least"),
        ("recipe.channel.outer.what.codec={kind='threshold', least=1e-3}", "recipe.channel.outer.what.result"),
        ("recipe.channel.outer.what.codec={kind='significance'}", "recipe.channel.outer.what.result"),
        ("recipe.work.inner={kind='lamb', lr=0}", "recipe.work.inner.lr"),
        ("recipe.work.inner={kind='lamb', lr=1, betas=[0.9, 1.0]}", "recipe.work.inner.betas[1]"),
        ("recipe.work.inner={kind='lamb', lr=1, eps=0}", "recipe.work.inner.eps"),
        ("recipe.work.inner={kind='lamb', lr=1, weight_decay=-1}", "recipe.work.inner.weight_decay"),
        ("recipe.work.inner={kind='muon', lr=0, adamw={kind='adamw', lr=1}}", "recipe.work.inner.lr"),
        ("recipe.work.inner={kind='muon', lr=1, adamw={kind='adamw', lr=0}}", "recipe.work.inner.adamw.lr"),
        ("recipe.work.inner={kind='muon', lr=1, beta2=1, adamw={kind='adamw', lr=1}}", "recipe.work.inner.beta2"),
        ("membership.start_with=0", "membership.start_with"),
        ("membership.who={kind='allow-list', peers=['abc']}", "membership.who.peers[0]"),
        ("seeds.data=-1", "seeds.data"),
        ("upkeep.patience_s_max=0", "upkeep.patience_s_max"),
        ("upkeep.silence_s_max=0", "upkeep.silence_s_max"),
    ],
)
def test_what_makes_no_sense_as_a_whole_is_refused_where_it_was_said(tmp_path: Path, override: str, path: str) -> None:
    said, advice = refused(tmp_path, RUN, override)
    assert f": {path}: " in said
    assert advice


def test_a_result_that_everybody_makes_alone_must_come_out_the_same_on_every_machine(tmp_path: Path) -> None:
    gathered = "recipe.channel.outer.whom={kind='all', route={kind='all-gather'}}"
    said, advice = refused(tmp_path, RUN, gathered, "recipe.channel.outer.what.codec={kind='buckets'}")
    assert "recipe.channel.outer.what.result: everybody makes the result alone" in said
    assert "fp32" in advice


def test_a_delay_of_nothing_is_refused_with_the_choice_that_waits(tmp_path: Path) -> None:
    run = 'name = "small"\n[recipe]\nbase = "dga"\n[budget]\nrounds = 3\n'
    said, advice = refused(tmp_path, run, "recipe.channel.outer.overlap.steps=0")
    assert "overlap.steps: is 0: a result that is waited for is not late" in said
    assert advice == 'choose { kind = "block" }'


@pytest.mark.parametrize(
    ("sets", "key", "advice"),
    [
        (["{when}.first=0", "{when}.second=0"], "when", "every"),
        (["{when}.first=101"], "when.first", "between 0 and 100"),
        (["{when}.second=0"], "when.second", "set it"),
        (["recipe.work.inner={{kind='sgd', lr=0.1}}", "{when}.second=0"], "when.first", "momentum"),
        (["recipe.work.inner={{kind='sgd', lr=0.1, momentum=0.9}}"], "when.second", "set it to 0"),
        (["{what}.codec.kind='fp16'"], "what.codec", "bf16"),
        (["{what}.result.kind='fp16'"], "what.result", "bf16"),
        (["{what}.kind='delta'"], "what", "params"),
        (["{outer}.merge.outer={{kind='sgd', lr=0.7}}"], "merge.outer", "assign"),
        (["{outer}.merge.combine={{kind='centred-clip', over='chunk'}}"], "merge.combine", "trimmed"),
        (["{outer}.whom={{kind='circles', pattern={{kind='neighbours', reach=1}}}}"], "whom", "all"),
    ],
)
def test_moments_travel_only_where_they_are_and_can_be_averaged(
    tmp_path: Path, sets: list[str], key: str, advice: str
) -> None:
    outer = "recipe.channel.outer"
    run = 'name = "small"\n[recipe]\nbase = "desloc"\n[budget]\nrounds = 3\n'
    named = [each.format(outer=outer, when=f"{outer}.when", what=f"{outer}.what") for each in sets]
    said, hint = refused(tmp_path, run, *named)
    assert f"{outer}.{key}: " in said
    assert advice in hint


@pytest.mark.parametrize(
    ("recipe", "overlap", "path"),
    [
        ("ddp", "{kind='delay', steps=1}", "overlap"),
        ("streaming", "{kind='one-round'}", "overlap"),
        ("streaming", "{kind='delay', steps=11}", "overlap.steps"),
        ("ddp", "{kind='one-round'}", "overlap.eager"),
        ("diloco", "{kind='one-round'}", "overlap.eager"),
    ],
)
def test_an_overlap_that_does_not_go_with_what_is_exchanged_is_refused(
    tmp_path: Path, recipe: str, overlap: str, path: str
) -> None:
    channel = next(iter(load_recipe(recipe).channel))
    adam = ["recipe.channel.outer.merge.outer={kind='adamw', lr=1e-3}"] if recipe == "diloco" else []
    overrides = [f"recipe.channel.{channel}.overlap={overlap}", *adam]
    said, advice = refused(tmp_path, f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n', *overrides)
    assert f": recipe.channel.{channel}.{path}: " in said
    assert advice


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"whom.pattern": "{kind='drawn', size=1}"}, "whom.pattern.size", "out of range"),
        ({"whom.pattern": "{kind='lattice', side=1}"}, "whom.pattern.side", "out of range"),
        ({"whom.pattern": "{kind='lattice', side=4, dimensions=9}"}, "whom.pattern.dimensions", "out of range"),
        ({"whom.pattern": "{kind='neighbours', reach=0}"}, "whom.pattern.reach", "out of range"),
        ({"whom.all_every": "-1"}, "whom.all_every", "out of range"),
        ({"what": "{kind='params', codec={kind='int8'}}"}, "whom", "too coarse"),
        ({"what": "{kind='params', codec={kind='int8'}}", "whom": "{kind='all'}"}, "what", "no model any more"),
        ({"overlap": "{kind='delay', steps=1}"}, "whom", "wait for the result"),
        ({"merge.combine": "{kind='trimmed'}"}, "whom", "mean of weights"),
        ({"barrier": "{kind='quorum'}"}, "whom", "end together"),
        ({"when": "{kind='fragments', steps=10, count=2}"}, "whom", "whole models"),
        ({"merge.outer": "{kind='adamw', lr=1e-3}"}, "whom", "counts its steps"),
    ],
)
def test_what_does_not_go_with_models_of_everybodys_own_is_refused(
    tmp_path: Path, changes: dict[str, str], path: str, said: str
) -> None:
    overrides = [f"recipe.channel.outer.{key}={value}" for key, value in changes.items()]
    text = 'name = "small"\n[recipe]\nbase = "noloco"\n[budget]\nrounds = 3\n'
    told, advice = refused(tmp_path, text, *overrides)
    assert f": recipe.channel.outer.{path}: " in told
    assert said in told
    assert advice


@pytest.mark.parametrize(
    ("recipe", "changes", "path", "said"),
    [
        ("eager", ["barrier={kind='quorum'}"], "overlap.eager", "everybody is waited for"),
        ("streaming", ["merge.combine={kind='rda'}"], "merge.combine", "side by side"),
        ("decoupled", ["what={kind='delta', residual={kind='feedback'}}"], "merge.combine", "side by side"),
        ("decoupled", [f"forms={{'{64 * 'a'}'={{kind='int8'}}}}"], "merge.combine", "side by side"),
        ("dedloc", ["barrier={kind='quorum'}"], "barrier", "less than the batch"),
        ("async-local-sgd", ["what={kind='params'}", "merge.outer={kind='assign'}"], "late", "only the way from there"),
        (
            "fedavg",
            ["what={kind='params', result={kind='e3m0'}}", "whom.route={kind='all-gather'}"],
            "what",
            "no model any more",
        ),
    ],
)
def test_what_a_part_of_a_round_would_make_wrong_is_refused(
    tmp_path: Path, recipe: str, changes: list[str], path: str, said: str
) -> None:
    text = f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n'
    told, advice = refused(tmp_path, text, *(f"recipe.channel.outer.{change}" for change in changes))
    assert f": recipe.channel.outer.{path}: " in told
    assert said in told
    assert advice


def test_only_a_mean_can_be_led(tmp_path: Path) -> None:
    text = 'name = "small"\n[recipe]\nbase = "eager"\n[budget]\nrounds = 3\n'
    said, advice = refused(tmp_path, text, "recipe.channel.outer.merge.combine={kind='trimmed'}")
    assert "recipe.channel.outer.overlap.eager: our own share can be taken back only from a mean" in said
    assert "mean" in advice


def test_frequencies_are_neither_led_nor_measured_by_tensor(tmp_path: Path) -> None:
    dct = "recipe.channel.outer.what.transform={kind='dct'}"
    for recipe, said in (("eager", "ahead by is made of values"), ("sparseloco", "not tensor by tensor")):
        text = f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n'
        told, advice = refused(tmp_path, text, dct)
        assert "recipe.channel.outer.what.transform: " in told
        assert said in told
        assert "leave it out" in advice


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("when={kind='target-batch', samples=64}", "the same gradient is asked for in two rounds"),
        ("overlap={kind='one-round', eager=false}", "the same gradient is asked for in two rounds"),
        ("barrier={kind='quorum'}", "who is late for the directions"),
        ("whom={kind='all', route={kind='ring'}}", "nobody has all contributions to look at"),
        ("merge.combine={kind='trimmed'}", "factors of one mean are sought"),
        ("what.codec={kind='threshold', least=1}", "none can be left out"),
        ("what.transform.rank=0", "out of range"),
        ("what.transform.least=-1", "out of range"),
    ],
)
def test_what_does_not_go_with_factors_that_take_two_rounds_is_refused(tmp_path: Path, change: str, why: str) -> None:
    text = 'name = "small"\n[recipe]\nbase = "powersgd"\n[budget]\nrounds = 4\n'
    sets = (
        ["whom={kind='all', route={kind='all-gather'}}", "what.result={kind='fp32'}"] if "threshold" in change else []
    )
    said, advice = refused(tmp_path, text, *(f"recipe.channel.outer.{each}" for each in (*sets, change)))
    assert why in said
    assert advice


@pytest.mark.parametrize(
    ("change", "path", "why"),
    [
        ("overlap={kind='one-round', eager=false}", "what.residual", "must leave what a peer has not sent where it is"),
        ("late={kind='carry'}", "what.residual", "held back from one common anchor"),
        ("what.transform={kind='dct'}", "what.residual", "only the way from the anchor"),
        ("overlap={kind='delay', steps=1}", "what.residual", "must leave what a peer has not sent where it is"),
        ("merge.combine={kind='sum', weights='samples'}", "merge.combine.weights", "counts every contribution once"),
    ],
)
def test_what_does_not_go_with_updates_that_are_held_back_is_refused(
    tmp_path: Path, change: str, path: str, why: str
) -> None:
    text = 'name = "small"\n[recipe]\nbase = "gaia"\n[budget]\nrounds = 4\n'
    said, advice = refused(tmp_path, text, f"recipe.channel.outer.{change}")
    assert f"recipe.channel.outer.{path}: " in said
    assert why in said
    assert advice


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("what.residual.shared=1.5", "1.5 is out of range"),
        ("what.residual.shared=-0.1", "-0.1 is out of range"),
        ("what.owners={kind='forget'}", "owners keep nothing of what results leave out"),
        ("merge.combine={kind='mean', weights='samples'}", "only in a plain mean"),
        ("merge.combine={kind='trimmed'}", "only in a plain mean"),
        ("when={kind='fragments', steps=34, count=2}", "known only when the result is there"),
        ("overlap={kind='delay', steps=1, reconcile={kind='shift'}}", "known only when the result is there"),
    ],
)
def test_what_does_not_go_with_shared_rests_of_results_is_refused(tmp_path: Path, change: str, why: str) -> None:
    text = 'name = "small"\n[recipe]\nbase = "held-bit"\n[budget]\nrounds = 4\n'
    outer = "recipe.channel.outer"
    shares = f"{outer}.what.residual.shared=0.25"
    assert load(tmp_path, text, shares).recipe.channel["outer"].what.residual == Hold(shared=0.25)
    said, advice = refused(tmp_path, text, shares, f"{outer}.{change}")
    assert f"{outer}.what.residual.shared: " in said
    assert why in said
    assert advice


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["finer=[{rounds=0, codec={kind='fp16'}}]"], "0 is out of range"),
        (["finer=[{rounds=1, part=3, codec={kind='fp16'}}]"], "3 is out of range"),
        (["finer=[{rounds=1, codec={kind='quaternary', block=8}}]"], "8 is out of range"),
        (["finer=[{rounds=1, codec={kind='fp16'}, result={kind='ternary', block=8}}]"], "8 is out of range"),
        (["finer=[{rounds=1, codec={kind='top-k'}}]"], "those of values that are all sent"),
        (["finer=[{rounds=1, codec={kind='sign'}, result={kind='fp32'}}]"], "too long for a message in fp32"),
        (["when={kind='tensors', steps=34, count=2, passes=2}"], "is not told by its number"),
        (["whom.route={kind='all-gather'}", "what.owners={kind='forget'}"], "only where owners merge values"),
        (["late={kind='carry'}", "what.residual={kind='feedback'}"], "a later round, which may have another form"),
        (["when={kind='named', steps=34, names=[]}"], "names nothing"),
        (["when={kind='named', steps=33, names=['norm']}"], "33 is not a multiple of 2"),
    ],
)
def test_what_does_not_go_with_finer_first_rounds_is_refused(tmp_path: Path, changes: list[str], why: str) -> None:
    text = 'name = "small"\n[recipe]\nbase = "held-bit"\n[budget]\nrounds = 4\n'
    outer = "recipe.channel.outer"
    sets = [
        f"{outer}.when={{kind='named', steps=34, names=['embed_tokens']}}",
        f"{outer}.finer=[{{rounds=2, codec={{kind='quaternary'}}, part=2}}]",
    ]
    form = Finer(rounds=2, codec=Quaternary(), part=2)
    assert load(tmp_path, text, *sets).recipe.channel["outer"].finer == (form,)
    said, advice = refused(tmp_path, text, *sets, *(f"{outer}.{change}" for change in changes))
    assert why in said
    assert advice


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["what.rounding.damping=0"], "0.0 is out of range"),
        (["what.rounding.gain=3"], "3.0 is out of range"),
        (["what.rounding.samples=0"], "0 is out of range"),
        (["what.result={kind='ternary'}"], "only of a sign is it known"),
        (["what.owners={kind='forget'}"], "nobody would ever get that"),
        (["what.residual={kind='feedback'}", "what.transform={kind='dct'}"], "inputs look at values in rows"),
    ],
)
def test_what_does_not_go_with_results_rounded_by_inputs_is_refused(
    tmp_path: Path, changes: list[str], why: str
) -> None:
    text = 'name = "small"\n[recipe]\nbase = "held-bit"\n[budget]\nrounds = 4\n'
    outer = "recipe.channel.outer"
    looks = f"{outer}.what.rounding={{kind='by-inputs', samples=2}}"
    assert load(tmp_path, text, looks).recipe.channel["outer"].what.rounding == ByInputs(samples=2)
    said, advice = refused(tmp_path, text, looks, *(f"{outer}.{change}" for change in changes))
    assert why in said
    assert advice


@pytest.mark.parametrize(
    "when",
    [
        "{kind='fragments', steps=4, count=2}",
        "{kind='fragments', steps=4, count=2, pattern='drawn'}",
        "{kind='tensors', steps=4, count=2, passes=1}",
    ],
)
def test_parts_of_a_model_can_be_held_back_as_all_of_it_can(tmp_path: Path, when: str) -> None:
    text = 'name = "small"\n[recipe]\nbase = "gaia"\n[budget]\nrounds = 4\n'
    outer = "recipe.channel.outer"
    waits, shifts = f"{outer}.when={when}", f"{outer}.overlap={{kind='delay', steps=1, reconcile={{kind='shift'}}}}"
    assert load(tmp_path, text, waits).recipe.channel["outer"].what.residual == Hold()
    assert load(tmp_path, text, waits, shifts).recipe.channel["outer"].what.residual == Hold()
    for keep in (0.0, 0.5):
        blends = f"{outer}.overlap={{kind='delay', steps=1, reconcile={{kind='blend', keep={keep}}}}}"
        said, advice = refused(tmp_path, text, waits, blends)
        assert f"{outer}.what.residual: what is taken in must leave what a peer has not sent where it is" in said
        assert "shift" in advice
    said, _ = refused(tmp_path, text, waits, f"{outer}.late={{kind='carry'}}", f"{outer}.barrier={{kind='quorum'}}")
    assert f"{outer}.what.residual: what is held is held back from one common anchor" in said


def test_a_delta_does_not_travel_as_factors(tmp_path: Path) -> None:
    said, _ = refused(tmp_path, RUN, "recipe.channel.outer.what.transform={kind='low-rank'}")
    assert "recipe.channel.outer.what.transform: the same gradient is asked for in two rounds" in said


@pytest.mark.parametrize(
    ("recipe", "overrides", "path", "why"),
    [
        ("demo-sgd", ["codec={kind='threshold', least=1, scaled=true}"], "codec.scaled", "a gradient does not shrink"),
        ("demo-sgd", ["codec={kind='significance'}"], "codec", "no weights of their own"),
        ("ddp", ["codec={kind='significance'}", "result={kind='fp32'}"], "codec", "not yet the change of a weight"),
        ("fedht", ["result={kind='threshold', least=1}"], "result", "how large the mean must be"),
    ],
)
def test_a_threshold_that_nothing_could_be_compared_with_is_refused(
    tmp_path: Path, recipe: str, overrides: list[str], path: str, why: str
) -> None:
    text = f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n'
    said, advice = refused(tmp_path, text, *(f"recipe.channel.outer.what.{each}" for each in overrides))
    assert f"recipe.channel.outer.what.{path}: " in said
    assert why in said
    assert advice


@pytest.mark.parametrize(
    ("override", "where", "what"),
    [
        ("recipe.control.share=0", "control.share", "out of range"),
        ("recipe.control.share=1.0", "control.share", "out of range"),
        ("recipe.control.ladder=[]", "control.ladder", "is empty"),
        ("recipe.control.least=200", "control.ladder.0.steps", "out of range"),
        ("recipe.control.outer_lr=[[2, 0.4]]", "control.outer_lr", "must rise from 1"),
        ("recipe.control.outer_lr=[[1, 0.4], [1, 0.5]]", "control.outer_lr", "must rise from 1"),
        ("recipe.control.outer_lr=[[1, -0.4]]", "control.outer_lr.0.1", "not positive"),
        ('recipe.channel.outer.merge.outer.kind="assign"', "control.outer_lr", "has its rate turned"),
        ('recipe.channel.outer.what.residual.kind="forget"', "control.ladder.3.codec", "left out"),
        ("recipe.channel.outer.overlap={kind='one-round'}", "channel.outer.overlap", "does not survive"),
        ("recipe.channel.outer.when={kind='fragments', steps=10, count=2}", "channel.outer.when", "whole model"),
        ("recipe.work.quota={kind='growing', below=0.1}", "work.quota", "two would turn"),
        ("recipe.work.quota={kind='by-rate', most=1000}", "work.quota", "two would turn"),
        ("recipe.channel.outer.barrier={kind='quorum'}", "channel.outer.barrier", "outlast"),
        (
            "recipe.control.ladder=[{codec={kind='int8'}, steps=50, route={kind='ring'}}]",
            "channel.outer.whom.route",
            "passes sums on",
        ),
        ("recipe.control.ladder=[{codec={kind='int8', block=7}, steps=50}]", "control.ladder.0.codec.block", "range"),
        ("recipe.control.ladder=[{codec={kind='top-k'}, steps=50}]", "control.ladder.0.result", "not as sparse"),
        (
            "recipe.control.ladder=[{codec={kind='fp16'}, steps=50, overlap={kind='delay', steps=50}}]",
            "control.ladder.0.overlap.steps",
            "out of range",
        ),
    ],
)
def test_knobs_that_cannot_be_turned_are_refused_where_the_ladder_says_so(
    tmp_path: Path, override: str, where: str, what: str
) -> None:
    text = RUN.replace("diloco", "auto")
    assert load(tmp_path, text).recipe.control == load_recipe("auto").control
    sets = [override]
    if "assign" in override:
        sets = ["recipe.channel.outer.merge.outer={kind='assign'}"]
    if "forget" in override:
        sets = ["recipe.channel.outer.what.residual={kind='forget'}"]
    said, hint = refused(tmp_path, text, *sets)
    assert f"recipe.{where}" in said.replace("[", ".").replace("]", "")
    assert what in said
    assert hint


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"what.codec": "{kind='top-k'}"}, "whom.route", "not as sparse"),
        ({"what.residual": "{kind='feedback'}"}, "whom.route", "nobody's own"),
        ({"what.owners": "{kind='feedback'}"}, "whom.route", "nobody's own"),
        ({"what": "{kind='params', codec={kind='fp16'}}"}, "whom.route", "rounded at every hop"),
        ({"what.codec": "{kind='fp16'}", "merge.combine.weights": "'samples'"}, "whom.route", "too large for fp16"),
        ({"what.result": "{kind='fp32'}"}, "what.result", "in the form of contributions"),
        ({"merge.combine": "{kind='trimmed'}"}, "whom.route", "only a sum of some"),
        ({"barrier": "{kind='quorum'}"}, "whom.route", "when everybody is in"),
    ],
)
@pytest.mark.parametrize("route", ["{kind='ring'}", "{kind='trees'}", "{kind='rings', clusters=2}"])
def test_what_cannot_be_added_up_hop_by_hop_is_refused(
    tmp_path: Path, changes: dict[str, str], path: str, said: str, route: str
) -> None:
    changes = changes | {"whom.route": route}
    overrides = [f"recipe.channel.outer.{key}={value}" for key, value in changes.items()]
    text = 'name = "small"\n[recipe]\nbase = "intellect-1"\n[budget]\nrounds = 3\n'
    told, advice = refused(tmp_path, text, *overrides)
    assert f": recipe.channel.outer.{path}: " in told
    assert said in told
    assert advice


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("{kind='trees', roots=0}", "roots"),
        ("{kind='trees', roots=65}", "roots"),
        ("{kind='trees', gain=1.0}", "gain"),
        ("{kind='trees', gain=-0.1}", "gain"),
        ("{kind='rings', clusters=1}", "clusters"),
    ],
)
def test_routes_that_are_none_are_refused(tmp_path: Path, route: str, path: str) -> None:
    told, advice = refused(tmp_path, RUN, f"recipe.channel.outer.whom.route={route}")
    assert f": recipe.channel.outer.whom.route.{path}: " in told
    assert "out of range" in told
    assert advice


@pytest.mark.parametrize(
    ("base", "override", "said"),
    [
        ("hips", "whom.route.near_ms=0", "whom.route.near_ms: 0.0 is not positive"),
        ("hfa", "whom.pattern.near_ms=-1", "whom.pattern.near_ms: -1.0 is not positive"),
        ("hips", "merge.combine={kind='trimmed'}", "whom.route: regions send each other sums"),
        ("hips", "what.owners={kind='feedback'}", "what.owners: nobody owns a chunk"),
        ("hfa", "what={kind='grad'}", "whom: gradients are taken at one common anchor"),
        ("hfa", "late={kind='stand-in'}", "late: who joins what its circle made later"),
    ],
)
def test_what_does_not_go_with_regions_is_refused(tmp_path: Path, base: str, override: str, said: str) -> None:
    text = f'name = "small"\n[recipe]\nbase = "{base}"\n[budget]\nrounds = 3\n'
    sets = [f"recipe.channel.outer.{override}"]
    if "grad" in override:
        sets.append("recipe.work.inner={kind='accumulate'}")
    if "stand-in" in override:
        sets.append("recipe.channel.outer.barrier={kind='quorum'}")
    told, advice = refused(tmp_path, text, *sets)
    assert f"recipe.channel.outer.{said}" in told
    assert advice


def test_knobs_of_a_run_by_regions_stay_as_they_are(tmp_path: Path) -> None:
    said, _ = refused(tmp_path, RUN.replace("diloco", "auto"), "recipe.channel.outer.whom.route={kind='regions'}")
    assert "recipe.channel.outer.whom.route: who passes sums on to whom does not survive" in said


def test_nobody_feeds_back_to_results_that_everybody_makes(tmp_path: Path) -> None:
    gathered = "recipe.channel.outer.whom={kind='all', route={kind='all-gather'}}"
    said, _ = refused(tmp_path, RUN, gathered, "recipe.channel.outer.what.owners={kind='feedback'}")
    assert "recipe.channel.outer.what.owners: nobody owns a chunk" in said


@pytest.mark.parametrize(
    ("recipe", "override", "path"),
    [
        ("ddp", "", "late"),
        ("diloco", "overlap={kind='delay', steps=1}", "overlap"),
        ("eager", "", "overlap"),
        ("streaming", "overlap={kind='delay', steps=1, reconcile={kind='shift'}}", "overlap"),
        ("streaming", "what.residual={kind='feedback'}", "what.residual"),
        ("streaming", "merge.outer={kind='delayed-nesterov', lr=0.7, every=4}", "merge.outer"),
    ],
)
def test_work_that_outlasts_a_round_is_refused_where_it_cannot(
    tmp_path: Path, recipe: str, override: str, path: str
) -> None:
    sets = [f"recipe.channel.outer.{each}" for each in ("late={kind='carry'}", override) if each]
    said, advice = refused(tmp_path, f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n', *sets)
    assert f"recipe.channel.outer.{path}: " in said
    assert advice


@pytest.mark.parametrize(
    ("recipe", "changes", "where", "why"),
    [
        ("diloco", {"schedule": "{kind='constant'}"}, "recipe.work.schedule", "does not fall"),
        ("diloco", {"schedule": "{kind='cyclic'}"}, "recipe.work.schedule", "does not fall"),
        ("diloco", {"quota": "{kind='by-rate', most=400}"}, "recipe.work.quota.most", "at least 500"),
        ("diloco", {"quota": "{kind='by-rate'}"}, "recipe.work.quota", "most"),
        ("dedloc", {}, "recipe.work.quota", "ends at a number of samples"),
        ("eager", {}, "recipe.work.quota", "before this one is over"),
        ("streaming", {}, "recipe.work.quota", "before this one is over"),
    ],
)
def test_rounds_that_grow_with_the_rate_need_one_that_falls_and_nothing_begun_before_them(
    tmp_path: Path, recipe: str, changes: dict[str, str], where: str, why: str
) -> None:
    usual = {"quota": "{kind='by-rate', most=1000}", "schedule": "{kind='cosine'}"}
    text = f'name = "small"\n[recipe]\nbase = "{recipe}"\n[budget]\nrounds = 3\n'
    said, hint = refused(tmp_path, text, *(f"recipe.work.{key}={value}" for key, value in {**usual, **changes}.items()))
    assert where in said
    assert why in f"{said}, {hint}"
    load(tmp_path, RUN, "recipe.work.quota={kind='by-rate', most=1000}", "recipe.work.schedule={kind='wsd'}")


def test_a_gradient_recipe_whose_schedule_would_do_nothing_is_refused(tmp_path: Path) -> None:
    text = RUN.replace('"diloco"', '"ddp"')
    said, _ = refused(tmp_path, text, "recipe.channel.outer.merge.scheduled=false")
    assert "recipe.channel.outer.merge.scheduled" in said


def test_an_error_blames_the_layer_that_said_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(recipe_text("diloco").replace("clip = 1.0", "clip = -1.0"))
    text = RUN.replace('"diloco"', '"mine.toml"')
    assert refused(tmp_path, text)[0].startswith("mine.toml: recipe.work.clip")
    assert refused(tmp_path, text, "recipe.work.clip=-2")[0].startswith("--set: recipe.work.clip")
    assert refused(tmp_path, RUN, "recipe.work.bach=2")[0] == "--set: recipe.work: unknown key 'bach'"


@pytest.mark.parametrize("override", ["recipe.work.batch", "=3", "a..b=1", "name.x=1"])
def test_an_override_that_is_no_assignment_is_refused(tmp_path: Path, override: str) -> None:
    said, advice = refused(tmp_path, RUN, override)
    assert said.startswith("--set")
    assert advice


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    with pytest.raises(SpecError, match="no such file") as caught:
        load_run(tmp_path / "rum.toml")
    assert "did you mean 'run.toml'?" in caught.value.hint


def test_a_folder_and_a_binary_file_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bin.toml").write_bytes(b"name = \xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_run(tmp_path / "bin.toml")
    with pytest.raises(SpecError, match="cannot be read"):
        load_run(tmp_path)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_makes_a_valid_run_and_says_whose_it_is(name: str, tmp_path: Path) -> None:
    recipe = load(tmp_path, f'name = "x"\n[budget]\nrounds = 1\n[recipe]\nbase = "{name}"\n').recipe
    assert recipe == load_recipe(name)
    assert recipe.about
    assert recipe.paper
    assert recipe.reproduced


def test_ddp_exchanges_gradients_every_step_and_opendiloco_halves_the_bytes_of_diloco() -> None:
    ddp = load_recipe("ddp")
    assert ddp.work.inner == Accumulate()
    assert ddp.channel["outer"].when == Every(steps=1)
    assert isinstance(ddp.channel["outer"].what, Grad)
    half, full = load_recipe("opendiloco"), load_recipe("diloco")
    assert half.channel["outer"].what == Delta(codec=Fp16())
    assert half.work == full.work
    assert half.channel["outer"].merge == full.channel["outer"].merge


def test_what_a_recipe_says_of_itself_is_read_without_the_rest_of_it() -> None:
    heads = recipe_heads()
    assert list(heads) == recipe_names()
    for name, head in heads.items():
        recipe = load_recipe(name)
        assert head == (recipe.about, recipe.paper, recipe.reconstructed)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        load_recipe("fedavgg")
    assert "did you mean 'fedavg'?" in caught.value.hint


def test_a_run_survives_the_way_to_another_peer_with_its_identity() -> None:
    run = demo_run()
    there = decode_run(canonical(run))
    assert there == run
    assert identity(there) == identity(run)


@pytest.mark.parametrize("name", recipe_names())
def test_a_copy_of_a_recipe_has_the_same_byte_form(name: str) -> None:
    recipe = load_recipe(name)
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe
    assert canonical(copy) == canonical(recipe) == canonical(msgspec.convert(msgspec.to_builtins(copy), Recipe))


def test_a_run_whose_file_spells_a_default_out_is_the_same_run(tmp_path: Path) -> None:
    run = load(tmp_path, RUN, "recipe.work.inner.lr=0.5")
    spelt = load(tmp_path, RUN, "recipe.work.inner.lr=0.5", "recipe.work.inner.eps=1e-8", 'recipe.control.kind="none"')
    assert identity(spelt) == identity(run)
    assert identity(load(tmp_path, RUN, "recipe.work.inner.lr=0.5", "recipe.work.inner.eps=1e-7")) != identity(run)


def test_identity_is_about_the_result_and_not_about_upkeep_or_prose(tmp_path: Path) -> None:
    run = load(tmp_path, RUN)
    assert identity(load(tmp_path, RUN, "upkeep.evaluate_every=1", "membership.start_with=2")) == identity(run)
    assert identity(load(tmp_path, RUN, "recipe.about=other words")) == identity(run)
    assert identity(load(tmp_path, RUN, "recipe.work.batch=5")) != identity(run)
    assert identity(load(tmp_path, RUN, "seeds.data=1")) != identity(run)


def test_a_whole_number_and_a_float_of_the_same_value_are_the_same_run(tmp_path: Path) -> None:
    assert load(tmp_path, RUN, "recipe.work.clip=1") == load(tmp_path, RUN, "recipe.work.clip=1.0")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"null", b'{"name": 1}', b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b" " * (2**20 + 1)]
)
def test_bytes_that_are_no_run_are_a_spec_error(data: bytes) -> None:
    with pytest.raises(SpecError):
        decode_run(data)


def test_a_run_from_another_peer_is_checked_like_a_file() -> None:
    tree = msgspec.json.decode(canonical(demo_run()))
    tree["name"] = "../../etc"
    with pytest.raises(SpecError, match="is not a name"):
        decode_run(msgspec.json.encode(tree))


def _places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(place for key, value in below for place in _places(value, (*at, key)))]


def _replaced(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[at[0]] = _replaced(copy[at[0]], at[1:], value)
    return copy


TREE = msgspec.to_builtins(msgspec.json.decode(canonical(demo_run())))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=200)
@given(place=st.sampled_from(_places(TREE)), value=VALUES)
def test_any_value_anywhere_gives_a_run_or_a_spec_error_and_nothing_else(place: tuple[Any, ...], value: Any) -> None:
    try:
        data = msgspec.json.encode(_replaced(TREE, place, value))
    except OverflowError:  # a number beyond 64 bits cannot be put in JSON here
        return
    try:
        run = decode_run(data)
    except SpecError:
        return
    assert decode_run(canonical(run)) == run


def test_the_schema_knows_every_key_of_a_run_and_allows_a_base_recipe() -> None:
    described = schema()
    assert set(described["properties"]) == {field.name for field in msgspec.structs.fields(Run)}
    assert described["properties"]["recipe"]["anyOf"][1]["required"] == ["base"]
    assert "Fresh" in described["$defs"]


GROWTH = "{every=10, add=64, until=4096, most=8192}"


@pytest.mark.parametrize(
    ("base", "changes", "path", "said"),
    [
        ("diloco", {"channel.outer.overlap": "{kind='rounds-late', rounds=2}"}, "channel.outer.overlap", "gradients"),
        ("ddp", {"channel.outer.overlap": "{kind='rounds-late', rounds=0}"}, "channel.outer.overlap.rounds", "range"),
        ("ddp", {"channel.outer.forms": "{abc={kind='fp16'}}"}, "channel.outer.forms.abc", "names no peer"),
        ("ddp", {"channel.outer.forms": "{" + 64 * "a" + "={kind='top-k'}}"}, "channel.outer.forms", "in common"),
        ("gossip", {"channel.outer.forms": "{" + 64 * "a" + "={kind='fp16'}}"}, "channel.outer.forms", "one form"),
        ("deco", {"channel.outer.what.codec": "{kind='fp16'}"}, "control.ladder", "not among these"),
        ("deco", {"channel.outer.overlap": "{kind='one-round', eager=false}"}, "channel.outer.overlap", "waiting"),
        ("deco", {"channel.outer.what.residual": "{kind='forget'}"}, "control.ladder", "would be lost"),
        ("deco", {"control.amplify": "0.5"}, "control.amplify", "out of range"),
        ("sagq", {"channel.outer.what.codec": "{kind='fp16'}"}, "control.ladder.0", "begins with the form"),
        ("sagq", {"channel.outer.forms": "{" + 64 * "a" + "={kind='fp16'}}"}, "channel.outer.forms", "two would say"),
        (
            "diloco",
            {"channel.outer.barrier": "{kind='quorum', lag_max=2}"},
            "channel.outer.barrier.lag_max",
            "never behind",
        ),
        ("async-local-sgd", {"channel.outer.barrier.lag_max": "-1"}, "channel.outer.barrier.lag_max", "out of range"),
        ("stellatrain", {"control.batch.times": "[1, 4, 2]"}, "control.batch.times", "must rise from 1 on"),
        ("stellatrain", {"control.batch.times": "[2, 4]"}, "control.batch.times", "must rise from 1 on"),
        ("stellatrain", {"control.batch.times": "[1, 2097152]"}, "control.batch.times", "out of range"),
        ("stellatrain", {"control.batch.critical": "0"}, "control.batch.critical", "not positive"),
        ("deco", {"control.batch": "{times=[1, 2], critical=64}"}, "channel.outer.when", "no knob"),
        ("stellatrain", {"channel.outer.when.growth": GROWTH}, "channel.outer.when.growth", "two would turn"),
        ("stellatrain", {"channel.outer.what.codec.keep": "0.0"}, "channel.outer.what.codec.keep", "out of range"),
        ("stellatrain", {"channel.outer.what.result": "{kind='cache-lines'}"}, "channel.outer.what.result", "sparse"),
    ],
)
def test_delays_forms_and_policies_that_do_not_go_together_are_refused(
    tmp_path: Path, base: str, changes: dict[str, str], path: str, said: str
) -> None:
    text = f'name = "small"\n[recipe]\nbase = "{base}"\n[budget]\nrounds = 3\n'
    overrides = [f"recipe.{key}={value}" for key, value in changes.items()]
    told, advice = refused(tmp_path, text, *overrides)
    assert f": recipe.{path}" in told.replace("[", ".").replace("]", "")
    assert said in told
    assert advice
