"""What every rule is made of: where, what is wrong, what to do."""

from __future__ import annotations

import re

from atoll.spec.strict import KeyPath

Rule = tuple[bool, KeyPath, str, str]
"""Holds, where, what is wrong otherwise, what to do."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_DIGEST = re.compile(r"^([0-9a-f]{32,128})?$")
COUNT_MAX = 2**53
"""Beyond it a float, and so another program, could not tell two counts apart."""


def named(path: KeyPath, name: str) -> Rule:
    """The name can be a folder, a key and a word of a command line."""
    hint = "use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    return bool(_NAME.match(name)), path, f"'{name[:40]}' is not a name", hint


def digest(path: KeyPath, digest: str) -> Rule:
    """A digest is one, or still missing."""
    return bool(_DIGEST.match(digest)), path, "is not a digest", "leave it out: it is filled in when the run is made"


def within(path: KeyPath, value: float, least: float, most: float | None = None) -> Rule:
    """`value` is at least `least`, and at most `most` or what every program can count to."""
    fits = least <= value <= (COUNT_MAX if most is None else most)
    allowed = f"between {least} and {most}"
    if most is None:
        allowed = f"at least {least}" if value < least else f"at most {COUNT_MAX}"
    return fits, path, f"{value} is out of range", f"it must be {allowed}"


def above(path: KeyPath, value: float) -> Rule:
    """`value` is more than nothing."""
    return value > 0, path, f"{value} is not positive", "it must be greater than 0"


def below_one(path: KeyPath, value: float) -> Rule:
    """`value` is a part that is never the whole."""
    return 0 <= value < 1, path, f"{value} is out of range", "it must be at least 0 and less than 1"
