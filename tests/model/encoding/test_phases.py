"""What encoding is of a recipe's work: the dearest form counts, and memory alone sets a limit to all."""

from __future__ import annotations

from typing import cast

import pytest
from bench.codec import Bench, Row
from bench.phases import CONTEXT, Model, Rates, _forms, _passes

from atoll.model.engine import TorchEngine
from atoll.spec.axes.codec import Codec, Fp16
from atoll.spec.axes.what import Residual
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import Recipe


class Size:
    """All that is asked of an engine here."""

    size = 1_000_000


class Even:
    """Every codec takes as long, but fp16 half of it."""

    def row(self, name: str, codec: Codec, rule: Residual) -> Row:
        rate = 2.0 if isinstance(codec, Fp16) else 1.0
        return Row(name, "cpu", 16.0, encode_gb_s=rate, decode_gb_s=None, copy_gb_s=10.0)

    def usual(self, codec: Codec) -> Codec:
        return codec


def parts_of(recipe: Recipe) -> dict[tuple[str, float], float]:
    rates = Rates(cast(Bench, Even()), Model(cast(TorchEngine, Size()), token_s=1e-6))
    shares = [rates.share("", recipe, *form) for form in _forms(recipe)]
    return {(each.codec, each.steps): each.whole_s / each.inner_s for each in shares}


def test_a_form_with_few_steps_is_dearer_than_a_slower_one_with_many() -> None:
    found = parts_of(load_recipe("auto"))
    dearest = max(found, key=lambda form: found[form])
    assert dearest == ("fp16, fed back", 10.0)
    assert found[dearest] == pytest.approx(4e-3 / 2.0 / (10 * load_recipe("auto").work.batch * CONTEXT * 1e-6))


@pytest.mark.parametrize("name", ["gaia", "sparseloco", "stellatrain"])
def test_from_how_many_samples_on_it_is_a_hundredth(name: str) -> None:
    rates = Rates(cast(Bench, Even()), Model(cast(TorchEngine, Size()), token_s=1e-6))
    channel, codec, steps = next(_forms(load_recipe(name)))

    def part(samples: int) -> float:
        one = rates.share(name, load_recipe(name), channel, codec, steps * samples / shipped.samples)
        assert one.samples == pytest.approx(samples)
        assert one.enough == shipped.enough
        return one.encode_s / one.inner_s

    shipped = rates.share(name, load_recipe(name), channel, codec, steps)
    assert part(shipped.enough) <= 0.01 < part(shipped.enough - 1)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("diloco", 0.0),  # it goes out as it lies there
        ("opendiloco", 2.5),  # where work began, the weights, two bytes
        ("auto", 4.5),  # and what was left out, before and now
        ("gaia", 3.5),  # what is held is not read; values are held against where work began
        ("sparse-butterfly", 4.5),
        ("powersgd", 6.5),
        ("dlion", 15.5),
    ],
)
def test_what_is_read_and_written_at_least(name: str, passes: float) -> None:
    channel, codec, _ = next(_forms(load_recipe(name)))
    assert _passes(channel, codec, bits=16.0) == passes


ENCODED = {
    (name, index): steps * load_recipe(name).work.batch
    for name in recipe_names()
    for index, (channel, codec, steps) in enumerate(_forms(load_recipe(name)))
    if _passes(channel, codec, bits=32.0)
}
"""How many samples lie between two exchanges in a form that is encoded."""


@pytest.mark.parametrize("form", ENCODED, ids=str)
def test_whoever_encodes_works_on_hundreds_of_samples_before(form: tuple[str, int]) -> None:
    """As many values are encoded whatever was worked on: with few samples that alone is more than a hundredth of it."""
    assert ENCODED[form] >= 256
