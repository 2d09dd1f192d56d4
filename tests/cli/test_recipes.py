"""What `atoll recipes` says of the recipes: which of them have parts that are not their paper's own."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from atoll.cli.recipes import LEGEND, MARK, app, explain
from atoll.spec.load import demo_run, load_recipe, recipe_names, recipe_text
from atoll.spec.run import identity

OPEN = re.compile(
    r"reconstruct|not (been )?(verified|checked)|unverified|as we remember|is not known|abstract was at hand"
)
"""What headers say of parts that somebody here made up, or knows from memory alone."""


def says_so(name: str) -> bool:
    """Return whether a recipe's header says that parts are reconstructed or unverified."""
    lines = recipe_text(name).partition("\n[")[0].splitlines()
    return bool(OPEN.search(" ".join(line.removeprefix("# ") for line in lines if line.startswith("#")).lower()))


@pytest.fixture(scope="module")
def listed() -> list[str]:
    return CliRunner().invoke(app, []).stdout.splitlines()


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_marked_if_its_header_says_that_parts_are_reconstructed(name: str) -> None:
    assert bool(load_recipe(name).reconstructed) == says_so(name)


def test_the_list_marks_them_and_says_what_the_mark_means(listed: list[str]) -> None:
    marked = [name for name in recipe_names() if load_recipe(name).reconstructed]
    assert {"streaming", "sagq", "bacombo"} <= {*marked}
    assert "diloco" not in marked
    for name in recipe_names():
        (line,) = (line for line in listed if line.split()[:1] == [name])
        assert line.startswith(name + MARK) == (name in marked)
    assert LEGEND in listed


def test_data_and_the_story_of_one_say_which_parts() -> None:
    rows = json.loads(CliRunner().invoke(app, ["--json"]).stdout)["recipes"]
    assert {row["name"]: row["reconstructed"] for row in rows} == {
        name: load_recipe(name).reconstructed for name in recipe_names()
    }
    streaming, diloco = ("\n".join(explain(name, load_recipe(name))) for name in ("streaming", "diloco"))
    assert f"reconstructed  {load_recipe('streaming').reconstructed}" in streaming
    assert "reconstructed" not in diloco


def test_which_parts_are_reconstructed_is_prose_and_makes_no_other_run() -> None:
    run = demo_run()
    told = replace(run, recipe=replace(run.recipe, reconstructed="something"))
    assert identity(told) == identity(run)
