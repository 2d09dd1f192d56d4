"""Crashes at every kind of send and every kind of sync: the sweep that leaves no cell of the table empty.

    reference runs  ->  which kinds occur, at whom, how often  ->  one case per kind x before/after x a few n

The reference runs are chosen so that every message of the protocol is said in one of them: somebody joins and is sent
on to the leader, somebody is refused, owners die, members lag and fetch, a leader is lost, the run ends. A message
that is declared and never said is an empty row, and a defect of the references.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from atoll.net.wire import Wire
from atoll.sim.case import Case, Verdict, play
from atoll.sim.faults import (
    LEADER,
    Crash,
    CrashAt,
    Fault,
    Leave,
    Lie,
    Partition,
    Pause,
    Reform,
    SlowCompute,
    Vandal,
    stream,
)
from atoll.sim.lots import run_of
from atoll.sim.points import When
from atoll.sim.scenario import Entrance, key_of
from atoll.sim.skies import MIDDLING, case_parts
from atoll.spec.axes.whom import All, Ring
from atoll.spec.fleet import Machine
from atoll.spec.run import AllowList, Budget, Run
from atoll.sync.grid import GROUP_MAX

WHENS: tuple[When, When] = ("before", "after")
RESTART_S = 3.0
REFERENCE_S = 40.0
CROWD = "more than one group"
"""The one reference that costs much: used only for what is said nowhere else."""
CROWD_S = 10.0
PLACES_MAX = 2
NTHS = 3


class Cell(Struct, frozen=True):
    """One case of the sweep and where it stands in the table."""

    what: str
    when: When
    case: Case


class Row(Struct, frozen=True):
    """What the cases of one kind showed: played and broken, before and after."""

    what: str
    played: dict[str, int]
    broken: dict[str, int]


# reference runs


def references(seed: int = 0) -> dict[str, Case]:
    """Return runs in which every message of the protocol is said and every kind of file is written."""
    return {case.family: case for case in _references(seed)}


def _references(seed: int) -> Iterator[Case]:
    joiner = (Entrance(3, 2),)
    yield _reference("a join through a member", seed, 4, start_with=3, entrances=joiner, tickets={3: (1, 2)})
    yield _reference("an end", seed, 3, rounds=4, ends=True)
    yield _reference("a leave", seed, 4, [Leave(at_s=8.0, peer=2, restart_after_s=6.0)])
    yield _reference("a leader dies", seed, 5, [Crash(at_s=9.0, peer=LEADER, restart_after_s=10.0)])
    yield _reference("a leader leaves", seed, 5, [Leave(at_s=9.0, peer=LEADER, restart_after_s=10.0)])
    yield _reference("an owner dies", seed, 4, [Crash(at_s=7.5, peer=2, restart_after_s=14.0)])
    yield _reference("a nap", seed, 4, [Pause(at_s=6.0, peer=1, for_s=18.0)])
    yield _reference("a short nap", seed, 4, [Pause(at_s=6.0, peer=1, for_s=9.0)])
    yield _reference("a late one", seed, 4, [SlowCompute(at_s=2.0, peer=3, for_s=25.0, factor=20.0)])
    apart = Partition(at_s=1.0, side=(1,), others=(2,), for_s=20.0)
    yield _reference("two that cannot reach each other", seed, 4, [apart])
    yield _reference("a lone leader", seed, 5, [Partition(at_s=8.0, side=(LEADER,), for_s=15.0)])
    yield _reference("a lying part", seed, 4, [Lie(at_s=3.0, peer=2, what="send:part/chunk", for_s=12.0)])
    yield _reference("a lying head", seed, 4, [Lie(at_s=3.0, peer=2, what="send:part/part", for_s=12.0)])
    yield _reference("a lying owner", seed, 4, [Lie(at_s=3.0, peer=2, what="send:result/", for_s=12.0)])
    late = Crash(at_s=6.0, peer=1, restart_after_s=16.0)
    yield _reference("a lying donor", seed, 4, [late, Lie(at_s=10.0, peer=2, what="send:fetch/", for_s=20.0)])
    soon = Crash(at_s=6.5, peer=1, restart_after_s=5.0)
    pieces = [Lie(at_s=3.0, peer=place, what="send:fetch/chunk", for_s=25.0) for place in (2, 3)]
    yield _reference("lying pieces", seed, 4, [soon, *pieces])
    two = (Entrance(3, 6), Entrance(4, 6))
    together = _reference("two that join together", seed, 5, start_with=3, entrances=two, tickets={3: (1,), 4: (2,)})
    yield replace(together, machines=_narrow(together), size=32768)
    slow = _reference("sums round slow lines", seed, 4)
    ((name, channel),) = slow.run.recipe.channel.items()
    ring = replace(slow.run.recipe, channel={name: replace(channel, whom=All(route=Ring()))})
    yield replace(slow, run=replace(slow.run, recipe=ring), machines=_narrow(slow), size=65536)
    yield _reference("a vandal", seed, 3, [Vandal(at_s=4.0, for_s=30.0, pause_s=0.1)])
    changed = _reference("changed settings", seed, 4, [Crash(at_s=9.0, peer=0, restart_after_s=10.0)])
    run = changed.run
    yield replace(changed, resumes_with=replace(run, upkeep=replace(run.upkeep, evaluate_every=2)))
    lost: list[Fault] = [Crash(at_s=8.0, peer=1), Crash(at_s=16.0, peer=2)]
    yield _reference("a council replaced", seed, 7, lost, start_with=5, entrances=(Entrance(5, 1), Entrance(6, 2)))
    most: list[Fault] = [*(Crash(at_s=10.0, peer=place) for place in (1, 2, 3)), Reform(at_s=18.0)]
    yield _reference("a council re-formed", seed, 5, most)
    yield replace(_reference(CROWD, seed, GROUP_MAX + 2), until_s=CROWD_S)
    unlisted = _reference("one who is not listed", seed, 4, start_with=3)
    listed = tuple(key_of(seed, place).peer.hex() for place in range(3))
    membership = replace(unlisted.run.membership, who=AllowList(peers=listed))
    yield replace(unlisted, run=replace(unlisted.run, membership=membership))


def _narrow(case: Case) -> tuple[Machine, ...]:
    """Return a case's machines on lines on which an exchange takes seconds."""
    return tuple(replace(machine, up_bytes_s=4e4, down_bytes_s=2e5) for machine in case.machines)


