"""Recipes side by side: what their trials came to, as data and as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from atoll.observe.trial import Trial, gain_kept
from atoll.spec.recipe import Accumulate, Recipe
from atoll.spec.run import Run, identity
from atoll.spec.variant import SOLO
from atoll.units import say_bytes, say_count, say_time

DDP = "ddp"


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

    def entry(self, label: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.trial.label == label), None)


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table; what cannot be said is None."""

    label: str
    held_out: float | None
    gain_kept: float | None
    tokens: int
    rounds: int
    contributors: float
    steps: int
    took_s: float
    computing: float
    sent_bytes: int
    received_bytes: int | None
    bytes_of_ddp: float | None
    """What its busiest peer moved, as part of what DDP's did."""
    missed: int
    finished: bool
    staleness_max: int
    """The most rounds that were committed between a contribution's beginning and its own."""


def rows(comparison: Comparison) -> list[Row]:
    """Return the table of a comparison, in the order the recipes were named, one peer alone first."""
    solo, ddp = (_held_out(comparison.entry(label)) for label in (SOLO, DDP))
    reference = comparison.entry(DDP)
    return [_row(entry.trial, solo, ddp, reference.trial if reference else None) for entry in comparison.entries]


def _held_out(entry: Entry | None) -> float | None:
    return entry.trial.held_out if entry is not None else None


def _row(trial: Trial, solo: float | None, ddp: float | None, reference: Trial | None) -> Row:
    alone = trial.label == SOLO
    of_ddp = trial.worst_bytes / reference.worst_bytes if reference and reference.worst_bytes else None
    return Row(
        label=trial.label,
        held_out=trial.held_out,
        gain_kept=None if alone else gain_kept(trial.held_out, solo, ddp),
        tokens=trial.tokens,
        rounds=trial.rounds,
        contributors=trial.contributors,
        steps=trial.steps,
        took_s=trial.took_s,
        computing=trial.computing,
        sent_bytes=trial.sent_bytes,
        received_bytes=trial.received_bytes,
        bytes_of_ddp=None if alone else of_ddp,
        missed=trial.missed,
        finished=trial.finished,
        staleness_max=trial.staleness_max,
    )


HEAD = (
    "recipe",
    "held-out loss",
    "gain kept",
    "tokens",
    "rounds",
    "peers in each",
    "virtual time",
    "computing",
    "sent",
    "received",
)


def cells(row: Row) -> tuple[str, ...]:
    """Return a line of the table as text, in the order of `HEAD`."""
    return (
        row.label,
        say_loss(row.held_out) + ("" if row.finished else " (not finished)"),
        say_gain(row.gain_kept),
        say_count(row.tokens),
        str(row.rounds),
        f"{row.contributors:.1f}".removesuffix(".0"),
        say_time(row.took_s),
        say_share(row.computing),
        say_bytes(row.sent_bytes),
        "-" if row.received_bytes is None else say_bytes(row.received_bytes),
    )


def text(comparison: Comparison) -> str:
    """Return a comparison as people read it in a terminal."""
    table = [HEAD, *(cells(row) for row in rows(comparison))]
    wide = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    lines = [
        f"{line[0]:<{wide[0]}}  " + "  ".join(f"{cell:>{w}}" for cell, w in zip(line[1:], wide[1:], strict=True))
        for line in table
    ]
    return "\n".join([headline(comparison), "", *lines, "", *notes(comparison)])


def headline(comparison: Comparison) -> str:
    """Return what was compared, in a sentence."""
    return (
        f"run {comparison.name} ({say_count(comparison.parameters)} parameters) on fleet {comparison.fleet} "
        f"({comparison.peers} machines), {say_count(comparison.tokens)} tokens for each recipe, seed {comparison.seed}"
    )


def notes(comparison: Comparison) -> list[str]:
    """Return what must be known to read the table."""
    found = ["Losses are real (nats per token, all held-out text); time is virtual, from the first round announced."]
    if comparison.stands_for:
        name, _, step = comparison.stands_for.partition(":")
        size = f"{name} ({say_count(comparison.stands_for_parameters)} parameters" + (
            f", {int(step):,} tokens a step)" if step else ")"
        )
        found.append(
            f"Time and bytes are those of a model of size {size}, losses those of the small one that was trained. What "
            "is received is not told apart then."
        )
    if comparison.entry(SOLO) is not None:
        found.append(
            f"solo: one peer alone, in the plain way, on its own 1/{comparison.peers} of the tokens, on the fastest "
            "machine."
        )
    if comparison.entry(SOLO) is not None and comparison.entry(DDP) is not None:
        found.append("Gain kept: (loss of solo - loss) / (loss of solo - loss of ddp).")
    if any(entry.trial.contributors < 0.9 * entry.trial.peers for entry in comparison.entries):
        found.append(
            "With peers away a round has fewer samples, so a recipe takes more rounds, and more steps, for its tokens."
        )
    found.append("Sent and received: by the peer that moved most.")
    if all(consensus_distance(entry.run) == 0.0 for entry in comparison.entries):
        found.append("Consensus distance is 0 at every commit, by promise.")
    return found


def consensus_distance(run: Run) -> float | None:
    """Return how far apart peers are at a commit: 0 where one common model is promised, otherwise not known here."""
    return 0.0 if all(channel.consistency == "common" for channel in run.recipe.channel.values()) else None


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
            msgspec.to_builtins(row)
            | {
                "run": identity(entry.run),
                "consensus_distance": consensus_distance(entry.run),
                "reused": entry.reused,
                "points": [msgspec.to_builtins(point) for point in entry.trial.points],
            }
            for row, entry in zip(rows(comparison), comparison.entries, strict=True)
        ],
    }


def settings(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the choices that tell recipes apart, as names and text."""
    ((_, channel),) = recipe.channel.items()
    work, what = recipe.work, channel.what
    form = _numbers(what.codec) + ("" if what.result is None else f", merged as {_kind(what.result)}")
    stepper = "gradients go to the outer optimizer" if isinstance(work.inner, Accumulate) else _numbers(work.inner)
    return [
        ("local steps a round", str(channel.when.round_steps)),
        ("batch a step", f"{work.batch} samples"),
        ("local optimizer", stepper),
        ("schedule", _numbers(work.schedule)),
        ("exchanged", f"{_kind(what)} as {form}; {_numbers(what.residual)}"),
        ("route", _kind(channel.whom.route)),
        ("outer optimizer", _numbers(channel.merge.outer)),
        ("while it is exchanged", _numbers(channel.overlap)),
        ("a round waits for", _numbers(channel.barrier)),
        ("who is late", _numbers(channel.late)),
    ]


def _kind(choice: Any) -> str:
    return str(choice.__struct_config__.tag)


def _numbers(choice: Any) -> str:
    """Return a choice with the numbers that differ from their defaults."""
    known = {field: getattr(choice, field) for field in choice.__struct_fields__}
    said = ", ".join(f"{name} {_plain(value)}" for name, value in known.items() if value not in (False, 0, None))
    return f"{_kind(choice)} ({said})" if said else _kind(choice)


def _plain(value: Any) -> str:
    if hasattr(value, "__struct_config__"):
        return _numbers(value)
    return " / ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def say_loss(loss: float | None) -> str:
    return "not a number" if loss is None else f"{loss:.3f}"


def say_gain(gain: float | None) -> str:
    return "-" if gain is None else f"{100 * gain:.0f} %"


def say_share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
