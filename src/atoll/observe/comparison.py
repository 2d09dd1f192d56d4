"""Recipes side by side: what their trials came to, as data and as a table for people."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from atoll.observe.consensus import Told, common, distance, say_distance
from atoll.observe.consensus import notes as consensus_notes
from atoll.observe.granularity import say_granularity
from atoll.observe.trial import Trial, gain_kept
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.control import Auto, Control, Hide, Match, Nobody
from atoll.spec.axes.pace import Block
from atoll.spec.axes.what import Grad, What
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, Carried, Regions
from atoll.spec.recipe import Channel, Finer, Recipe
from atoll.spec.run import Run, identity
from atoll.spec.say import kind, say
from atoll.spec.turns import in_order
from atoll.spec.variant import SOLO
from atoll.units import say_bytes, say_count, say_counted, say_table, say_time


class Entry(Struct, frozen=True, kw_only=True):
    """One recipe's trial with the run it was."""

    trial: Trial
    run: Run
    reused: bool = False
    """Its journal was kept by an earlier call."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Trials of one run on one fleet."""

    name: str
    fleet: str
    fleet_about: str
    peers: int
    parameters: int
    tokens: int
    """What every recipe was given in all."""
    seed: int
    device: str
    command: str
    kept: str
    """Folder of the journals."""
    entries: tuple[Entry, ...]
    faults: str = ""
    stands_for: str = ""
    """The size whose times and bytes these are, perhaps with ":" and its tokens a step; empty: the run's own."""
    stands_for_parameters: int = 0
    version: str = ""

    @property
    def solo(self) -> Trial | None:
        """One peer alone, if it was played."""
        return next((entry.trial for entry in self.entries if entry.trial.label == SOLO), None)

    @property
    def baseline(self) -> Trial | None:
        """What the others are measured against: the first recipe that is DDP, whatever it is called."""
        together = (entry for entry in self.entries if entry.trial.label != SOLO)
        return next((entry.trial for entry in together if is_ddp(entry.run.recipe)), None)


def is_ddp(recipe: Recipe) -> bool:
    """Return whether everybody's whole gradients go straight from all to all at every step, and are waited for."""
    if len(recipe.channel) != 1:
        return False
    (channel,) = recipe.channel.values()
    what = channel.what
    whole = isinstance(what, Grad) and what.transform is None and what.codec == what.merged() == Fp32()
    straight = isinstance(channel.whom, All) and not isinstance(channel.whom.route, Carried | Regions)
    stays = isinstance(recipe.control, Nobody) and not channel.forms
    return whole and straight and stays and isinstance(channel.overlap, Block) and channel.when == Every(steps=1)


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table: a trial, and what it comes to beside the others; what cannot be said is None."""

    trial: Trial
    gain_kept: float | None
    bytes_of_ddp: float | None
    """What its busiest peer moved, as part of what DDP's did."""
    consensus_distance: float | None
    """How far apart peers were; of one alone nothing."""


def rows(comparison: Comparison) -> list[Row]:
    """Return the table of a comparison, in the order the recipes were named, one peer alone first."""
    return [_row(entry, comparison.solo, comparison.baseline) for entry in comparison.entries]


def _row(entry: Entry, solo: Trial | None, ddp: Trial | None) -> Row:
    trial = entry.trial
    alone = trial.label == SOLO
    of_ddp = trial.worst_bytes / ddp.worst_bytes if ddp and ddp.worst_bytes else None
    gain = gain_kept(trial.held_out, solo.held_out, ddp.held_out) if solo and ddp else None
    apart = distance(trial, entry.run.recipe)
    if alone:
        gain = of_ddp = apart = None
    return Row(trial=trial, gain_kept=gain, bytes_of_ddp=of_ddp, consensus_distance=apart)


