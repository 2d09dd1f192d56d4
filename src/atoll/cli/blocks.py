"""The blocks of the report of `atoll limits`: what plan computed, as observe draws it.

Neither room knows the other, so the records of one become those of the other here.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.observe.sheet import Bar, Block, Code, Heading, Plot, Series, Table, Text
from atoll.plan.limits.answer import Answer
from atoll.plan.limits.cost import say_days, say_usd
from atoll.plan.limits.finding import Check, Drawing, Finding, Rows
from atoll.units import say_number


def of_answer(found: Answer, command: str) -> list[Block]:
    """Return the report of a scenario: the verdict, the seven, each in full, and where far apart is right."""
    low, days, high = map(say_days, found.days)
    usd_low, usd, usd_high = map(say_usd, found.usd)
    blocks: list[Block] = [
        Text(found.about, "dim"),
        Text(f"{found.verdict.upper()}: {found.because}.", "found"),
        Text(
            f"{days} ({low} to {high}), {found.deadline_days:,.0f} allowed, kept in {found.in_time:.0%} of draws; "
            f"{usd} ({usd_low} to {usd_high}). Ranges: four of five draws of the inputs."
        ),
        Table(
            ["limit", "verdict", "number", "what binds", "what would move it"],
            [[each.limit, each.verdict, each.says, each.binds, each.moves] for each in found.findings],
            words=True,
            best=[place for place, each in enumerate(found.findings) if each.limit == found.binding],
        ),
    ]
    if found.nearest is not None:
        near = found.nearest
        still = f" Still binding: {', '.join(near.left)}." if near.left else ""
        says = f"{'; '.join(near.changes)}. Then: {near.verdict}, {say_days(near.days)}, {say_usd(near.usd)}.{still}"
        blocks += [Heading("The nearest plan"), Text(says)]
    mark = {True: "yes", False: "no", None: "-"}
    rows = [[each.name, mark[each.holds], each.why] for each in found.regimes]
    blocks += [Heading("Where training far apart is right"), Table(["regime", "here", "why"], rows, words=True)]
    for finding in found.findings:
        blocks += of_finding(finding)
    return [*blocks, Heading("Again"), Code(command)]


def of_finding(found: Finding) -> list[Block]:
    """Return one limit in full."""
    head, *rows = inputs(found)
    return [
        Heading(f"{found.limit}: {found.verdict}"),
        Text(found.question, "dim"),
        Text(f"{found.says} ({say_number(found.low)} to {say_number(found.high)}). Binds: {found.binds}."),
        Text(f"Moved by: {found.moves}."),
        *map(_plot, found.drawings),
        _checks(found.checks),
        *_tables(found.tables),
        Text("Inputs, and the nearest value of each at which the verdict is another", "dim"),
        Table(head, rows, words=True),
    ]


def of_example(
    says: Sequence[str], checks: Sequence[Check], tables: Sequence[Rows], drawings: Sequence[Drawing]
) -> list[Block]:
    """Return a worked example."""
    return [Text(" ".join(says), "found"), *map(_plot, drawings), _checks(checks), *_tables(tables)]


def inputs(found: Finding) -> list[list[str]]:
    """Return the inputs of a limit, the head first and sources last."""
    rows = [["input", "value", "low", "high", "verdict turns at", "source"]]
    for each in found.given:
        turns = f"{say_number(each.flip.at)}: {each.flip.verdict}" if each.flip else "never"
        numbers = [say_number(number) for number in (each.value, each.low, each.high)]
        rows.append([each.path, *numbers, turns, each.source])
    return rows


def figure(number: float) -> str:
    """Return a number with five digits that say something, large ones in full."""
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:,.5g}"


def _checks(checks: Sequence[Check]) -> Table:
    rows = [
        [each.what, figure(each.formula), figure(each.run), "agree" if each.agrees else "do not agree", each.how]
        for each in checks
    ]
    return Table(["quantity", "formula", "drawn or run", "within what is allowed", "how"], rows, words=True)


def _tables(tables: Sequence[Rows]) -> list[Block]:
    return [block for each in tables for block in (Text(each.title, "dim"), Table(each.head, each.rows))]


def _plot(drawing: Drawing) -> Plot:
    series = [
        Series(label=s.label, x=s.x, y=s.y, low=s.low, high=s.high, joined=s.joined, grey=s.grey)
        for s in drawing.series
    ]
    bars = [Bar(label=b.label, value=b.value, low=b.low, high=b.high, say=b.say) for b in drawing.bars]
    return Plot(
        title=drawing.title,
        x=drawing.x,
        y=drawing.y,
        series=series,
        bars=bars,
        log_x=drawing.log_x,
        log_y=drawing.log_y,
        caption=drawing.caption,
    )
