"""`atoll limits`: is it worth it? Seven limits of a scenario, a verdict, and the nearest plan that would do.

What is said here is computed in `plan.limits`; this file reads flags, prints, and hands plain blocks to the report.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import Json
from atoll.errors import SpecError
from atoll.units import say_table

if TYPE_CHECKING:
    from atoll.plan.limits.answer import Answer
    from atoll.plan.limits.finding import Check, Finding, Rows

SCHEMA = "atoll.limits/1"
WIDE = (11, 8, 30, 42, 46)
"""Columns of the table of seven, in letters."""
WIDTH_MIN = 100

Which = Annotated[
    str,
    typer.Argument(metavar="[SCENARIO|FILE.toml]", help="homes, labs, organisation, or a file; nothing: all three."),
]
Only = Annotated[str, typer.Option("--limit", metavar="NAME", help="One limit in full: inputs, checks, tables.")]
Report = Annotated[str, typer.Option("--report", metavar="FILE.html", help="Write a report with plots.")]
Example = Annotated[str, typer.Option("--example", metavar="NAME", help="A worked example instead: fusionai.")]
Toml = Annotated[bool, typer.Option("--toml", help="Print the scenario's file, to copy and change.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]


def command(
    scenario: Which = "",
    limit: Only = "",
    example: Example = "",
    report: Report = "",
    toml: Toml = False,
    as_json: Json = False,
    seed: Seed = 0,
) -> None:
    """Ask whether training far apart is worth it: seven limits, each with a verdict and what would move it."""
    if report:
        _check_report(report)
    if example:
        _example(example, report, as_json=as_json)
    elif not scenario:
        if report or limit or toml:
            raise SpecError("no scenario is named", hint=f"one of {', '.join(_names())}, or the path of a .toml file")
        _all(as_json=as_json, seed=seed)
    elif toml:
        _print_toml(scenario)
    elif limit:
        _one(scenario, limit, report, as_json=as_json, seed=seed)
    else:
        _whole(scenario, report, as_json=as_json, seed=seed)


def _names() -> list[str]:
    from atoll.plan.limits.reader import scenario_names

    return scenario_names()


def _all(*, as_json: bool, seed: int) -> None:
    """Print the verdict of every shipped scenario."""
    from atoll.plan.limits.answer import answer
    from atoll.plan.limits.reader import load_scenario

    found = [answer(load_scenario(name), seed, whole=False) for name in _names()]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "answers": [_data(each) for each in found]}))
        return
    for each in found:
        print(f"{each.scenario}: {each.about}\n  {each.verdict}: {each.because}\n")
    print(
        "one of them: atoll limits homes; your own: atoll limits labs --toml > mine.toml, then atoll limits mine.toml"
    )


def _print_toml(name: str) -> None:
    from atoll.plan.limits.reader import load_scenario, scenario_text

    load_scenario(name)
    print(scenario_text(name) if name in _names() else Path(name).read_text("utf-8"), end="")


def _whole(name: str, report: str, *, as_json: bool, seed: int) -> None:
    """Print the answer for one scenario, and write its report."""
    from atoll.plan.limits.answer import answer
    from atoll.plan.limits.reader import load_scenario

    found = answer(load_scenario(name), seed, whole=as_json or bool(report))
    print(json.dumps(_data(found)) if as_json else "\n".join(_text(found, name)))
    if report:
        from atoll.cli.blocks import of_answer

        _write(report, f"{found.scenario}: is it worth it?", of_answer(found, _command(name, seed)))


def _one(name: str, limit: str, report: str, *, as_json: bool, seed: int) -> None:
    """Print one limit in full."""
    from atoll.plan.limits.answer import LIMITS, find
    from atoll.plan.limits.reader import load_scenario
    from atoll.spec.strict import near

    known = {each.name: each for each in LIMITS}
    if limit not in known:
        raise SpecError(f"--limit: there is no limit '{limit}'", hint=f"one of {', '.join(known)}{near(limit, known)}")
    scenario = load_scenario(name)
    found = find(known[limit], scenario, seed)
    print(json.dumps({"schema": SCHEMA, **_told(found)}) if as_json else "\n".join(_details(found)))
    if report:
        from atoll.cli.blocks import of_finding

        _write(report, f"{scenario.name}: {limit}", of_finding(found))


def _example(name: str, report: str, *, as_json: bool) -> None:
    """Print a worked example."""
    if name != "fusionai":
        raise SpecError(f"--example: there is no example '{name}'", hint="known examples: fusionai")
    from atoll.plan.limits import fusion

    e = fusion.example()
    facts = {
        "peak_ratio": fusion.peak_ratio(e.many, e.few),
        "ratio_fast_lines": float(fusion.ratio(e, 2 * fusion.line_needed_mbit(e))),
        "ratio_home_uplinks": float(fusion.ratio(e)),
        "line_needed_mbit": fusion.line_needed_mbit(e),
        "latency_times": e.few.tflops.value / e.many.tflops.value,
        "even_usd_kwh": fusion.even_usd_kwh(e),
    }
    if as_json:
        told = {"schema": SCHEMA, "example": "fusionai", **facts, "inputs": _plain(e)}
        print(json.dumps(told | {"checks": [_checked(check) for check in fusion.checks(e)]}))
    else:
        print("\n".join([*_fusion_says(facts), "", *_checks(fusion.checks(e)), *_tables(fusion.tables(e))]))
    if report:
        from atoll.cli.blocks import of_example

        blocks = of_example(_fusion_says(facts), fusion.checks(e), fusion.tables(e), fusion.drawings(e))
        _write(report, "50 RTX 3080 against 4 H100", blocks)


def _fusion_says(facts: dict[str, float]) -> list[str]:
    return [
        "50 RTX 3080 against 4 H100 (the claim of FusionAI, Tang et al. 2023: an analysis, not a run)",
        f"by what makers promise: {facts['peak_ratio']:.3f} of the four; in a pipeline whose lines keep up as much,",
        f"{facts['ratio_fast_lines']:.1%}; over homes' uplinks {facts['ratio_home_uplinks']:.1%}. "
        f"Parity needs {facts['line_needed_mbit']:,.0f} Mbit/s up from every home.",
        f"One sample takes {facts['latency_times']:.1f} times as long to compute on its way through. Over three years",
        f"both cost the same at ${facts['even_usd_kwh']:.2f} a kWh; below it the fifty, bought used, are cheaper.",
    ]


# what is printed


def _text(found: Answer, name: str) -> list[str]:
    """Return an answer as people read it."""
    low, days, high = found.days
    usd_low, usd, usd_high = found.usd
    agree = [check for finding in found.findings for check in finding.checks]
    lines = [
        f"{found.scenario}: {found.about}",
        "",
        f"{found.verdict.upper()}: {found.because}",
        f"time    {days:,.1f} days ({low:,.1f} to {high:,.1f}), {found.deadline_days:,.0f} allowed",
        f"money   ${usd:,.0f} (${usd_low:,.0f} to ${usd_high:,.0f})",
        "",
        *_seven(found.findings),
        f"{sum(check.agrees for check in agree)} of {len(agree)} formulas agree with what was drawn or run beside it.",
    ]
    if found.nearest is not None:
        near = found.nearest
        left = f"; {', '.join(near.left)} would still bind" if near.left else ""
        lines += ["", f"the nearest plan ({near.verdict}: {near.days:,.1f} days, ${near.usd:,.0f}{left}):"]
        lines += [f"  - {change}" for change in near.changes]
    lines += ["", "where training far apart is right:"]
    mark = {True: "yes", False: "no", None: "-"}
    lines += [f"  {mark[each.holds]:<4}{each.name}: {each.why}" for each in found.regimes]
    return [
        *lines,
        "",
        f"in full: atoll limits {name} --limit NAME; with plots: atoll limits {name} --report limits.html",
    ]


def _seven(findings: Sequence[Finding]) -> list[str]:
    """Return the table of seven, cells wrapped."""
    room = max(WIDTH_MIN, shutil.get_terminal_size((140, 24)).columns) - sum(WIDE[:3]) - 8
    wide = (*WIDE[:3], room * WIDE[3] // (WIDE[3] + WIDE[4]), room * WIDE[4] // (WIDE[3] + WIDE[4]))
    lines = [*_row(("limit", "verdict", "number", "what binds", "what would move it"), wide), ""]
    for each in findings:
        lines += [*_row((each.limit, each.verdict, each.says, each.binds, each.moves), wide), ""]
    return lines


def _row(cells: Sequence[str], wide: Sequence[int]) -> list[str]:
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, wide, strict=True)]
    return [
        "  ".join(
            f"{column[i] if i < len(column) else '':<{width}}" for column, width in zip(columns, wide, strict=True)
        ).rstrip()
        for i in range(max(map(len, columns)))
    ]


def _details(found: Finding) -> list[str]:
    """Return one limit in full."""
    return [
        f"{found.limit}: {found.question}",
        f"{found.verdict}: {found.says} ({found.low:.3g} to {found.high:.3g} in four of five draws)",
        f"binds: {found.binds}",
        f"moved by: {found.moves}",
        "",
        *_inputs(found),
        "",
        *_checks(found.checks),
        *_tables(found.tables),
    ]


def _inputs(found: Finding) -> list[str]:
    from atoll.cli.blocks import inputs

    head, *rows = inputs(found)
    *numbers, _ = zip(head, *rows, strict=True)
    sources = [head[-1], *(row[-1] for row in rows)]
    return [
        f"{line}  {source}" for line, source in zip(say_table(list(zip(*numbers, strict=True))), sources, strict=True)
    ]


def _checks(checks: Sequence[Check]) -> list[str]:
    lines = ["the formula, and what was drawn or run beside it:"]
    for check in checks:
        word = "agree" if check.agrees else "DO NOT AGREE"
        lines += [
            f"  {check.what}",
            f"    {check.formula:,.5g} and {check.run:,.5g}: {word} within {check.within:.2g}; {check.how}",
        ]
    return lines


def _tables(tables: Sequence[Rows]) -> list[str]:
    lines: list[str] = []
    for table in tables:
        lines += ["", table.title, *(f"  {line}" for line in say_table([list(table.head), *map(list, table.rows)]))]
    return lines


# what programs read


def _data(found: Answer) -> dict[str, Any]:
    return {"schema": SCHEMA, **_plain(found), "findings": [_told(each) for each in found.findings]}


def _told(found: Finding) -> dict[str, Any]:
    return {**_plain(found), "checks": [_checked(check) for check in found.checks]}


def _checked(check: Check) -> dict[str, Any]:
    return {**_plain(check), "agrees": check.agrees}


def _plain(found: Any) -> dict[str, Any]:
    """Return a record as JSON has it; numbers of numpy are numbers."""
    from msgspec import to_builtins

    told: dict[str, Any] = to_builtins(found, enc_hook=float)
    return told


# the report


def _check_report(report: str) -> None:
    """Refuse a report that cannot be, before anything is computed."""
    from atoll.observe.plots import check

    if not report.endswith(".html"):
        raise SpecError(f"--report {report}: the report is an HTML file", hint=f"--report {Path(report).stem}.html")
    check()


def _write(report: str, title: str, blocks: Sequence[Any]) -> None:
    from atoll.cli.machine import writing
    from atoll.observe.sheet import Sheet, html

    out = Path(report)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(html(Sheet(title, blocks)), "utf-8")
    print(f"report: {out}", file=sys.stderr)


def _command(name: str, seed: int) -> str:
    return f"atoll limits {name}" + (f" --seed {seed}" if seed else "") + " --report limits.html"
