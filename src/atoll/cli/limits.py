"""`atoll limits`: is it worth it? Seven limits of a scenario, a verdict, and the nearest plan that would do.

What is said here is computed in `plan.limits`; this file reads flags, prints, and hands plain blocks to the report.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import Json
from atoll.errors import SpecError
from atoll.units import say_number, say_table

if TYPE_CHECKING:
    from atoll.plan.limits.answer import Answer
    from atoll.plan.limits.finding import Check, Finding, Rows

SCHEMA = "atoll.limits/1"
WIDE = (11, 8, 30, 42, 46)
"""Columns of the table of seven, in letters."""
WIDTH_MIN = 100
"""On narrower screens limits stand one below the other."""
SOURCE_MIN = 24
"""Letters that must be left for a source beside its input; else it stands below."""

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
        lines = [*_wrapped(f"{each.scenario}: {each.about}"), *_wrapped(f"{each.verdict}: {each.because}", "  ")]
        print("\n".join([*lines, ""]))
    print("one of them: atoll limits homes")
    print("your own: atoll limits labs --toml > mine.toml, then atoll limits mine.toml")


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
    from atoll.plan.limits.cost import say_days, say_usd

    low, days, high = map(say_days, found.days)
    usd_low, usd, usd_high = map(say_usd, found.usd)
    agree = [check for finding in found.findings for check in finding.checks]
    allowed = f"{found.deadline_days:,.0f} allowed, kept in {found.in_time:.0%} of draws"
    lines = [
        *_wrapped(f"{found.scenario}: {found.about}"),
        "",
        *_wrapped(f"{found.verdict.upper()}: {found.because}"),
        *_wrapped(f"time    {days} ({low.removesuffix(' days')} to {high}), {allowed}", "", " " * 8),
        f"money   {usd} ({usd_low} to {usd_high})",
        "",
        *_seven(found.findings),
        f"{sum(check.agrees for check in agree)} of {len(agree)} formulas agree with what was drawn or run beside it.",
    ]
    if found.nearest is not None:
        near = found.nearest
        left = f"; {', '.join(near.left)} would still bind" if near.left else ""
        lines += [
            "",
            *_wrapped(f"the nearest plan ({near.verdict}: {say_days(near.days)}, {say_usd(near.usd)}{left}):"),
        ]
        lines += [line for change in near.changes for line in _wrapped(change, "  - ", "    ")]
    lines += ["", "where training far apart is right:"]
    mark = {True: "yes", False: "no", None: "-"}
    for each in found.regimes:
        lines += _wrapped(f"{each.name}: {each.why}", f"  {mark[each.holds]:<4}", " " * 6)
    return [
        *lines,
        "",
        f"in full: atoll limits {name} --limit NAME",
        f"with plots: atoll limits {name} --report limits.html",
    ]


def _width() -> int:
    return shutil.get_terminal_size((140, 24)).columns


def _wrapped(text: str, first: str = "", then: str | None = None) -> list[str]:
    """Return a text as lines that fit the screen."""
    later = first if then is None else then
    return textwrap.wrap(text, max(40, _width()), initial_indent=first, subsequent_indent=later)


def _seven(findings: Sequence[Finding]) -> list[str]:
    """Return the table of seven, cells wrapped; on a narrow screen one limit below the other."""
    if _width() < WIDTH_MIN:
        return [line for each in findings for line in _stacked(each)]
    room = _width() - sum(WIDE[:3]) - 8
    wide = (*WIDE[:3], room * WIDE[3] // (WIDE[3] + WIDE[4]), room * WIDE[4] // (WIDE[3] + WIDE[4]))
    lines = [*_row(("limit", "verdict", "number", "what binds", "what would move it"), wide), ""]
    for each in findings:
        lines += [*_row((each.limit, each.verdict, each.says, each.binds, each.moves), wide), ""]
    return lines


def _stacked(found: Finding) -> list[str]:
    """Return one limit below its name."""
    return [
        *_wrapped(f"{found.limit}: {found.verdict}, {found.says}"),
        *_wrapped(found.binds, "  binds: ", " " * 9),
        *_wrapped(found.moves, "  moved by: ", " " * 12),
        "",
    ]


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
        *_wrapped(f"{found.limit}: {found.question}"),
        *_wrapped(
            f"{found.verdict}: {found.says} ({say_number(found.low)} to {say_number(found.high)} in four of five draws)"
        ),
        *_wrapped(f"binds: {found.binds}"),
        *_wrapped(f"moved by: {found.moves}"),
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
    lines = []
    for line, source in zip(say_table(list(zip(*numbers, strict=True))), sources, strict=True):
        indent = len(line) + 2 if _width() - len(line) > SOURCE_MIN else 4
        first, *more = textwrap.wrap(source, _width() - indent)
        lines += [f"{line}  {first}"] if indent > 4 else [line, f"    {first}"]
        lines += [" " * indent + rest for rest in more]
    return lines


def _checks(checks: Sequence[Check]) -> list[str]:
    from atoll.cli.blocks import figure

    lines = ["the formula, and what was drawn or run beside it:"]
    for check in checks:
        word = "agree" if check.agrees else "DO NOT AGREE"
        both = f"{figure(check.formula)} and {figure(check.run)}: {word} within {check.within:.2g}"
        lines += [*_wrapped(check.what, "  "), *_wrapped(f"{both}; {check.how}", "    ")]
    return lines


def _tables(tables: Sequence[Rows]) -> list[str]:
    lines: list[str] = []
    for table in tables:
        lines += [
            "",
            *_wrapped(table.title),
            *(f"  {line}" for line in say_table([list(table.head), *map(list, table.rows)])),
        ]
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

    told: dict[str, Any] = _finite(to_builtins(found, enc_hook=float))
    return told


def _finite(told: Any) -> Any:
    """Return the same with null for what has no end: JSON has no word for it."""
    match told:
        case float():
            return told if math.isfinite(told) else None
        case dict():
            return {key: _finite(each) for key, each in told.items()}
        case list() | tuple():
            return [_finite(each) for each in told]
        case _:
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
