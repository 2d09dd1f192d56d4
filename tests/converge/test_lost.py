"""What a look at a trial's weights says: of vectors worked out by hand, and of peers whose exchange leaves nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bench.converge.lost import Book, End, Round, looked
from bench.converge.trial import Trial
from bench.converge.tries import ALONE_STEPS, CHANNEL, HELD_SIGN, Changes, ddp, delta

from atoll.errors import SpecError
from tests.converge.small import SMALL

HERE = torch.device("cpu")
SHORT = {**SMALL, "budget.rounds": 4, "recipe.work.schedule.warmup_steps": 1}
AS_IT_IS = {key: value for key, value in ALONE_STEPS.items() if ".merge." in key}
"""The outer step, which would go elsewhere by itself."""
IN_FULL = {**ALONE_STEPS, f"{CHANNEL}.what.codec.kind": "fp32", f"{CHANNEL}.what.result.kind": "fp32"}


def test_ways_are_told_apart_into_what_is_common_and_what_is_not() -> None:
    book, start = Book(2, 1, HERE), np.zeros(512, np.float32)
    both = np.ones(512, np.float32)
    own, other = (np.tile(some, 128).astype(np.float32) for some in ([1, -1, 1, -1], [1, 1, -1, -1]))
    for _ in range(2):
        book.arrives(start, start)
    for way in (both + own, both + other):  # half of each way's square is in both
        book.arrives(way, 2 * both)
    for way in (3 * both, 3 * both):
        book.arrives(way, 3 * both)
    first, second = book.rounds
    assert (first.common, second.common) == pytest.approx((0.5, 1.0))
    assert (first.behind, second.behind) == pytest.approx((1.0, 0.0)), "the anchor went as far, and elsewhere"
    assert first.again is None, "nothing was before"
    assert second.again == pytest.approx((2 / 3) ** 0.5)
    assert first.way == pytest.approx((2 * 512) ** 0.5)
    assert first.leaves["sign"] == pytest.approx((1 / 4, 1 / 6)), "of 2 a sign makes the mean, which is 1"
    assert first.own == pytest.approx(1 / 24), "half as much again as its own signs leaves 0.5, 1, -0.5 and 0"


def seen(changes: Changes, shards: Path) -> tuple[list[Round], dict[str, float]]:
    trial = delta("muloco", 4, 2e-2, {**SHORT, **changes}, peers=2, batch=12)
    rows = list(looked(trial, shards, "cpu", 1))
    rounds = [row for row in rows if isinstance(row, Round)]
    return rounds, {row.weights: row.bits_per_byte for row in rows if isinstance(row, End)}


def test_where_all_is_sent_nothing_is_behind(shards: Path) -> None:
    rounds, ends = seen(IN_FULL, shards)
    assert [each.number for each in rounds] == [1, 2, 3], "the last is not given to anybody who works on"
    assert all(each.behind < 1e-5 and 0 < each.common < 1 for each in rounds)
    assert ends["anchor"] == pytest.approx(ends["peers' mean"], abs=1e-5)
    assert ends["one peer"] != pytest.approx(ends["anchor"], abs=1e-5)
    assert ends["last 4 anchors"] > ends["anchor"], "so early in a training the last is the best"


def test_where_a_bit_is_sent_the_rest_is_with_the_peers(shards: Path) -> None:
    rounds, ends = seen({**HELD_SIGN, **AS_IT_IS}, shards)
    assert all(each.behind > 0.1 for each in rounds)
    assert ends["peers' mean"] < ends["anchor"] - 0.01


@pytest.mark.parametrize(
    "trial", [delta("eager", 4, 2e-2, SHORT, peers=2, batch=12), ddp(2e-3, 12)], ids=lambda trial: trial.recipe
)
def test_of_what_does_not_wait_for_results_or_sends_gradients_nothing_is_said(trial: Trial, shards: Path) -> None:
    with pytest.raises(SpecError, match=f"{trial.recipe}.*: peers"):
        list(looked(trial, shards, "cpu", 1))
