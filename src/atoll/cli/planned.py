"""A plan as it is told: lines for a terminal, data for programs, blocks for a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from msgspec import to_builtins

from atoll.facts.rows import Loss
from atoll.observe.sheet import Block, Code, Heading, Plot, Series, Table, Text
from atoll.plan.central import Central
from atoll.plan.goal import Goal
from atoll.plan.planner import Plan, Verdict
from atoll.plan.ranges import Ranged, Sway
from atoll.plan.spread import Range
from atoll.plan.stages import Staged
from atoll.spec.fleet import Fleet
from atoll.units import say_count, say_counted, say_table, say_time, say_usd

SCHEMA = "atoll.plan/1"
NAMES_MAX = 8
"""Of machines that are left out so many are named."""
SOURCE_LETTERS = 60
"""Of a source so much is said in a terminal."""


def text(goal: Goal, fleet: Fleet, machines: int, verdict: Verdict, beside: Central) -> list[str]:
    """Return a verdict as people read it in a terminal."""
    lines = [_title(goal, fleet, machines), ""]
    shown = shown_of(verdict)
    if not verdict.plans:
        lines += [f"NO: {verdict.why_not}", ""]
    if shown:
        lines += say_table([HEAD, *(_row(each) for each in shown), _central_row(beside)])
        lines += ["", *_reasons(goal, shown[0]), "", *_swaying(shown[0].sways)]
    if verdict.staged is not None:
        lines += [*_stages(verdict.staged, beside), "", *_swaying(verdict.staged.sways)]
    elif not verdict.judged and len(verdict.small) == machines > 0:
        lines.append("nor do all of them together, cut into stages")
    lines += ["", *_unproven(verdict)]
    lines += [f"not looked at: {names}: {why}" for names, why in _by_reason(verdict.rejected)]
    return [*lines, *(f"cannot take part: {names}: {why}" for names, why in _by_reason(verdict.small))]


def shown_of(verdict: Verdict) -> tuple[Plan, ...]:
    """Return the plans that are told: those that keep to the goal, or the nearest."""
    return verdict.plans or ((verdict.nearest,) if verdict.nearest else ())


def _title(goal: Goal, fleet: Fleet, machines: int) -> str:
    size, tokens = say_count(goal.parameters), say_count(goal.tokens)
    where = f"{fleet.name} ({say_counted(machines, 'machine')}: {fleet.about})"
    return f"a model of {size} parameters, {tokens} tokens, on {where}"


def _stages(cut: Staged, beside: Central) -> list[str]:
    """Return how a model that fits no machine would be cut over several."""
    placed = cut.placement
    row = _cells(f"{len(placed.stages)} stages ({placed.solver}; plan only)", cut, "+0.0 %", "-")
    stages = [f"  layers {each.first}-{each.end - 1}: {', '.join(each.machines)}" for each in placed.stages]
    return [
        *say_table([HEAD, row, _central_row(beside)]),
        "",
        f"plan only: {placed.plan_only}. A step takes {say_time(placed.step_s)}, every stage has a machine "
        f"{100 * cut.there:.0f} % of the time; {placed.binds} binds: {placed.where}.",
        f"It keeps to the goal in {100 * cut.keeps:.0f} % of the draws.",
        *([_saved(cut)] if cut.save_every_s else []),
        *stages,
    ]


def _saved(cut: Staged) -> str:
    lost = f"{100 * (1 - cut.kept):.1f} % of the work is saving, or done again"
    return f"Save every {say_time(cut.save_every_s)} (Young, Daly), as stages of one machine are lost with it: {lost}."


def _unproven(verdict: Verdict) -> list[str]:
    """Return how many ways there were, and what might be faster if somebody measured its loss."""
    proven = [each for each in verdict.judged if each.proven]
    lines = [f"{len(verdict.judged)} ways were looked at, {len(proven)} of them with a measured loss."]
    others = [each for each in verdict.judged if not each.proven and not each.misses]
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
    name = plan.offer.name + (" (plan only)" if plan.offer.plan_only else "")
    return _cells(name, plan, "-" if plan.offer.alone else known, ", ".join(plan.best) or "-")


def _central_row(beside: Central) -> tuple[str, ...]:
    return _cells(_central_name(beside), beside, "+0.0 %", "for comparison")


def _central_name(beside: Central) -> str:
    return f"{beside.count} rented {beside.gpu}"


def _cells(name: str, takes: Ranged, loss: str, best: str) -> tuple[str, ...]:
    """Return a row of the table: what something takes, each with its range."""
    time_s, usd, carbon_g = takes.time_s, takes.usd, takes.carbon_g
    return (
        name,
        say_time(time_s.middle),
        f"{say_time(time_s.low)} - {say_time(time_s.high)}",
        say_usd(usd.middle),
        f"{say_usd(usd.low)} - {say_usd(usd.high)}",
        f"{takes.energy_kwh.middle:,.1f}",
        f"{carbon_g.middle / 1000:,.1f}",
        f"{carbon_g.low / 1000:,.1f} - {carbon_g.high / 1000:,.1f}",
        loss,
        best,
    )


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
        + (f": {_lost(offer.loss, len(offer.crew.machines))}" if offer.loss else ""),
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
    for names, why in _by_reason(offer.crew.left_out):
        some = names.split(", ")
        lines.append(f"  left out: {', '.join(some[:NAMES_MAX])}{', ...' if some[NAMES_MAX:] else ''} ({why})")
    return lines


def _lost(loss: Loss, peers: int) -> str:
    """Return what is known of a recipe's loss, and where it was learnt from fewer peers."""
    fewer = f" (more than {loss.peers} were not tried: so many are taken to lose more)" if peers > loss.peers else ""
    how = "is taken" if loss.basis == "estimate" else "was measured"
    return f"its loss {how} to be {100 * loss.gap:.1f} % higher at as many, of {loss.peers} peers{fewer}"


