"""Storms over runs whose results travel in another form than contributions: every promise holds all the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.spec.axes.codec import Bf16, Buckets, Codec, Fp32, Int8, Quantiser, Sign, Ternary, TopK
from atoll.spec.axes.what import Feedback
from atoll.spec.axes.when import Every
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

SEEDS = range(700, 760)
QUICK = (700, 703)
FORMS: list[tuple[Codec, Quantiser]] = [
    (Buckets(bits=2, width=6.0), Buckets(bits=4, width=6.0)),
    (Sign(), Int8()),
    (Sign(block=512), Ternary()),
    (Fp32(), Bf16()),
    (TopK(keep=8, block=64), Buckets(bits=2, width=6.0)),
]


def recipes(seed: int) -> Recipe:
    """Return DiLoCo in the forms of a seed, fed back by peers and by owners."""
    codec, result = FORMS[seed % len(FORMS)]
    diloco = load_recipe("diloco")
    channel = diloco.channel["outer"]
    what = replace(channel.what, codec=codec, result=result, residual=Feedback(), owners=Feedback())
    channel = replace(channel, what=what, when=Every(steps=STEPS))
    return replace(diloco, work=replace(diloco.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipes(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    runs = [run_under(recipes(seed), seed) for seed in SEEDS[: len(FORMS)]]
    assert [read_back(run) for run in runs] == runs
