"""What stands in a line of each table: typed, frozen, in plain units that end the names of the columns.

Columns are fields, so a table needs no legend. Where a quantity has a spread, `x_low` and `x_high` stand beside `x`:
for prices the cheapest and the dearest region beside the median, for measurements P10 and P90 or the lowest and the
highest campaign, as the source says; empty means that nothing is known and `spread` takes the middle. `basis` says
what kind of knowledge it is, above all where it is an estimate, and `as_of` when it was true.
"""

from __future__ import annotations

from datetime import date
from typing import ClassVar

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """What every row has: where it comes from, and when it was true."""

    table: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()
    """The columns that name a row."""

    basis: str = "said"
    """list, vendor, measured, published, computed, mapping or estimate; "said" in a user's own file."""
    source: str = ""
    as_of: str = ""
    """A year, a month or a day; empty where nobody said."""

    @property
    def key(self) -> str:
        """The row's name, as it is printed."""
        return " / ".join(str(getattr(self, column)) for column in self.keys)


class Gpu(Row, frozen=True, kw_only=True):
    """What computes."""

    table: ClassVar = "gpus"
    keys: ClassVar = ("name",)

    name: str
    also: str = ""
    """Other names, with a bar between them."""
    kind: str = "consumer"
    family: str = "consumer"
    """The row of the efficiency table that speaks for it."""
    host: str = ""
    """The row of the hosts table that speaks for the computer around it; empty: that of its kind."""
    flop_s: float
    """Dense 16-bit matrix work, sums in fp32, as in training."""
    memory_bytes: float
    memory_bytes_s: float | None = None
    power_w: float | None = None
    """The most it draws."""
    matmul: float | None = None
    """The part of `flop_s` that was measured for large products of matrices."""
    msrp_usd: float | None = None
    used_usd_low: float | None = None
    used_usd_high: float | None = None


class Price(Row, frozen=True, kw_only=True):
    """What a rented GPU costs, its share of the host included; spread over regions.

    Where a provider has it in two forms (two kinds of host, PCIe and SXM under one name), it is the middle of both.
    """

    table: ClassVar = "prices"
    keys: ClassVar = ("provider", "gpu", "market")

    provider: str
    gpu: str
    market: str
    """on_demand or spot."""
    usd_hour: float
    usd_hour_low: float | None = None
    usd_hour_high: float | None = None
    regions: int | None = None


class Egress(Row, frozen=True, kw_only=True):
    """What leaving costs, by where the bytes come from."""

    table: ClassVar = "egress"
    keys: ClassVar = ("provider", "scope", "origin")

    provider: str
    scope: str
    """How far: zone, region (another zone of it), continent, world (another continent), "to oceania" or another
    continent that has a price of its own, or internet."""
    origin: str = "any"
    """A region, a continent, or any."""
    usd_gb: float
    usd_gb_low: float | None = None
    usd_gb_high: float | None = None


class Grid(Row, frozen=True, kw_only=True):
    """What a kilowatt-hour emits, as the mean of a year; the spread is ours: how far such tables lie apart."""

    table: ClassVar = "grids"
    keys: ClassVar = ("code",)

    code: str
    name: str = ""
    kind: str = "zone"
    carbon_g_kwh: float
    carbon_g_kwh_low: float | None = None
    carbon_g_kwh_high: float | None = None
    day: str = "flat"
    """The shape of a day, in the table of days."""
    utc_h: float = 0.0
    """How far its clock is ahead, in winter."""


class Day(Row, frozen=True, kw_only=True):
    """One hour of a shape: intensity as a part of the yearly mean, by the local clock."""

    table: ClassVar = "days"
    keys: ClassVar = ("shape", "hour")

    shape: str
    hour: int
    part: float


class Region(Row, frozen=True, kw_only=True):
    """Where a cloud region is."""

    table: ClassVar = "regions"
    keys: ClassVar = ("region",)

    region: str
    continent: str
    grid: str


class Line(Row, frozen=True, kw_only=True):
    """What 64 streams carried from one cloud region to another, in two campaigns."""

    table: ClassVar = "links"
    keys: ClassVar = ("origin", "destination")

    origin: str
    destination: str
    rtt_s: float
    bytes_s: float
    bytes_s_low: float | None = None
    bytes_s_high: float | None = None
    egress_usd_gb: float | None = None


class Home(Row, frozen=True, kw_only=True):
    """The line of a home."""

    table: ClassVar = "homes"
    keys: ClassVar = ("profile",)

    profile: str
    down_bytes_s: float
    up_bytes_s: float
    up_bytes_s_low: float | None = None
    up_bytes_s_high: float | None = None
    latency_s: float
    share: float | None = None
    """The part of a population of volunteers that has such a line."""


