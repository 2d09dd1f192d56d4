"""A report made of plain blocks: headings, paragraphs, tables, plots. Whoever computes something hands its blocks here.

    html(Sheet("Is it worth it?", [Text("Yes."), Table(["limit", "verdict"], rows), Plot(...)]))

Plots that follow one another share a line where there is room. On a logarithmic axis what lies at 0 is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from atoll.observe import plots
from atoll.observe.paper import whole
from atoll.observe.plots import Bar, Curve, Tick
from atoll.observe.ticks import log_ticks
from atoll.units import say_short

__all__ = ["Bar", "Block", "Code", "Heading", "Plot", "Series", "Sheet", "Table", "Text", "html"]


class Heading(Struct, frozen=True):
    """The title of what follows."""

    text: str


class Text(Struct, frozen=True):
    """A paragraph: what was found, said plainly, or in small print."""

    text: str
    looks: Literal["plain", "found", "dim"] = "plain"


class Code(Struct, frozen=True):
    """Lines to be typed or read as they are."""

    text: str


class Table(Struct, frozen=True):
    """A head and rows of cells: numbers to the right, or words to the left."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    best: Sequence[int] = ()
    """Rows that are marked."""


class Series(Struct, frozen=True, kw_only=True):
    """A curve with a name; not joined: marks alone. Grey is what others are measured against."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    joined: bool = True
    grey: bool = False


class Plot(Struct, frozen=True, kw_only=True):
    """Curves over an axis, or lying bars, with a caption that says how to read them."""

    title: str
    x: str
    y: str = ""
    series: Sequence[Series] = ()
    bars: Sequence[Bar] = ()
    log_x: bool = False
    log_y: bool = False
    caption: str = ""


Block = Heading | Text | Code | Table | Plot


class Sheet(Struct, frozen=True):
    """A document."""

    title: str
    blocks: Sequence[Block]


def html(sheet: Sheet) -> str:
    """Return the whole file; raises `LocalError` where it has plots and none can be drawn."""
    parts = [f"<h1>{escape(sheet.title)}</h1>"]
    for kind, blocks in groupby(sheet.blocks, key=type):
        inner = [_block(block) for block in blocks]
        parts += [f'<div class="plots">{"".join(inner)}</div>'] if kind is Plot else inner
    return whole(sheet.title, "\n".join(parts))


def _block(block: Block) -> str:
    match block:
        case Heading(text=text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text=text, looks="plain"):
            return f"<p>{escape(text)}</p>"
        case Text(text=text, looks=looks):
            return f'<p class="{looks}">{escape(text)}</p>'
        case Code(text=text):
            return f"<pre>{escape(text)}</pre>"
        case Table():
            return _table(block)
        case Plot():
            return _figure(block)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    lines = []
    for number, row in enumerate(table.rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f'<tr class="best">{cells}</tr>' if number in table.best else f"<tr>{cells}</tr>")
    looks = ' class="plain"' if table.words else ""
    return (
        f'<div class="scroll"><table{looks}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(lines)}</tbody>\n</table></div>"
    )


def _figure(plot: Plot) -> str:
    drawn = _lines(plot) if plot.series else _bars(plot)
    caption = f"<figcaption>{escape(plot.caption)}</figcaption>" if plot.caption else ""
    return f"<figure><h3>{escape(plot.title)}</h3>{drawn}{caption}</figure>"


def _lines(plot: Plot) -> str:
    """Return the keys of curves above the curves."""
    places: list[int | None] = []
    for series in plot.series:
        places.append(None if series.grey else len([place for place in places if place is not None]))
    curves = [_curve(plot, series, place) for series, place in zip(plot.series, places, strict=True)]
    svg = plots.lines(
        curves,
        x=plot.x,
        y=plot.y,
        ticks=_marks([at for curve in curves for at in curve.x], log=plot.log_x),
        log=plot.log_x,
        heights=_marks([at for curve in curves for at in (*curve.y, *curve.low, *curve.high)], log=plot.log_y),
        log_y=plot.log_y,
    )
    named = zip(plot.series, places, strict=True)
    keys = "".join(
        f"<span>{plots.key(place, joined=series.joined)}{escape(series.label)}</span>" for series, place in named
    )
    return f'<div class="keys">{keys}</div>{svg}'


def _curve(plot: Plot, series: Series, place: int | None) -> Curve:
    """Return a series as it is drawn, without what a logarithmic axis cannot show."""
    rows = [row for row in _rows(series) if (row[0] > 0 or not plot.log_x) and (min(row[1:]) > 0 or not plot.log_y)]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    low, high = columns[2:] if series.low and rows else ([], [])
    return Curve(x=columns[0], y=columns[1], low=low, high=high, place=place, joined=series.joined)


def _rows(series: Series) -> Iterator[tuple[float, ...]]:
    columns = [series.x, series.y, *([series.low, series.high] if series.low else [])]
    return zip(*columns, strict=True)


def _bars(plot: Plot) -> str:
    ends = [end for bar in plot.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    bars = [bar if bar.say else replace(bar, say=say_short(float(f"{bar.value:.3g}"))) for bar in plot.bars]
    return plots.amounts(bars, x=plot.x, ticks=_marks(ends, log=plot.log_x), log=plot.log_x)


def _marks(values: Sequence[float], *, log: bool) -> list[Tick]:
    """Return the ticks of a logarithmic axis; an even one finds its own."""
    return log_ticks(min(values), max(values), say_short) if log and values else []
