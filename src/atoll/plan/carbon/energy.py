"""What a fleet draws and emits: the sum over its machines, the network, and their share in having been made.

    energy = sum over nodes (device while busy + the computer around it) x hours x PUE + bytes x what networks draw
    carbon = energy x grid + what making the machines emitted x hours / lifetime

Our own accounting with LLMCarbon's terms. How a device's power follows its load is an estimate for where nobody has
measured it (an idle one draws 15 % of its most). Numbers and arrays alike, so that ranges can be drawn over all of it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

N = Any
"""A number, or an array of them."""

IDLE_PART = 0.15
"""What a device draws that does nothing, as a part of its most: an estimate."""
LIFETIME_H = 5 * 8760.0


def device_w(most_w: N, busy: N, idle_part: N = IDLE_PART) -> N:
    """Return what a device draws that is busy for this part of the time."""
    return most_w * (idle_part + (1 - idle_part) * busy)


class Drawn(Struct, frozen=True, kw_only=True):
    """What machines and network draw, and what that emits; numbers, or arrays of draws."""

    machines_kwh: N = 0.0
    network_kwh: N = 0.0
    operational_g: N = 0.0
    embodied_g: N = 0.0

    @property
    def energy_kwh(self) -> N:
        """Everything that is drawn."""
        return self.machines_kwh + self.network_kwh

    @property
    def carbon_g(self) -> N:
        """Everything that is emitted."""
        return self.operational_g + self.embodied_g

    def __add__(self, other: Drawn) -> Drawn:
        return Drawn(
            machines_kwh=self.machines_kwh + other.machines_kwh,
            network_kwh=self.network_kwh + other.network_kwh,
            operational_g=self.operational_g + other.operational_g,
            embodied_g=self.embodied_g + other.embodied_g,
        )


def machines_drawn(
    *,
    count: N,
    most_w: N,
    busy: N,
    host_w: N,
    pue: N,
    hours: N,
    carbon_g_kwh: N,
    made_g: N = 0.0,
    lifetime_h: N = LIFETIME_H,
) -> Drawn:
    """Return what equal machines of one place draw that are there for so long."""
    drawn_kwh = count * (device_w(most_w, busy) + host_w) * hours * pue / 1000
    return Drawn(
        machines_kwh=drawn_kwh,
        operational_g=drawn_kwh * carbon_g_kwh,
        embodied_g=count * made_g * hours / lifetime_h,
    )


def network_drawn(*, moved_bytes: N, energy_kwh_gb: N, carbon_g_kwh: N) -> Drawn:
    """Return what sending so much draws."""
    drawn_kwh = moved_bytes / 1e9 * energy_kwh_gb
    return Drawn(network_kwh=drawn_kwh, operational_g=drawn_kwh * carbon_g_kwh)


def useful_j_flop(*, power_w: N, flop_s: N, efficiency: N, pue: N, useful: N = 1.0) -> N:
    """Return the energy of an operation that counts; `useful` is the part of them that does.

    Waiting for others and doing work twice are what makes it less than one.
    """
    return power_w * pue / (flop_s * efficiency * useful)
