"""`--memory` and `--line`: quantities as people write them, or an error that says how; none given is no limit."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from atoll.cli.machine import line_bytes_s, memory_bytes
from atoll.errors import SpecError
from tests.world.warm import atoll

DEMO = Path(str(files("atoll"))) / "spec" / "examples" / "demo.toml"


@pytest.mark.parametrize(("text", "size"), [("", 0), ("2 GiB", 2**31), ("500MB", 500 * 10**6), ("1.5 gb", 15 * 10**8)])
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "2", "2 parsecs", "-1 GB", "0 GB", "0.1 b", "1e400 GB", "1e30 GB", "2 Gbit"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SpecError, match="--memory") as refused:
        memory_bytes(text)
    assert "2 GiB" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "rate"), [("", 0), ("1 Gbit/s", 125 * 10**6), ("100mbit", 12_500_000), ("3 MB/s", 3_000_000)]
)
def test_a_line_is_read_as_people_write_it(text: str, rate: int) -> None:
    assert line_bytes_s(text) == rate


@pytest.mark.parametrize("text", ["fast", "100", "-1 Gbit", "0 bit", "1e400 Gbit"])
def test_what_is_no_line_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SpecError, match="--line") as refused:
        line_bytes_s(text)
    assert "bit/s" in refused.value.hint


@pytest.mark.parametrize("words", [("join", "atoll1abc"), ("train", str(DEMO))], ids=["join", "train"])
def test_a_slip_of_the_pen_is_reported_before_anything_begins(words: tuple[str, str], tmp_path: Path) -> None:
    done = atoll(*words, "--home", str(tmp_path / "home"), "--memory", "much")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: --memory: 'much' is not a quantity",
        "hint: write a number and a unit, for example '2 GiB'",
    ]
    assert not (tmp_path / "home").exists()
