"""Which examples of a test are for every day."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def few_of(every: Iterable[object], quick: Collection[object]) -> list[ParameterSet]:
    """Return the examples of a test: few for `make test`, the others for `make long`; a tuple is several arguments.

    Each of the few must be an example: a name that nothing has any more would leave `make test` without it unseen.
    """
    examples = list(every)
    assert quick, "none is for every day: mark the test as long"
    assert all(each in examples for each in quick), f"no examples: {[each for each in quick if each not in examples]}"
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=() if each in quick else pytest.mark.long)
        for each in examples
    ]
