"""What an audit came to, for programs and for people: a few rows and one sentence.

With the data manifest positions are also told as epochs: an epoch is one pass over all samples, in an order of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from atoll.observe.ledger import Ledger


def epochs(ledger: Ledger) -> tuple[int, dict[int, int]]:
    """Return how many epochs were counted whole, and of the others begun how many samples."""
    size, whole, partly = ledger.epoch_samples, 0, Counter[int]()
    for start, end in ledger.counted.pairs if size else ():
        assert size, "asked above"
        first, last = -(-start // size), end // size
        whole += max(0, last - first)
        if last < first:  # inside one epoch
            partly[last] += end - start
        else:
            partly[first - 1] += first * size - start
            partly[last] += end - last * size
    return whole, {epoch: counted for epoch, counted in sorted(partly.items()) if counted}


def summary(ledger: Ledger) -> dict[str, Any]:
    """Return the ledger for programs."""
    whole, partly = epochs(ledger)
    return {
        "schema": "atoll.ledger/1",
        "ok": not ledger.findings,
        "journals": [
            {"file": str(book.path), "peer": book.peer, "rounds": len(book.versions)} for book in ledger.books
        ],
        "rounds": {"committed": ledger.committed, "voided": ledger.voided, "open": ledger.open_rounds},
        "positions": {
            "handed": ledger.handed,
            "counted": len(ledger.counted),
            "waiting": len(ledger.waiting),
            "open": len(ledger.open),
        },
        "tokens": ledger.tokens,
        "context": ledger.context,
        "epochs": {"samples": ledger.epoch_samples, "whole": whole, "partly": partly},
        "leases": {peer: {"taken": taken, "counted": ins} for peer, (taken, ins) in sorted(ledger.leases.items())},
        "notes": ledger.notes,
        "findings": msgspec.to_builtins(ledger.findings),
    }


def text(ledger: Ledger) -> str:
    """Return the ledger as people read it."""
    rows = [("journals", f"{book.peer} ({len(book.versions)} rounds), {book.path}") for book in ledger.books]
    rows.append(("rounds", f"{ledger.committed} committed, {ledger.voided} voided, {ledger.open_rounds} still open"))
    rows.append(
        (
            "positions",
            f"{ledger.handed} handed out: {len(ledger.counted)} counted, {len(ledger.waiting)} waiting to be handed "
            f"out again, {len(ledger.open)} in the open round",
        )
    )
    sample = f" ({ledger.context} a sample)" if ledger.context else ""
    rows.append(("tokens", f"{ledger.tokens}{sample}"))
    rows += [("leases", f"{peer} took {n}, {ins} counted") for peer, (n, ins) in sorted(ledger.leases.items())]
    rows += _epoch_rows(ledger)
    rows += [("note", note) for note in ledger.notes]
    rows += [("finding", finding.what) for finding in ledger.findings]
    rows.append(("verdict", verdict(ledger)))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _epoch_rows(ledger: Ledger) -> Iterator[tuple[str, str]]:
    whole, partly = epochs(ledger)
    once = "" if any(finding.kind == "twice" for finding in ledger.findings) else ", each once"
    if whole:
        yield "epochs", f"{whole} whole, of {ledger.epoch_samples} samples{once}"
    for epoch, counted in partly.items():
        yield "epoch", f"number {epoch}: {counted} of {ledger.epoch_samples} samples counted{once}"


def verdict(ledger: Ledger) -> str:
    """Return the one sentence that matters."""
    if not ledger.findings:
        return f"sound: of {ledger.handed} samples handed out none was lost and none was counted twice"
    count = len(ledger.findings)
    return f"not sound: {count} finding{'s' if count > 1 else ''}; see above"
