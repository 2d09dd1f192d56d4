"""`atoll sim --seeds`, `--faults points` and `--replay`: the search for faults that break a promise.

What breaks is shrunk to the fewest faults that still break it and stored as a case, plain JSON, together with the
trace hash that a replay must reach again. Progress goes to stderr, the table to stdout, and a broken promise is an
error with the command that replays it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from atoll.cli.play import STORM_S, fault_list, journalled, left_cleanly
from atoll.errors import AtollError, LocalError, SpecError

if TYPE_CHECKING:
    from atoll.sim.case import Case, Verdict
    from atoll.spec.run import Run

T = TypeVar("T")

SAY_EVERY_S = 2.0
SHRUNK_MAX = 3
"""Broken cases of one search that are shrunk and stored: one defect breaks many."""
SHOWN_MAX = 5


def seed_range(text: str) -> tuple[int, int]:
    """Return the seeds of `--seeds A..B`; B is not among them."""
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise SpecError(f"--seeds: {text!r} is not a range", hint="write for example 0..200")
    return int(first), int(last)


def families(seeds: tuple[int, int], faults: str, cases: Path, processes: int, *, as_json: bool) -> None:
    """Search the named families of storms; exit 1 when one broke a promise."""
    from atoll.sim.search import Job, jobs_of, play_job, spread
    from atoll.sim.skies import FAMILIES, case_of

    kind, _, family = (faults or "storm").partition("=")
    if kind != "storm":
        raise SpecError(f"--faults {faults}: needs a run file", hint='without one: "storm", "storm=FAMILY" or "points"')
    if family and family not in FAMILIES:
        raise SpecError(f"--faults: no family is called {family!r}", hint=f"known families: {', '.join(FAMILIES)}")
    jobs = jobs_of(*seeds, family)

    def case(verdict: Verdict) -> Case:
        job = Job(verdict.family, verdict.seed)
        return case_of(job.family, job.seed)

    with _told(spread(play_job, jobs, processes), len(jobs), quiet=as_json) as verdicts:
        _report(verdicts, case, cases, processes, as_json=as_json)


def own_run(
    run: Run,
    fleet: str,
    peers: int,
    seeds: tuple[int, int],
    faults: str,
    cases: Path,
    processes: int,
    *,
    as_json: bool,
) -> None:
    """Search storms on a run and fleet of one's own; exit 1 when one broke a promise."""
    from atoll.cli.local import check_enough
    from atoll.sim.scenario import losses_of, on_fleet
    from atoll.sim.search import judge
    from atoll.sim.storm import case_of
    from atoll.spec.fleet import first, load_fleet

    imagined = load_fleet(fleet)
    machines, delays_s = first(imagined, peers), on_fleet(imagined)[1]
    check_enough(run, len(machines))

    def case(seed: int) -> Case:
        drawn = None if faults in ("", "storm") else fault_list(faults, seed, len(machines))
        losses = losses_of(imagined)
        return case_of(run, machines, delays_s, seed, until_s=STORM_S, faults=drawn, losses=losses)

    made = [case(seed) for seed in range(*seeds)]
    with _told(judge(made, processes), len(made), quiet=as_json) as verdicts:
        _report(verdicts, lambda verdict: case(verdict.seed), cases, processes, as_json=as_json)


@contextmanager
def _told(coming: Generator[Verdict], total: int, *, what: str = "seeds", quiet: bool) -> Iterator[list[Verdict]]:
    """Yield all verdicts, having said on stderr how far we are and what broke; Ctrl-C, now or later, says it too."""
    found: list[Verdict] = []
    with left_cleanly(lambda: _stopped(found, total, what)):
        with closing(coming):
            _tell(coming, found, total, what, quiet=quiet)
        yield found


def _tell(coming: Iterable[Verdict], found: list[Verdict], total: int, what: str, *, quiet: bool) -> None:
    """Take verdicts as they come, saying how far we are and what broke."""
    began_s = said_s = time.monotonic()
    broken = 0
    for done, verdict in enumerate(coming, start=1):
        found.append(verdict)
        if verdict.broken:
            broken += 1
            if broken <= SHOWN_MAX:
                print(f"{_name(verdict)}: {_first_lines(verdict.broken[:3])}", file=sys.stderr)
        now_s = time.monotonic()
        if not quiet and now_s - said_s > SAY_EVERY_S:
            said_s = now_s
            left_s = (now_s - began_s) / done * (total - done)
            print(f"{done} of {total} {what}, {broken} broken, about {left_s:.0f} s left", file=sys.stderr)


def _stopped(found: list[Verdict], total: int, what: str) -> str:
    """Return what a search had found when it was stopped."""
    broken = [_name(verdict) for verdict in found if verdict.broken]
    more = f" and {len(broken) - SHOWN_MAX} more" if len(broken) > SHOWN_MAX else ""
    which = f" broke a promise: {', '.join(broken[:SHOWN_MAX])}{more}" if broken else " broke a promise"
    return f" after {len(found)} of {total} {what}, {len(broken) or 'none'} of them{which}; a search starts anew"


def _first_lines(broken: Iterable[str]) -> str:
    return "; ".join(what.partition("\n")[0] for what in broken)


def _name(verdict: Verdict) -> str:
    return f"{verdict.family + ' ' if verdict.family else ''}seed {verdict.seed}"


