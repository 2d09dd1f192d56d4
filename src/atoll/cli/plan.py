"""`atoll plan`: the best ways to train a model on a fleet, before anything is spent.

atoll plan --model 125m --tokens 2.5G --fleet homes                        ways on the front of time, money and carbon
atoll plan RUN.toml --fleet lab.toml --deadline "30 d" --budget 500         the model and data of a run file, and limits
atoll plan --model 125m --tokens 2.5G --fleet homes --out plan --report plan.html     files for `atoll train` and `sim`
atoll plan --facts [TABLE]                                                   what is known, whose it is, how old
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import Json
from atoll.errors import SpecError
from atoll.units import say_count, say_time

if TYPE_CHECKING:
    from atoll.facts.book import Facts
    from atoll.observe.sheet import Block
    from atoll.plan.goal import Goal
    from atoll.plan.planner import Verdict
    from atoll.spec.fleet import Fleet
    from atoll.spec.run import Run
    from atoll.spec.strict import Tree

VOCABULARY, CONTEXT = 32_000, 1024
BATCH_TOKENS = 2**18
NOTES_MAX = 6
"""About lines that are unlike all that is known, so many are printed."""

RunFile = Annotated[
    Path | None, typer.Argument(metavar="[RUN.toml]", help="Plan for its model and data; or name a model.")
]
Model = Annotated[str, typer.Option("--model", metavar="SIZE", help="A named size: 125m, 1b, 8b, ...")]
Tokens = Annotated[str, typer.Option("--tokens", help="How many to train on: 2.5G. 20 a parameter unless said.")]
FleetName = Annotated[str, typer.Option("--fleet", help="A fleet file, or a shipped fleet: lan, homes, town, ...")]
Peers = Annotated[int, typer.Option("--peers", min=0, help="Use only so many machines of the fleet; 0: all.")]
Deadline = Annotated[str, typer.Option("--deadline", help='At most so long: "30 d".')]
Money = Annotated[float | None, typer.Option("--budget", min=0, help="At most so many dollars.")]
Carbon = Annotated[str, typer.Option("--carbon", help='At most so much: "50 kg".')]
Stays = Annotated[bool, typer.Option("--data-stays", help="Each machine's data may not leave it.")]
Batch = Annotated[str, typer.Option("--batch", help="Tokens that all together work on in a step: 256k.")]
Recipes = Annotated[str, typer.Option("--recipes", metavar="A,B", help="Only these; all that can be forecast.")]
Own = Annotated[list[Path] | None, typer.Option("--own", metavar="CSV", help="Facts of yours, over the shipped ones.")]
Shows = Annotated[bool, typer.Option("--facts", help="Show what was used and how old it is; alone: all tables.")]
Table = Annotated[str, typer.Option("--table", metavar="NAME", help="With --facts: one table, whole.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Write the first plan's run and fleet.")]
Report = Annotated[str, typer.Option("--report", metavar="FILE.html", help="Write a report with plots.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]


def command(
    run_file: RunFile = None,
    model: Model = "",
    tokens: Tokens = "",
    fleet: FleetName = "",
    peers: Peers = 0,
    deadline: Deadline = "",
    budget: Money = None,
    carbon: Carbon = "",
    data_stays: Stays = False,
    batch: Batch = "",
    recipes: Recipes = "",
    own: Own = None,
    shows: Shows = False,
    table: Table = "",
    out: Out = None,
    report: Report = "",
    as_json: Json = False,
    seed: Seed = 0,
) -> None:
    """Plan before you spend: ways to train a model on a fleet, with time, money, energy, carbon and reasons."""
    from atoll.facts.book import load_facts

    facts = load_facts(*(own or ()))
    if table or (shows and not (run_file or model or fleet)):
        _show_tables(facts, table)
        return
    from atoll.cli import planned
    from atoll.facts.say import say_used
    from atoll.plan.central import central
    from atoll.plan.cost.told import notes
    from atoll.plan.planner import plan
    from atoll.spec.fleet import first, load_fleet

    if not fleet:
        raise SpecError("no fleet was given", hint="--fleet homes, or a file: docs/planning.md begins with one")
    run, base = _base(run_file, model)
    goal = _goal(run, model, tokens, batch, _limits(deadline, budget, carbon), data_stays=data_stays)
    where = load_fleet(fleet, facts)
    machines = first(where, peers)
    verdict = plan(goal, where, machines, _recipes(recipes), facts, base, seed=seed, say=_say)
    beside = central(goal, facts, seed)
    if as_json:
        print(json.dumps(planned.data(goal, where, verdict, beside)))
    else:
        print("\n".join(planned.text(goal, where, len(machines), verdict, beside)))
        for note in notes(where, machines, facts)[:NOTES_MAX]:
            print(f"note: {note}")
        if shows:
            print("\nfacts that were used:\n" + "\n".join(say_used(facts, date.today())))
    if report:
        _report(Path(report), planned.blocks(goal, where, len(machines), verdict, beside))
    if out is not None:
        _write(out, verdict, where)


# what was asked


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def _base(run_file: Path | None, model: str) -> tuple[Run | None, Tree]:
    """Return a run and what its file says, with paths that hold wherever a plan is written.

    A model that is named takes the place of a fresh one.
    """
    if run_file is None:
        return None, {}
    from atoll.spec.load import load_run
    from atoll.spec.run import Folder, Shards
    from atoll.spec.strict import merge, read_toml

    run = load_run(run_file)  # whatever is wrong with it is said before anything is planned
    tree = read_toml(run_file)
    if isinstance(run.data.source, Shards):
        tree = merge(tree, {"data": {"source": {"path": str(Path(run.data.source.path).absolute())}}})
    if isinstance(run.model, Folder):
        tree = merge(tree, {"model": {"path": str(Path(run.model.path).absolute())}})
    elif model:
        tree.pop("model", None)
    return run, tree


def _limits(deadline: str, budget: float | None, carbon: str) -> dict[str, float | None]:
    return {
        "deadline_s": _deadline_s(deadline) if deadline else None,
        "budget_usd": budget,
        "carbon_g": _grams(carbon) if carbon else None,
    }


def _deadline_s(text: str) -> float:
    from atoll.units import time_s

    try:
        return time_s(text)
    except SpecError:
        raise SpecError(f"--deadline: {text!r} is no time", hint='write for example "30 d" or "12 h"') from None


def _grams(text: str) -> float:
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(g|kg|t|)\s*", text)
    if found is None:
        raise SpecError(f"--carbon: {text!r} is no mass", hint='write for example "50 kg" or "1.5 t"')
    return float(found[1]) * {"g": 1.0, "kg": 1e3, "t": 1e6}[found[2] or "kg"]


def _count(text: str, flag: str) -> int:
    """Return a number of tokens such as 2.5G or 256k."""
    from atoll.spec.rules.terms import COUNT_MAX

    scales = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
    plain = text.strip().lower()
    scale = scales.get(plain[-1:], 0.0)
    try:
        count = round(float(plain[:-1] if scale else plain) * (scale or 1.0))
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise SpecError(f"{flag}: {text!r} is no number of tokens", hint="write for example 2.5G or 300M")
    if count > COUNT_MAX:
        raise SpecError(
            f"{flag}: {text!r} is too many tokens", hint=f"at most {say_count(COUNT_MAX)}: for example 2.5G"
        )
    return count


def _goal(
    run: Run | None, model: str, tokens: str, batch: str, limits: dict[str, float | None], *, data_stays: bool
) -> Goal:
    from atoll.data.samples import vocab_size_of
    from atoll.model.shape import size_of
    from atoll.plan.goal import Goal, size_named
    from atoll.spec.axes.work import BATCH_MAX
    from atoll.spec.run import Folder

    if run is not None:
        if isinstance(run.model, Folder) and not model:
            raise SpecError("the size of a pretrained folder is not read for a plan", hint="name it: --model 1b")
        if isinstance(run.model, Folder) and run.model.adapter is not None:
            raise SpecError("no formula here tells what adapters take", hint="plan for the whole model: leave them out")
        size = size_named(model) if model or isinstance(run.model, Folder) else size_of(run.model)
        vocab, context, told = vocab_size_of(run.data), run.data.context, run.budget.tokens
    elif model:
        size, vocab, context, told = size_named(model), VOCABULARY, CONTEXT, 0
    else:
        raise SpecError("no model was named", hint="--model 125m, or the path of a run file")
    goal = Goal(
        size=size,
        vocab=vocab,
        context=context,
        tokens=1,
        batch_tokens=_count(batch, "--batch") if batch else BATCH_TOKENS,
        data_stays=data_stays,
        **limits,
    )
    from msgspec.structs import replace

    goal = replace(goal, tokens=_count(tokens, "--tokens") if tokens else told or 20 * goal.parameters)
    most = min(goal.tokens, BATCH_MAX * goal.context)  # whoever is alone takes all of them
    if batch and goal.batch_tokens > most:
        asked = f"{say_count(goal.batch_tokens)} tokens in one step, and {say_count(most)} are the most"
        raise SpecError(f"--batch: {asked}", hint="a step is a small part of a training: --batch 256k")
    return goal


def _recipes(text: str) -> list[str]:
    from atoll.spec.shelf import recipe_names
    from atoll.spec.strict import near

    known = recipe_names()
    names = [name.strip() for name in text.split(",") if name.strip()] or known
    for name in names:
        if name not in known:
            raise SpecError(f"--recipes: no recipe is called '{name}'", hint=f"see atoll recipes{near(name, known)}")
    return names


def _show_tables(facts: Facts, table: str) -> None:
    from atoll.facts.rows import KINDS
    from atoll.facts.say import say_rows

    if table:
        print("\n".join(say_rows(facts, table, date.today())))
        return
    for kind in KINDS:
        rows = facts.rows(kind)
        dates = sorted(row.as_of for row in rows if row.as_of)
        print(f"{kind.table:<12} {len(rows):>4} rows, {dates[0]} to {dates[-1]}")
    print("one of them: atoll plan --facts --table prices; your own over it: --own prices.csv")


# files


def _write(out: Path, verdict: Verdict, fleet: Fleet) -> None:
    from atoll.cli.machine import writing
    from atoll.plan.files import fleet_text, run_text

    if not verdict.plans:
        hint = "loosen the goal" if verdict.nearest else "other machines, or a smaller model"
        raise SpecError(f"there is no plan to write: {verdict.why_not}", hint=hint)
    first = verdict.plans[0]
    about = f"Planned by `atoll plan`: {first.offer.name}.\nForecast: {say_time(first.time_s.middle)}."
    if first.offer.plan_only:
        about += f"\nA plan only: {first.offer.plan_only}."
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.toml").write_text(run_text(first.offer, int(first.middle.tokens), about), "utf-8")
        (out / "fleet.toml").write_text(fleet_text(fleet, first.offer.crew), "utf-8")
    print(
        f"wrote {out / 'run.toml'} and {out / 'fleet.toml'}; atoll sim {out / 'run.toml'} --fleet {out / 'fleet.toml'}",
        file=sys.stderr,
    )


def _report(path: Path, blocks: Sequence[Block]) -> None:
    from atoll.cli.machine import writing
    from atoll.observe.sheet import Sheet, html

    with writing(path):
        path.write_text(html(Sheet("A plan", blocks)), "utf-8")
    print(f"wrote {path}", file=sys.stderr)
