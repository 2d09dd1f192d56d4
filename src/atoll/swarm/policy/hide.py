"""Hiding exchanges behind work: how late results are and how much of each contribution is sent, chosen together.

Who waits for an exchange loses all that it takes; who goes on with the next rounds meanwhile loses only what it takes
longer than their work. As many are under way as results are late by, and share the lines:

    waiting             round = work + exchange
    some rounds late    round = max(work, bytes, exchange / rounds)

Less is sent in less time, but a run then needs more rounds, and lateness makes that worse, the more so the less is
sent. So a position of the knobs costs its round's length times as many rounds as the recipe's rule says, and the
cheapest is taken. Where several hide an exchange wholly that is the one that sends most, as late as need be and no
later. Knobs stay while nothing is clearly cheaper.
"""

from __future__ import annotations

from atoll.spec.axes.control import Form, Hide, Knobs
from atoll.spec.knobs import part_sent
from atoll.spec.say import kind
from atoll.swarm.policy.forecast import View

CHEAPER = 0.95
"""What is to take the place of the present setting costs at most so much of it."""


def decide(hide: Hide, view: View, now: Knobs) -> tuple[Knobs, str]:
    """Return how the knobs should stand, and why."""
    best = choose(hide, view, now.steps)
    if cost_s(hide, view, best) > CHEAPER * cost_s(hide, view, now):
        return now, ""
    return best, _why(hide, view, now, best)


def choose(hide: Hide, view: View, steps: int) -> Knobs:
    """Return the cheapest position; of equals the one that sends most, and waits."""
    rungs, delays = range(len(hide.ladder)), range(hide.late_max + 1)
    places = [Knobs(rung=rung, steps=steps, delay=delay) for rung in rungs for delay in delays]
    return min(places, key=lambda knobs: cost_s(hide, view, knobs))


def cost_s(hide: Hide, view: View, knobs: Knobs) -> float:
    """Return how long a round takes, times how many more rounds a run needs that sends less, and later."""
    worse = hide.amplify**knobs.delay / part_sent(hide.ladder[knobs.rung].codec) - 1
    return round_s(view, knobs) * (1 + hide.penalty * worse)


def round_s(view: View, knobs: Knobs) -> float:
    """Return how long a round takes."""
    work_s, exchange_s = knobs.steps * view.step_s, view.exchange_s(knobs.rung)
    bytes_s = view.wire_s * view.ratios[knobs.rung]
    return max(work_s, bytes_s, exchange_s / knobs.delay) if knobs.delay else work_s + exchange_s


def _why(hide: Hide, view: View, now: Knobs, wanted: Knobs) -> str:
    """Return the arithmetic in words."""
    work_s = wanted.steps * view.step_s
    exchange_s, rest_s = view.exchange_s(now.rung), view.rest_s
    parts = f"work takes {work_s:.3f} s, an exchange {exchange_s:.3f} s, of which {rest_s:.3f} s are not for bytes"
    return (
        f"{parts}: a round of {round_s(view, now):.3f} s becomes one of {round_s(view, wanted):.3f} s with "
        f"{_said(hide.ladder[wanted.rung], wanted)}, and all of them together "
        f"{cost_s(hide, view, wanted) / cost_s(hide, view, now):.2f} times as long"
    )


def _said(form: Form, knobs: Knobs) -> str:
    late = f", results {'a round' if knobs.delay == 1 else f'{knobs.delay} rounds'} late" if knobs.delay else ""
    return f"{kind(form.codec)} of {part_sent(form.codec):.3g} of all values{late}"