def _report(
    verdicts: list[Verdict], case: Callable[[Verdict], Case], cases: Path, processes: int, *, as_json: bool
) -> None:
    """Print what a search found; store what broke, shrunk, and end with an error that says how to replay it."""
    from atoll.sim.search import tallies, text

    table = tallies(verdicts)
    broken = [verdict for verdict in verdicts if verdict.broken]
    stored = _store([case(verdict) for verdict in broken[:SHRUNK_MAX]], cases, processes)
    if as_json:
        import msgspec

        found = {
            "schema": "atoll.seeds/1",
            "seeds": len(verdicts),
            "broken": {str(verdict.seed): verdict.broken for verdict in broken},
            "families": msgspec.to_builtins(table),
            "cases": [str(path) for path in stored],
        }
        print(json.dumps(found))
    else:
        print(text(table))
        print(f"{len(verdicts)} seeds, {len(broken)} with a broken promise")
    if broken:
        raise AtollError(
            f"{len(broken)} of {len(verdicts)} seeds broke a promise: {_name(broken[0])} is the first",
            hint=f"replay its shrunk case: atoll sim --replay {stored[0]}",
        )


def _store(found: list[Case], folder: Path, processes: int) -> list[Path]:
    """Shrink cases and write each to a file of its own."""
    from atoll.sim.case import to_json
    from atoll.sim.search import spread
    from atoll.sim.storm import shrunk

    if found:
        print(f"shrinking {len(found)} of the broken cases", file=sys.stderr)
    stored = []
    with closing(spread(shrunk, found, processes)) as coming:
        for case, verdict in coming:
            path = folder / f"{case.family or 'storm'}-{case.seed}.json"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(to_json(case, verdict))
            except OSError as error:
                what = f"{path}: cannot be written ({error.strerror})"
                raise LocalError(what, hint="give another --cases") from error
            stored.append(path)
    return stored


def replay(path: Path, journal: Path | None, *, as_json: bool) -> None:
    """Play a stored case again; exit 1 when it breaks a promise, or is not the same to the byte."""
    from atoll.sim.case import from_json, play

    try:
        text = path.read_bytes()
    except OSError as error:
        hint = "`atoll sim --seeds` writes such files"
        raise SpecError(f"--replay: {path} cannot be read ({error.strerror})", hint=hint) from error
    case = from_json(text)
    with left_cleanly(lambda: "; a replay starts anew"), journalled(journal) as keep:
        verdict = play(case, sees=keep)
    same = verdict.trace == case.trace
    if as_json:
        found = {
            "schema": "atoll.replay/1",
            "seed": case.seed,
            "family": case.family,
            "trace": verdict.trace,
            "same": same,
            "rounds": verdict.rounds,
            "broken": verdict.broken,
        }
        print(json.dumps(found))
    else:
        print(f"faults        {len(case.faults)}")
        print("\n".join(f"              {_fault_line(fault)}" for fault in case.faults))
        print(f"rounds        {verdict.rounds}, {verdict.stormy_rounds} of them in the storm")
        print(f"trace         {verdict.trace or 'none: the play broke off'}")
        print(f"same          {'yes, to the byte' if same else f'no: stored was {case.trace or None}'}")
        print("\n".join(f"broken        {what}" for what in verdict.broken) or "broken        nothing")
    if verdict.broken:
        raise AtollError(
            f"{path}: {len(verdict.broken)} broken promises", hint="the faults above are all it takes; --journal shows"
        )
    if not same and case.trace:
        hint = f"it was stored by {case.made_with or 'another version'}: other code, other events"
        raise AtollError(f"{path}: the replay took another course", hint=hint)


def _fault_line(fault: object) -> str:
    import msgspec

    return msgspec.json.encode(fault).decode()


def points(processes: int, *, as_json: bool) -> None:
    """Crash before and after every kind of send and sync, and print the table; exit 1 on a broken or empty cell."""
    from atoll.sim import sweep
    from atoll.sim.search import judge, spread

    known = sweep.references()
    print(f"{len(known)} reference runs", file=sys.stderr)
    coming = spread(sweep.look_at, list(known.values()), processes)
    with left_cleanly(lambda: " before the first crash; a sweep starts anew"), closing(coming):
        played = dict(zip(known, coming, strict=True))
    cells = sweep.cells(sweep.look(played))
    coming = judge([cell.case for cell in cells], processes)
    with _told(coming, len(cells), what="crashes", quiet=as_json) as verdicts:
        pass
    table = sweep.rows((cell, bool(verdict.broken)) for cell, verdict in zip(cells, verdicts, strict=True))
    print(sweep.as_json(table).decode() if as_json else sweep.text(table))
    empty = sweep.empty_cells(table)
    broken = [cell for cell, verdict in zip(cells, verdicts, strict=True) if verdict.broken]
    if not as_json:
        print(f"{len(table)} kinds, {len(cells)} crashes, {len(broken)} broke a promise, {len(empty)} cells empty")
        print("\n".join(f"empty: {what}" for what in empty), end="\n" if empty else "")
    if broken or empty:
        what = f"{broken[0].what}, crash {broken[0].when}" if broken else empty[0]
        raise AtollError(f"the sweep found {len(broken)} broken and {len(empty)} empty cells: {what}")
