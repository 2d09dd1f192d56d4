"""A scenario: a model, some peers and a goal, as far as the seven limits ask; one TOML file.

A number may come alone (`up_mbit = 20`) or with how sure one is of it and where it is from
(`up_mbit = { value = 20, low = 11, high = 105, source = "..." }`); a range is what a tenth and nine tenths of the cases
lie below and above, roughly, so that it says more than nothing and promises less than a bound.

Code reads `scenario.line.up_mbit.value`. In a scenario of many worlds (`worlds`) every value is an array, and whatever
is written elementwise answers for all of them at once.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace


class Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number, how sure one is of it, and who says so."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str = "stated"

    @property
    def ends(self) -> tuple[float, float]:
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be trained, and on how much."""

    parameters: Said
    tokens: Said
    hidden: Said
    """The width of what goes from one layer to the next."""
    training_bytes: Said
    """Per parameter while it is trained: weights, gradients, optimizer."""


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is trained."""

    batch_tokens: Said
    """Of one peer in one local step."""
    local_steps: Said
    """Between two exchanges."""
    sent_bytes: Said
    """Per parameter on the wire: 4 in fp32, 1 in int8, 4 / 146 of SparseLoCo's kind."""
    critical_batch_tokens: Said
    """Of all together in a step: from here on half of every token more is wasted."""
    quorum: Said
    """The part of the peers that a round waits for."""
    proportional: bool
    """Slower peers take fewer steps."""
    efficiency: Said
    """The part of the time that is to be spent computing: what is asked for."""
    redundancy: Said
    """Work done per work that counts: what is recomputed to check it, or lost."""


class Peers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who trains: so many equal peers, each with some devices."""

    count: Said
    devices: Said
    device_tflops: Said
    """What its maker promises, dense, in 16 bits."""
    mfu: Said
    """The part of it that training reaches."""
    device_memory_gb: Said
    device_watts: Said
    """With its part of the host."""
    usd_hour: Said
    """Rent of a device; 0: it is there anyway, and costs its electricity."""
    up_share: Said
    """The part of the time in which a peer is there."""
    spread: Said
    """Of the times in which peers do the same work: the sigma of their logarithms, from one round to the next."""
    slowest: Said
    """Speed of the slowest peer, as a part of the mean."""
    dropout: Said
    """The chance that a peer does not finish a round."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each peer's line."""

    up_mbit: Said
    down_mbit: Said
    cap_gb_month: Said
    """What its provider lets through; 0: everything."""


