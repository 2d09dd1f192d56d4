"""`atoll plan`: the best ways to train a model on a fleet, before anything is spent.

atoll plan --model 125m --tokens 2.5G --fleet homes                        ways on the front of time, money and carbon
atoll plan RUN.toml --fleet lab.toml --deadline "30 d" --budget 500         the model and data of a run file, and limits
atoll plan --model 125m --tokens 2.5G --fleet homes --out plan --report plan.html     files for `atoll train` and `sim`
atoll plan --facts [TABLE]                                                   what is known, whose it is, how old
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import Json
from atoll.errors import SpecError
from atoll.units import say_count, say_table, say_time

if TYPE_CHECKING:
    from atoll.facts.book import Facts
    from atoll.plan.central import Central
    from atoll.plan.goal import Goal
    from atoll.plan.planner import Plan, Verdict
    from atoll.plan.spread import Range
    from atoll.plan.stages import Staged
    from atoll.spec.fleet import Fleet
    from atoll.spec.strict import Tree

SCHEMA = "atoll.plan/1"
VOCABULARY, CONTEXT = 32_000, 1024
BATCH_TOKENS = 2**18
SOURCE_LETTERS = 60
"""Of a source so much is said in a terminal."""

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
    from atoll.plan.central import central
    from atoll.plan.planner import plan
    from atoll.spec.fleet import expand, load_fleet

    if not fleet:
        raise SpecError("no fleet was given", hint="--fleet homes, or a file: docs/planning.md begins with one")
    base, folder = _base(run_file)
    goal = _goal(base, model, tokens, batch, _limits(deadline, budget, carbon), data_stays=data_stays)
    where = load_fleet(fleet, facts)
    machines = expand(where)[: peers or None]
    verdict = plan(goal, where, machines, _recipes(recipes), facts, base, folder, seed=seed, say=_say)
    beside = central(goal, facts)
    if out is not None:
        _write(out, verdict, where)
    if report:
        _report(report, goal, where, len(machines), verdict, beside)
    if as_json:
        print(json.dumps(_data(goal, where, verdict, beside)))
        return
    print("\n".join(_text(goal, where, len(machines), verdict, beside)))
    if shows:
        from atoll.facts.say import say_used

        print("\nfacts that were used:\n" + "\n".join(say_used(facts, date.today())))


# what was asked


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def _base(run_file: Path | None) -> tuple[Tree, Path]:
    """Return what a run file says, and where it lies."""
    if run_file is None:
        return {}, Path()
    from atoll.spec.load import load_run
    from atoll.spec.strict import read_toml

    load_run(run_file)  # whatever is wrong with it is said before anything is planned
    return read_toml(run_file), run_file.parent


def _limits(deadline: str, budget: float | None, carbon: str) -> dict[str, float | None]:
    from atoll.units import time_s

    return {
        "deadline_s": time_s(deadline) if deadline else None,
        "budget_usd": budget,
        "carbon_g": _grams(carbon) if carbon else None,
    }


def _grams(text: str) -> float:
    number, _, unit = text.strip().partition(" ")
    scales = {"g": 1.0, "kg": 1e3, "t": 1e6}
    try:
        return float(number) * scales[unit or "kg"]
    except (ValueError, KeyError):
        raise SpecError(f"--carbon: {text!r} is no mass", hint='write for example "50 kg" or "1.5 t"') from None


def _count(text: str, flag: str) -> int:
    """Return a number of tokens such as 2.5G or 256k."""
    scales = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
    plain = text.strip().lower()
    scale = scales.get(plain[-1:], 0.0)
    try:
        return round(float(plain[:-1] if scale else plain) * (scale or 1.0))
    except ValueError:
        raise SpecError(f"{flag}: {text!r} is no number of tokens", hint="write for example 2.5G or 300M") from None


def _goal(
    base: Tree, model: str, tokens: str, batch: str, limits: dict[str, float | None], *, data_stays: bool
) -> Goal:
    from atoll.cli.sim import vocabulary
    from atoll.model.shape import size_of
    from atoll.plan.goal import Goal, size_named
    from atoll.spec.load import build_run
    from atoll.spec.run import Folder

    if base:
        run = build_run(base, Path("run.toml"))
        if isinstance(run.model, Folder):
            raise SpecError("a pretrained folder cannot be planned for yet", hint="name its size: --model 1b")
        size = size_named(model) if model else size_of(run.model)
        vocab, context, told = vocabulary(run), run.data.context, run.budget.tokens
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

    return replace(goal, tokens=_count(tokens, "--tokens") if tokens else told or 20 * goal.parameters)


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


# what is said


def _text(goal: Goal, fleet: Fleet, machines: int, verdict: Verdict, beside: Central) -> list[str]:
    lines = [
        f"a model of {say_count(goal.parameters)} parameters, {say_count(goal.tokens)} tokens, on {fleet.name} "
        f"({machines} machines: {fleet.about})",
        "",
    ]
    shown = verdict.plans or ((verdict.nearest,) if verdict.nearest else ())
    if not verdict.plans:
        lines += [f"NO: {verdict.why_not}", ""]
    if shown:
        lines += say_table([HEAD, *(_row(each) for each in shown), _central_row(beside)])
        lines += ["", *_reasons(goal, shown[0]), "", *_swaying(shown[0])]
    if verdict.staged is not None:
        lines += _stages(verdict.staged, beside)
    elif not shown:
        lines.append("nor do all of them together, cut into stages")
    lines += ["", *_unproven(verdict)]
    return [*lines, *(f"not looked at: {names}: {why}" for names, why in _by_reason(verdict.rejected))]


def _stages(cut: Staged, beside: Central) -> list[str]:
    """Return how a model that fits no machine would be cut over several."""
    placed = cut.placement
    row = (
        f"{len(placed.stages)} stages ({placed.solver}; plan only)",
        say_time(cut.time_s.middle),
        f"{say_time(cut.time_s.low)} - {say_time(cut.time_s.high)}",
        _usd(cut.usd.middle),
        f"{_usd(cut.usd.low)} - {_usd(cut.usd.high)}",
        f"{cut.energy_kwh.middle:,.1f}",
        f"{cut.carbon_g.middle / 1000:,.1f}",
        f"{cut.carbon_g.low / 1000:,.1f} - {cut.carbon_g.high / 1000:,.1f}",
        "+0.0 %",
        "-",
    )
    stages = [f"  layers {each.first}-{each.end - 1}: {', '.join(each.machines)}" for each in placed.stages]
    return [
        *say_table([HEAD, row, _central_row(beside)]),
        "",
        f"plan only: {placed.plan_only}. A step takes {say_time(placed.step_s)}, every stage has a machine "
        f"{100 * cut.there:.0f} % of the time; {placed.binds} binds: {placed.where}.",
        *stages,
    ]


def _unproven(verdict: Verdict) -> list[str]:
    """Return how many ways there were, and what might be faster if somebody measured its loss."""
    proven = [each for each in verdict.judged if each.proven]
    lines = [f"{len(verdict.judged)} ways were looked at, {len(proven)} of them with a measured loss."]
    others = [each for each in verdict.judged if not each.proven]
    fastest = min(others, key=lambda each: each.takes[0], default=None)
    if fastest is not None and verdict.plans and fastest.takes[0] < min(each.time_s.middle for each in verdict.plans):
        what = f"{fastest.offer.name}, {say_time(fastest.takes[0])}"
        lines.append(f"faster, if it learns as well, which nobody measured: {what}")
    return lines


def _by_reason(rejected: dict[str, str]) -> list[tuple[str, str]]:
    """Return what was left out, those together that were for the same reason."""
    alike: dict[str, list[str]] = {}
    for name, why in sorted(rejected.items()):
        alike.setdefault(why, []).append(name)
    return [(", ".join(names), why) for why, names in alike.items()]


HEAD = ("way", "time", "P10-P90", "money", "P10-P90", "kWh", "kg CO2e", "P10-P90", "loss", "best in")


def _row(plan: Plan) -> tuple[str, ...]:
    known = "not known" if plan.offer.loss is None else f"+{100 * plan.offer.loss.gap:.1f} %"
    return (
        plan.offer.name + (" (plan only)" if plan.offer.plan_only else ""),
        say_time(plan.time_s.middle),
        f"{say_time(plan.time_s.low)} - {say_time(plan.time_s.high)}",
        _usd(plan.usd.middle),
        f"{_usd(plan.usd.low)} - {_usd(plan.usd.high)}",
        f"{plan.energy_kwh.middle:,.1f}",
        f"{plan.carbon_g.middle / 1000:,.1f}",
        f"{plan.carbon_g.low / 1000:,.1f} - {plan.carbon_g.high / 1000:,.1f}",
        "-" if plan.offer.alone else known,
        ", ".join(plan.best) or "-",
    )


def _central_row(beside: Central) -> tuple[str, ...]:
    return (
        f"{beside.count} rented {beside.gpu}",
        say_time(beside.time_s.middle),
        f"{say_time(beside.time_s.low)} - {say_time(beside.time_s.high)}",
        _usd(beside.usd.middle),
        f"{_usd(beside.usd.low)} - {_usd(beside.usd.high)}",
        f"{beside.energy_kwh.middle:,.1f}",
        f"{beside.carbon_g.middle / 1000:,.1f}",
        f"{beside.carbon_g.low / 1000:,.1f} - {beside.carbon_g.high / 1000:,.1f}",
        "+0.0 %",
        "for comparison",
    )


def _usd(value: float) -> str:
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def _reasons(goal: Goal, plan: Plan) -> list[str]:
    """Return why the first plan takes what it takes."""
    offer, middle, pace = plan.offer, plan.middle, plan.middle.pace
    tokens = float(middle.tokens)
    extra = tokens / goal.tokens
    lines = [
        f"{offer.name}:",
        f"  a round takes {say_time(float(pace.round_s))}: work {say_time(float(pace.work_s))}, lines "
        f"{say_time(float(pace.lines_s))}, latency {say_time(float(pace.trips_s))}; {pace.binds} takes most of it",
        f"  it trains on {say_count(tokens)} tokens, {extra:.2f} times what was asked"
        + (f": its loss was measured to be {100 * offer.loss.gap:.1f} % higher at as many" if offer.loss else ""),
        f"  {100 * middle.present:.0f} % of the fleet's work counts, the rest is lost as machines come and go",
        f"  it keeps to the goal in {100 * plan.keeps:.0f} % of the draws",
    ]
    if middle.bill.parts:
        total = float(plan.middle.usd) or 1.0
        parts = ", ".join(f"{kind} {100 * float(usd) / total:.0f} %" for kind, usd in middle.bill.by_kind.items())
        lines.append(f"  money: {parts}")
    if offer.recompute:
        lines.append("  layers are computed twice: the model fits no other way")
    if offer.plan_only:
        lines.append(f"  plan only: {offer.plan_only}")
    left = offer.crew.left_out
    if left:
        names = ", ".join(sorted(left)[:8]) + (", ..." if len(left) > 8 else "")
        lines.append(f"  left out: {names} ({next(iter(left.values()))})")
    return lines


SWAY_HEAD = ("hangs on", "time", "money", "kg CO2e", "keeps to the goal", "as of", "source")


def _swaying(plan: Plan) -> list[str]:
    """Return what the numbers hang on, strongest first, and what they do not."""
    rows = [(*cells[:-1], cells[-1][:SOURCE_LETTERS]) for cells in _sway_rows(plan)]
    return [*say_table([SWAY_HEAD, *rows]), *_irrelevant(plan)]


def _sway_rows(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (
            sway.name,
            " - ".join(say_time(each) for each in sway.time_s),
            " - ".join(_usd(each) for each in sway.usd),
            " - ".join(f"{each / 1000:,.1f}" for each in sway.carbon_g),
            " - ".join("yes" if ok else "no" for ok in sway.feasible),
            sway.as_of,
            sway.source,
        )
        for sway in plan.sways
        if sway.matters
    ]


def _irrelevant(plan: Plan) -> list[str]:
    weak = [sway.name for sway in plan.sways if not sway.matters]
    return [f"irrelevant here: {', '.join(weak)}"] if weak else []


# files, JSON, the report


def _write(out: Path, verdict: Verdict, fleet: Fleet) -> None:
    from atoll.cli.machine import writing
    from atoll.plan.files import fleet_text, run_text

    if not verdict.plans:
        raise SpecError(f"there is no plan to write: {verdict.why_not}", hint="loosen the goal")
    first = verdict.plans[0]
    about = f"Planned by `atoll plan`: {first.offer.name}.\nForecast: {say_time(first.time_s.middle)}."
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.toml").write_text(run_text(first.offer, int(first.middle.tokens), about), "utf-8")
        (out / "fleet.toml").write_text(fleet_text(fleet, first.offer.crew), "utf-8")
    print(
        f"wrote {out / 'run.toml'} and {out / 'fleet.toml'}; atoll sim {out / 'run.toml'} --fleet {out / 'fleet.toml'}",
        file=sys.stderr,
    )


def _data(goal: Goal, fleet: Fleet, verdict: Verdict, beside: Central) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "schema": SCHEMA,
        "goal": to_builtins(goal),
        "fleet": fleet.name,
        "feasible": bool(verdict.plans),
        "why_not": verdict.why_not,
        "plans": [_plan_data(each) for each in verdict.plans],
        "nearest": _plan_data(verdict.nearest) if verdict.nearest else None,
        "staged": to_builtins(verdict.staged),
        "central": to_builtins(beside),
        "looked_at": [
            {"way": each.offer.name, "time_s": each.takes[0], "usd": each.takes[1], "carbon_g": each.takes[2]}
            | {"misses": each.misses, "proven": each.proven}
            for each in verdict.judged
        ],
        "rejected": verdict.rejected,
    }


def _plan_data(plan: Plan) -> dict[str, Any]:
    from msgspec import to_builtins

    pace = plan.middle.pace
    return {
        "way": plan.offer.name,
        "recipe": plan.offer.recipe,
        "machines": [machine.name for machine in plan.offer.crew.machines],
        "left_out": plan.offer.crew.left_out,
        "plan_only": plan.offer.plan_only,
        "tokens": float(plan.middle.tokens),
        "time_s": to_builtins(plan.time_s),
        "usd": to_builtins(plan.usd),
        "energy_kwh": to_builtins(plan.energy_kwh),
        "carbon_g": to_builtins(plan.carbon_g),
        "keeps": plan.keeps,
        "best": plan.best,
        "round_s": float(pace.round_s),
        "step_s": float(pace.step_s),
        "binds": pace.binds,
        "loss_gap": plan.offer.loss.gap if plan.offer.loss else None,
        "sways": to_builtins(plan.sways),
        "run": plan.offer.tree,
    }


def _report(path: str, goal: Goal, fleet: Fleet, machines: int, verdict: Verdict, beside: Central) -> None:
    from atoll.cli.machine import writing
    from atoll.observe.sheet import Code, Heading, Plot, Series, Sheet, Text, html
    from atoll.observe.sheet import Table as Rows

    shown = verdict.plans or ((verdict.nearest,) if verdict.nearest else ())
    blocks: list[Any] = [Text(_text(goal, fleet, machines, verdict, beside)[0], "found")]
    if verdict.why_not:
        blocks.append(Text(f"No: {verdict.why_not}", "found"))
    if shown:
        blocks += [
            Rows(REPORT_HEAD, [_short(_row(each)) for each in shown] + [_short(_central_row(beside))], words=True),
            _plot(Plot, Series, "usd", "dollars", shown, verdict, beside),
            _plot(Plot, Series, "carbon_g", "grams of CO2e", shown, verdict, beside),
            Heading("Why"),
            Code("\n".join(_reasons(goal, shown[0]))),
            Heading("What it hangs on"),
            Rows(SWAY_HEAD, _sway_rows(shown[0]), words=True),
            Text("; ".join(_irrelevant(shown[0])), "dim"),
        ]
    blocks += [Heading("Not looked at"), Rows(("what", "why"), _by_reason(verdict.rejected), words=True)]
    file = Path(path)
    with writing(file):
        file.write_text(html(Sheet("A plan", blocks)), "utf-8")
    print(f"wrote {path}", file=sys.stderr)


REPORT_HEAD = ("way", "time (P10-P90)", "money (P10-P90)", "kg CO2e (P10-P90)", "loss", "best in")


def _short(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row of plans with each range beside its middle: a page is narrower than a terminal."""
    way, time, times, money, moneys, _, carbon, carbons, loss, best = row
    return way, f"{time} ({times})", f"{money} ({moneys})", f"{carbon} ({carbons})", loss, best


def _plot(
    plot: Any, series: Any, what: str, label: str, shown: tuple[Plan, ...], verdict: Verdict, beside: Central
) -> Any:
    """Return time against something else: all ways in grey, plans with their ranges, a central cluster."""
    place = 1 if what == "usd" else 2
    ours: list[Range] = [getattr(each, what) for each in shown]
    others = series(
        label="all ways",
        x=[each.takes[0] / 3600 for each in verdict.judged],
        y=[each.takes[place] for each in verdict.judged],
        joined=False,
        grey=True,
    )
    plans = [_mark(series, each.offer.name, each.time_s, one) for each, one in zip(shown, ours, strict=True)]
    central = _mark(series, f"{beside.count} rented {beside.gpu}", beside.time_s, getattr(beside, what))
    return plot(
        title=f"{label} against time", x="hours", y=label, series=[others, *plans, central], log_x=True, log_y=True
    )


def _mark(series: Any, label: str, time_s: Range, takes: Range) -> Any:
    return series(
        label=label, x=[time_s.middle / 3600], y=[takes.middle], low=[takes.low], high=[takes.high], joined=False
    )
