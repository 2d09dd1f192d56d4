"""A comparison as one HTML file: table, plots, settings and the command that makes it again.

The file needs nothing else: no script, no font, no picture from elsewhere. It reads on a phone and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from atoll.observe import plots
from atoll.observe.comparison import (
    Comparison,
    Row,
    notes,
    rows,
    say_gain,
    say_loss,
    settings,
    table,
)
from atoll.observe.plots import Curve, Tick
from atoll.observe.trial import Point
from atoll.spec.run import identity
from atoll.spec.variant import SOLO
from atoll.units import say_bytes, say_count, say_time, time_s

STYLE = """
:root { --ink: #1f2328; --dim: #59636e; --line: #d9dee3; --wash: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2.2rem 1.4rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .5rem; }
p { margin: .4rem 0; max-width: 60rem; }
.dim, figcaption, .notes { color: var(--dim); }
.found { border-left: 4px solid #0072B2; padding: .2rem 0 .2rem 1rem; margin: 1.2rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--dim); font-size: .88rem; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child, .plain td, .plain th { text-align: left; }
.plain td { white-space: normal; vertical-align: top; }
td:first-child { font-weight: 600; }
td svg { width: 46px; height: 15px; vertical-align: middle; margin-right: .5rem; }
tr.best td { background: var(--wash); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: .9rem .9rem .6rem; }
figure > svg { width: 100%; height: auto; display: block; }
figure h3 { margin: 0 0 .2rem; font-size: 1rem; }
figcaption { font-size: .88rem; }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: .92rem; margin: .2rem 0 .8rem; }
.keys svg { width: 46px; height: 15px; vertical-align: middle; margin-right: .3rem; }
.notes { padding-left: 1.1rem; font-size: .92rem; }
pre { background: var(--wash); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto; font-size: .88rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { padding: 0; } figure { break-inside: avoid; } }
"""


def page(comparison: Comparison) -> str:
    """Return the whole file; raises `LocalError` where plots cannot be drawn."""
    places = _places(comparison)
    parts = [
        _top(comparison),
        _table(comparison, places),
        '<ul class="notes">' + "".join(f"<li>{escape(note)}</li>" for note in notes(comparison)) + "</ul>",
        _plots(comparison, places),
        _settings(comparison),
        _again(comparison),
    ]
    title = escape(f"{comparison.name} on {comparison.fleet}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Recipes compared: {title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _places(comparison: Comparison) -> dict[str, int | None]:
    """Return the looks of each recipe: one peer alone is grey, the others in order."""
    labels = [entry.trial.label for entry in comparison.entries]
    together = [label for label in labels if label != SOLO]
    return {label: together.index(label) if label in together else None for label in labels}


def _top(comparison: Comparison) -> str:
    labels = [entry.trial.label for entry in comparison.entries if entry.trial.label != SOLO]
    about = (
        f"Run <b>{escape(comparison.name)}</b>, {say_count(comparison.parameters)} parameters, "
        f"{say_count(comparison.tokens)} tokens for each recipe; fleet <b>{escape(comparison.fleet)}</b>: "
        f"{escape(comparison.fleet_about or 'no description')} ({comparison.peers} machines)."
    )
    found = "".join(f"<p>{escape(each)}</p>" for each in _found(comparison))
    return (
        f"<h1>{escape(_listed(labels))} on {escape(comparison.fleet)}</h1>\n"
        f'<p class="dim">{about}</p>\n<div class="found">{found}</div>'
    )


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else ", ".join(labels[:-1]) + " and " + labels[-1]


def _found(comparison: Comparison) -> list[str]:
    """Return what the numbers say, in sentences."""
    together = [row for row in rows(comparison) if row.trial.label != SOLO]
    losses = {row.trial.label: row.trial.held_out for row in together if row.trial.held_out is not None}
    said = ["No recipe ended with a loss that is a number."]
    if losses:
        best = min(losses, key=losses.__getitem__)
        said = [f"{best} ends with the lowest held-out loss, {say_loss(losses[best])} nats per token."]
    frugal, ddp = min(together, key=lambda row: row.trial.worst_bytes), comparison.baseline
    if ddp is not None and frugal.bytes_of_ddp and frugal.trial.label != ddp.label:
        times = f"{1 / frugal.bytes_of_ddp:,.0f} times less than {ddp.label}"
        said.append(f"{frugal.trial.label} moves least: {times}{_kept(frugal, ddp.label)}.")
    quick = min((row.trial for row in together), key=lambda trial: trial.took_s)
    said.append(f"{quick.label} is done first, after {say_time(quick.took_s)} of virtual time.")
    return said


def _kept(row: Row, ddp: str) -> str:
    """Return what a recipe keeps of the gain of training together, as the end of a sentence."""
    if row.gain_kept is None:
        return ""
    if row.gain_kept <= 0:
        return ", and ends no better than one peer alone"
    return f", and keeps {say_gain(row.gain_kept)} of what {ddp} gains over one peer alone"


def _table(comparison: Comparison, places: dict[str, int | None]) -> str:
    """Return the table, the line with the lowest loss marked."""
    head, *body = table(comparison)
    losses = [entry.trial.held_out for entry in comparison.entries]
    lowest = min((loss for loss in losses if loss is not None), default=None)
    lines = []
    for (label, *cells), loss in zip(body, losses, strict=True):
        mark = ' class="best"' if loss is not None and loss == lowest else ""
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr{mark}><td>{plots.key(places[label])}{escape(label)}</td>{told}</tr>")
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<div class="scroll"><table>\n<thead><tr>{names}</tr></thead>\n<tbody>{"".join(lines)}</tbody>\n</table></div>'
    )


# plots


@dataclass(frozen=True)
class Against:
    """What the loss is plotted against."""

    name: str
    axis: str
    where: Callable[[Point], float]
    say: Callable[[float], str]
    log: bool = False


def _plots(comparison: Comparison, places: dict[str, int | None]) -> str:
    both = "sent" if comparison.stands_for else "sent and received"
    figures = [
        _curves(comparison, places, Against("tokens", "tokens of all peers", lambda point: point.tokens, say_count)),
        _curves(comparison, places, Against("time", "virtual time", lambda point: point.at_s, say_time, log=True)),
        _curves(
            comparison,
            places,
            Against("bytes", f"{both} by the busiest peer", lambda point: point.worst_bytes, say_bytes, log=True),
        ),
        _computing(comparison, places),
        _apart(comparison, places),
    ]
    keys = "".join(f"<span>{plots.key(place)}{escape(label)}</span>" for label, place in places.items())
    return f'<h2>Curves</h2>\n<div class="keys">{keys}</div>\n<div class="plots">{"".join(figures)}</div>'


def _curves(comparison: Comparison, places: dict[str, int | None], against: Against) -> str:
    """Return one plot of the held-out loss; on a logarithmic axis what lies at 0 is left out."""
    curves = []
    for entry in comparison.entries:
        points = [point for point in entry.trial.points if against.where(point) > 0 or not against.log]
        if points:
            xs, ys = [against.where(point) for point in points], [point.loss for point in points]
            curves.append(Curve(x=xs, y=ys, place=places[entry.trial.label]))
    if not curves:
        return ""
    low, high = min(min(curve.x) for curve in curves), max(max(curve.x) for curve in curves)
    ticks = _log_ticks(low, high, against.say) if against.log else _even_ticks(high, against.say)
    svg = plots.lines(curves, x=against.axis, y="held-out loss (nats per token)", ticks=ticks, log=against.log)
    note = "On a logarithmic axis; left and low is better." if against.log else "Low is better."
    return f"<figure><h3>Loss against {against.name}</h3>{svg}<figcaption>{note}</figcaption></figure>"


def _computing(comparison: Comparison, places: dict[str, int | None]) -> str:
    trials = [entry.trial for entry in comparison.entries]
    svg = plots.bars(
        [trial.label for trial in trials],
        [trial.computing for trial in trials],
        [places[trial.label] for trial in trials],
        x="share of the peers' time, %",
    )
    note = "The rest is spent exchanging, waiting for others, and looking at held-out text."
    return f"<figure><h3>Time in which peers compute</h3>{svg}<figcaption>{note}</figcaption></figure>"


def _apart(comparison: Comparison, places: dict[str, int | None]) -> str:
    """Return how far apart peers are, of those recipes in which each has a model of its own."""
    curves = [
        Curve(x=[at for at, _ in trial.apart], y=[100 * far for _, far in trial.apart], place=places[trial.label])
        for trial in (entry.trial for entry in comparison.entries)
        if trial.apart
    ]
    if not curves:
        return ""
    ticks = _even_ticks(max(max(curve.x) for curve in curves), say_count)
    svg = plots.lines(curves, x="tokens of all peers", y="% of the weights' length", ticks=ticks)
    note = "From a peer's weights to the mean that it takes, of its circle or of all. Recipes with one model are at 0."
    return f"<figure><h3>How far apart peers are</h3>{svg}<figcaption>{note}</figcaption></figure>"


TIMES = tuple(
    Tick(time_s(label), label)
    for label in ("1 ms", "10 ms", "0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d", "10 d", "100 d")
)
"""Where people expect marks on an axis of time."""


def _log_ticks(low: float, high: float, say: Callable[[float], str]) -> list[Tick]:
    """Return round places on a logarithmic axis: decades, or between them where there are too few."""
    decades = (10.0**k for k in range(16))
    known = TIMES if say is say_time else [Tick(at, _short(at, say)) for at in decades]
    inside = [tick for tick in known if low / 1.5 <= tick.at <= high * 1.5]
    if len(inside) >= 3:
        return inside
    decade = 10.0 ** math.floor(math.log10(low))
    finer = [m * decade * 10.0**k for k in range(4) for m in (1, 2, 5)]
    return [Tick(at, _short(at, say)) for at in finer if low / 1.1 <= at <= high * 1.1]


def _even_ticks(high: float, say: Callable[[float], str]) -> list[Tick]:
    """Return four to eight even places from 0 on."""
    decade = 10.0 ** math.floor(math.log10(max(high, 1.0)))
    step = next(m * decade for m in (0.2, 0.25, 0.5, 1, 2) if high / (m * decade) <= 7)
    return [Tick(step * i, _short(step * i, say)) for i in range(int(high / step + 1e-9) + 1)]


def _short(value: float, say: Callable[[float], str]) -> str:
    """Return a round value as text: "100 MB", not "100.0 MB"."""
    return say(value).replace(".0", "")


# the small print


def _settings(comparison: Comparison) -> str:
    """Return each recipe's choices, a column each."""
    entries = comparison.entries
    columns = [dict(settings(entry.run.recipe)) for entry in entries]
    head = "".join(f"<th>{escape(entry.trial.label)}</th>" for entry in entries)
    body = "".join(
        f"<tr><td>{escape(name)}</td>" + "".join(f"<td>{escape(column[name])}</td>" for column in columns) + "</tr>"
        for name in columns[0]
    )
    ids = "".join(f"<td><code>{identity(entry.run)[:12]}</code></td>" for entry in entries)
    return (
        '<h2>Settings</h2>\n<div class="scroll"><table class="plain">\n'
        f"<thead><tr><th></th>{head}</tr></thead>\n<tbody>{body}<tr><td>run</td>{ids}</tr></tbody>\n</table></div>"
    )


def _again(comparison: Comparison) -> str:
    run = comparison.entries[0].run
    seeds = f"seeds: world {comparison.seed}, model {run.seeds.model}, data {run.seeds.data}"
    facts = [seeds, f"trained on {comparison.device}", f"atoll {comparison.version}", f"journals in {comparison.kept}"]
    if comparison.faults:
        facts.insert(1, f"faults: {comparison.faults}")
    how = (
        "All recipes get the same tokens: the run's own, rounded up to whole rounds of the longest one. A recipe's "
        "rounds are the tokens divided by peers x local steps x batch x tokens per sample; a round in which somebody "
        "is missing counts less, and more of them are played. Rates are those of the run file and the recipes: "
        "comparing tunes nothing, and one seed is one sample."
    )
    return (
        f"<h2>Again</h2>\n<pre>{escape(comparison.command)}</pre>\n"
        f'<p class="dim">{escape("; ".join(facts))}.</p>\n<p class="dim">{escape(how)}</p>'
    )
