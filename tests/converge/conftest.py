"""A text that trials of a few seconds read."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.data.prepare import prepare
from tests.converge.small import SENTENCE


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "some.txt").write_text("\n\n".join(SENTENCE.format(n) for n in range(40)))
    prepare([folder / "some.txt"], folder / "shards", "bytes", split="blank-lines", held_out=0.2)
    return folder / "shards"
