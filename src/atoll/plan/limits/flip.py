"""What would move a verdict: the nearest value of one input at which it is another.

A verdict is a step function of its inputs, and nothing is assumed of its shape: values are tried outwards from where
the input stands, and the step that is met first is then halved down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.plan.limits.finding import Flip, Judged, Verdict
from atoll.plan.limits.scenario import MAY_BE_ZERO, SHARES, Scenario, said, with_value

FACTOR_MAX = 1000.0
STEPS_DECADE = 12
HALVINGS = 20
SHARE_STEP = 0.02


def flip(scenario: Scenario, judge: Callable[[Scenario], Judged], path: str) -> Flip | None:
    """Return where the verdict turns when only this input changes; None where it never does."""
    now = said(scenario, path).value
    verdict = judge(scenario).verdict
    last = {True: now, False: now}
    least = 0.0 if path in MAY_BE_ZERO else SHARE_STEP / 2
    for up, value in _outwards(now, share=path in SHARES, least=least):
        found = judge(with_value(scenario, path, value)).verdict
        if found != verdict:
            return _halved(scenario, judge, path, last[up], value)
        last[up] = value
    return None


def _outwards(now: float, *, share: bool, least: float) -> Iterator[tuple[bool, float]]:
    """Yield values ever farther from one, upwards and downwards in turn."""
    if share:
        for k in range(1, round(1 / SHARE_STEP) + 1):
            far = k * SHARE_STEP
            yield from ((up, at) for up, at in ((True, now + far), (False, now - far)) if least <= at <= 1)
        return
    start = now or 1 / FACTOR_MAX
    for k in range(1, 3 * STEPS_DECADE + 1):
        factor = 10 ** (k / STEPS_DECADE)
        yield True, start * factor
        if now:
            yield False, start / factor


def _halved(scenario: Scenario, judge: Callable[[Scenario], Judged], path: str, same: float, other: float) -> Flip:
    """Return the step between a value that keeps the verdict and one that does not, on the far side of it."""
    now = said(scenario, path).value
    kept: Verdict = judge(scenario).verdict
    for _ in range(HALVINGS):
        middle = (same + other) / 2
        if judge(with_value(scenario, path, middle)).verdict == kept:
            same = middle
        else:
            other = middle
    return Flip(path=path, now=now, at=other, verdict=judge(with_value(scenario, path, other)).verdict)
