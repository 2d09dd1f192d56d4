"""What machines cost and draw while they work, whatever they work on: terms for a bill, and energy with its carbon.

Machines that are alike are counted together. Inputs come as a function of their name (`Knowledge` at some deviation),
with a machine on the last axis and draws before it, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from atoll.plan.carbon.energy import Drawn, device_w, machines_drawn
from atoll.plan.knowledge import wear_usd_hour
from atoll.plan.money import bill as money
from atoll.spec.fleet import Machine
from atoll.spec.terms import Rented

Inputs = Callable[[str], Any]
"""An input for every machine, by its name."""


def terms(machines: Sequence[Machine], inputs: Inputs, hours: Any, busy: Any) -> list[money.Term]:
    """Return how machines are paid for that are there for so long, each, and busy for this part of it."""
    names = ("device", "host", "building", "electricity", "rent")
    device, host, building, usd_kwh, rent = map(inputs, names)
    found: list[money.Term] = []
    for place, count in alike(machines):
        machine, mine = machines[place], hours[..., place]
        if isinstance(machine.terms, Rented):
            found.append(money.Rented(name=machine.region, count=count, hours=mine, usd_hour=rent[..., place]))
            continue
        found.append(
            money.Owned(
                name=machine.region,
                count=count,
                hours=mine,
                power_kw=(device_w(device[..., place], busy) + host[..., place]) / 1000,
                usd_kwh=usd_kwh[..., place],
                pue=building[..., place],
                wear_usd_hour=wear_usd_hour(machine),
            )
        )
    return found


def drawn(machines: Sequence[Machine], inputs: Inputs, hours: Any, busy: Any) -> Drawn:
    """Return what they draw meanwhile, and what that and their making emits."""
    device, host, building, grid, making = map(inputs, ("device", "host", "building", "grid", "making"))
    total = Drawn()
    for place, count in alike(machines):
        total += machines_drawn(
            count=count,
            most_w=device[..., place],
            busy=busy,
            host_w=host[..., place],
            pue=building[..., place],
            hours=hours[..., place],
            carbon_g_kwh=grid[..., place],
            made_g=making[..., place],
        )
    return total


def alike(machines: Sequence[Machine]) -> list[tuple[int, int]]:
    """Return the machines that differ in nothing but their names as the place of the first, and how many they are."""
    places: dict[Machine, list[int]] = {}
    for place, machine in enumerate(machines):
        places.setdefault(replace(machine, name=""), []).append(place)
    return [(same[0], len(same)) for same in places.values()]
