"""A choice on an axis as people read it: its kind, and what is set of it, in the words of a recipe file.

    top-k (keep = 64, block = 4096, values = buckets (bits = 2, width = 6))

What is off, zero or not there is left out: it is the choice itself then, and nothing to look at.
"""

from __future__ import annotations

from typing import Any


def kind(choice: Any) -> str:
    """Return the word by which a recipe file names a choice; empty: there is no other."""
    return str(choice.__struct_config__.tag or "")


def say(choice: Any) -> str:
    """Return a choice as text."""
    known = {field: getattr(choice, field) for field in choice.__struct_fields__}
    told = ", ".join(f"{field} = {_value(value)}" for field, value in known.items() if value not in (False, 0, None))
    return f"{kind(choice)} ({told})".lstrip() if told else kind(choice)


def _value(value: Any) -> str:
    if hasattr(value, "__struct_config__"):
        return say(value)
    if isinstance(value, tuple):
        return " / ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is True else str(value)
