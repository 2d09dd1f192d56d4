"""Failures and waiting, as large runs reported them: Llama 3's interruptions, INTELLECT-1's utilisation.

How long a save stopped Llama 3 is not published: 30 s is taken, and what is demanded is only what the report claims,
that more than 90 % of the time was of use. The two traces of nodes beside this are Bamboo's (github.com/uclasystem/
bamboo, milliseconds, kind, name), without figures of their own to compare with.
"""

from __future__ import annotations

from bench.plan.row import Gate, Row, table

from atoll.plan.money.checkpoint import mtbf_h, saving
from atoll.plan.money.samples import granularity, utilisation

FAILURES_DEVICE_HOUR = 2.0e-5
"""What plans for data centres assume; it comes from this very report, so its row says only that it was rounded well."""
SAVE_S = 30.0


def rows() -> list[Row]:
    """Return what was reported beside what the formulas say."""
    return [*_llama_rows(), *_intellect_rows()]


def gates() -> list[Gate]:
    """Return what is demanded of them."""
    interrupted, effective = _llama_rows()
    worst = max(abs(row.error) for row in _intellect_rows())
    return [
        Gate(
            source="Llama 3",
            demand="interruptions in 54 days within 5 %",
            value=interrupted.error,
            holds=abs(interrupted.error) <= 0.05,
        ),
        Gate(
            source="Llama 3",
            demand="more than 90 % of the time is of use with saves of 30 s",
            value=effective.predicted,
            holds=effective.predicted > effective.published,
        ),
        Gate(
            source="INTELLECT-1", demand="utilisation and MFU: every row within 1 %", value=worst, holds=worst <= 0.01
        ),
    ]


def _llama_rows() -> list[Row]:
    (run,) = table("llama3")
    devices, hours = int(run["devices"]), 24 * float(run["days"])
    between_h = hours / int(run["unexpected"])
    setting = f"{devices:,} H100"
    return [
        Row(
            source="Llama 3",
            setting=setting,
            quantity="interruptions",
            published=float(run["unexpected"]),
            predicted=hours / mtbf_h(devices, FAILURES_DEVICE_HOUR),
        ),
        Row(
            source="Llama 3",
            setting=setting,
            quantity="time of use (at least)",
            published=float(run["effective"]),
            predicted=float(saving(SAVE_S, 3600 * between_h).kept),
        ),
    ]


def _intellect_rows() -> list[Row]:
    found = []
    for each in table("intellect1"):
        used = utilisation(granularity(float(each["inner_s"]), float(each["sync_s"])))
        alone = float(each["mfu_alone"])
        for quantity, predicted in (("utilisation", used), ("mfu", used * alone)):
            found.append(
                Row(
                    source="INTELLECT-1",
                    setting=each["setting"],
                    quantity=quantity,
                    published=float(each[quantity]),
                    predicted=predicted,
                )
            )
    return found
