"""What would move a verdict: the nearest value of one input at which it is another.

A verdict is a step function of its inputs, and nothing is assumed of its shape: values are tried outwards from where
the input stands, and the step that is met first is then halved down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.plan.limits.finding import SEVERITY, Flip, Judged
from atoll.plan.limits.scenario import MAY_BE_ZERO, SHARES, WHOLE, ZERO_IS_NONE, Scenario, least_of, said, with_value

FACTOR_MAX = 1000.0
STEPS_DECADE = 12
HALVINGS = 20
SHARE_STEP = 0.02


def flip(scenario: Scenario, judge: Callable[[Scenario], Judged], path: str, *, milder: bool = False) -> Flip | None:
    """Return where the verdict turns, or turns to a milder one, when only this input changes; None: it never does."""
    now = said(scenario, path).value
    if now == 0 and path in ZERO_IS_NONE:
        return None
    verdict = judge(scenario).verdict

    def turned(value: float) -> bool:
        found = judge(with_value(scenario, path, value)).verdict
        return SEVERITY[found] < SEVERITY[verdict] if milder else found != verdict

    last = {True: now, False: now}
    least = least_of(path) or (0.0 if path in MAY_BE_ZERO else SHARE_STEP / 2 if path in SHARES else 0.0)
    for up, value in _outwards(now, share=path in SHARES, whole=path in WHOLE, least=least):
        if turned(value):
            at = _met(turned, last[up], value) if path in WHOLE else _halved(turned, last[up], value)
            return Flip(path=path, now=now, at=at, verdict=judge(with_value(scenario, path, at)).verdict)
        last[up] = value
    return None


def _outwards(now: float, *, share: bool, whole: bool, least: float) -> Iterator[tuple[bool, float]]:
    """Yield values ever farther from one, upwards and downwards in turn; of what comes whole only whole ones."""
    if share:
        for k in range(1, round(1 / SHARE_STEP) + 1):
            far = k * SHARE_STEP
            yield from ((up, at) for up, at in ((True, now + far), (False, now - far)) if least <= at <= 1)
        return
    start = now or 1 / FACTOR_MAX
    for k in range(1, (3 if now else 6) * STEPS_DECADE + 1):
        factor = 10 ** (k / STEPS_DECADE)
        for up, at in ((True, start * factor), (False, start / factor)):
            value = float(round(at)) if whole else at
            if (up or now) and value >= least and value != now:
                yield up, value


def _halved(turned: Callable[[float], bool], same: float, other: float) -> float:
    """Return the step between a value that keeps the verdict and one that does not, on the far side of it."""
    for _ in range(HALVINGS):
        middle = (same + other) / 2
        same, other = (same, middle) if turned(middle) else (middle, other)
    return other


def _met(turned: Callable[[float], bool], same: float, other: float) -> float:
    """Return the same of whole numbers: the first that does not keep the verdict."""
    while abs(other - same) > 1:
        middle = float(round((same + other) / 2))
        same, other = (same, middle) if turned(middle) else (middle, other)
    return other
