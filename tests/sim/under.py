"""The storms of `skies` under another recipe: what the weather is does not depend on that."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest
from _pytest.mark import ParameterSet
from msgspec.structs import replace

from atoll.sim.case import Case
from atoll.sim.skies import case_of, family_of
from atoll.spec.recipe import Recipe


def under(recipe: Recipe, seed: int) -> Case:
    """Return the storm of a seed, over a run with this recipe."""
    drawn = case_of(family_of(seed), seed)
    return replace(drawn, run=replace(drawn.run, recipe=recipe))


def few_of(seeds: Iterable[int], quick: Container[int]) -> list[ParameterSet]:
    """Return seeds as parameters of a test: a few for `make test`, the others for `make long`."""
    return [pytest.param(seed, marks=() if seed in quick else pytest.mark.long) for seed in seeds]