def _reference(
    name: str,
    seed: int,
    peers: int,
    faults: Sequence[Fault] = (),
    *,
    start_with: int = 0,
    rounds: int = 0,
    ends: bool = False,
    entrances: tuple[Entrance, ...] = (),
    tickets: dict[int, tuple[int, ...]] | None = None,
) -> Case:
    machines, delays_s = case_parts(peers, MIDDLING)
    run: Run = run_of(stream(seed, f"sweep/{name}"), start_with or peers, recipe="diloco")
    if rounds:
        run = replace(run, budget=Budget(rounds=rounds))
    return Case(
        seed=seed,
        family=name,
        run=replace(run, upkeep=replace(run.upkeep, checkpoint_every=1)),
        machines=machines,
        delays_s=delays_s,
        faults=tuple(faults),
        entrances=entrances,
        tickets=tickets or {},
        until_s=REFERENCE_S,
        ends=ends,
    )


# what there is


def declared_tags() -> set[str]:
    """Return the tags of all messages that any protocol of the peers declares."""
    tags: set[str] = set()
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("atoll.peer", "atoll.swarm")):
            for wire in _wires(module):
                tags |= {kind.__struct_config__.tag for kind in get_args(wire.kinds) or (wire.kinds,)}
    return tags


def _wires(module: ModuleType) -> Iterator[Wire[object]]:
    for _, value in sorted(vars(module).items()):
        if isinstance(value, Wire):
            yield value


def said_tags(seen: Iterable[str]) -> set[str]:
    """Return the tags of the messages among some points."""
    return {what.rpartition("/")[2] for what in seen if what.startswith("send:")}


