"""The tables as one book: look a row up by its name, and the book remembers that it was asked.

What was asked is what a plan rests on, so it can be printed with source and age (`say.py`), and a user who knows better
lays a file over it. Names are forgiving about letters, spaces and dashes, never about meaning: a name that is not
there is refused with the nearest ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.facts.read import (
    Cells,
    key_cells,
    near,
    over,
    override_files,
    override_lines,
    plain,
    refuse,
    row,
    shipped,
)
from atoll.facts.rows import (
    Day,
    Efficiency,
    Egress,
    Electricity,
    Embodied,
    Failure,
    Gpu,
    Grid,
    Home,
    Host,
    Line,
    Loss,
    Price,
    Region,
    Row,
    Site,
    Spot,
    Wire,
    spread,
)

R = TypeVar("R", bound=Row)
GROWS = (0.4, 0.7, 1.8)
"""With which power of the number of peers a loss grows: at least, most likely, at most (decision 35)."""
NAMES_MAX = 12
"""More names than this are not all listed in a hint."""
PARTS_OFF_MAX = 0.01
"""The parts of a day are rounded, so that their sum may be this far from 24."""


def beyond(most: Loss, peers: int) -> Loss:
    """Return what more peers than were tried are taken to lose: the gap grows as a power of their number.

    From two to four to eight peers DiLoCo's grew by 2.3 and 2.7 at the best rate and batch of each, and by 1.4 and 1.5
    at one batch and another rate (docs/convergence.md): powers from 0.45 to 1.45. The fit of Charles et al. (2025), by
    which a loss is proportional to the power 0.0116 of the number of peers, has 0.4 from eight to sixteen.
    """
    if not most.gap or peers <= most.peers:
        return most
    low, middle, high = spread(most, "gap")
    more = peers / most.peers
    return replace(
        most,
        gap=middle * more ** GROWS[1],
        gap_low=low * more ** GROWS[0],
        gap_high=high * more ** GROWS[2],
        basis="estimate",
        source=f"estimate: grown on from {most.peers} peers; {most.source}",
    )


def load_facts(*overrides: Path) -> Facts:
    """Return the shipped tables with a user's files (or folders of them) laid over, the last one strongest."""
    said = [(kind, override_lines(kind, path)) for kind, path in override_files(overrides)]
    facts = Facts(said)
    for kind, _ in said:
        facts.rows(kind)  # a mistake in a user's file is said at once, not when the row is needed
    for shape in {each.shape for each in facts.rows(Day)} if Day in dict(said) else ():
        facts.hours(shape)
    return facts


