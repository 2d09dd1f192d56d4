"""What every choice on an axis is: a record of its own, strict and immutable."""

from __future__ import annotations

from msgspec import Struct


class Axis(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Base of a choice on an axis: strict, immutable, defaults left out of the canonical form."""
