"""A fleet: machines and the links between their regions, as planner and simulator see them; one TOML file.

A machine has a device and an access link (up and down, the same whoever it talks to); what lies between two regions
is latency and loss. That is all most people know about their machines, and enough to explain where the time goes.
In the file quantities are text with a unit ("100 Mbit", "40 ms"); in the records they are plain numbers, with the
unit as the last word of the name.

A device may be named instead ("RTX 4090"): speed, memory and power then come from the tables of `atoll.facts`. Where a
machine stands (`grid`, `site`) and on which `terms` is for planning alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from atoll.errors import SpecError
from atoll.facts.book import Facts, load_facts
from atoll.facts.rows import Gpu
from atoll.spec.axes.axis import Axis
from atoll.spec.strict import KeyPath, Layers, Tree, depth, merge, near, parse_toml, read_toml, record
from atoll.spec.terms import OwnedText, RentedText, Terms, TermsText, terms_of
from atoll.units import power_w, rate_bytes_s, size_bytes, time_s

MACHINES_MAX = 100_000
"""No fleet is larger: a count beyond it is a slip of the pen."""

T = TypeVar("T")
_FLEETS = files("atoll") / "spec" / "fleets"
_FLOP = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kmgtp]?)flops?(?:/s)?\s*$", re.IGNORECASE)
_FLOP_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


class Always(Axis, frozen=True, tag="always"):
    """The machine is there from beginning to end."""


class Churn(Axis, frozen=True, tag="churn"):
    """The machine comes and goes: exponential times with these means."""

    up_s: float
    down_s: float


Availability = Always | Churn


class Device(Struct, frozen=True, kw_only=True):
    """What computes."""

    flop_s: float
    """What the maker promises, floating-point operations per second."""
    efficiency: float = 0.4
    """The part of it that training reaches."""
    memory_bytes: int = 8 * 10**9

    @property
    def reached_flop_s(self) -> float:
        """Return what training reaches of what the maker promises."""
        return self.flop_s * self.efficiency


LinkName = Literal["tls", "iroh"]


class Processor(Struct, frozen=True, kw_only=True):
    """The cores beside the device: they move bytes and run what is no training. Said only where they may bind."""

    cores: float
    links: LinkName = "iroh"
    """The kind of link that its peers talk over, which costs what was measured (`sim/cores.py`) ..."""
    send_s_gbit: float | None = None
    receive_s_gbit: float | None = None
    """... unless this says otherwise: processor time per gigabit, and ..."""
    awake: float | None = None
    """... the part of a core that each end of a line needs while it is full, however slow it is."""
    pass_bytes_s: float = 3.5e9
    """What one core passes over when it adds up, hashes or copies."""
    computer: str = ""
    """Machines that name the same one are peers on one computer; one that names none has its own."""


class Played(Struct, frozen=True, kw_only=True):
    """What a simulator needs to know of a machine: its device and its access link."""

    name: str
    region: str
    device: Device
    up_bytes_s: float
    down_bytes_s: float
    disk_bytes: int
    nat: bool = False
    """Behind a router that lets nobody in: it can call and cannot be called."""
    availability: Availability = Always()
    processor: Processor | None = None
    """None: cores never bind, and headers weigh nothing."""


class Machine(Played, frozen=True, kw_only=True):
    """One machine with its access link, and what planning wants to know besides."""

    gpu: str = ""
    """The row of the table of GPUs that speaks for the device; empty where the file did."""
    power_w: float | None = None
    """The most that the device draws."""
    grid: str = ""
    """Where its electricity comes from: a row of the table of grids, or a cloud region."""
    site: str = ""
    """What the building adds: a row of the table of sites."""
    terms: Terms | None = None


class Link(Struct, frozen=True, kw_only=True):
    """What lies between two regions, or within one (both the same)."""

    between: tuple[str, str]
    latency_s: float
    """One way."""
    loss: float = 0.0
    """Part of the packets that never arrive."""


class Group(Struct, frozen=True, kw_only=True):
    """A number of equal machines."""

    machine: Machine
    count: int


class Fleet(Struct, frozen=True, kw_only=True):
    """Machines and links."""

    name: str
    about: str
    groups: tuple[Group, ...]
    links: tuple[Link, ...]
    elsewhere: Link
    """Between regions that no link names."""
    within: Link
    """Within a region that no link names."""


def load_fleet(path: Path | str, facts: Facts | None = None) -> Fleet:
    """Return the fleet of a file, or of a shipped fleet by its name ("lan", "homes", ...)."""
    facts = load_facts() if facts is None else facts
    if isinstance(path, str) and path in fleet_names():
        file = f"{path}.toml"
        return _fleet(parse_toml((_FLEETS / file).read_text("utf-8"), file), file, facts)
    if isinstance(path, str) and not path.endswith(".toml"):
        known = fleet_names()
        hint = f"known fleets: {', '.join(known)}{near(path, known)}, or the path of a .toml file"
        raise SpecError(f"no fleet is called '{path}'", hint=hint)
    return _fleet(read_toml(Path(path)), str(path), facts)


def fleet_names() -> list[str]:
    """Return the names of the shipped fleets."""
    return sorted(entry.name.removesuffix(".toml") for entry in _FLEETS.iterdir() if entry.name.endswith(".toml"))


def expand(fleet: Fleet) -> list[Machine]:
    """Return every single machine; those of a group of several are numbered: home-0, home-1, ..."""
    return [
        msgspec.structs.replace(group.machine, name=f"{group.machine.name}-{i}") if group.count > 1 else group.machine
        for group in fleet.groups
        for i in range(group.count)
    ]


def first(fleet: Fleet, peers: int) -> list[Machine]:
    """Return a fleet's first machines, as many as `--peers` asks for; 0: all. More than there are is refused."""
    machines = expand(fleet)
    if peers > len(machines):
        raise SpecError(
            f"--peers {peers}: fleet '{fleet.name}' has {len(machines)} machines",
            hint=f"--peers {len(machines)} at most, or a larger fleet: a file for --fleet may have any number",
        )
    return machines[: peers or None]