class Power(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Electricity where the peers are."""

    usd_kwh: Said
    pue: Said
    carbon_g_kwh: Said


class Central(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one would rent instead: devices in one place."""

    device_tflops: Said
    mfu: Said
    efficiency: Said
    usd_hour: Said
    device_watts: Said
    pue: Said
    carbon_g_kwh: Said


class Goal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By when, and for how much."""

    deadline_days: Said
    budget_usd: Said


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the text is from."""

    moves: bool
    """It may go to any peer, and to a data centre."""
    assigned: bool
    """The run says who trains on what, from shards named by their hash; else peers bring their own."""
    tainted: Said
    """The part of the contributors whose data is bad."""
    bad_documents: Said
    """The part of the documents that an audit is to notice."""
    audited_documents: Said


class Trust(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who the peers are to each other."""

    peers: Literal["strangers", "known", "own"]
    attackers: Said
    """The part of the peers who wish the run ill and know each other."""
    checked: Said
    """The part of the work that somebody does again."""
    stake_gains: Said
    """What a cheater loses when caught, in gains of one cheat."""
    honest_cosine: Said
    """Of an honest update with what all are after: small where a peer's own batch says more than the common signal."""
    cosine_min: Said
    norm_max: Said
    """An update is taken when its cosine with the rest is at least this, its length over their median at most that."""


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the limits ask."""

    name: str
    about: str
    model: Model
    work: Work
    peers: Peers
    line: Line
    power: Power
    central: Central
    goal: Goal
    data: Data
    trust: Trust


SHARES = frozenset(
    {"work.quorum", "work.efficiency", "peers.mfu", "peers.up_share", "peers.slowest", "peers.dropout"}
    | {"central.mfu", "central.efficiency", "data.tainted", "data.bad_documents"}
    | {"trust.attackers", "trust.checked", "trust.honest_cosine", "trust.cosine_min"}
)
"""Parts of something: from 0 to 1."""
ZERO_IS_NONE = frozenset({"peers.usd_hour", "line.cap_gb_month"})
"""Where 0 is no small number but none: nothing is rented, nothing is capped."""
MAY_BE_ZERO = frozenset(
    {"peers.dropout", "data.tainted", "data.bad_documents", "trust.attackers", "trust.checked"}
    | {"peers.usd_hour", "peers.spread", "line.cap_gb_month", "power.carbon_g_kwh", "central.carbon_g_kwh"}
    | {"data.audited_documents", "trust.stake_gains"}
)


AT_LEAST_ONE = frozenset({"work.redundancy", "power.pue", "central.pue", "trust.norm_max"})
"""What is counted in times of something that is always there."""
WHOLE = frozenset({"peers.count", "peers.devices", "work.local_steps", "data.audited_documents"})
"""Counts of things that come whole; a range of them may be drawn in between."""


def said(scenario: Scenario, path: str) -> Said:
    """Return the number at "section.key"."""
    section, key = path.split(".")
    found = getattr(getattr(scenario, section), key)
    assert isinstance(found, Said), path
    return found


def present(s: Scenario) -> Any:
    """Return how many peers are there at a time: those of whom a round consists."""
    return np.maximum(s.peers.count.value * s.peers.up_share.value, 1.0)


def least_of(path: str) -> float:
    """Return what a number at "section.key" cannot be below; 0: it is above nothing."""
    return 1.0 if path in AT_LEAST_ONE | WHOLE - MAY_BE_ZERO else 0.0


def paths(scenario: Scenario) -> list[str]:
    """Return where the numbers of a scenario stand, each as "section.key"."""
    sections = {name: asdict(held) for name, held in asdict(scenario).items() if isinstance(held, Struct)}
    return [f"{name}.{key}" for name, held in sections.items() for key, leaf in held.items() if isinstance(leaf, Said)]


def with_value(scenario: Scenario, path: str, value: Any) -> Scenario:
    """Return the scenario with another value at "section.key"; its range goes, its source says that it was changed."""
    section, key = path.split(".")
    old = getattr(getattr(scenario, section), key)
    new = Said(value=value, source="changed") if isinstance(old, Said) else value
    return replace(scenario, **{section: replace(getattr(scenario, section), **{key: new})})


def worlds(scenario: Scenario, rng: np.random.Generator, count: int) -> Scenario:
    """Return the scenario with every value drawn from its range, so many times."""
    drawn: dict[str, Any] = {}
    for name, section in asdict(scenario).items():
        if isinstance(section, Struct):
            numbers = {key: leaf for key, leaf in asdict(section).items() if isinstance(leaf, Said)}
            told = {
                key: replace(leaf, value=_draws(leaf, rng, count, share=path in SHARES, least=least_of(path)))
                for key, leaf in numbers.items()
                for path in (f"{name}.{key}",)
            }
            drawn[name] = replace(section, **told)
    return replace(scenario, **drawn)


def _draws(leaf: Said, rng: np.random.Generator, count: int, *, share: bool, least: float) -> Any:
    """Return draws around a value: its low and its high end are where a tenth of them begin, on either side.

    Each half is that of a normal distribution, cut at twice the range, so that an uneven range stays uneven.
    """
    low, high = leaf.ends
    z = np.clip(rng.standard_normal(count) / 1.2816, -2, 2)
    drawn = leaf.value + np.where(z < 0, z * (leaf.value - low), z * (high - leaf.value))
    return np.clip(drawn, least if least else min(leaf.value, low) / 4, 1.0 if share else np.inf)
