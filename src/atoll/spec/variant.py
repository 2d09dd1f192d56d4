"""One run under several recipes: the same model, data, seeds and tokens, another way to train together.

A run file is written for one recipe. Under another one, what describes the work stays and what describes the method
is the other recipe's own:

    stays     batch, micro-batch and clipping; the schedule's numbers, where both have the same kind, else its warm-up;
              steps between exchanges, for recipes that take more than one and do not find them by themselves (up to a
              multiple of their fragments; a delay is no longer than a round then); numbers of the optimizer that
              steps on gradients, where both use the same kind (it is the inner one, or the outer one of recipes that
              exchange gradients; Muon's AdamW counts too)
    theirs    what is exchanged, in which form, with whom, and how it moves the anchor

The recipe that the run file itself starts from keeps everything the file says. `--set` changes the run file, so of the
work the same holds for it; of the method it changes all recipes alike. What is meant for one is said so, and comes last
("ddp:recipe.channel.outer.merge.outer.lr=3e-3").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.spec.axes.control import Auto, Nobody
from atoll.spec.axes.merge import Mean, Merge
from atoll.spec.axes.optimizer import Accumulate, AdamW, Assign, Muon
from atoll.spec.axes.pace import Blend, Block, Delay, Discard, Full, Quorum
from atoll.spec.axes.what import Delta
from atoll.spec.axes.when import Every, Fragments, Named, TargetBatch, Tensors, WithMoments
from atoll.spec.axes.whom import All
from atoll.spec.load import build_run, load_run, recipe_names, set_tree, with_sets
from atoll.spec.recipe import Recipe
from atoll.spec.run import Budget, Run
from atoll.spec.strict import Tree, merge, near, read_toml
from atoll.spec.turns import in_order, rarest, round_steps

Place = tuple[str, ...]
OWN = "own"
"""Names the run file's recipe as it stands."""
SOLO = "solo"
"""One peer alone."""


class Variant(Struct, frozen=True):
    """A run under one recipe, and what to call it."""

    label: str
    run: Run


def variants(path: Path, recipes: Sequence[str], overrides: Sequence[str] = ()) -> list[Variant]:
    """Return the run at `path` under each recipe: a shipped name, the path of a recipe file, or "own"."""
    labels = [_label(recipe) for recipe in recipes]
    for label in labels:
        if labels.count(label) > 1:
            raise SpecError(f"--recipes: '{label}' is named twice", hint="name each recipe once")
        if label == SOLO:
            raise SpecError(f"--recipes: '{SOLO}' is what one peer alone is called", hint="give the file another name")
    sets = _sorted_out(overrides, [*labels, SOLO])
    return [
        Variant(label, _under(path, recipe, sets[""], sets[label]))
        for label, recipe in zip(labels, recipes, strict=True)
    ]


def alone(path: Path, overrides: Sequence[str] = ()) -> Variant:
    """Return the run as one peer would train it without the others: its own optimizer, step after step."""
    sets = _sorted_out(overrides, None)
    run = load_run(path, overrides=[*sets[""], *sets.get(SOLO, [])])
    name, channel = in_order(run.recipe)[-1]
    when = Every(steps=round_steps(run.recipe))
    channel = replace(channel, when=when, overlap=Block(), barrier=Full(), late=Discard())
    if not isinstance(run.recipe.work.inner, Accumulate):  # all of one delta, nothing left out: plain training
        channel = replace(channel, what=Delta(), whom=All(), merge=Merge(outer=Assign(), combine=Mean()))
    return Variant(SOLO, replace(run, recipe=replace(run.recipe, channel={name: channel}, control=Nobody())))


