"""Hiding exchanges behind work: how late results are, how much is sent and of how large a batch, chosen together.

Who waits for an exchange loses all that it takes; who goes on with the next rounds meanwhile loses only what it takes
longer than their work. As many are under way as results are late by, and share the lines:

    waiting             round = work + exchange
    some rounds late    round = max(work, bytes, exchange / rounds)

Less is sent in less time, but a run then needs more rounds, and lateness makes that worse, the more so the less is
sent. So a position of the knobs costs its round's length times as many rounds as the recipe's rule says, and the
cheapest is taken. Where several hide an exchange wholly that is the one that sends most, as late as need be and no
later. A larger batch has more work to hide an exchange behind, and to share it among, but a run then reads more: what
a round takes counts by the sample, times as many as a run needs of such batches. That is the critical batch of
McCandlish et al. (2018): to come as far takes 1 + batch / critical times the samples that small batches would. Knobs
stay while nothing is clearly cheaper.
"""

from __future__ import annotations

from itertools import product

from atoll.spec.axes.control import Form, Hide, Knobs
from atoll.spec.knobs import part_sent
from atoll.spec.say import kind
from atoll.swarm.policy.forecast import View
from atoll.units import say_time

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
    places = [
        Knobs(rung=rung, steps=steps, delay=delay, samples=samples)
        for rung, delay, samples in product(rungs, delays, view.batches)
    ]
    return min(places, key=lambda knobs: cost_s(hide, view, knobs))


def cost_s(hide: Hide, view: View, knobs: Knobs) -> float:
    """Return how long a round takes, times how many more a run needs that sends less, later and of smaller batches."""
    worse = hide.amplify**knobs.delay / part_sent(hide.ladder[knobs.rung].codec) - 1
    return round_s(view, knobs) * (1 + hide.penalty * worse) * _rounds(hide, view.drawn(knobs.samples))


def _rounds(hide: Hide, samples: int) -> float:
    """Return how many rounds of such batches a run needs, up to a factor that is the same for all."""
    return 1.0 if hide.batch is None else 1 / samples + 1 / hide.batch.critical


def round_s(view: View, knobs: Knobs) -> float:
    """Return how long a round takes."""
    work_s, exchange_s = view.work_s(knobs), view.exchange_s(knobs.rung)
    bytes_s = view.wire_s * view.ratios[knobs.rung]
    return max(work_s, bytes_s, exchange_s / knobs.delay) if knobs.delay else work_s + exchange_s


def _why(hide: Hide, view: View, now: Knobs, wanted: Knobs) -> str:
    """Return the arithmetic in words."""
    work_s = view.work_s(now)
    exchange_s, rest_s = view.exchange_s(now.rung), view.rest_s
    before_s, after_s = say_time(round_s(view, now)), say_time(round_s(view, wanted))
    return (
        f"work takes {say_time(work_s)}, an exchange {say_time(exchange_s)}, of which {say_time(rest_s)} are not for "
        f"bytes: a round of {before_s} becomes one of {after_s} with "
        f"{_said(hide.ladder[wanted.rung], wanted)}, and all of them together "
        f"{cost_s(hide, view, wanted) / cost_s(hide, view, now):.2f} times as long"
    )


def _said(form: Form, knobs: Knobs) -> str:
    late = f", results {'a round' if knobs.delay == 1 else f'{knobs.delay} rounds'} late" if knobs.delay else ""
    batch = f", batches of {knobs.samples} samples" if knobs.samples else ""
    return f"{kind(form.codec)} of {part_sent(form.codec):.3g} of all values{late}{batch}"
