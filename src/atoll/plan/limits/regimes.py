"""Where training far apart is right: eight regimes, each asked of a scenario with its reason.

One of them (sovereignty, resistance to censors, teaching) is a purpose that no number decides; it says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from atoll.plan.cost.flops import compute_s, six_n_d
from atoll.plan.limits import bandwidth, cost, memory
from atoll.plan.limits.scenario import Scenario


class Regime(Struct, frozen=True, kw_only=True):
    """A reason to train far apart, and whether it is this scenario's."""

    name: str
    holds: bool | None
    """None: not a matter of numbers."""
    why: str


def regimes(s: Scenario) -> Iterator[Regime]:
    """Yield each regime as it looks from here."""
    parameters, peers = s.model.parameters.value, s.peers.count.value
    yield Regime(
        name="data may not move",
        holds=not s.data.moves,
        why="the text may go anywhere"
        if s.data.moves
        else "the model goes to the text: no central cluster may have it",
    )
    fits = float(memory.number(s)) >= 1
    yield Regime(
        name="a model that one peer holds",
        holds=fits and (parameters <= 3e9 or (s.peers.devices.value >= 8 and peers <= 30)),
        why=f"{parameters / 1e9:.3g}B parameters, {float(memory.number(s)) * parameters / 1e9:.3g}B fit a peer",
    )
    rounds = s.model.tokens.value / (peers * s.work.batch_tokens.value * s.work.local_steps.value)
    yield Regime(
        name="work that needs no exchange",
        holds=rounds <= 1,
        why=f"{max(rounds, 1):,.0f} exchanges; rollouts, evaluation and searches would need none",
    )
    yield Regime(
        name="two to ten clusters with a gigabit",
        holds=2 <= peers <= 10 and s.line.up_mbit.value >= 1000 and s.peers.devices.value >= 8,
        why=f"{peers:,.0f} peers at {s.line.up_mbit.value:,.0f} Mbit, devices of each: {s.peers.devices.value:,.0f}",
    )
    cheap = s.power.usd_kwh.value <= 0.1 or s.power.carbon_g_kwh.value <= 100
    days = float(cost.bill(s).days)
    yield Regime(
        name="devices that are there anyway, clean or cheap power, time enough",
        holds=not s.peers.usd_hour.value and cheap and days <= s.goal.deadline_days.value,
        why=f"rent ${s.peers.usd_hour.value:g} an hour; a kWh ${s.power.usd_kwh.value:g}, "
        f"{s.power.carbon_g_kwh.value:.0f} g; {cost.say_days(days)}, {s.goal.deadline_days.value:,.0f} allowed",
    )
    alone = float(compute_s(six_n_d(parameters, s.model.tokens.value), bandwidth.flop_s(s), 1.0)) / 86400
    each = fits and alone <= s.goal.deadline_days.value
    yield Regime(
        name="many small models",
        holds=each,
        why=f"one peer alone would train it in {alone:,.0f} days"
        + (": each can have its own" if each else ", if it held it" if not fits else ""),
    )
    yield Regime(name="sovereignty, censors, teaching", holds=None, why="a purpose, not a matter of numbers")
    cheaper = 0 < s.peers.usd_hour.value < s.central.usd_hour.value
    yield Regime(
        name="spot prices across regions",
        holds=cheaper and s.peers.up_share.value < 1,
        why=f"rent ${s.peers.usd_hour.value:g} an hour against ${s.central.usd_hour.value:g}, "
        f"there for {s.peers.up_share.value:.0%} of the time",
    )
