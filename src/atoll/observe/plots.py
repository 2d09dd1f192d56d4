"""Plots as SVG text: the one door to matplotlib, which is an extra.

A plot must be read by everybody and on paper: colours are those of Okabe and Ito, told apart by every kind of colour
vision, and each curve also has a mark and a dash of its own. Text stays text, so that it can be searched and scaled.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from atoll.errors import LocalError
from atoll.units import say_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A", "#8A6D3B")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (3, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1.5, 1.5)))
GREY = "#6e6e6e"
DOTS: Any = (0, (2, 2))
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "atoll",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8c8c8c",
    "axes.labelcolor": "#333333",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
INCHES = (6.4, 3.9)
MARKED = 8
"""So many points of a curve have a mark: enough to tell it by, and not so many that they hide its dashes."""


class Curve(Struct, frozen=True, kw_only=True):
    """One line of a plot; `place` decides its looks, none: grey, as what others are measured against."""

    x: Sequence[float]
    y: Sequence[float]
    place: int | None = None
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """The range of each y; none: no range is drawn."""
    joined: bool = True
    """False: marks alone, their ranges as whiskers."""


class Tick(Struct, frozen=True):
    """A mark on an axis."""

    at: float
    label: str


def check() -> None:
    """Raise `LocalError` where no plot can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LocalError("plots need matplotlib, which is not installed", hint="pip install 'atoll[plots]'") from None


def lines(
    curves: Sequence[Curve],
    *,
    x: str,
    y: str,
    ticks: Sequence[Tick] = (),
    log: bool = False,
    heights: Sequence[Tick] = (),
    log_y: bool = False,
) -> str:
    """Return curves over a common axis as the text of one <svg>; an axis without ticks has those it likes."""
    figure, axes = _blank()
    for curve in curves:
        _draw(axes, curve)
    _scale(axes, "x", ticks, log=log)
    _scale(axes, "y", heights, log=log_y)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return _svg(figure)


def _draw(axes: Axes, curve: Curve) -> None:
    """Draw a line with its range as a shade, or marks with theirs as whiskers."""
    looks = _looks(curve.place)
    if not curve.joined:
        pairs = zip(curve.y, curve.low, curve.high, strict=True) if curve.low else ()
        ends = [(max(0.0, y - low), max(0.0, high - y)) for y, low, high in pairs]
        errors = list(zip(*ends, strict=True)) or None
        axes.errorbar(curve.x, curve.y, yerr=errors, capsize=3, **looks | {"linestyle": "none", "markersize": 6})
        return
    if curve.low:
        axes.fill_between(curve.x, curve.low, curve.high, color=looks["color"], alpha=0.15, linewidth=0)
    axes.plot(curve.x, curve.y, markevery=max(1, round(len(curve.x) / MARKED)), **looks)


def _scale(axes: Axes, side: Literal["x", "y"], ticks: Sequence[Tick], *, log: bool) -> None:
    """Give an axis its scale and its marks."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    if log:
        (axes.set_xscale if side == "x" else axes.set_yscale)("log")
        axis.minorticks_off()
    if not log:
        axis.set_major_formatter(lambda value, _: say_short(value))
    if ticks:
        axis.set_ticks([tick.at for tick in ticks], labels=[tick.label for tick in ticks])


def bars(labels: Sequence[str], values: Sequence[float], places: Sequence[int | None], *, x: str) -> str:
    """Return shares between 0 and 1 as lying bars, the first on top, each with its number."""
    figure, axes = _blank(height=0.62 + 0.42 * len(labels))
    at = list(range(len(labels)))
    axes.barh(at, [100 * value for value in values], color=[_looks(place)["color"] for place in places], height=0.62)
    for position, value in zip(at, values, strict=True):
        axes.annotate(
            f"{100 * value:.2g} %", (100 * value, position), xytext=(5, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(at, list(labels))
    axes.invert_yaxis()
    axes.set_xlim(0, 118 * max(*values, 1e-4))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(x)
    return _svg(figure)


class Bar(Struct, frozen=True, kw_only=True):
    """A lying bar of any quantity, with its range as whiskers where it has one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    place: int | None = 0
    say: str = ""
    """What is written beside it."""


def amounts(entries: Sequence[Bar], *, x: str, ticks: Sequence[Tick] = (), log: bool = False) -> str:
    """Return quantities as lying bars, the first on top."""
    figure, axes = _blank(height=0.75 + 0.42 * len(entries))
    for position, bar in enumerate(entries):
        axes.barh([position], [bar.value], color=_looks(bar.place)["color"], height=0.62)
        low, high = (bar.value if end is None else end for end in (bar.low, bar.high))
        if low < high:
            axes.plot([low, high], [position, position], color="#1f2328", linewidth=1.4, marker="|", markersize=7)
        axes.annotate(bar.say, (max(high, bar.value), position), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(entries)), [bar.label for bar in entries])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _scale(axes, "x", ticks, log=log)
    ends = axes.get_xlim()
    axes.set_xlim(ends[0], ends[1] * 2.5 if log else ends[1] * 1.16)
    axes.set_xlabel(x)
    return _svg(figure)


def key(place: int | None, *, joined: bool = True) -> str:
    """Return the little line that stands for a curve in a table, as the text of one <svg>."""
    figure, axes = _blank(size=(0.62, 0.2))
    axes.set_axis_off()
    axes.plot([0, 1, 2], [0, 0, 0], markevery=[1], **_looks(place) | ({} if joined else {"linestyle": "none"}))
    return _svg(figure)


def _looks(place: int | None) -> dict[str, Any]:
    """Return how a curve is drawn: each colour with a mark and a dash of its own; nothing of them: grey."""
    colour, mark, dash = GREY, ".", DOTS
    if place is not None:
        colour, mark, dash = (each[place % len(each)] for each in (COLOURS, MARKS, DASHES))
    return {"color": colour, "marker": mark, "linestyle": dash, "linewidth": 2, "markersize": 5}


def _blank(*, height: float = INCHES[1], size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """Return an empty drawing in our style; no window, no global state."""
    check()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size or (INCHES[0], height), layout="constrained")
        return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    """Return a drawing as one <svg> element, the same text every time."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    return text[text.index("<svg") :]
