"""Recipes are data: no two do the same, what tells each apart does something, and no code knows one by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

import atoll
from atoll.spec import axes, recipe
from atoll.spec.axes.codec import Buckets, Fp32
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.merge import Mean, Merge, Rda
from atoll.spec.axes.optimizer import AdamW, Assign, DelayedNesterov, Sgd
from atoll.spec.axes.pace import Block, Discard, Full, Quorum, Replicated
from atoll.spec.axes.what import Delta, Feedback, Forget
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.axes.whom import All, AllGather, Butterfly, Regions, Ring
from atoll.spec.axes.work import Growing
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from atoll.spec.turns import in_order, rarest
from tests.peer.world import anchor_of, counting_run, play, round_bytes, sized

PEERS, SIZE = 3, 20_000
ROUNDS = (1, 2, 4)
"""Most recipes are told apart by their first round; those that are not have more."""
NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)

KNOBS: dict[str, dict[str, Any]] = {
    "auto": {"merge": Merge(outer=NESTEROV)},
    "sparse-butterfly": {"what": Delta()},
    "bacombo": {"whom": All(), "merge": Merge(outer=NESTEROV)},
    "async-local-sgd": {"barrier": Full(), "late": Discard(), "merge": Merge(outer=NESTEROV)},
    "co-learning": {"merge": Merge(outer=NESTEROV)},
    "ddp": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "demo-sgd": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "deco": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "decoupled": {
        "whom": All(),
        "barrier": Full(),
        "late": Discard(),
        "when": Every(steps=2),
        "overlap": Block(),
        "merge": Merge(outer=NESTEROV),
    },
    "dedloc": {"when": Every(steps=2)},
    "desloc": {"when": Every(steps=2), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "dga": {"overlap": Block()},
    "dlion": {"when": Every(steps=2), "what": Delta(), "whom": All(), "merge": Merge(outer=NESTEROV)},
    "dreamddp": {"when": Every(steps=2), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "eager": {"overlap": Block()},
    "fedavg": {"merge": Merge(outer=NESTEROV, combine=Mean(weights="samples"))},
    "gaia": {"what": Delta(), "merge": Merge(outer=NESTEROV), "whom": load_recipe("diloco").channel["outer"].whom},
    "hfa": {"whom": All(), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "halos": {
        "whom": All(),
        "barrier": Full(),
        "late": Discard(),
        "home": Replicated(),
        "merge": Merge(outer=NESTEROV),
    },
    "held-bit": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "hierarchical": {"whom": All()},
    "hips": {"whom": All(), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "fedht": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "howcw": {"overlap": Block()},
    "loscar": {"when": Every(steps=2), "overlap": Block(), "merge": Merge(outer=NESTEROV)},
    "intellect-1": {"what": Delta(), "whom": All()},
    "gossip": {"whom": All()},
    "gossip-pga": {"whom": All()},
    "moshpit": {"whom": All()},
    "muloco": {"what": Delta()},
    "netstorm": {"what": Delta(), "whom": All(), "merge": Merge(outer=NESTEROV)},
    "noloco": {"whom": All()},
    "opendiloco": {"what": Delta()},
    "sgp": {"whom": All(), "merge": Merge(outer=NESTEROV)},
    "powersgd": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "qsr": {"merge": Merge(outer=NESTEROV)},
    "ravnest": {"whom": All(), "merge": Merge(outer=NESTEROV), "what": Delta()},
    "sagq": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "slowmo": {"merge": Merge(outer=NESTEROV)},
    "sparseloco": {
        "what": Delta(),
        "whom": load_recipe("diloco").channel["outer"].whom,
        "merge": Merge(outer=NESTEROV),
    },
    "sparta": {"when": Every(steps=2), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "sparta-diloco": {"when": Every(steps=2)},
    "stellatrain": {"when": Every(steps=2), "what": Delta(), "merge": Merge(outer=NESTEROV)},
    "streaming": {"when": Every(steps=2)},
    "wagma": {"whom": All(), "barrier": Full(), "late": Discard(), "merge": Merge(outer=NESTEROV)},
}
"""What tells each recipe apart from DiLoCo, put back to what DiLoCo has: one channel, and in it these."""


class Played(tuple[str, int, str]):
    """Trace, bytes sent in rounds by all, and final anchor of a play."""


@cache
def played(recipe: str, rounds: int, *, reset: bool = False) -> Played:
    run = counting_run(recipe, rounds=rounds, start_with=PEERS)
    if isinstance(run.recipe.work.quota, Growing):  # a counting model moves far in each of its first rounds
        work = replace(run.recipe.work, quota=replace(run.recipe.work.quota, below=1e9))
        run = replace(run, recipe=replace(run.recipe, work=work))
    if reset:
        run = with_knobs(run, **KNOBS[recipe])
    outcome = play(run, PEERS, build=sized(SIZE))
    sent = sum(round_bytes(outcome))
    return Played((outcome.trace, sent, anchor_of(outcome.hosts[0].disk).digest()))


def with_knobs(run: Run, **changes: Any) -> Run:
    name, channel = in_order(run.recipe)[-1]
    recipe = replace(run.recipe, channel={name: replace(channel, **changes)})
    if isinstance(changes.get("what"), Delta):
        inner = load_recipe("diloco").work.inner
        recipe = replace(recipe, work=replace(recipe.work, inner=inner), control=Nobody())
    return replace(run, recipe=recipe)


def test_no_two_recipes_do_the_same() -> None:
    """In one test: each recipe is played once, not once in every process that tests run in."""
    for one, other in combinations(recipe_names(), 2):
        assert any(played(one, rounds)[1:] != played(other, rounds)[1:] for rounds in ROUNDS), (
            f"neither a byte nor a weight tells {one} and {other} apart"
        )
        assert played(one, ROUNDS[0])[0] != played(other, ROUNDS[0])[0], f"{one} and {other} have one trace"


def test_every_recipe_but_diloco_has_something_that_tells_it_apart() -> None:
    assert set(KNOBS) == set(recipe_names()) - {"diloco"}


@pytest.mark.parametrize("recipe", sorted(KNOBS))
def test_what_tells_a_recipe_apart_does_something(recipe: str) -> None:
    shipped = rarest(load_recipe(recipe))
    for name, value in KNOBS[recipe].items():
        assert getattr(shipped, name) != value, f"{name} is as in DiLoCo already"
    apart = (played(recipe, rounds)[1:] != played(recipe, rounds, reset=True)[1:] for rounds in ROUNDS)
    assert any(apart) or _slower(recipe)


def _slower(recipe: str) -> bool:
    """Return whether only the time tells: gradients that count only samples are the same a round later."""
    rounds = ROUNDS[-1]
    return recipe == "howcw" and played(recipe, rounds)[0] != played(recipe, rounds, reset=True)[0]


def test_constants_that_the_headers_call_the_authors_are_those_shipped() -> None:
    """As in the headers: H, outer rate and momentum, what is kept, how much of what is left out is fed back."""

    def of(name: str) -> tuple[Recipe, Any]:
        recipe = load_recipe(name)
        return recipe, recipe.channel["outer"]

    _, sparse = of("sparseloco")
    assert (sparse.when, sparse.what.codec.keep, sparse.what.codec.block) == (Every(steps=30), 64, 4096)
    assert (sparse.what.residual, sparse.merge.outer, sparse.whom.route) == (
        Feedback(decay=0.95),
        Sgd(lr=1.0),
        AllGather(),
    )
    muloco, how = of("muloco")
    assert (muloco.work.inner.lr, how.what.residual.decay, how.what.codec.bits) == (0.02, 0.9, 2)  # type: ignore[union-attr]
    _, streaming = of("streaming")
    assert (streaming.when.steps, streaming.overlap.steps) == (30, 1)
    assert (streaming.merge.outer.lr, streaming.merge.outer.momentum) == (0.4, 0.9)
    _, diloco = of("diloco")
    assert (diloco.when, diloco.merge.outer, diloco.what.codec) == (Every(steps=500), NESTEROV, Fp32())
    assert (diloco.what.residual, diloco.overlap, diloco.whom.route) == (Forget(), Block(), Butterfly())
    _, ring = of("intellect-1")
    assert (ring.when, ring.merge.outer, ring.what.codec) == (Every(steps=100), NESTEROV, Buckets(bits=8, width=12.0))
    assert (ring.whom, ring.what.residual) == (All(route=Ring()), Forget())
    assert of("fedavg")[1].merge.outer == Assign()
    assert isinstance(of("ddp")[1].merge.outer, AdamW)
    _, regions = of("hfa")
    assert (regions.when, regions.whom.all_every, type(regions.whom.pattern)) == (Every(steps=20), 10, Regions)
    free, how = of("async-local-sgd")
    assert (how.when, how.barrier, how.merge.outer.momentum) == (Every(steps=50), Quorum(), 0.9)
    assert (how.merge.outer.spread, free.work.inner.lr) == (0.0, 4e-4)  # type: ignore[union-attr]
    levels, how = of("halos")
    assert (how.when, how.home.pushes, how.home.take, levels.work.inner.lr) == (Every(steps=8), 32, 0.25, 1e-3)  # type: ignore[union-attr]
    assert how.merge.outer == DelayedNesterov(lr=0.2 * 16, momentum=0.9, every=16)
    assert how.home.outer == DelayedNesterov(lr=0.15 * 2, momentum=0.5, every=2)
    _, decoupled = of("decoupled")
    assert (decoupled.when.steps, decoupled.overlap.steps, decoupled.barrier.contributors) == (24, 2, 1)
    assert decoupled.merge.combine == Rda(weights="tokens^2/steps")
    for name in ("sparta", "sparta-diloco"):
        assert in_order(load_recipe(name))[0][1].when == Fragments(steps=200, count=200, pattern="drawn")
    below, above = of("sparta-diloco")
    assert (above.when, above.merge.outer, type(below.work.inner)) == (Every(steps=100), NESTEROV, AdamW)
    moments = of("desloc")[1]
    assert (moments.when.first, moments.when.second, moments.merge.outer) == (3, 6, Assign())
    assert (of("dedloc")[1].when.samples, of("dedloc")[1].merge.outer.lr) == (4096, 1.76e-3)


SOURCE = Path(atoll.__file__).parent
PLAYERS = ("sim/lots.py", "sim/skies.py", "sim/sweep.py")
"""They say what to play, so names are among the arguments of their calls."""
WORDS = {
    word
    for module in (recipe, *(import_module(each.name) for each in iter_modules(axes.__path__, "atoll.spec.axes.")))
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Struct)
    for word in (*kind.__struct_fields__, kind.__struct_config__.tag)
}
"""Keys and kinds of a recipe file: a recipe may be called like one of them."""


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_code_knows_a_recipe_by_name(path: Path) -> None:
    """Recipes are looked up by what a person wrote; what one does is asked of its choices."""
    tree = ast.parse(path.read_text("utf-8"))
    plays = str(path.relative_to(SOURCE)) in PLAYERS
    found = [f"{node.lineno}: {node.value!r}" for node in names_in(tree, set(recipe_names()), plays=plays)]
    assert found == []


def names_in(tree: ast.AST, names: set[str], *, plays: bool = False) -> list[ast.Constant]:
    """Return the texts in code that are a recipe's name, but for the words that recipe files are written with.

    In code that `plays`, arguments of calls may be names. What is compared, matched or looked up never is one.
    """
    decided = {id(each) for each in _texts(*_deciding(tree))}
    given = {id(each) for each in _texts(*_arguments(tree))} if plays else set()
    return [
        each
        for each in _texts(tree)
        if each.value in names and (id(each) in decided or not (each.value in WORDS or id(each) in given))
    ]


def _texts(*trees: ast.AST) -> Iterator[ast.Constant]:
    return (each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Constant))


def _deciding(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what something is compared or matched with, or looked up by, and the keys of tables to look up in."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                yield from (node.left, *node.comparators)
            case ast.MatchValue(value=value) | ast.Subscript(slice=value):
                yield value
            case ast.Dict(keys=keys):
                yield from (key for key in keys if key is not None)


def _arguments(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (*node.args, *(keyword.value for keyword in node.keywords))


@pytest.mark.parametrize(
    "code",
    [
        'if name == "ddp": pass',
        'if name in ("fedavg", "ddp"): pass',
        'DDP = "ddp"',
        'entry("ddp")',
        'table["ddp"]',
        'table = {"ddp": 1}',
        'match name:\n    case "ddp": pass',
        'def entry(label="ddp"): pass',
        'play(recipe == "ddp")',
        'if name == "eager": pass',
    ],
)
def test_the_check_itself_finds_a_recipes_name(code: str) -> None:
    assert names_in(ast.parse(code), set(recipe_names()))


def test_the_check_itself_lets_through_what_is_played_and_the_words_of_recipe_files() -> None:
    names = set(recipe_names())
    assert "eager" in names & WORDS
    assert names_in(ast.parse('said = (*path, "eager")'), names) == []
    assert names_in(ast.parse('"""Of ddp, in prose."""'), names) == []
    played = 'run_of(rng, recipe="ddp")\nrng.choice(("ddp", "fedavg"))'
    assert names_in(ast.parse(played), names, plays=True) == []
    assert names_in(ast.parse(played), names)
    for decided in ('FIRST = "ddp"', 'play(recipe == "ddp")', 'play({"ddp": 1})'):
        assert names_in(ast.parse(decided), names, plays=True), decided
