"""A plan as files that other commands take: the run for `atoll train` and `atoll sim`, and the machines it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atoll.plan.offers import Crew, Offer
from atoll.spec.fleet import Churn, Fleet, Machine
from atoll.spec.strict import Tree


def run_text(offer: Offer, tokens: int, about: str) -> str:
    """Return the run file of an offer, headed by what it is."""
    tree = offer.tree | {"budget": {"tokens": tokens}}
    return "".join(f"# {line}\n" for line in about.splitlines()) + "\n" + toml(tree)


def fleet_text(fleet: Fleet, crew: Crew) -> str:
    """Return the fleet file of a crew: its machines one by one, and the links of their regions."""
    regions = {machine.region for machine in crew.machines}
    tree: Tree = {
        "name": f"{fleet.name}-planned",
        "about": f"{crew.which}, of: {fleet.about}",
        "links": {
            "latency": _seconds(fleet.elsewhere.latency_s),
            "loss": fleet.elsewhere.loss,
            "latency_within": _seconds(fleet.within.latency_s),
            "loss_within": fleet.within.loss,
        },
        "machine": [_machine(machine) for machine in crew.machines],
        "link": [
            {"between": list(each.between), "latency": _seconds(each.latency_s), "loss": each.loss}
            for each in fleet.links
            if regions.issuperset(each.between)
        ],
    }
    return toml(tree)


def _machine(machine: Machine) -> Tree:
    device = machine.device
    said: Tree = {
        "name": machine.name,
        "region": machine.region,
        "up": f"{8 * machine.up_bytes_s:.10g} bit",
        "down": f"{8 * machine.down_bytes_s:.10g} bit",
        "disk": f"{machine.disk_bytes} B",
        "nat": machine.nat,
        "device": {
            "flops": f"{device.flop_s:.10f} FLOP",
            "efficiency": device.efficiency,
            "memory": f"{device.memory_bytes} B",
        },
    }
    if isinstance(machine.availability, Churn):
        up, down = machine.availability.up_s, machine.availability.down_s
        said["availability"] = {"kind": "churn", "up": _seconds(up), "down": _seconds(down)}
    return said


def _seconds(time_s: float) -> str:
    return f"{time_s:.10f} s"


def toml(tree: Tree) -> str:
    """Return a tree of plain values as TOML: first what is no table, then tables, then lists of tables."""
    return "\n".join(_lines(tree, ())) + "\n"


def _lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{key} = {_value(value)}" for key, value in tree.items() if not _is_table(value)]
    for key, value in tree.items():
        if isinstance(value, dict):
            head = ["", f"[{'.'.join((*path, key))}]"] if not value or not all(map(_is_table, value.values())) else []
            lines += [*head, *_lines(value, (*path, key))]
        elif _is_table(value):
            for each in value:
                lines += ["", f"[[{'.'.join((*path, key))}]]", *_inline(each)]
    return lines


def _inline(tree: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in tree.items()]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{ " + ", ".join(_inline(value)) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return repr(value)