class Site(Row, frozen=True, kw_only=True):
    """What a building draws for each watt that computes (PUE)."""

    table: ClassVar = "sites"
    keys: ClassVar = ("site",)

    site: str
    also: str = ""
    """Other names, with a bar between them: providers of which it speaks."""
    pue: float
    pue_low: float | None = None
    pue_high: float | None = None


class Electricity(Row, frozen=True, kw_only=True):
    """What a kilowatt-hour costs who pays the bill."""

    table: ClassVar = "electricity"
    keys: ClassVar = ("market",)

    market: str
    usd_kwh: float
    usd_kwh_low: float | None = None
    usd_kwh_high: float | None = None


class Spot(Row, frozen=True, kw_only=True):
    """How long interruptible machines were there: of one zone, or median and P10-P90 over zones ("any")."""

    table: ClassVar = "spot"
    keys: ClassVar = ("zone", "gpu", "gpus", "nodes")

    zone: str
    gpu: str
    gpus: int = 1
    """On each node."""
    nodes: int = 1
    """Wanted at once."""
    up_part: float
    up_part_low: float | None = None
    up_part_high: float | None = None
    up_s: float
    """The mean time between coming and going."""
    up_s_low: float | None = None
    up_s_high: float | None = None

    @property
    def down_s(self) -> float:
        """The mean time between going and coming again, which the two others imply."""
        return self.up_s * (1 - self.up_part) / self.up_part


class Failure(Row, frozen=True, kw_only=True):
    """How often something breaks or leaves, per GPU or per node."""

    table: ClassVar = "failures"
    keys: ClassVar = ("kind",)

    kind: str
    per: str
    rate_hour: float
    rate_hour_low: float | None = None
    rate_hour_high: float | None = None


class Embodied(Row, frozen=True, kw_only=True):
    """What making a part has emitted: so much area or memory, and so much per unit of it."""

    table: ClassVar = "embodied"
    keys: ClassVar = ("component",)

    component: str
    process: str = ""
    unit: str
    amount: float
    carbon_g_unit: float

    @property
    def carbon_g(self) -> float:
        """What one such part has emitted."""
        return self.amount * self.carbon_g_unit


class Efficiency(Row, frozen=True, kw_only=True):
    """The part of a GPU's speed that training reaches (MFU) where nobody has measured it."""

    table: ClassVar = "efficiency"
    keys: ClassVar = ("family",)

    family: str
    mfu: float
    mfu_low: float | None = None
    mfu_high: float | None = None


class Host(Row, frozen=True, kw_only=True):
    """What the computer around a GPU draws for each GPU in it, and what making it has emitted."""

    table: ClassVar = "hosts"
    keys: ClassVar = ("kind",)

    kind: str
    power_w: float
    power_w_low: float | None = None
    power_w_high: float | None = None
    made_g: float = 0.0


class Wire(Row, frozen=True, kw_only=True):
    """What networks draw for what is sent."""

    table: ClassVar = "wires"
    keys: ClassVar = ("kind",)

    kind: str
    energy_kwh_gb: float
    energy_kwh_gb_low: float | None = None
    energy_kwh_gb_high: float | None = None


class Loss(Row, frozen=True, kw_only=True):
    """How much higher the loss is than with gradients at every step, after as many tokens; as a part of that loss."""

    table: ClassVar = "losses"
    keys: ClassVar = ("recipe", "peers", "steps")

    recipe: str
    peers: int
    steps: int
    """Between exchanges."""
    gap: float
    gap_low: float | None = None
    gap_high: float | None = None


KINDS: tuple[type[Row], ...] = (
    *(Gpu, Efficiency, Host, Price, Electricity, Egress, Line, Home, Wire),
    *(Region, Grid, Day, Site, Embodied, Spot, Failure, Loss),
)


def spread(row: Row, column: str) -> tuple[float, float, float]:
    """Return low, middle and high of a column; who says no spread means the middle."""
    middle = float(getattr(row, column))
    low, high = (getattr(row, f"{column}_{end}", None) for end in ("low", "high"))
    return middle if low is None else low, middle, middle if high is None else high


def age_days(row: Row, on: date) -> int | None:
    """Return how old a row is at most; None where it does not say when it was true."""
    if not row.as_of:
        return None
    year, month, day = (*(int(part) for part in row.as_of.split("-")), 1, 1)[:3]
    return (on - date(year, month, day)).days
