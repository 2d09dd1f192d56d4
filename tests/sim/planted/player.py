"""Plays cases from one copy of the package after the other, in one process of its own.

    python player.py search COPY FIRST END [FAMILY ...]    seeds of that copy, until one breaks a promise
    python player.py points COPY FIRST END                 the same, of the crashes at single sends and syncs
    python player.py shrink COPY FILE                      the least of a stored case that still breaks one
    python player.py replay COPY FILE [...]                a stored case for each copy
    python player.py again COPY FILE                       a stored case, and its file with what it shows now

It answers with one line of JSON per copy. The copies' modules take turns; everything else stays loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

PLAYS_MAX = 24
"""Plays spent on shrinking one case."""


def enter(copy: str) -> None:
    """Have `atoll` mean this copy from now on."""
    for name in [name for name in sys.modules if name == "atoll" or name.startswith("atoll.")]:
        del sys.modules[name]
    sys.path[:] = [copy, *(path for path in sys.path if not (Path(path) / "atoll").is_dir())]
    import atoll

    assert atoll.__file__ is not None and Path(atoll.__file__).parent == Path(copy) / "atoll", "another package"


def search(first: int, end: int, families: Sequence[str]) -> dict[str, Any]:
    """Return the first seed that breaks a promise, of these families in turn or of all mixed, and how many it took."""
    from atoll.sim.skies import case_of, family_of

    def make(seed: int) -> Any:
        return case_of(families[seed % len(families)] if families else family_of(seed), seed)

    return _first(end - first, (partial(make, seed) for seed in range(first, end)))


def points(first: int, end: int) -> dict[str, Any]:
    """Return the first play of the sweep that breaks a promise: its references, then every seventh crash, and so on."""
    from atoll.sim.sweep import CROWD, cells, look, look_at, references

    known = [case for name, case in references().items() if name != CROWD]
    told = _first(len(known[first:end]), (partial(_same, case) for case in known[first:end]))
    if told["broken"] or end <= len(known):
        return told
    cases = [cell.case for cell in cells(look({case.family: look_at(case) for case in known}))]
    order = [case for start in range(7) for case in cases[start::7]][max(0, first - len(known)) : end - len(known)]
    more = _first(len(order), (partial(_same, case) for case in order))
    return more | {"played": told["played"] + more["played"]}


def _same(case: Any) -> Any:
    return case


def _first(total: int, cases: Iterator[Callable[[], Any]]) -> dict[str, Any]:
    from atoll.sim.case import play, to_json

    for number, make in enumerate(cases, start=1):
        case = make()
        verdict = play(case)
        print(f"{number}/{total}", file=sys.stderr, flush=True)
        if verdict.broken:
            found = to_json(case, verdict).decode()
            return {"played": number, "family": case.family, "seed": case.seed, "broken": verdict.broken, "case": found}
    return {"played": total, "broken": []}


def shrink(file: str) -> dict[str, Any]:
    """Return the least of a stored case that still breaks a promise."""
    from atoll.sim import storm
    from atoll.sim.case import from_json, to_json

    storm.PLAYS_MAX = PLAYS_MAX
    case, verdict = storm.shrunk(from_json(Path(file).read_bytes()))
    return {"broken": verdict.broken, "case": to_json(case, verdict).decode()}


def replay(file: str) -> dict[str, Any]:
    """Return what a stored case breaks."""
    from atoll.sim.case import from_json, play

    verdict = play(from_json(Path(file).read_bytes()))
    return {"broken": verdict.broken, "rounds": verdict.rounds, "trace": verdict.trace}


def again(file: str) -> dict[str, Any]:
    """Return what a stored case breaks, and how it is to be stored with that."""
    from atoll.sim.case import from_json, play, to_json

    case = from_json(Path(file).read_bytes())
    verdict = play(case)
    return {"broken": verdict.broken, "case": to_json(case, verdict).decode()}


def main(command: str, *words: str) -> None:
    match command:
        case "search":
            enter(words[0])
            print(json.dumps(search(int(words[1]), int(words[2]), words[3:])), flush=True)
        case "points":
            enter(words[0])
            print(json.dumps(points(int(words[1]), int(words[2]))), flush=True)
        case "shrink":
            enter(words[0])
            print(json.dumps(shrink(words[1])), flush=True)
        case "again":
            enter(words[0])
            print(json.dumps(again(words[1])), flush=True)
        case "replay":
            for copy, file in zip(words[::2], words[1::2], strict=True):
                enter(copy)
                print(json.dumps(replay(file)), flush=True)
        case _:
            raise SystemExit(f"unknown: {command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
