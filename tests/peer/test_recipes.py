"""Recipes are data: no two do the same, what tells each apart does something, and no code knows one by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import atoll
from atoll import journal
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import (
    AdamW,
    All,
    AllGather,
    Assign,
    Block,
    Buckets,
    Butterfly,
    Delta,
    Every,
    Feedback,
    Forget,
    Fp32,
    Growing,
    Mean,
    Merge,
    Recipe,
    Ring,
    Sgd,
)
from atoll.spec.run import Run
from tests.peer.world import anchor_of, counting_run, events, play, sized

PEERS, ROUNDS, SIZE = 3, 4, 20_000
NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)

KNOBS: dict[str, dict[str, Any]] = {
    "sparse-butterfly": {"what": Delta()},
    "co-learning": {"merge": Merge(outer=NESTEROV)},
    "ddp": {"what": Delta(), "merge": Merge(outer=NESTEROV)},
    "dedloc": {"when": Every(steps=2)},
    "dga": {"overlap": Block()},
    "eager": {"overlap": Block()},
    "fedavg": {"merge": Merge(outer=NESTEROV, combine=Mean(weights="samples"))},
    "howcw": {"overlap": Block()},
    "intellect-1": {"what": Delta(), "whom": All()},
    "gossip": {"whom": All()},
    "gossip-pga": {"whom": All()},
    "moshpit": {"whom": All()},
    "muloco": {"what": Delta()},
    "noloco": {"whom": All()},
    "opendiloco": {"what": Delta()},
    "slowmo": {"merge": Merge(outer=NESTEROV)},
    "sparseloco": {"what": Delta(), "whom": load_recipe("diloco").channel["outer"].whom},
    "streaming": {"when": Every(steps=2)},
}
"""What tells each recipe apart from DiLoCo, put back to what DiLoCo has."""


class Played(tuple[str, int, str]):
    """Trace, bytes sent in rounds by all, and final anchor of a play."""


@cache
def played(recipe: str, reset: bool = False) -> Played:
    run = counting_run(recipe, rounds=ROUNDS, start_with=PEERS)
    if isinstance(run.recipe.work.quota, Growing):  # a counting model moves far in each of its first rounds
        work = replace(run.recipe.work, quota=replace(run.recipe.work.quota, below=1e9))
        run = replace(run, recipe=replace(run.recipe, work=work))
    if reset:
        run = with_knobs(run, **KNOBS[recipe])
    outcome = play(run, PEERS, build=sized(SIZE))
    sent = sum(events(outcome, journal.TrafficCounted, peer=peer)[-1].round_sent_bytes for peer in range(PEERS))
    return Played((outcome.trace, sent, anchor_of(outcome.hosts[0].disk).digest()))


def with_knobs(run: Run, **changes: Any) -> Run:
    ((name, channel),) = run.recipe.channel.items()
    recipe = replace(run.recipe, channel={name: replace(channel, **changes)})
    if isinstance(changes.get("what"), Delta):
        inner = load_recipe("diloco").work.inner
        recipe = replace(recipe, work=replace(recipe.work, inner=inner))
    return replace(run, recipe=recipe)


@pytest.mark.parametrize(("one", "other"), list(combinations(recipe_names(), 2)))
def test_no_two_recipes_do_the_same(one: str, other: str) -> None:
    first, second = played(one), played(other)
    assert first[0] != second[0]
    assert first[1:] != second[1:], "neither a byte nor a weight tells them apart"


def test_every_recipe_but_diloco_has_something_that_tells_it_apart() -> None:
    assert set(KNOBS) == set(recipe_names()) - {"diloco"}


@pytest.mark.parametrize("recipe", sorted(KNOBS))
def test_what_tells_a_recipe_apart_does_something(recipe: str) -> None:
    shipped = next(iter(load_recipe(recipe).channel.values()))
    for name, value in KNOBS[recipe].items():
        assert getattr(shipped, name) != value, f"{name} is as in DiLoCo already"
    assert played(recipe)[1:] != played(recipe, reset=True)[1:] or _slower(recipe)


def _slower(recipe: str) -> bool:
    """Return whether only the time tells: gradients that count only samples are the same a round later."""
    return recipe == "howcw" and played(recipe)[0] != played(recipe, reset=True)[0]


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
    assert (streaming.when.steps, streaming.overlap.steps, streaming.overlap.reconcile.keep) == (30, 1, 0.5)
    assert (streaming.merge.outer.lr, streaming.merge.outer.momentum) == (0.4, 0.9)
    _, diloco = of("diloco")
    assert (diloco.when, diloco.merge.outer, diloco.what.codec) == (Every(steps=500), NESTEROV, Fp32())
    assert (diloco.what.residual, diloco.overlap, diloco.whom.route) == (Forget(), Block(), Butterfly())
    _, ring = of("intellect-1")
    assert (ring.when, ring.merge.outer, ring.what.codec) == (Every(steps=100), NESTEROV, Buckets(bits=8, width=12.0))
    assert (ring.whom, ring.what.residual) == (All(route=Ring()), Forget())
    assert of("fedavg")[1].merge.outer == Assign()
    assert isinstance(of("ddp")[1].merge.outer, AdamW)
    assert (of("dedloc")[1].when.samples, of("dedloc")[1].merge.outer.lr) == (4096, 1.76e-3)


def test_no_code_knows_a_recipe_by_name() -> None:
    """A name may be a default or a list of what to play; nothing may be compared with it."""
    names = set(recipe_names())
    for path in sorted(Path(atoll.__file__).parent.rglob("*.py")):
        for node in _compared(ast.parse(path.read_text())):
            assert node.value not in names, f"{path}:{node.lineno} compares with '{node.value}'"


def _compared(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the constants that something is compared or matched with, or looked up by."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.MatchValue(value=value) | ast.Subscript(slice=value):
                parts = [value]
        yield from (each for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant))
