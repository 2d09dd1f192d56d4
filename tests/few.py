"""Which examples of a test are for every day."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest
from _pytest.mark import ParameterSet


def few_of(every: Iterable[object], quick: Container[object]) -> list[ParameterSet]:
    """Return the examples of a test: few for `make test`, the others for `make long`; a tuple is several arguments."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=() if each in quick else pytest.mark.long)
        for each in every
    ]
