"""From whom parts are taken: the fast are asked most, nobody twice for the same, and by lot now and then anybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.spec.axes.whom import Circles, Segments
from atoll.swarm.log import CIRCLES, Key
from atoll.swarm.routes.circles import circles_of
from atoll.swarm.routes.sources import sources_of

FAST, SLOW = 10_000_000, 1_000_000


def names(count: int) -> tuple[bytes, ...]:
    return tuple(bytes([i // 256, i % 256]) * 16 for i in range(count))


def asked(pattern: Segments, rates: Sequence[int], turn: int = 0) -> Counter[int]:
    """Return how many parts each member is asked for in a round."""
    found = sources_of(pattern, turn, names(len(rates)), rates)
    return Counter(source for _, _, sources in found for source in sources)


@settings(max_examples=60)
@given(some.integers(1, 12), some.integers(1, 6), some.integers(1, 5), some.sampled_from([0.0, 0.3, 1.0]), some.data())
def test_every_part_is_taken_of_as_many_others_and_of_nobody_twice(
    members: int, count: int, sources: int, explore: float, data: some.DataObject
) -> None:
    rates = data.draw(some.lists(some.integers(0, FAST), min_size=members, max_size=members))
    found = list(sources_of(Segments(count=count, sources=sources, explore=explore), 3, names(members), rates))
    assert sorted((taker, part) for taker, part, _ in found) == [(t, p) for t in range(members) for p in range(count)]
    for taker, _, chosen in found:
        assert len(set(chosen)) == len(chosen) == min(sources, members - 1)
        assert taker not in chosen


def test_who_is_asked_follows_the_rates_and_no_line_is_needed_much_longer_than_another() -> None:
    rates = [FAST] * 8 + [SLOW] * 2
    parts = asked(Segments(count=10, sources=2, explore=0.0), rates)
    needed_s = [parts[place] / rate for place, rate in enumerate(rates)]
    assert sum(parts.values()) == 10 * 10 * 2
    assert max(needed_s) <= 1.2 * (200 / sum(rates)), "as soon as all lines together could be"
    by_lot = asked(Segments(count=10, sources=2, explore=1.0), rates)
    assert max(parts[8], parts[9]) / SLOW < 0.25 * max(by_lot[8], by_lot[9]) / SLOW


def test_a_line_that_is_not_known_is_taken_for_a_usual_one_and_with_equal_lines_all_are_asked_alike() -> None:
    even = asked(Segments(count=4, sources=2, explore=0.0), [0] * 6)
    assert set(even.values()) <= {7, 8, 9}
    assert asked(Segments(count=4, sources=2, explore=0.0), [FAST, FAST, FAST, 0, FAST, FAST]) == even


def test_by_lot_everybody_is_asked_sooner_or_later_and_another_round_is_another_draw() -> None:
    pattern = Segments(count=10, sources=1, explore=0.1)
    rates = [FAST] * 9 + [1]
    assert sum(asked(pattern, rates, turn)[9] for turn in range(10)) > 0
    assert not sum(asked(Segments(count=10, sources=1, explore=0.0), rates, turn)[9] for turn in range(10))
    assert asked(pattern, rates, 1) != asked(pattern, rates, 2)


@pytest.mark.parametrize("slow", [0, 4])
def test_models_come_nearer_to_each_other_in_every_round(slow: int) -> None:
    """Though hardly anything is taken of slow lines: theirs take from the others."""
    count, chunks, members = 16, 20, names(16)
    rates = (*[FAST] * (count - slow), *[SLOW] * slow)
    pattern = Circles(pattern=Segments(count=10, sources=2))
    models = np.random.default_rng(0).standard_normal((count, chunks))
    at, spread = {peer: place for place, peer in enumerate(members)}, [float(models.var(axis=0).mean())]
    for version in range(1, 9):
        after = models.copy()
        for circle in circles_of(pattern, Key("outer", version, scope=CIRCLES), members, rates):
            part = list(circle.chunks(chunks))
            after[at[circle.takers[0]], part] = models[[at[p] for p in circle.givers]][:, part].mean(axis=0)
        models = after
        spread.append(float(models.var(axis=0).mean()))
    assert all(later < 0.7 * before for before, later in pairwise(spread))
    assert spread[-1] < 1e-2 * spread[0]