def round_tokens(run: Run, peers: int) -> int:
    """Return how many tokens a round takes when everybody contributes, or as many as end it."""
    channel, batch = rarest(run.recipe), run.recipe.work.batch
    if isinstance(channel.barrier, Quorum):
        peers = min(peers, channel.barrier.contributors)
    samples = peers * round_steps(run.recipe) * batch
    if isinstance(channel.when, TargetBatch):
        samples = max(samples, -(-channel.when.samples // batch) * batch)
    return samples * run.data.context // channel.phases


def budget_tokens(own: Run, runs: Sequence[Run], peers: int, tokens: int = 0) -> int:
    """Return the tokens that all recipes get: those asked for, or the run's own, up to whole rounds of the longest."""
    asked = tokens or own.budget.tokens or own.budget.rounds * round_tokens(own, peers)
    longest = max(round_tokens(run, peers) for run in runs)
    return -(-asked // longest) * longest


def with_tokens(run: Run, tokens: int, peers: int, looks: int) -> Run:
    """Return a run of so many peers that ends after so many tokens.

    If it does not say how often, it looks at its loss about `looks` times.
    """
    rounds = -(-tokens // round_tokens(run, peers))
    every = run.upkeep.evaluate_every or max(1, rounds // looks)
    there = min(run.membership.contributors_min, peers)  # who is alone waits for nobody
    return replace(
        run,
        budget=Budget(tokens=tokens),
        membership=replace(run.membership, start_with=peers, contributors_min=there),
        upkeep=replace(run.upkeep, evaluate_every=every),
    )


def _label(recipe: str) -> str:
    """Return what a recipe is called in tables: its name, or its file's."""
    known = recipe_names()
    if recipe.endswith(".toml"):
        return Path(recipe).stem
    if recipe not in (*known, OWN):
        hint = f"known recipes: {', '.join(known)}{near(recipe, known)}; or a .toml file, or '{OWN}' for the run's own"
        raise SpecError(f"--recipes: no recipe is called '{recipe}'", hint=hint)
    return recipe


def _sorted_out(overrides: Sequence[str], labels: Sequence[str] | None) -> dict[str, list[str]]:
    """Return `--set` flags by the recipe they are for ("": all); one for a recipe that is not there is refused."""
    found: dict[str, list[str]] = {"": [], **{label: [] for label in labels or ()}}
    for text in overrides:
        key, equals, value = text.partition("=")
        label, colon, rest = key.rpartition(":")
        if rest.strip().startswith("recipe.base"):
            raise SpecError(f"--set {text}: the recipes are those of --recipes", hint="name it there")
        if colon and labels is not None and label not in found:
            raise SpecError(f"--set {text}: '{label}' is not compared", hint=f"compared are: {', '.join(labels)}")
        found.setdefault(label, []).append(rest + equals + value)
    return found


def _under(path: Path, recipe: str, for_all: Sequence[str], for_it: Sequence[str]) -> Run:
    """Return the run at `path` with another recipe in place of its own."""
    tree = read_toml(path)
    own = load_run(path, overrides=for_all)
    if recipe in (OWN, tree["recipe"].get("base")):
        return load_run(path, overrides=[*for_all, *for_it])
    base = str(Path(recipe).resolve()) if recipe.endswith(".toml") else recipe
    bare = build_run(tree | {"recipe": {"base": base}}, path)
    flags = set_tree(for_all)
    kept = _kept(with_sets(tree, str(path), path.parent, flags)["recipe"], own.recipe, bare.recipe)
    if recipe.endswith(".toml"):  # what somebody wrote down for this is meant; what is shipped was for another size
        kept = merge(_unsaid(kept, read_toml(Path(recipe))), _kept(flags.get("recipe", {}), own.recipe, bare.recipe))
    method = [text for text in for_all if not _about_work(text, own.recipe)]
    return build_run(tree | {"recipe": {"base": base, **kept}}, path, overrides=[*method, *for_it])


def _about_work(override: str, own: Recipe) -> bool:
    """Return whether a `--set` changes what `_kept` decides about."""
    key = override.partition("=")[0].strip()
    whens = (f"recipe.channel.{name}.when" for name in own.channel)
    places = ("recipe.work", *whens, ".".join(("recipe", *_stepper(own))))
    return any(key == place or key.startswith(place + ".") for place in places)


def _kept(table: Tree, own: Recipe, other: Recipe) -> Tree:
    """Return what of a run file's recipe table holds under another recipe too."""
    kept: Tree = {}
    for key in ("batch", "micro_batch"):
        _put(kept, ("work", key), _dig(table, ("work", key)))
    if not isinstance(other.work.inner, Accumulate):  # gradients that are averaged first are not clipped one by one
        _put(kept, ("work", "clip"), _dig(table, ("work", "clip")))
    _keep_schedule(kept, table, own, other)
    _keep_steps(kept, table, own, other)
    _keep_optimizer(kept, table, own, other)
    return kept


def _unsaid(kept: Tree, said: Tree) -> Tree:
    """Return what is kept of a run file where a recipe's own file says nothing."""
    inner = {key: _unsaid(value, said[key]) for key, value in kept.items() if isinstance(said.get(key), dict)}
    return {key: value for key, value in (kept | inner).items() if value != {} and (key in inner or key not in said)}


def _keep_schedule(kept: Tree, table: Tree, own: Recipe, other: Recipe) -> None:
    said = _dig(table, ("work", "schedule")) or {}
    if type(own.work.schedule) is not type(other.work.schedule):
        said = {key: value for key, value in said.items() if key == "warmup_steps"}
    kind = other.work.schedule.__struct_config__.tag  # a recipe that leaves its schedule out does not say it
    _put(kept, ("work", "schedule"), {**said, "kind": kind} if said else None)


def _keep_steps(kept: Tree, table: Tree, own: Recipe, other: Recipe) -> None:
    """Keep the steps between exchanges, unless a round of the other is one step; a delay ends with its round.

    Of several channels those of the rarest: the others have theirs, of which these are a multiple.
    """
    (own_name, _), (name, channel) = in_order(own)[-1], in_order(other)[-1]
    steps = _dig(table, ("channel", own_name, "when", "steps"))
    if not isinstance(steps, int) or isinstance(other.control, Auto):
        return  # it begins with few, to measure, and finds the rest
    match channel.when:
        case Fragments(pattern="drawn") if channel.when.round_steps == 1:
            return
        case Fragments(count=count) | Named(count=count) | Tensors(count=count):
            steps = -(-steps // count) * count  # all rounds have as many
            each = steps // count
        case Every(steps=theirs) | WithMoments(steps=theirs) if theirs > 1:
            often = round_steps(other) if len(other.channel) > 1 else 1
            each = steps = -(-steps // often) * often
        case _:
            return
    _put(kept, ("channel", name, "when", "steps"), steps)
    if isinstance(channel.overlap, Delay):
        blends_all = isinstance(channel.when, Every) and isinstance(channel.overlap.reconcile, Blend)
        most = each - blends_all  # blended in with the last step, the next delta would be of no step
        _put(kept, ("channel", name, "overlap", "steps"), max(1, min(channel.overlap.steps, most)))


def _keep_optimizer(kept: Tree, table: Tree, own: Recipe, other: Recipe) -> None:
    """Keep the numbers of what steps on gradients, where both recipes use the same kind for it."""
    said = _dig(table, _stepper(own)) or {}
    numbers = {key: value for key, value in said.items() if key != "kind"} or None
    mine, theirs = _at(own, _stepper(own)), _at(other, _stepper(other))
    if type(mine) is type(theirs):
        _put(kept, _stepper(other), numbers)
    elif isinstance(mine, AdamW) and isinstance(theirs, Muon):
        _put(kept, (*_stepper(other), "adamw"), numbers)


def _stepper(recipe: Recipe) -> Place:
    """Return where a recipe names the optimizer that steps on gradients."""
    if isinstance(recipe.work.inner, Accumulate):
        return ("channel", in_order(recipe)[-1][0], "merge", "outer")
    return ("work", "inner")


def _at(recipe: Recipe, path: Place) -> Any:
    found: Any = recipe
    for key in path:
        found = found[key] if isinstance(found, dict) else getattr(found, key)
    return found


def _dig(tree: Any, path: Place) -> Any:
    """Return what stands at a place of a tree; None: nothing."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def _put(tree: Tree, path: Place, value: Any) -> None:
    """Set a place of a tree; None leaves it as it is."""
    if value is None:
        return
    *above, last = path
    for key in above:
        tree = tree.setdefault(key, {})
    tree[last] = value
