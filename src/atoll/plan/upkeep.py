"""What machines cost and draw while they work, whatever they work on: a bill, and energy with its carbon.

Machines that are alike are counted together. Inputs come as a function of their name (`Knowledge` at some deviation),
with a machine on the last axis and draws before it, if there are any. What leaves a rented machine's cloud region is
paid at the price of that region; whoever is in no known one is reached over the internet. Networks draw for what leaves
a building, not for what a switch passes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.facts.rows import Region
from atoll.plan.carbon.energy import Drawn, device_w, machines_drawn, network_drawn
from atoll.plan.knowledge import wear_usd_hour
from atoll.plan.money import bill as money
from atoll.plan.money.inputs import tariffs
from atoll.spec.fleet import Machine
from atoll.spec.terms import Rented

Inputs = Callable[[str], Any]
"""An input for every machine, by its name."""
NEAR_TRIP_S = 2.5e-3
"""Who is so near is on one switch."""


class Sent(Struct, frozen=True, kw_only=True):
    """What machines send each other in a round, or in a step, as far as anybody is paid for it."""

    far_bytes: float
    """Beyond a building."""
    leaving_bytes: dict[tuple[str, str], float]
    """Out of cloud regions whose prices are known, to where."""


def sent_of(machines: Sequence[Machine], flows: Mapping[tuple[int, int], float], trip_s: Any, facts: Facts) -> Sent:
    """Return what flows between machines, by their places, come to."""
    known = {each.region for each in machines if facts.known(Region, each.region) is not None}
    leaving: dict[tuple[str, str], float] = {}
    for (one, other), size_bytes in flows.items():
        origin, to = machines[one].region, machines[other].region
        if origin != to and origin in known and isinstance(machines[one].terms, Rented):
            leaving[origin, to] = leaving.get((origin, to), 0.0) + size_bytes
    far_bytes = sum(size for pair, size in flows.items() if trip_s[pair] > NEAR_TRIP_S)
    return Sent(far_bytes=far_bytes, leaving_bytes=leaving)


def bill(
    machines: Sequence[Machine], inputs: Inputs, hours: Any, busy: Any, sent: Sent, often: Any, facts: Facts
) -> money.Bill:
    """Return what machines cost that are there for so long, each, busy for this part of it, and send so often."""
    traffic = {pair: often * size_bytes / 1e9 for pair, size_bytes in sent.leaving_bytes.items()}
    dearer = inputs("egress")[..., 0]
    prices = [replace(tariff, usd_gb=tariff.usd_gb * dearer) for tariff in tariffs(traffic, facts)]
    return money.bill(_terms(machines, inputs, hours, busy), traffic_gb=traffic, tariffs=prices)


def _terms(machines: Sequence[Machine], inputs: Inputs, hours: Any, busy: Any) -> list[money.Term]:
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
                power_kw=(device_w(device[..., place], busy[..., place]) + host[..., place]) / 1000,
                usd_kwh=usd_kwh[..., place],
                pue=building[..., place],
                wear_usd_hour=wear_usd_hour(machine),
            )
        )
    return found


def drawn(machines: Sequence[Machine], inputs: Inputs, hours: Any, busy: Any, sent: Sent, often: Any) -> Drawn:
    """Return what they and the networks draw meanwhile, and what that and their making emits."""
    device, host, building, grid, making = map(inputs, ("device", "host", "building", "grid", "making"))
    total = network_drawn(
        moved_bytes=often * sent.far_bytes,
        energy_kwh_gb=inputs("network")[..., 0],
        carbon_g_kwh=grid.mean(axis=-1),
    )
    for place, count in alike(machines):
        total += machines_drawn(
            count=count,
            most_w=device[..., place],
            busy=busy[..., place],
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
