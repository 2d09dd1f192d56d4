"""A comparison as one HTML file: table, plots, settings and the command that makes it again.

The file needs nothing else: no script, no font, no picture from elsewhere. It reads on a phone and on paper.
"""

from __future__ import annotations

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
from atoll.observe.paper import whole
from atoll.observe.plots import Curve
from atoll.observe.ticks import even_ticks, log_ticks
from atoll.observe.trial import Point
from atoll.spec.run import identity
from atoll.spec.variant import SOLO
from atoll.units import say_bytes, say_count, say_counted, say_short, say_time


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
    return whole(f"Recipes compared: {comparison.name} on {comparison.fleet}", "\n".join(parts))


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
        f"{escape(comparison.fleet_about or 'no description')} ({say_counted(comparison.peers, 'machine')})."
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
    figures = [
        _curves(comparison, places, Against("tokens", "tokens of all peers", lambda point: point.tokens, say_count)),
        _curves(comparison, places, Against("time", "virtual time", lambda point: point.at_s, say_time, log=True)),
        _curves(
            comparison,
            places,
            Against(
                "bytes", "sent and received by the busiest peer", lambda point: point.worst_bytes, say_bytes, log=True
            ),
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
    ticks = log_ticks(low, high, against.say) if against.log else even_ticks(high, against.say)
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
    """Return how far apart peers are, where journals tell."""
    curves = apart_curves(comparison, places)
    if not curves:
        return ""
    svg = plots.lines(
        curves,
        x="tokens of all peers",
        y="% of the mean's length",
        ticks=even_ticks(max(max(curve.x) for curve in curves), say_count),
        heights=even_ticks(max(max(curve.y) for curve in curves), say_short),
    )
    others = [row for row in rows(comparison) if not row.trial.apart and row.trial.label != SOLO]
    zero, open_ = (
        [row.trial.label for row in others if (row.consensus_distance is None) is it] for it in (False, True)
    )
    note = "From a peer's weights to the mean that it takes in their place, of its circle or of all, just before."
    note += f" At 0: {', '.join(zero)}." if zero else ""
    note += f" Not measured: {', '.join(open_)}." if open_ else ""
    return f"<figure><h3>Consensus distance</h3>{svg}<figcaption>{escape(note)}</figcaption></figure>"


def apart_curves(comparison: Comparison, places: dict[str, int | None]) -> list[Curve]:
    """Return the consensus distance of every recipe of which it was measured, in per cent."""
    return [
        Curve(x=[at for at, _ in trial.apart], y=[100 * far for _, far in trial.apart], place=places[trial.label])
        for trial in (entry.trial for entry in comparison.entries)
        if trial.apart
    ]


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
