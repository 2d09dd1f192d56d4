import pytest
from bench.plan.gaps import CASES, ROUNDING, Case, gaps

SLOW = ("chain beyond 8 peers", "fence (FusionLLM)", "depth (Varuna)", "islands (Holmes)")
"""Brute force takes a second or so for each of their fleets."""


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in SLOW], ids=lambda case: case.name)
def test_on_a_few_fleets_a_solver_is_within_its_stated_gap(case: Case) -> None:
    assert max(gaps(case, fleets=2).ours) <= case.stated + ROUNDING


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_fifty_fleets_a_solver_is_within_its_gap_and_beats_greedy_and_luck(case: Case) -> None:
    assert gaps(case).holds
