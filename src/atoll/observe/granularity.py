"""Granularity: how long a round works, as a multiple of everything else that it does (Erben et al., VLDB 2024).

    G = T_work / T_rest        twice the peers are at best (G + 1) / (G / 2 + 1) times as fast

since twice the peers halve the work of a round of the same size and leave the rest as it is: 1.33 times at G = 1, 1.83
at 10. So peers are worth adding while G is well above 1; below that, rounds want to be longer or exchanges shorter.

A round lasts from its announcement to the next one's. Its work is that of the contributor that worked longest for it,
also where that began while the round before was exchanged; a peer's own granularity counts its own work. Where work
outlasts rounds there is no such number: rounds then have no work of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.observe.progress import Progress, RoundProgress

MOST = 1000.0
"""What is larger is said to be this: all but nothing is left beside work."""


def of_rounds(progress: Progress) -> dict[int, float]:
    """Return the granularity of every committed round whose beginning and end are known."""
    return {version: _ratio(work_s, took_s) for version, took_s, work_s in _times(progress, _longest)}


def of_run(progress: Progress) -> float | None:
    """Return the granularity of all rounds together; None: no journal tells."""
    return _over_all(_times(progress, _longest))


def of_peer(progress: Progress, name: str) -> float | None:
    """Return a peer's own granularity over the rounds that it contributed to; None: no journal tells."""
    return _over_all(_times(progress, lambda entry: entry.worked_s.get(name) if name in entry.contributors else None))


def doubled(granularity: float) -> float:
    """Return how many times as fast twice the peers would be at best."""
    return (granularity + 1) / (granularity / 2 + 1)


def say_granularity(granularity: float | None) -> str:
    if granularity is None:
        return "-"
    if granularity < 0.001:
        return "< 0.001"
    return f"{granularity:.2g}" if granularity < 10 else f"{granularity:.0f}"


def _longest(entry: RoundProgress) -> float | None:
    return max((s for peer, s in entry.worked_s.items() if peer in entry.contributors), default=None)


def _times(progress: Progress, work: Callable[[RoundProgress], float | None]) -> Iterator[tuple[int, float, float]]:
    """Yield each committed round's version, how long it lasted and how long there was work in it."""
    if any(any(entry.staleness) for entry in progress.rounds.values()):
        return
    for version, entry in sorted(progress.rounds.items()):
        following, work_s = progress.rounds.get(version + 1), work(entry)
        if entry.announced_s is None or entry.committed_s is None or work_s is None:
            continue
        next_s = following.announced_s if following is not None else None
        yield version, (entry.committed_s if next_s is None else next_s) - entry.announced_s, work_s


def _over_all(times: Iterator[tuple[int, float, float]]) -> float | None:
    known = list(times)
    return _ratio(sum(work_s for *_, work_s in known), sum(took_s for _, took_s, _ in known)) if known else None


def _ratio(work_s: float, took_s: float) -> float:
    return min(MOST, work_s / max(took_s - work_s, work_s / MOST, 1e-9))
