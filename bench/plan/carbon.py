"""LLMCarbon's own validation: five models whose emissions were published, and the making of XLM's machines.

Operations, time, energy and carbon follow from what was published of each run (its devices, their average power, the
part of their peak); days and energy are printed beside the carbon that is demanded to be right. So is the part of the
peak that the regression says for the two runs on V100: nothing is demanded of it, as its constants for more devices
than are best are not published (neutral ones are far off for GPT-3's 10,000).
"""

from __future__ import annotations

from bench.plan.row import Gate, Row, table

from atoll.facts.book import load_facts
from atoll.plan.carbon.llmcarbon import (
    embodied_g,
    energy_kwh,
    layout,
    off_optimum,
    operational_g,
    time_s,
    train_flop,
    v100_efficiency,
)

SOURCE = "LLMCarbon"
LOW, HIGH = -0.04, 0.08
MADE_MAX = 0.02
ON_V100 = ("GPT-3", "XLM")


def rows() -> list[Row]:
    """Return days, energy and carbon of each model, and what making XLM's machines has emitted."""
    models = table("llmcarbon")
    reached = [_reached(said) for said in models if said["name"] in ON_V100]
    return [row for said in models for row in _model(said)] + reached + [_made()]


def gates() -> list[Gate]:
    """Return whether carbon is as near to what was published as LLMCarbon is."""
    found = [row for row in rows() if row.quantity.startswith("carbon")]
    errors = [row.error for row in found if row.quantity == "carbon t"]
    worst, made = max(errors, key=abs), found[-1].error
    inside = all(LOW <= error <= HIGH for error in errors)
    return [
        Gate(source=SOURCE, demand=f"carbon of five models within {LOW:+.0%}..{HIGH:+.0%}", value=worst, holds=inside),
        Gate(
            source=SOURCE,
            demand=f"making of XLM's machines within {MADE_MAX:.0%}",
            value=made,
            holds=abs(made) <= MADE_MAX,
        ),
    ]


def _model(said: dict[str, str]) -> list[Row]:
    number = {key: float(cell) for key, cell in said.items() if key not in ("name", "source", "as_of")}
    flop = train_flop(number["active_parameters"], number["tokens"])
    lasting_s = time_s(flop, number["devices"], number["peak_flop_s"], number["efficiency"])
    drawn_kwh = energy_kwh(number["power_w"], number["devices"], lasting_s, number["pue"])
    predicted = {
        "days": lasting_s / 86400,
        "energy_mwh": drawn_kwh / 1e3,
        "carbon_t": operational_g(drawn_kwh, number["carbon_g_kwh"]) / 1e6,
    }
    return [
        Row(source=SOURCE, setting=said["name"], quantity=key.replace("_", " "), reference=number[key], predicted=value)
        for key, value in predicted.items()
    ]


def _reached(said: dict[str, str]) -> Row:
    """Return the part of the peak that the regression says, off its best number of devices."""
    best = layout(float(said["active_parameters"]), load_facts().gpu("V100 32GB").memory_bytes)
    found = off_optimum(v100_efficiency(best.efficiency), float(said["devices"]), float(best.gpus))
    return Row(
        source=SOURCE,
        setting=said["name"],
        quantity="part of peak (regression)",
        reference=float(said["efficiency"]),
        predicted=float(found),
    )


def _made() -> Row:
    """Return the share of a run in the making of its machines, each part as the table of facts has it."""
    parts, facts = table("llmcarbon_xlm_parts"), load_facts()
    total_g = sum(
        embodied_g(facts.embodied(part["component"]).carbon_g, float(part["count"]), float(part["days"]) * 86400)
        for part in parts
    )
    return Row(
        source=SOURCE,
        setting="XLM",
        quantity="carbon of making t",
        reference=float(parts[0]["carbon_t"]),
        predicted=total_g / 1e6,
    )