Seen = dict[str, list[tuple[str, int, int]]]
"""Of each point: in which reference, by whom, how often."""


def look(verdicts: dict[str, Verdict]) -> Seen:
    """Return every point of the reference runs, the runs that reach it most first."""
    seen: Seen = {}
    for name, verdict in verdicts.items():
        for what, places in verdict.seen.items():
            seen.setdefault(what, []).extend((name, place, count) for place, count in places.items())
    return {what: sorted(seen[what], key=lambda one: (-one[2], one[0], one[1])) for what in sorted(seen)}


def look_at(case: Case) -> Verdict:
    """Return what a reference run shows, undisturbed, with all its points."""
    return play(case, looks=True)


def play_references(seed: int = 0) -> dict[str, Verdict]:
    """Return what the reference runs show."""
    return {name: look_at(case) for name, case in references(seed).items()}


# the cases


def cells(seen: Seen, *, places_max: int = PLACES_MAX, nths: int = NTHS, seed: int = 0) -> list[Cell]:
    """Return the cases of the sweep: for each point, at a few peers, the first, last and middle times it is reached."""
    known = references(seed)
    return [
        Cell(what, when, _with_crash(known[name], place, what, when, nth))
        for what, where in seen.items()
        for name, place, count in _spread(where, places_max)
        for when in WHENS
        for nth in _nths(count, 1 if name == CROWD else nths)
    ]


def _spread(where: list[tuple[str, int, int]], most: int) -> list[tuple[str, int, int]]:
    """Return a few of the places that reach a point: not all from one run or by one peer, if it can be."""
    cheap = [one for one in where if one[0] != CROWD]
    where = cheap or where
    chosen: list[tuple[str, int, int]] = []
    for one in where:
        if all(one[0] != other[0] and one[1] != other[1] for other in chosen):
            chosen.append(one)
    return [*chosen, *(one for one in where if one not in chosen)][:most]


def _nths(count: int, most: int) -> list[int]:
    return sorted({1, (count + 1) // 2, max(1, (2 * count) // 3)})[:most]


def _with_crash(case: Case, place: int, what: str, when: When, nth: int) -> Case:
    crash = CrashAt(
        at_s=0.0, peer=place, what=what, when=when, nth=nth, for_s=case.until_s - RESTART_S, restart_after_s=RESTART_S
    )
    return replace(case, faults=(crash, *case.faults))


# the table


def rows(judged: Iterable[tuple[Cell, bool]]) -> list[Row]:
    """Return the table: a row for each kind of point, in order of their names."""
    table: dict[str, Row] = {}
    for cell, broke in judged:
        row = table.setdefault(cell.what, Row(cell.what, dict.fromkeys(WHENS, 0), dict.fromkeys(WHENS, 0)))
        row.played[cell.when] += 1
        row.broken[cell.when] += broke
    return [table[what] for what in sorted(table)]


def empty_cells(table: Sequence[Row]) -> list[str]:
    """Return what the sweep left out: messages that are never said, and points without a case."""
    never = declared_tags() - said_tags(row.what for row in table)
    unsaid = [f"{tag} is never said in a reference run" for tag in sorted(never)]
    return unsaid + [f"{row.what}: no crash {when}" for row in table for when in WHENS if not row.played[when]]


def text(table: Sequence[Row]) -> str:
    """Return the table for people."""
    wide = max((len(row.what) for row in table), default=0)
    head = f"{'message or file':{wide}}  {'crash before':>14}  {'crash after':>14}"
    lines = [f"{row.what:{wide}}  {_cell(row, 'before'):>14}  {_cell(row, 'after'):>14}" for row in table]
    return "\n".join([head, *lines])


def _cell(row: Row, when: When) -> str:
    broken = row.broken[when]
    return f"{row.played[when]}, {broken} broken" if broken else f"{row.played[when]} hold"


def as_json(table: Sequence[Row]) -> bytes:
    """Return the table for programs."""
    return msgspec.json.encode({"schema": "atoll.sweep/1", "rows": list(table), "empty": empty_cells(table)})
