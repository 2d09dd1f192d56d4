"""The runs that benchmarks play: a small model on the text that ships with Atoll, and what each changes of that."""

from __future__ import annotations

import json

FOR_EVER = 10**6
"""Rounds of a run that is ended from outside."""

_BASE: dict[str, object] = {
    "model.kind": "fresh",
    "model.size": "tiny",
    "data.context": 64,
    "data.source.kind": "corpus",
    "data.source.name": "austen",
    "data.source.tokenizer": "bytes",
    "recipe.base": "diloco",
    "budget.rounds": FOR_EVER,
}


def run_text(name: str, changes: dict[str, object]) -> str:
    """Return a run file: the common keys and these, by their paths."""
    keys = {"name": name, **_BASE, **changes}
    return "".join(f"{path} = {json.dumps(value)}\n" for path, value in keys.items())
