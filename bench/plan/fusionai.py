"""FusionAI's claim beside our formula for it: 50 RTX 3080 train as fast as 4 H100.

The claim is the abstract's, and an analysis. Printed apart from it is the same fleet over homes' uplinks, where it does
not hold: that row is ours and no validation, and its gate demands the collapse.
"""

from __future__ import annotations

from bench.plan.row import Basis, Gate, Row, table

from atoll.plan.limits import fusion

SOURCE = "FusionAI"


def rows() -> list[Row]:
    """Return the claim, with lines that keep up and over homes' uplinks."""
    claim = table("fusionai")[0]
    e = fusion.example()
    fast = 2 * fusion.line_needed_mbit(e)
    lines: list[tuple[str, float, Basis]] = [
        ("lines that keep up", fast, "published"),
        (f"{e.many.up_mbit:g} Mbit up", e.many.up_mbit, "ours"),
    ]
    return [
        Row(
            source=SOURCE,
            setting=f"{claim['setting']}, {where}",
            quantity=claim["quantity"],
            basis=basis,
            reference=float(claim["value"]),
            predicted=float(fusion.ratio(e, line)),
        )
        for where, line, basis in lines
    ]


def gates() -> list[Gate]:
    """Return what is demanded: equal peaks, parity while sending is shorter than computing, collapse in homes."""
    e = fusion.example()
    peaks, (fast, homes) = fusion.peak_ratio(e.many, e.few), (row.predicted for row in rows())
    return [
        Gate(source=SOURCE, demand="peaks 50 x 59.5 over 4 x 756: 0.984", value=peaks, holds=abs(peaks - 0.984) < 5e-4),
        Gate(source=SOURCE, demand="throughput 0.9 to 1.1 while R < C", value=fast, holds=0.9 <= fast <= 1.1),
        Gate(source=SOURCE, demand="below 0.1 over homes' uplinks", value=homes, holds=homes < 0.1),
    ]
