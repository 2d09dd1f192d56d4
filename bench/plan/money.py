"""Failures and waiting, as large runs reported them: Llama 3's interruptions, INTELLECT-1's utilisation.

How long a save stopped Llama 3 is not published: 30 s is taken, and what is demanded is only what the report claims,
that more than 90 % of the time was of use. How often machines of data centres fail the table of failures knows from
this very report, so that its count is no row: the gate holds the table to it. INTELLECT-1's utilisation follows from 38
minutes of local steps and the median length of its exchanges. The two traces of nodes beside this are Bamboo's
(github.com/uclasystem/bamboo, milliseconds, kind, name), without figures of their own to compare with.
"""

from __future__ import annotations

from bench.plan.row import Gate, Row, table

from atoll.facts.book import load_facts
from atoll.plan.cost.local import computed_part
from atoll.plan.money.checkpoint import mtbf_h, saving

SAVE_S = 30.0
POINTS_MAX = 0.01


def rows() -> list[Row]:
    """Return what was reported beside what the formulas say."""
    return [_llama_row(), *_intellect_rows()]


def gates() -> list[Gate]:
    """Return what is demanded of them."""
    effective, told = _llama_row(), _told()
    worst = max(abs(row.error) for row in _intellect_rows())
    points = max(abs(row.predicted - row.reference) for row in _intellect_rows() if row.quantity == "utilisation")
    return [
        Gate(
            source="Llama 3",
            demand="the table of failures says its interruptions again, within 0.1 % (an input, no prediction)",
            value=told,
            holds=abs(told) <= 0.001,
        ),
        Gate(
            source="Llama 3",
            demand="more than 90 % of the time is of use with saves of 30 s",
            value=effective.predicted,
            holds=effective.predicted > effective.reference,
        ),
        Gate(
            source="INTELLECT-1",
            demand=f"utilisation within {POINTS_MAX:.0%} points",
            value=points,
            holds=points <= POINTS_MAX,
        ),
        Gate(
            source="INTELLECT-1", demand="utilisation and MFU: every row within 1 %", value=worst, holds=worst <= 0.01
        ),
    ]


def _told() -> float:
    """Return how far off the interruptions are that the table of failures has been made from."""
    (run,) = table("llama3")
    between_h = mtbf_h(int(run["devices"]), load_facts().failure("datacenter").rate_hour)
    return 24 * float(run["days"]) / between_h / int(run["unexpected"]) - 1


def _llama_row() -> Row:
    (run,) = table("llama3")
    between_h = 24 * float(run["days"]) / int(run["unexpected"])
    return Row(
        source="Llama 3",
        setting=f"{int(run['devices']):,} H100, saves of {SAVE_S:g} s assumed",
        quantity="time of use (at least)",
        reference=float(run["effective"]),
        predicted=float(saving(SAVE_S, 3600 * between_h).kept),
    )


def _intellect_rows() -> list[Row]:
    found = []
    for each in table("intellect1"):
        used = computed_part(float(each["inner_s"]), float(each["sync_s"]))
        alone = float(each["mfu_alone"])
        for quantity, predicted in (("utilisation", used), ("mfu", used * alone)):
            found.append(
                Row(
                    source="INTELLECT-1",
                    setting=each["setting"],
                    quantity=quantity,
                    reference=float(each[quantity]),
                    predicted=predicted,
                )
            )
    return found
