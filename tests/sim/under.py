"""The storms of `skies` under another recipe: what the weather is does not depend on that."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest
from _pytest.mark import ParameterSet
from msgspec.structs import replace

from atoll.sim.case import play
from atoll.sim.skies import case_of, family_of
from atoll.spec.load import decode_run
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run, canonical


def run_under(recipe: Recipe, seed: int) -> Run:
    """Return the run of a seed's storm with this recipe."""
    return replace(case_of(family_of(seed), seed).run, recipe=recipe)


def read_back(run: Run) -> Run:
    """Return a run as it comes in from a file; raises `SpecError` for one that nobody could have written."""
    return decode_run(canonical(run))


def broken_under(recipe: Recipe, seed: int) -> list[str]:
    """Return which promises the storm of a seed breaks over a run with this recipe."""
    return play(replace(case_of(family_of(seed), seed), run=read_back(run_under(recipe, seed)))).broken


def few_of(seeds: Iterable[int], quick: Container[int]) -> list[ParameterSet]:
    """Return seeds as parameters of a test: a few for `make test`, the others for `make long`."""
    return [pytest.param(seed, marks=() if seed in quick else pytest.mark.long) for seed in seeds]