def played(machine: Machine) -> Played:
    """Return what of a machine a simulator plays: equal for machines that differ only in what planning wants."""
    return Played(**{field: getattr(machine, field) for field in Played.__struct_fields__})


def link(fleet: Fleet, region_a: str, region_b: str) -> Link:
    """Return what lies between two regions, in either order."""
    for known in fleet.links:
        if known.between in ((region_a, region_b), (region_b, region_a)):
            return known
    near_or_far = fleet.within if region_a == region_b else fleet.elsewhere
    return msgspec.structs.replace(near_or_far, between=(region_a, region_b))


def latency_s(fleet: Fleet, region_a: str, region_b: str) -> float:
    """Return the one-way latency between two regions."""
    return link(fleet, region_a, region_b).latency_s


# The file: the same things as text, with every machine's keys also allowed in [defaults].


class _Text(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what stands in the file."""


class _AlwaysText(Axis, frozen=True, tag="always"):
    """Same as `Always`."""


class _ChurnText(Axis, frozen=True, tag="churn"):
    up: str
    down: str


class _DeviceText(_Text, frozen=True):
    flops: str = ""
    gpu: str = ""
    efficiency: float | None = None
    memory: str = ""
    power: str = ""


class _ProcessorText(_Text, frozen=True):
    cores: float
    links: LinkName = "iroh"
    send_s_gbit: float | None = None
    receive_s_gbit: float | None = None
    awake: float | None = None
    passes: str = "3.5 GB"
    computer: str = ""


class _MachineText(_Text, frozen=True):
    name: str
    device: _DeviceText
    up: str
    down: str
    count: int = 1
    region: str = "here"
    disk: str = "50 GB"
    nat: bool = False
    availability: _AlwaysText | _ChurnText = _AlwaysText()
    processor: _ProcessorText | None = None
    grid: str = ""
    site: str = ""
    terms: TermsText | None = None


class _LinkText(_Text, frozen=True):
    between: tuple[str, str]
    latency: str
    loss: float = 0.0


class _FarText(_Text, frozen=True):
    """Links that are not named one by one."""

    latency: str = "40 ms"
    loss: float = 0.0
    latency_within: str = "1 ms"
    loss_within: float = 0.0


class _FleetText(_Text, frozen=True):
    name: str
    machine: tuple[_MachineText, ...]
    about: str = ""
    link: tuple[_LinkText, ...] = ()
    links: _FarText = _FarText()


def schema() -> dict[str, Any]:
    """Return the JSON schema of a fleet file."""
    _, parts = msgspec.json.schema_components([_FleetText], ref_template="#/$defs/{name}")
    text = msgspec.json.encode(parts).decode()
    kinds = (_FleetText, _MachineText, _DeviceText, _LinkText, _FarText, _AlwaysText, _ChurnText, OwnedText, RentedText)
    for kind in kinds:
        text = text.replace(kind.__name__, kind.__name__.strip("_").removesuffix("Text"))
    clean: dict[str, Any] = msgspec.json.decode(text)
    fleet = clean.pop("Fleet")
    machine = clean["Machine"]
    defaults = {key: value for key, value in machine["properties"].items() if key != "name"}
    fleet["properties"]["defaults"] = {
        "type": "object",
        "properties": defaults,
        "additionalProperties": False,
        "description": "Keys that every machine has unless it says otherwise.",
    }
    machine["required"] = ["name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **fleet, "$defs": clean}


def _fleet(tree: Tree, file: str, facts: Facts) -> Fleet:
    """Return the fleet of a decoded file."""
    layers = _Said(file, tree)
    text = record(_with_defaults(tree, layers), _FleetText, layers)
    far = text.links
    fleet = Fleet(
        name=text.name,
        about=text.about,
        groups=tuple(_group(machine, ("machine", i), layers, facts) for i, machine in enumerate(text.machine)),
        links=tuple(_link(each, ("link", i), layers) for i, each in enumerate(text.link)),
        elsewhere=_link(_LinkText(between=("", ""), latency=far.latency, loss=far.loss), ("links",), layers),
        within=_link(
            _LinkText(between=("", ""), latency=far.latency_within, loss=far.loss_within),
            ("links",),
            layers,
            suffix="_within",
        ),
    )
    for holds, path, what, hint in _rules(fleet):
        if not holds:
            layers.refuse(path, what, hint=hint)
    return fleet


class _Said(Layers):
    """One file whose [defaults] speak for every machine that says nothing itself."""

    def __init__(self, file: str, tree: Tree) -> None:
        super().__init__([(file, tree)])
        self._tree = tree

    def refuse(self, path: KeyPath, what: str, *, hint: str = "", key: str = "") -> NoReturn:
        in_defaults = ("defaults", *path[2:])
        if path[:1] == ("machine",) and depth(self._tree, path) < len(path) == depth(self._tree, in_defaults) + 1:
            path = in_defaults
        super().refuse(path, what, hint=hint, key=key)


def _with_defaults(tree: Tree, layers: Layers) -> Tree:
    """Return the tree with [defaults] put under every machine."""
    defaults = tree.get("defaults", {})
    machines = tree.get("machine")
    if not isinstance(defaults, dict):
        layers.refuse(("defaults",), "is not a table", hint="write [defaults] with keys of a machine")
    known = [field.name for field in msgspec.structs.fields(_MachineText) if field.name != "name"]
    for key in defaults:
        if key not in known:
            hint = f"known keys: {', '.join(known)}{near(key, known)}"
            layers.refuse(("defaults",), f"unknown key '{key}'", hint=hint)
    rest = {key: value for key, value in tree.items() if key != "defaults"}
    if isinstance(machines, list):
        rest["machine"] = [
            merge(_unless_named(defaults, each), each) if isinstance(each, dict) else each for each in machines
        ]
    return rest


def _unless_named(defaults: Tree, machine: Tree) -> Tree:
    """Return the defaults without their device where a machine names its own GPU: it is another device then."""
    device = machine.get("device")
    named = isinstance(device, dict) and "gpu" in device
    return {key: value for key, value in defaults.items() if not (named and key == "device")}


def _group(text: _MachineText, path: KeyPath, layers: Layers, facts: Facts) -> Group:
    def read(parse: Callable[[str], T], said: str, *key: str) -> T:
        return _quantity(parse, said, (*path, *key), layers)

    device, gpu, most_w = _device(text.device, facts, read)
    availability: Availability = Always()
    if isinstance(text.availability, _ChurnText):
        availability = Churn(
            up_s=read(time_s, text.availability.up, "availability", "up"),
            down_s=read(time_s, text.availability.down, "availability", "down"),
        )
    machine = Machine(
        name=text.name,
        region=text.region,
        device=device,
        up_bytes_s=read(rate_bytes_s, text.up, "up"),
        down_bytes_s=read(rate_bytes_s, text.down, "down"),
        disk_bytes=read(size_bytes, text.disk, "disk"),
        nat=text.nat,
        availability=availability,
        processor=_processor(text.processor, read) if text.processor is not None else None,
        gpu=gpu,
        power_w=most_w,
        grid=read(facts.grid, text.grid, "grid").code if text.grid else "",
        site=read(facts.site, text.site, "site").site if text.site else "",
        terms=terms_of(text.terms, gpu, facts, read) if text.terms is not None else None,
    )
    return Group(machine=machine, count=text.count)


def _device(text: _DeviceText, facts: Facts, read: Callable[..., Any]) -> tuple[Device, str, float | None]:
    """Return the device, the GPU's name and what it draws at most: what the file leaves out, the table says."""
    most_w = read(power_w, text.power, "device", "power") if text.power else None
    if not text.gpu:
        device = Device(
            flop_s=read(_flop_s, text.flops, "device", "flops"),
            efficiency=0.4 if text.efficiency is None else text.efficiency,
            memory_bytes=read(size_bytes, text.memory or "8 GB", "device", "memory"),
        )
        return device, "", most_w
    found: Gpu = read(facts.gpu, text.gpu, "device", "gpu")
    device = Device(
        flop_s=read(_flop_s, text.flops, "device", "flops") if text.flops else found.flop_s,
        efficiency=facts.efficiency(found).mfu if text.efficiency is None else text.efficiency,
        memory_bytes=read(size_bytes, text.memory, "device", "memory") if text.memory else int(found.memory_bytes),
    )
    return device, found.name, found.power_w if most_w is None else most_w


def _processor(text: _ProcessorText, read: Callable[..., Any]) -> Processor:
    return Processor(
        cores=text.cores,
        links=text.links,
        send_s_gbit=text.send_s_gbit,
        receive_s_gbit=text.receive_s_gbit,
        awake=text.awake,
        pass_bytes_s=read(size_bytes, text.passes, "processor", "passes"),
        computer=text.computer,
    )


def _link(text: _LinkText, path: KeyPath, layers: Layers, *, suffix: str = "") -> Link:
    latency = _quantity(time_s, text.latency, (*path, "latency" + suffix), layers)
    if not 0 <= text.loss < 1:
        layers.refuse((*path, "loss" + suffix), f"{text.loss} is out of range", hint="at least 0 and less than 1")
    return Link(between=text.between, latency_s=latency, loss=text.loss)


def _quantity(parse: Callable[[str], T], said: str, path: KeyPath, layers: Layers) -> T:
    """Return a quantity of the file; one that is none is reported with its place."""
    try:
        return parse(said)
    except SpecError as error:
        layers.refuse(path, error.what, hint=error.hint)


def _flop_s(text: str) -> float:
    if not text:
        raise SpecError("nothing is said", hint='add for example: flops = "10 TFLOP", or gpu = "RTX 4090"')
    found = _FLOP.match(text)
    if not found:
        raise SpecError(f"{text!r} is not a speed", hint='write for example "10 TFLOP" (per second)')
    return float(found[1]) * _FLOP_SCALES[found[2].lower()]


def _rates_of(processor: Processor | None) -> list[tuple[str, float]]:
    """Return the numbers that a processor says, by their keys."""
    if processor is None:
        return []
    keys = ("cores", "send_s_gbit", "receive_s_gbit", "awake")
    numbers = [(key, number) for key in keys if (number := getattr(processor, key)) is not None]
    return [*numbers, ("passes", processor.pass_bytes_s)]


def _rules(fleet: Fleet) -> Iterator[tuple[bool, KeyPath, str, str]]:
    """Yield what the types of a fleet file cannot say."""
    yield bool(fleet.groups), ("machine",), "there is no machine", "add a [[machine]] table"
    names = [group.machine.name for group in fleet.groups]
    regions = sorted({group.machine.region for group in fleet.groups})
    for i, group in enumerate(fleet.groups):
        path: KeyPath = ("machine", i)
        machine = group.machine
        yield names.count(machine.name) == 1, (*path, "name"), f"'{machine.name}' is used twice", "name each group once"
        yield 1 <= group.count <= MACHINES_MAX, (*path, "count"), f"{group.count} is out of range", "at least 1"
        fits = 0 < machine.device.efficiency <= 1
        hint = "the part of the speed that training reaches, more than 0 and at most 1"
        yield fits, (*path, "device", "efficiency"), f"{machine.device.efficiency} is out of range", hint
        drawn = machine.power_w is None or 0 < machine.power_w < inf
        yield drawn, (*path, "device", "power"), f"{machine.power_w} is out of range", 'write for example "450 W"'
        for key, number in (("up", machine.up_bytes_s), ("down", machine.down_bytes_s)):
            yield number > 0, (*path, key), "is not positive", "a machine without a link cannot take part"
        yield machine.device.flop_s > 0, (*path, "device", "flops"), "is not positive", 'write for example "10 TFLOP"'
        for key, number in _rates_of(machine.processor):
            yield 0 < number < inf, (*path, "processor", key), f"{number} is out of range", "a number above 0"
        if isinstance(machine.availability, Churn):
            lasting = machine.availability.up_s > 0
            yield lasting, (*path, "availability", "up"), "is not positive", 'write for example "6 h"'
    for i, each in enumerate(fleet.links):
        for j, region in enumerate(each.between):
            hint = f"regions here: {', '.join(regions)}{near(region, regions)}"
            yield region in regions, ("link", i, "between", j), f"no machine is in region '{region}'", hint
    total = sum(group.count for group in fleet.groups)
    yield total <= MACHINES_MAX, ("machine",), f"{total} machines are too many", f"at most {MACHINES_MAX}"