class Facts:
    """Every table, and which rows of it were asked for."""

    def __init__(self, said: Iterable[tuple[type[Row], list[tuple[str, Cells]]]] = ()) -> None:
        self._said = list(said)
        self._tables: dict[type[Row], dict[str, Any]] = {}
        self.used: dict[tuple[str, str], Row] = {}
        """Rows that were asked for, by table and name, in the order of asking."""

    def rows(self, kind: type[R]) -> list[R]:
        """Return a whole table; nothing of it counts as used."""
        return list(self._table(kind).values())

    def use(self, found: R) -> R:
        """Return a row, remembered as one that the plan rests on."""
        self.used.setdefault((found.table, found.key), found)
        return found

    def find(self, kind: type[R], *names: str | int) -> R:
        """Return the row of these names (as many as the table has keys), and remember it."""
        table = self._table(kind)
        found = table.get(self._key(kind, names))
        if found is None:
            known = [each.key for each in table.values()]
            asked = " / ".join(map(str, names))
            listed = f"known: {', '.join(known[:NAMES_MAX])}{', ...' if len(known) > NAMES_MAX else ''}"
            hint = f"{near(asked, known) or listed + '; '}or add it in a {kind.table}.csv of your own"
            raise SpecError(f"'{asked}' is not in the table of {kind.table}", hint=hint)
        return self.use(found)

    def known(self, kind: type[R], *names: str | int) -> R | None:
        """Return the same where there is such a row; None where there is none."""
        found = self._table(kind).get(self._key(kind, names))
        return None if found is None else self.use(found)

    def gpu(self, name: str) -> Gpu:
        """Return a GPU by any of its names."""
        return self.find(Gpu, name)

    def efficiency(self, gpu: Gpu) -> Efficiency:
        """Return what training reaches on a GPU where nobody has measured it."""
        return self.find(Efficiency, gpu.family)

    def prices(self, gpu: str, *, market: str = "") -> list[Price]:
        """Return everybody's prices for a GPU, the cheapest first; `use` the one that is chosen."""
        name = self._gpu_name(gpu)
        offers = [each for each in self.rows(Price) if self._gpu_name(each.gpu) == name and market in ("", each.market)]
        return sorted(offers, key=lambda each: (each.usd_hour, each.provider))

    def price(self, provider: str, gpu: str, market: str) -> Price:
        """Return what a provider takes for a GPU in a market."""
        found = self._table(Price).get(self._key(Price, (provider, gpu, market)))
        if found is None:
            offers = ", ".join(
                f"{each.provider} {each.market} {each.usd_hour:g}" for each in self.prices(gpu)[:NAMES_MAX]
            )
            hint = f"known: {offers}" if offers else "no provider is known to rent it; give usd_hour, or a prices.csv"
            raise SpecError(f"no price of '{provider}' for '{gpu}' ({market}) is known", hint=hint)
        return self.use(found)

    def grid(self, place: str) -> Grid:
        """Return the grid of a code ("FR", "US-CAL-CISO") or of a cloud region ("aws:eu-west-3")."""
        region = self._table(Region).get(self._key(Region, (place,)))
        is_grid = self._key(Grid, (place,)) in self._table(Grid)
        return self.find(Grid, place if region is None or is_grid else self.use(region).grid)

    def day(self, shape: str) -> list[float]:
        """Return the 24 parts of a shape of the day, by the local clock."""
        self.find(Day, shape, 0)  # one hour stands for the shape among what was used
        return self.hours(shape)

    def hours(self, shape: str) -> list[float]:
        """Return the same, which does not count as used; a shape that is no day is refused."""
        table = self._table(Day)
        parts = [table[key].part for hour in range(24) if (key := self._key(Day, (shape, hour))) in table]
        if len(parts) != 24 or abs(sum(parts) - 24) > PARTS_OFF_MAX:
            raise SpecError(
                f"days.csv: the shape '{shape}' has {len(parts)} of 24 hours, which come to {sum(parts):g}",
                hint="give every hour from 0 to 23, each divided by the mean of the day: all together are 24",
            )
        return parts

    def egress(self, origin: str, destination: str) -> Egress:
        """Return what bytes cost that leave `origin` for `destination`.

        Either is a cloud region ("aws:us-east-1") or a provider alone ("lambda", "home"); to another provider it is
        the price to the internet. The nearest row counts: of the region, of its continent, of anywhere.
        """
        provider, continent = self._where(origin)
        scope = self._scope(origin, destination)
        table = self._table(Egress)
        wider = {"continent": ("continent", "world"), "world": (f"to {self._where(destination)[1]}", "world")}
        for reach in wider.get(scope, (scope,)):
            for where in (origin, continent, "any"):
                if (found := table.get(self._key(Egress, (provider, reach, where)))) is not None:
                    return self.use(found)
        return self.find(Egress, provider, scope, "any")

    def line(self, origin: str, destination: str) -> Line:
        """Return what lies between two cloud regions, in that direction."""
        return self.find(Line, origin, destination)

    def home(self, profile: str) -> Home:
        """Return a home's line: "cable", "fibre 500", "us", ..."""
        return self.find(Home, profile)

    def host(self, gpu: Gpu) -> Host:
        """Return the computer around a GPU: what it draws, and what making it has emitted."""
        return self.find(Host, gpu.host or gpu.kind)

    def wire(self, kind: str = "wan") -> Wire:
        """Return what networks draw for what is sent."""
        return self.find(Wire, kind)

    def site(self, name: str) -> Site:
        """Return what a building adds: "home", "lab", "aws", ..."""
        return self.find(Site, name)

    def electricity(self, market: str) -> Electricity:
        """Return what electricity costs: "Germany residential", "Datacenter contract", ..."""
        return self.find(Electricity, market)

    def spot(self, gpu: str, *, zone: str = "any", gpus: int = 1, nodes: int = 1) -> Spot:
        """Return how long interruptible machines of a kind were there."""
        return self.find(Spot, zone, gpu, gpus, nodes)

    def loss(self, recipe: str, peers: int, steps: int) -> Loss | None:
        """Return what a recipe was measured to lose with so many peers and at least so many steps, or as near as known.

        With more peers than were tried it is taken to grow on; with more steps it is not known.
        """
        rows = [each for each in self.rows(Loss) if plain(each.recipe) == plain(recipe) and each.steps >= steps]
        enough = [each for each in rows if each.peers >= peers]
        by_peers = sorted(enough or rows, key=lambda each: each.peers)
        if not by_peers:
            return None
        return self.use(by_peers[0]) if enough else beyond(self.use(by_peers[-1]), peers)

    def failure(self, kind: str) -> Failure:
        """Return how often machines of a kind fail: "datacenter", "volunteer", "spot"."""
        return self.find(Failure, kind)

    def embodied(self, component: str) -> Embodied:
        """Return what making a part has emitted: "DRAM", "H100", ..."""
        return self.find(Embodied, component)

    def made(self, gpu: Gpu) -> Embodied:
        """Return what making a GPU has emitted: its own row, or that of any."""
        return self.known(Embodied, gpu.name) or self.embodied("gpu")

    def _table(self, kind: type[R]) -> dict[str, R]:
        """Return a table by compared names; made when it is first needed."""
        if not any(said in (kind, Gpu) for said, _ in self._said):
            return _shipped_table(kind)
        if kind not in self._tables:
            self._tables[kind] = self._made(kind)
        return self._tables[kind]

    def _made(self, kind: type[R]) -> dict[str, R]:
        """Return a table with what the user says laid over."""
        cells = {self._cell_key(kind, each): (f"{kind.table}.csv", each) for each in shipped(kind)}
        for lines in (lines for said, lines in self._said if said is kind):
            places: dict[str, str] = {}
            for place, each in lines:
                key = self._cell_key(kind, each)
                if key in places:
                    refuse(place, kind.keys[0], f"is a row that {places[key]} is too", "say everything of a row in one")
                places[key] = place
                cells[key] = (place, over(cells[key][1], each, kind.keys) if key in cells else each)
        return {key: row(kind, each, place) for key, (place, each) in cells.items()}

    def _cell_key(self, kind: type[Row], cells: Cells) -> str:
        return self._key(kind, key_cells(kind, cells))

    def _key(self, kind: type[Row], names: Iterable[str | int]) -> str:
        """Return a row's name as it is compared; a GPU or a site has one, whichever of its names was said."""
        parts = zip(kind.keys, map(str, names), strict=True)
        return "/".join(self._first_name(_whose(kind, column), name) for column, name in parts)

    def _gpu_name(self, name: str) -> str:
        return self._first_name(Gpu, name)

    def _first_name(self, kind: type[Row] | None, name: str) -> str:
        """Return the first name of a row of a kind as it is compared; a name that no row has stays as it is."""
        return self._aliases.get(kind, {}).get(plain(name), plain(name))

    @cached_property
    def _aliases(self) -> dict[type[Row] | None, dict[str, str]]:
        """Return the first name of each other name, for the kinds whose rows have several."""
        return {kind: self._other_names(kind) for kind in (Gpu, Site)}

    def _other_names(self, kind: type[Row]) -> dict[str, str]:
        """Return other names with the first one of their row; the last row that takes a name has it."""
        lines = [(f"{kind.table}.csv", cells) for cells in shipped(kind)]
        lines += [line for said, lines in self._said if said is kind for line in lines]
        found: dict[str, str] = {}
        firsts: set[str] = set()
        for place, cells in lines:
            name = plain(cells[kind.keys[0]])
            first = found.get(name, name)
            firsts.add(first)
            for other in filter(None, map(plain, cells.get("also", "").split("|"))):
                if other in firsts - {first}:
                    refuse(place, "also", f"'{other}' is a row itself", "change that row, or leave the name out")
                found[other] = first
        return found

    def _where(self, place: str) -> tuple[str, str]:
        """Return the provider and the continent of a place; a provider alone has none."""
        if ":" not in place:
            return plain(place), "any"
        return plain(place.split(":")[0]), self.find(Region, place).continent

    def _scope(self, origin: str, destination: str) -> str:
        (provider, here), (other, there) = self._where(origin), self._where(destination)
        if provider != other or ":" not in origin or ":" not in destination:
            return "internet"
        if plain(origin) == plain(destination):
            return "region"
        return "continent" if here == there else "world"


def _whose(kind: type[Row], column: str) -> type[Row] | None:
    """Return the kind whose names a column of a key uses, where that kind's rows have several."""
    if column in ("gpu", "component"):
        return Gpu
    return kind if kind in (Gpu, Site) else None


@cache
def _shipped_table(kind: type[Any]) -> dict[str, Any]:
    """Return a table as it ships: typed once, however many books are opened."""
    return Facts()._made(kind)