HEAD = (
    "recipe",
    "held-out loss",
    "gain kept",
    "tokens",
    "rounds",
    "peers in each",
    "virtual time",
    "computing",
    "granularity",
    "consensus distance",
    "sent",
    "received",
)
NOTHING = "-"
"""In a cell: cannot be said."""


def table(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the table as text, its head first, without the columns in which nobody has anything to say."""
    body = [_cells(row) for row in rows(comparison)]
    told = [place for place in range(len(HEAD)) if any(cells[place] != NOTHING for cells in body)]
    return [tuple(cells[place] for place in told) for cells in (HEAD, *body)]


def _cells(row: Row) -> tuple[str, ...]:
    """Return a line of the table in the order of `HEAD`."""
    trial = row.trial
    return (
        trial.label,
        say_loss(trial.held_out) + ("" if trial.finished else " (not finished)"),
        say_gain(row.gain_kept),
        say_count(trial.tokens),
        str(trial.rounds),
        f"{trial.contributors:.1f}".removesuffix(".0"),
        say_time(trial.took_s),
        say_share(trial.computing),
        say_granularity(trial.granularity),
        NOTHING if row.consensus_distance is None else say_distance(row.consensus_distance),
        say_bytes(trial.sent_bytes),
        say_bytes(trial.received_bytes),
    )


def text(comparison: Comparison) -> str:
    """Return a comparison as people read it in a terminal."""
    head, *body = table(comparison)
    above, *lines = say_table([*_in_two_lines(head), *body])
    return "\n".join([headline(comparison), "", above.rstrip(), *lines, "", *notes(comparison)])


def _in_two_lines(head: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return names of columns one word above the others, lest they be wider than what stands below them."""
    halves = [name.rpartition(" ") for name in head]
    return [tuple(above for above, _, _ in halves), tuple(below for _, _, below in halves)]


def headline(comparison: Comparison) -> str:
    """Return what was compared, in a sentence."""
    machines = say_counted(comparison.peers, "machine")
    return (
        f"run {comparison.name} ({say_count(comparison.parameters)} parameters) on fleet {comparison.fleet} "
        f"({machines}), {say_count(comparison.tokens)} tokens for each recipe in whole rounds, "
        f"seed {comparison.seed}"
    )


def notes(comparison: Comparison) -> list[str]:
    """Return what must be known to read the table."""
    cut = [entry.trial for entry in comparison.entries if not entry.trial.finished]
    found = [f"{trial.label} was not finished: {trial.why or 'nobody said why'}." for trial in cut]
    found += ["Losses are real (nats per token, all held-out text); time is virtual, from the first round announced."]
    if comparison.stands_for:
        name, _, step = comparison.stands_for.partition(":")
        size = f"{name} ({say_count(comparison.stands_for_parameters)} parameters" + (
            f", {int(step):,} tokens a step)" if step else ")"
        )
        found.append(
            f"Time and bytes are those of a model of size {size}, losses those of the small one that was trained."
        )
    if comparison.solo is not None:
        found.append(
            f"solo: one peer alone, in the plain way, on its own 1/{comparison.peers} of the tokens in whole rounds, "
            "on the fastest machine."
        )
    if comparison.solo is not None and comparison.baseline is not None:
        found.append(f"Gain kept: (loss of solo - loss) / (loss of solo - loss of {comparison.baseline.label}).")
    if any(entry.trial.contributors < 0.9 * entry.trial.peers for entry in comparison.entries):
        found.append(
            "With peers away a round has fewer samples, so a recipe takes more rounds, and more steps, for its tokens."
        )
    found.append(
        "Granularity G: how long rounds worked, as a multiple of the rest of them; twice the peers are at best "
        "(G + 1) / (G / 2 + 1) times as fast."
    )
    found.append("Bytes are those of the peer that moved most.")
    together = [entry for entry in comparison.entries if entry.trial.label != SOLO]
    return found + consensus_notes([Told(entry.trial, entry.run.recipe) for entry in together])


def data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for programs; `schema` names its form."""
    import msgspec

    return {
        "schema": "atoll.compare/1",
        "name": comparison.name,
        "fleet": comparison.fleet,
        "peers": comparison.peers,
        "parameters": comparison.parameters,
        "tokens": comparison.tokens,
        "seed": comparison.seed,
        "device": comparison.device,
        "faults": comparison.faults or None,
        "stands_for": comparison.stands_for or None,
        "command": comparison.command,
        "recipes": [
            msgspec.to_builtins(row.trial)
            | {
                "gain_kept": row.gain_kept,
                "bytes_of_ddp": row.bytes_of_ddp,
                "run": identity(entry.run),
                "consensus_distance": row.consensus_distance,
                "common": common(entry.run.recipe),
                "reused": entry.reused,
            }
            for row, entry in zip(rows(comparison), comparison.entries, strict=True)
        ],
    }


def settings(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the choices that tell recipes apart, as names and text."""
    work = recipe.work
    found = [
        ("work in a round", say(work.quota)),
        ("batch a step", f"{work.batch} samples"),
        ("local optimizer", say(work.inner)),
        ("schedule", say(work.schedule)),
    ]
    sides = zip(*(_exchange(channel) for _, channel in in_order(recipe)), strict=True)
    found += [(side[0][0], _each(recipe, [said for _, said in side])) for side in sides]
    return [*found, ("knobs are turned by", _control(recipe.control))]


def _each(recipe: Recipe, said: list[str]) -> str:
    """Return what is said of each channel in one text: once, where it is the same of all."""
    named = (f"{name}: {text}" for (name, _), text in zip(in_order(recipe), said, strict=True))
    return said[0] if len({*said}) == 1 else "; ".join(named)


def _exchange(channel: Channel) -> list[tuple[str, str]]:
    what = channel.what
    of = [f" of part {each.part}" if channel.parts > 1 else "" for each in channel.finer]
    firsts = [f"first {x.rounds} rounds{part} as {_form(x)}" for x, part in zip(channel.finer, of, strict=True)]
    form = "; ".join([_form(what), *firsts])
    return [
        ("a round", say(channel.when)),
        ("exchanged", f"{kind(what)} as {form}"),
        ("what that leaves out", say(what.residual)),
        ("with whom", "all" if isinstance(channel.whom, All) else say(channel.whom.pattern)),
        ("route", say(channel.whom.route)),
        ("outer optimizer", say(channel.merge.outer)),
        ("while it is exchanged", say(channel.overlap)),
        ("a round waits for", say(channel.barrier)),
        ("who is late", say(channel.late)),
    ]


def _form(each: What | Finer) -> str:
    """Return what values are on their way."""
    return say(each.codec) + ("" if each.result is None else f", merged as {say(each.result)}")


def _control(control: Control) -> str:
    """Return who turns knobs, and how far: everything above is where a run begins then."""
    match control:
        case Nobody():
            return "nobody"
        case Auto():
            rungs = ", ".join(f"{kind(rung.codec)} up to {rung.steps} steps" for rung in control.ladder)
            return f"the broker, so that exchanges take at most {say_share(control.share)} of the time: {rungs}"
        case Hide():
            forms = ", ".join(say(form.codec) for form in control.ladder)
            times = ", ".join(map(str, control.batch.times)) if control.batch is not None else ""
            batches = f"; batches {times} times as large" if times else ""
            late = f"results up to {control.late_max} rounds late"
            return f"the broker, so that exchanges hide behind work, {late}: {forms}{batches}"
        case Match():
            forms = ", ".join(say(form.codec) for form in control.ladder)
            return f"the broker, so that all exchanges take as long, each peer in a form of its own: {forms}"


def say_loss(loss: float | None) -> str:
    return "not a number" if loss is None else f"{loss:.3f}"


def say_gain(gain: float | None) -> str:
    return NOTHING if gain is None else f"{100 * gain:.0f} %"


def say_share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
