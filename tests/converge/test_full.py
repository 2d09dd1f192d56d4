"""Ways at full size: in full they come to what the simulated world comes to, and what is left out costs something."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.converge import full
from bench.converge.full import Seen, seen
from bench.converge.lost import End, looked
from bench.converge.tries import delta
from bench.converge.ways import Way, exact, sign

from tests.converge.test_lost import IN_FULL, SHORT

TRIAL = delta("muloco", 4, 2e-2, {**SHORT, **IN_FULL}, peers=2, batch=12)
AS_IT_IS = (1.0, 0.0)
WAYS = {
    "full": Way(4, exact, exact, AS_IT_IS),
    "bit": Way(4, sign, sign, AS_IT_IS),
    "seen": Way(4, sign, sign, AS_IT_IS, seen=1.0),
    "parts": Way(4, exact, exact, AS_IT_IS, fragments=2, named=("embed_tokens",)),
    "again": Way(4, exact, exact, AS_IT_IS),
}


@pytest.fixture(scope="module")
def came(shards: Path) -> dict[str, Seen]:
    """Judged by all that was held out, as trials are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(full, "EIGHTH", 1)
        return {row.way: row for row in seen(TRIAL, WAYS, shards, "cpu")}


def test_in_full_it_is_what_the_simulated_world_comes_to(came: dict[str, Seen], shards: Path) -> None:
    ends = [row for row in looked(TRIAL, shards, "cpu", 1) if isinstance(row, End)]
    assert came["full"].bits_per_byte == pytest.approx(ends[0].bits_per_byte, abs=1e-5)


def test_a_way_knows_nothing_of_the_one_before_it(came: dict[str, Seen]) -> None:
    assert came["again"].bits_per_byte == came["full"].bits_per_byte


def test_what_is_left_out_costs_something_and_less_where_it_is_not_felt(came: dict[str, Seen]) -> None:
    assert came["full"].bits_per_byte < came["seen"].bits_per_byte < came["bit"].bits_per_byte


def test_parts_that_go_by_name_have_as_many_rounds_each(shards: Path, came: dict[str, Seen]) -> None:
    """And come near to what comes of all at once."""
    assert came["parts"].bits_per_byte != came["full"].bits_per_byte
    assert came["parts"].bits_per_byte == pytest.approx(came["full"].bits_per_byte, rel=0.05)


def test_a_shorter_look_at_other_rates_is_another(shards: Path, came: dict[str, Seen]) -> None:
    some = {"full": WAYS["full"]}
    (half,) = seen(TRIAL, some, shards, "cpu", steps=8)
    (slow,) = seen(TRIAL, some, shards, "cpu", pace=0.1)
    assert half.loss > came["full"].loss
    assert slow.loss > came["full"].loss