SWAY_HEAD = ("hangs on", "time", "money", "kg CO2e", "keeps to the goal", "as of", "source")


def _swaying(sways: Sequence[Sway]) -> list[str]:
    """Return what the numbers hang on, strongest first, which of it would change the advice, and what does nothing."""
    rows = [SWAY_HEAD, *_sway_rows(sways)]
    table = zip(say_table([cells[:-1] for cells in rows]), rows, strict=True)
    told = [f"{line}  {_source(cells[-1])}" for line, cells in table]
    return [*told, *_other_advice(sways), *_irrelevant(sways)]


def _source(text: str) -> str:
    """Return a source, in a terminal as many of its words as have room."""
    return shorten(text, SOURCE_LETTERS, placeholder=" ...") if sys.stdout.isatty() else text


def _other_advice(sways: Sequence[Sway]) -> list[str]:
    """Return at which ends of which inputs another way would be recommended."""
    return [
        f"with {sway.name} at its {end} end: {way} instead"
        for sway in sways
        for end, way in zip(("low", "high"), sway.instead, strict=True)
        if way
    ]


def _sway_rows(sways: Sequence[Sway]) -> list[tuple[str, ...]]:
    return [
        (
            sway.name,
            " - ".join(say_time(each) for each in sway.time_s),
            " - ".join(say_usd(each) for each in sway.usd),
            " - ".join(f"{each / 1000:,.1f}" for each in sway.carbon_g),
            " - ".join("yes" if ok else "no" for ok in sway.feasible),
            sway.as_of,
            sway.source,
        )
        for sway in sways
        if sway.matters
    ]


def _irrelevant(sways: Sequence[Sway]) -> list[str]:
    weak = [sway.name for sway in sways if not sway.matters]
    return [f"irrelevant here: {', '.join(weak)}"] if weak else []


def data(goal: Goal, fleet: Fleet, verdict: Verdict, beside: Central) -> dict[str, Any]:
    """Return a verdict as programs read it."""
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
        "too_small": verdict.small,
    }


def _plan_data(plan: Plan) -> dict[str, Any]:
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
        "sways": [to_builtins(sway) | {"matters": sway.matters} for sway in plan.sways],
        "run": plan.offer.tree,
    }


def blocks(goal: Goal, fleet: Fleet, machines: int, verdict: Verdict, beside: Central) -> list[Block]:
    """Return a verdict as the blocks of a report."""
    shown = shown_of(verdict)
    found: list[Block] = [Text(_title(goal, fleet, machines), "found")]
    if verdict.why_not:
        found.append(Text(f"No: {verdict.why_not}", "found"))
    if shown:
        rows = [_short(_row(each)) for each in shown] + [_short(_central_row(beside))]
        found += [
            Table(REPORT_HEAD, rows, words=True),
            _plot("usd", "dollars", shown, verdict, beside),
            _plot("carbon_g", "grams of CO2e", shown, verdict, beside),
            Heading("Why"),
            Code("\n".join(_reasons(goal, shown[0]))),
            *_sway_blocks(shown[0].sways),
        ]
    elif verdict.staged is not None:
        found += [Code("\n".join(_stages(verdict.staged, beside))), *_sway_blocks(verdict.staged.sways)]
    left_out = _by_reason(verdict.rejected) + _by_reason(verdict.small)
    return [*found, Heading("Not looked at"), Table(("what", "why"), left_out, words=True)]


def _sway_blocks(sways: Sequence[Sway]) -> list[Block]:
    return [
        Heading("What it hangs on"),
        Table(SWAY_HEAD, _sway_rows(sways), words=True),
        *(Text(line, "dim") for line in (*_other_advice(sways), *_irrelevant(sways))),
    ]


REPORT_HEAD = ("way", "time (P10-P90)", "money (P10-P90)", "kg CO2e (P10-P90)", "loss", "best in")


def _short(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row of plans with each range beside its middle: a page is narrower than a terminal."""
    way, time, times, money, moneys, _, carbon, carbons, loss, best = row
    return way, f"{time} ({times})", f"{money} ({moneys})", f"{carbon} ({carbons})", loss, best


def _plot(what: str, label: str, shown: Sequence[Plan], verdict: Verdict, beside: Central) -> Plot:
    """Return time against something else: all ways in grey, plans with their ranges, a central cluster."""
    place = 1 if what == "usd" else 2
    ours: list[Range] = [getattr(each, what) for each in shown]
    others = Series(
        label="all ways",
        x=[each.takes[0] / 3600 for each in verdict.judged],
        y=[each.takes[place] for each in verdict.judged],
        joined=False,
        grey=True,
    )
    plans = [_mark(each.offer.name, each.time_s, one) for each, one in zip(shown, ours, strict=True)]
    central = _mark(_central_name(beside), beside.time_s, getattr(beside, what))
    return Plot(
        title=f"{label} against time", x="hours", y=label, series=[others, *plans, central], log_x=True, log_y=True
    )


def _mark(label: str, time_s: Range, takes: Range) -> Series:
    return Series(
        label=label, x=[time_s.middle / 3600], y=[takes.middle], low=[takes.low], high=[takes.high], joined=False
    )
