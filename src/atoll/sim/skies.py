"""Families of storms: each a function from a seed to a case, each looking for one kind of trouble.

    squall      a bit of everything on five homes          fog         loss, skew, slow and unequal links
    pair        two or three peers, nobody to spare        rot         slow, full and torn disks
    tide        peers join and leave all the time          blackout    everybody restarts at once
    regent      whoever leads dies, sleeps or is slow      vandal      a stranger sends garbage to everybody
    succession  council members are lost for good          crowd       twelve to thirty peers
    rift        partitions, one-way and two-way            doubt       crashes at single sends and syncs
    schism      voters that die while others campaign      drag        one machine that is slow for good
    relay       as one comes back, another dies in mid-exchange
    helm        knobs are turned while lines and machines get slow and whoever turns them dies
    ebb         several rounds are open, and are given up as somebody leaves whom they need

A family draws from random streams named after itself, so that changing one never moves another. Nothing is lost for
good that the promises do not allow, whatever a family draws: `_bearable` sees to that for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeGuard, cast

from msgspec.structs import replace

from atoll.sim.case import Between, Case
from atoll.sim.faults import (
    LEADER,
    Crash,
    CrashAt,
    Fault,
    FullDisk,
    Leave,
    Lie,
    Partition,
    Pause,
    Reform,
    Skew,
    SlowCompute,
    SlowDisk,
    SlowLink,
    Vandal,
    Weather,
    storm,
    stream,
)
from atoll.sim.lots import BATCH, PATIENCE_S, STEPS, run_of, steered
from atoll.sim.scenario import Entrance, key_of
from atoll.spec.axes.pace import (
    RoundsLate,
)
from atoll.spec.fleet import Device, Machine
from atoll.swarm.broker import SEAT_S

Family = Callable[[int], Case]

STORM_S = 40.0
ROUND_S = 3.0
"""About what the work of a round takes on a machine of middling speed."""
MIDDLING = Device(flop_s=STEPS * BATCH * 6e9 / ROUND_S / 0.4)
REGIONS = ("west", "east", "far")
DELAYS_S = {("west", "east"): 0.045, ("east", "far"): 0.055, ("west", "far"): 0.085}
WITHIN_S = 0.01
REPLACED_S = SEAT_S + 15.0
"""Within this a council that nothing else disturbs notices that a member is lost for good, and fills its seat."""
STAY_MIN = 3
"""In a run that loses peers, so many are there from the beginning and never leave: the council stays three or more."""
BACK_S = 6.0
"""After so long a peer is back that a run could not do without."""
AFTER_S = 6.0
"""A storm lasts at least so much longer than the last loss."""
COUNCIL = 5
"""The most peers that a family takes to be voting when it decides whom a run can spare."""


def case_of(family: str, seed: int) -> Case:
    """Return the case of one seed of a family."""
    return FAMILIES[family](seed)


def family_of(seed: int) -> str:
    """Return the family that a seed of a mixed search belongs to; the costly ones come up less often."""
    return _TURNS[seed % len(_TURNS)]


# the parts that cases are made of


def _machines(rng: Random, count: int, *, unequal: float = 1.5, rate_bytes_s: float = 2.5e6) -> tuple[Machine, ...]:
    """Return machines in up to three regions, slower or faster than middling by a factor of up to `unequal`."""
    return tuple(
        Machine(
            name=f"peer-{place}",
            region=rng.choice(REGIONS),
            device=replace(MIDDLING, flop_s=MIDDLING.flop_s * unequal ** rng.uniform(-1, 1)),
            up_bytes_s=rate_bytes_s * unequal ** rng.uniform(-1, 1),
            down_bytes_s=4 * rate_bytes_s * unequal ** rng.uniform(-1, 1),
            disk_bytes=10**12,
        )
        for place in range(count)
    )


def _delays() -> tuple[Between, ...]:
    within = tuple(Between(region, region, WITHIN_S) for region in REGIONS)
    return (*within, *(Between(a, b, value) for (a, b), value in DELAYS_S.items()))


def case_parts(count: int, device: Device) -> tuple[tuple[Machine, ...], tuple[Between, ...]]:
    """Return equal machines in all regions in turn, and what lies between them."""
    machines = tuple(
        Machine(
            name=f"peer-{place}",
            region=REGIONS[place % len(REGIONS)],
            device=device,
            up_bytes_s=2.5e6,
            down_bytes_s=1e7,
            disk_bytes=10**12,
        )
        for place in range(count)
    )
    return machines, _delays()


def _losses(rng: Random, most: float) -> tuple[Between, ...]:
    return tuple(Between(a, b, round(rng.uniform(0.0, most), 5)) for a, b in DELAYS_S)


def _tickets(rng: Random, peers: int, first: int = 0) -> dict[int, tuple[int, ...]]:
    """Return whom each peer asks: of the first ones the organiser before others, of later ones any of the first."""
    tickets: dict[int, tuple[int, ...]] = {}
    for place in range(1, peers):
        others = [other for other in range(1, first or peers) if other != place]
        known = rng.sample(others, min(len(others), 3))
        tickets[place] = (0, *known) if place < (first or peers) else tuple(rng.sample([0, *known], len(known) + 1))
    return tickets


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _time(rng: Random, first_s: float = 2.0, last_s: float = 0.85 * STORM_S) -> float:
    return round(rng.uniform(first_s, last_s), 3)


def _while(rng: Random, at_s: float, middle_s: float = 6.0) -> float:
    """Return how long something lasts that begins at `at_s`: over before the storm is."""
    return round(min(middle_s * 2 ** rng.uniform(-2.5, 1.5), STORM_S - at_s), 3)


def _bearable(faults: Sequence[Fault], there: int) -> tuple[Fault, ...]:
    """Return the faults in order of time, with none that takes a council its majority for good.

    A peer is lost for good only where enough of those that are `there` from the beginning stay: a seat then finds
    somebody, and a council that shrinks with its roster is never the lost one alone. The next one is lost when the
    seat of the last can have been filled: that takes a time in which nobody else is away or disturbed.
    """
    lasting = sorted((fault for fault in faults if _for_good(fault)), key=lambda fault: fault.at_s)
    passing = [fault for fault in faults if not _for_good(fault)]
    going = {fault.peer for fault in faults if isinstance(fault, Leave) or _for_good(fault)}
    if there - sum(peer < there for peer in going) < STAY_MIN:  # whoever leads may be any of them
        return _in_order([*passing, *(replace(fault, restart_after_s=BACK_S) for fault in lasting)])
    spaced = lasting[:1]
    for fault in lasting[1:]:
        at_s = max(fault.at_s, spaced[-1].at_s + REPLACED_S)
        while (filled_s := _quiet_since(passing, at_s) + REPLACED_S) > at_s:
            at_s = filled_s
        spaced.append(replace(fault, at_s=round(at_s, 3)))
    return _in_order([*passing, *spaced])


def _for_good(fault: Fault) -> TypeGuard[Crash | CrashAt | Leave]:
    return isinstance(fault, Crash | CrashAt | Leave) and fault.restart_after_s is None


def _quiet_since(passing: Iterable[Fault], at_s: float) -> float:
    """Return when the last of those passing faults is over that begin before `at_s`."""
    return max((_over_s(fault) for fault in passing if fault.at_s < at_s), default=-math.inf)


def _over_s(fault: Fault) -> float:
    """Return when a passing fault is over, at the latest."""
    match fault:
        case CrashAt(for_s=for_s, restart_after_s=back_s):
            return fault.at_s + for_s + (back_s or 0.0)
        case Crash(restart_after_s=back_s) | Leave(restart_after_s=back_s):
            return fault.at_s + (back_s or 0.0)
        case Skew() | Reform():
            return fault.at_s
        case _:
            return fault.at_s + fault.for_s


def _case(family: str, seed: int, rng: Random, peers: int, faults: Sequence[Fault], **more: object) -> Case:
    """Return a case with what most have in common."""
    entrances = cast(Sequence[Entrance], more.get("entrances", ()))
    faults = _bearable(faults, peers - sum(entrance.round > 0 for entrance in entrances))
    last_s = max((fault.at_s + AFTER_S for fault in faults if _for_good(fault)), default=0.0)
    parts: dict[str, object] = {
        "run": run_of(rng, peers),
        "machines": _machines(rng, peers),
        "delays_s": _delays(),
        "tickets": _tickets(rng, peers),
        "hesitates": rng.choice((0.0, 0.0, 0.3, 1.0)),
        "until_s": max(STORM_S, last_s),
    }
    return Case(seed=seed, family=family, faults=faults, **(parts | more))  # type: ignore[arg-type]


# the families


def squall(seed: int) -> Case:
    """Return a bit of everything on five homes."""
    rng = stream(seed, "squall")
    sky = Weather(crash_points=0.5, leaves=0.5, of_leader=0.2)
    return _case("squall", seed, rng, 5, storm(seed, 5, STORM_S, sky), losses=_losses(rng, 0.002))


def pair(seed: int) -> Case:
    """Return two or three very unequal peers of which a round needs two: nobody to spare."""
    rng = stream(seed, "pair")
    peers = rng.choice((2, 2, 3))
    sky = Weather(crashes=1.5, crash_points=1.0, partitions=0.7, pauses=0.7)
    run = run_of(rng, peers, contributors_min=2)
    return _case(
        "pair", seed, rng, peers, storm(seed, peers, STORM_S, sky), run=run, machines=_machines(rng, peers, unequal=4.0)
    )


def tide(seed: int) -> Case:
    """Return peers that join and leave all the time, some of them never to return."""
    rng = stream(seed, "tide")
    peers = rng.randint(5, 8)
    losing = rng.random() < 0.5
    first = rng.randint(STAY_MIN if losing else 2, 4)
    faults: list[Fault] = []
    for place in range(1, peers):
        at_s = _time(rng, 8.0)
        back_s = None if losing and place >= first and rng.random() < 0.5 else _while(rng, at_s)
        kind = Crash if losing and place < first else rng.choice((Leave, Leave, Crash))
        if rng.random() < 0.7:
            faults.append(kind(at_s=at_s, peer=place, restart_after_s=back_s))
    entrances = tuple(Entrance(place, rng.randint(1, 8)) for place in range(first, peers))
    return _case(
        "tide",
        seed,
        rng,
        peers,
        faults,
        run=run_of(rng, first),
        entrances=entrances,
        tickets=_tickets(rng, peers, first),
    )


def regent(seed: int) -> Case:
    """Return the death, sleep and slowness of whoever leads, again and again."""
    rng = stream(seed, "regent")
    peers = rng.randint(3, 6)
    faults: list[Fault] = []
    for _ in range(rng.randint(2, 4)):
        at_s = _time(rng)
        for_s = _while(rng, at_s)
        match rng.randrange(7):
            case 0 | 1 | 2:
                faults.append(Crash(at_s=at_s, peer=LEADER, restart_after_s=for_s))
            case 3:
                faults.append(Pause(at_s=at_s, peer=LEADER, for_s=for_s))
            case 4:
                faults.append(Partition(at_s=at_s, side=(LEADER,), for_s=for_s, one_way=rng.random() < 0.5))
            case 5:
                faults.append(SlowDisk(at_s=at_s, peer=LEADER, for_s=for_s, factor=round(2 ** rng.uniform(3, 9), 1)))
            case _:
                slow = rng.choice((SlowLink, SlowCompute))
                faults.append(slow(at_s=at_s, peer=LEADER, for_s=for_s, factor=round(2 ** rng.uniform(2, 7), 1)))
    return _case("regent", seed, rng, peers, faults)


def succession(seed: int) -> Case:
    """Return council members that are lost for good, one after the other, while others join to replace them."""
    rng = stream(seed, "succession")
    peers = rng.randint(6, 8)
    spare = rng.randint(1, (COUNCIL - 1) // 2)
    places = [*rng.sample(range(1, COUNCIL), spare - 1), rng.choice((0, LEADER))]
    faults = [
        Crash(at_s=round(10.0 + rng.uniform(0.0, 4.0) + number * rng.uniform(1.0, 1.2) * REPLACED_S, 3), peer=place)
        for number, place in enumerate(places)
    ]
    entrances = tuple(Entrance(place, rng.randint(1, 6)) for place in range(COUNCIL, peers))
    return _case(
        "succession",
        seed,
        rng,
        peers,
        faults,
        run=run_of(rng, 3),
        entrances=entrances,
        tickets=_tickets(rng, peers, COUNCIL),
    )


def rift(seed: int) -> Case:
    """Return partitions: 3|2, 2|2, a lone peer, the leader alone, one-way and two-way, also one within another."""
    rng = stream(seed, "rift")
    peers = rng.choice((3, 4, 5, 5))
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 3)):
        at_s = _time(rng)
        side = rng.choice(
            (
                tuple(sorted(rng.sample(range(peers), 2))),
                tuple(sorted(rng.sample(range(peers), peers // 2))),
                (rng.randrange(peers),),
                (LEADER,),
                (0,),
            )
        )
        faults.append(Partition(at_s=at_s, side=side, for_s=_while(rng, at_s, 10.0), one_way=rng.random() < 0.35))
    if rng.random() < 0.4:
        at_s = _time(rng)
        faults.append(Crash(at_s=at_s, peer=rng.randrange(peers), restart_after_s=_while(rng, at_s)))
    return _case("rift", seed, rng, peers, faults)


def fog(seed: int) -> Case:
    """Return loss, wrong clocks, and links that are unequal and now and then slow."""
    rng = stream(seed, "fog")
    peers = rng.randint(3, 7)
    sky = Weather(crashes=0.5, pauses=0.3, partitions=0.0, slow_disks=0.0, slow_links=3.0, lossy_links=3.0, skews=2.0)
    machines = _machines(rng, peers, unequal=6.0, rate_bytes_s=2.5e5)
    faults = storm(seed, peers, STORM_S, sky)
    return _case("fog", seed, rng, peers, faults, machines=machines, losses=_losses(rng, 0.02))


def rot(seed: int) -> Case:
    """Return disks that are slow, full, or lose what was not synced."""
    rng = stream(seed, "rot")
    peers = rng.randint(2, 5)
    faults: list[Fault] = []
    for _ in range(rng.randint(2, 5)):
        at_s = _time(rng)
        for_s, place = _while(rng, at_s), rng.randrange(peers)
        match rng.randrange(4):
            case 0:
                faults.append(FullDisk(at_s=at_s, peer=place, for_s=for_s))
            case 1:
                faults.append(SlowDisk(at_s=at_s, peer=place, for_s=for_s, factor=round(2 ** rng.uniform(3, 10), 1)))
            case _:
                faults.append(Crash(at_s=at_s, peer=place, restart_after_s=for_s))
    return _case("rot", seed, rng, peers, [*faults, *storm(seed, peers, STORM_S, _POINTS)])


def blackout(seed: int) -> Case:
    """Return a restart of everybody at once, or nearly so, once or twice."""
    rng = stream(seed, "blackout")
    peers = rng.randint(2, 6)
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 2)):
        at_s = _time(rng, last_s=0.7 * STORM_S)
        spread_s = rng.choice((0.0, 0.0, 0.5))
        for place in range(peers):
            dies_s = round(at_s + rng.uniform(0.0, spread_s), 3)
            faults.append(Crash(at_s=dies_s, peer=place, restart_after_s=_while(rng, dies_s, 3.0)))
    return _case("blackout", seed, rng, peers, faults)


def vandal(seed: int) -> Case:
    """Return a stranger that sends garbage to everybody; in some runs it would even be let in."""
    rng = stream(seed, "vandal")
    peers = rng.randint(3, 5)
    at_s = _time(rng, 1.0, 15.0)
    for_s = round(rng.uniform(10.0, STORM_S - at_s), 3)
    who = [key_of(seed, place).peer for place in range(peers)] if rng.random() < 0.5 else []
    faults: list[Fault] = [Vandal(at_s=at_s, for_s=for_s, pause_s=round(rng.uniform(0.1, 0.5), 3))]
    if rng.random() < 0.4:
        at_s = _time(rng)
        faults.append(Crash(at_s=at_s, peer=rng.randrange(peers), restart_after_s=_while(rng, at_s)))
    return _case("vandal", seed, rng, peers, faults, run=run_of(rng, peers, who=who))


def crowd(seed: int) -> Case:
    """Return twelve to thirty peers and a storm among them."""
    rng = stream(seed, "crowd")
    peers = rng.randint(12, 30)
    sky = Weather(crashes=3.0, leaves=1.0, pauses=1.0, partitions=0.7, of_leader=0.1, slow_computes=1.0)
    run = run_of(rng, peers, recipe="diloco")
    return _case("crowd", seed, rng, peers, storm(seed, peers, 30.0, sky), run=run, until_s=30.0)


def doubt(seed: int) -> Case:
    """Return crashes just before and just after single sends and syncs, sometimes with a member that lies."""
    rng = stream(seed, "doubt")
    peers = rng.randint(3, 5)
    lies: list[Fault] = []
    if peers > 3 and rng.random() < 0.2:
        at_s, what = _time(rng), rng.choice((("send:part/chunk", "send:part/summed"), ("send:fetch/",)))
        liar, for_s = rng.randrange(1, peers), _while(rng, at_s, 12.0)
        lies += [Lie(at_s=at_s, peer=liar, what=each, for_s=for_s) for each in what]
    return _case("doubt", seed, rng, peers, [*storm(seed, peers, STORM_S, _DOUBT), *lies])


def schism(seed: int) -> Case:
    """Return two council members that cannot talk to each other, and a third between them that dies as it votes."""
    rng = stream(seed, "schism")
    between, *apart = rng.sample(range(3), 3)
    at_s = _time(rng, 2.0, 8.0)
    faults: list[Fault] = [Partition(at_s=at_s, side=(apart[0],), others=(apart[1],), for_s=STORM_S - at_s)]
    for _ in range(rng.randint(1, 3)):
        dies_s = _time(rng, at_s)
        faults.append(Crash(at_s=dies_s, peer=rng.choice((between, LEADER)), restart_after_s=_while(rng, dies_s, 3.0)))
    for nth in sorted(rng.sample(range(1, 7), 2)):
        what = rng.choice(("send:council/vote", "send:council/vote", "send:council/replicated"))
        back_s = round(rng.uniform(0.1, 2.0), 3)
        for_s = round(STORM_S - at_s - back_s, 3)
        faults.append(
            CrashAt(at_s=at_s, peer=between, what=what, when="after", nth=nth, for_s=for_s, restart_after_s=back_s)
        )
    return _case("schism", seed, rng, 3, faults)


def drag(seed: int) -> Case:
    """Return one machine so slow that no round can wait for it, for good, and others that die now and then."""
    rng = stream(seed, "drag")
    peers = rng.randint(3, 5)
    slow = rng.randrange(1, peers)
    work_s = PATIENCE_S * rng.uniform(2.5, 5.0)
    machines = list(_machines(rng, peers))
    machines[slow] = replace(machines[slow], device=replace(MIDDLING, flop_s=MIDDLING.flop_s * ROUND_S / work_s))
    faults: list[Fault] = []
    for _ in range(rng.randint(0, 2)):
        at_s = _time(rng)
        faults.append(Crash(at_s=at_s, peer=rng.randrange(peers), restart_after_s=_while(rng, at_s)))
    return _case("drag", seed, rng, peers, faults, machines=tuple(machines), until_s=STORM_S + PATIENCE_S)


def relay(seed: int) -> Case:
    """Return peers that are away in turn: as one comes back, another dies in the middle of an exchange."""
    rng = stream(seed, "relay")
    peers = rng.choice((3, 3, 4))
    faults: list[Fault] = []
    at_s = _time(rng, 3.0, 8.0)
    while at_s < 0.4 * STORM_S:
        one, other = rng.sample(range(peers), 2)
        away_s = round(rng.uniform(2.0, 10.0), 3)
        faults.append(Crash(at_s=at_s, peer=one, restart_after_s=away_s))
        faults.append(
            CrashAt(
                at_s=round(at_s + rng.uniform(0.0, away_s), 3),
                peer=other,
                what=rng.choice(("send:part/", "send:result/", "send:control/", "fsync:results")),
                when=rng.choice(("before", "after")),
                nth=rng.randint(1, 4),
                for_s=6.0,
                restart_after_s=round(rng.uniform(3.0, 8.0), 3),
            )
        )
        at_s = round(at_s + away_s + rng.uniform(2.0, 8.0), 3)
    return _case("relay", seed, rng, peers, faults)


def helm(seed: int) -> Case:
    """Return a run whose knobs are turned while lines and machines get slow, and whoever turns them dies."""
    rng = stream(seed, "helm")
    peers = rng.randint(2, 5)
    run = run_of(rng, peers, recipe="diloco")
    faults: list[Fault] = []
    for _ in range(rng.randint(2, 5)):
        at_s = _time(rng)
        for_s, place = _while(rng, at_s, 8.0), rng.choice((LEADER, rng.randrange(peers)))
        match rng.randrange(4):
            case 0 | 1:
                faults.append(Crash(at_s=at_s, peer=place, restart_after_s=_while(rng, at_s, 2.0)))
            case 2:
                faults.append(SlowLink(at_s=at_s, peer=place, for_s=for_s, factor=round(2 ** rng.uniform(3, 7), 1)))
            case _:
                faults.append(SlowCompute(at_s=at_s, peer=place, for_s=for_s, factor=round(2 ** rng.uniform(1, 3), 1)))
    if rng.random() < 0.5:
        faults += storm(seed, peers, STORM_S, _POINTS)
    machines = _machines(rng, peers, rate_bytes_s=rng.choice((2.5e4, 2.5e5)))
    quick = tuple(replace(m, device=replace(m.device, flop_s=HELM_FASTER * m.device.flop_s)) for m in machines)
    return _case("helm", seed, rng, peers, faults, run=replace(run, recipe=steered(rng, run.recipe)), machines=quick)


def ebb(seed: int) -> Case:
    """Return two or three peers of which a round needs two, several of them open, and now and then somebody leaves."""
    rng = stream(seed, "ebb")
    peers = rng.choice((2, 3, 3))
    run = run_of(rng, peers, contributors_min=2, recipe="ddp")
    ((name, channel),) = run.recipe.channel.items()
    late = replace(channel, overlap=RoundsLate(rounds=rng.randint(1, 5)))
    faults: list[Fault] = []
    at_s = _time(rng, 3.0, 8.0)
    while at_s < 0.8 * STORM_S:
        kind = rng.choice((Leave, Leave, Crash))
        faults.append(kind(at_s=at_s, peer=rng.randrange(peers), restart_after_s=_while(rng, at_s, 6.0)))
        at_s = round(at_s + rng.uniform(2.0, 12.0), 3)
    recipe = replace(run.recipe, channel={name: late})
    return _case("ebb", seed, rng, peers, faults, run=replace(run, recipe=recipe))


HELM_FASTER = 4.0
"""Machines of a run whose knobs are turned are so much faster: there is more than one decision in a storm."""


_POINTS = Weather(
    crashes=0.0, crash_points=1.0, pauses=0.0, partitions=0.0, slow_disks=0.0, slow_links=0.0, lossy_links=0.0,
    slow_computes=0.0, skews=0.0,
)  # fmt: skip
_DOUBT = replace(_POINTS, crash_points=5.0, of_leader=0.3)

FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        *(squall, pair, tide, regent, succession, rift, fog, rot, blackout, vandal, crowd, doubt, schism, drag, relay),
        *(helm, ebb),
    )
}
_TURNS = (
    *("squall", "pair", "tide", "regent", "succession", "rift", "fog", "rot", "blackout", "vandal", "doubt", "crowd"),
    *("squall", "pair", "tide", "regent", "succession", "rift", "fog", "rot", "blackout", "ebb", "doubt"),
    *("schism", "regent", "drag", "relay", "helm"),
)
