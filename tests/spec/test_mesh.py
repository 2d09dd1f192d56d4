"""Which choices go with links of their own, and what is said of those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.spec.load import load_run

RUN = """
name = "mesh"
[budget]
rounds = 4
[recipe]
base = "dlion"
"""
OUTER = "recipe.channel.outer"


def load(folder: Path, *overrides: str) -> None:
    path = folder / "run.toml"
    path.write_text(RUN)
    load_run(path, overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "where", "said"),
    [
        ([f"{OUTER}.whom={{kind='all'}}"], f"{OUTER}.what.codec", "a link's own number"),
        ([f"{OUTER}.whom.pattern={{kind='neighbours'}}"], f"{OUTER}.whom", "one common anchor"),
        ([f"{OUTER}.whom.all_every=4"], f"{OUTER}.whom.all_every", "one teaches"),
        ([f"{OUTER}.whom.pattern.teach_every=1"], f"{OUTER}.whom.pattern.teach_every", "no round would be left"),
        ([f"{OUTER}.whom.pattern.pull=1.5"], f"{OUTER}.whom.pattern.pull", "1.5"),
        ([f"{OUTER}.what.codec.least=0"], f"{OUTER}.what.codec.least", "0.0 to 100.0"),
        ([f"{OUTER}.what.codec={{kind='int8'}}"], f"{OUTER}.whom", "for each link"),
        ([f"{OUTER}.what.residual={{kind='hold'}}"], f"{OUTER}.whom", "for each link"),
        ([f"{OUTER}.merge.outer={{kind='adamw', lr=1e-3}}"], f"{OUTER}.whom", "counts its steps"),
        ([f"{OUTER}.when.growth.most=64"], f"{OUTER}.when.growth.most", "64"),
        ([f"{OUTER}.barrier={{kind='quorum'}}"], f"{OUTER}.", "before everybody is in"),
    ],
)
def test_what_does_not_go_with_links_of_their_own_is_refused(
    tmp_path: Path, overrides: list[str], where: str, said: str
) -> None:
    load(tmp_path)
    with pytest.raises(SpecError) as refused:
        load(tmp_path, *overrides)
    assert where in str(refused.value)
    assert said in str(refused.value)
