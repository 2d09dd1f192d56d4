"""Opened data: every token once an epoch, in the order all peers agree on."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import pytest

from atoll.data.order import index_of
from atoll.data.prepare import prepare
from atoll.data.samples import TokenData, open_data, open_folder
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Data, Shards

Stories = Callable[..., Path]
CONTEXT = 16


@pytest.fixture
def folder(stories: Stories, tmp_path: Path) -> Path:
    prepare([stories()], tmp_path / "data", "bytes", held_out=0.2, shard_tokens=1001)
    return tmp_path / "data"


@pytest.fixture
def data(folder: Path) -> TokenData:
    return open_folder(folder, CONTEXT, seed=5)


def test_an_epoch_predicts_every_token_once(data: TokenData) -> None:
    tokens = data.tokens("train")
    assert data.samples == (len(tokens) - 1) // CONTEXT
    rows = np.empty((data.samples, CONTEXT + 1), np.int64)
    for position in range(data.samples):
        rows[index_of(position, data.samples, 5)] = data.batch([position])[0]
    assert (rows[:, 1:].ravel() == tokens[1 : data.samples * CONTEXT + 1]).all()
    assert (rows[1:, 0] == rows[:-1, -1]).all()


def test_a_batch_is_its_samples_in_the_order_asked(data: TokenData) -> None:
    positions = [3, 0, data.samples + 1, 3]
    batch = data.batch(positions)
    assert batch.shape == (4, CONTEXT + 1)
    assert batch.dtype == np.int64
    assert all((row == data.batch([position])[0]).all() for row, position in zip(batch, positions, strict=True))


def test_samples_across_shards_equal_those_of_one_shard(data: TokenData, tmp_path: Path) -> None:
    prepare([tmp_path / "stories"], tmp_path / "whole", "bytes", held_out=0.2)
    whole = open_folder(tmp_path / "whole", CONTEXT, seed=5)
    assert len(data.manifest.shards) > len(whole.manifest.shards) == 2
    assert (data.batch(range(data.samples)) == whole.batch(range(whole.samples))).all()


def test_held_out_samples_are_the_same_for_every_run_and_cover_the_split(data: TokenData, folder: Path) -> None:
    everything = data.held_out(0, data.held_out_samples)
    other = open_folder(folder, CONTEXT, seed=6)
    assert (other.held_out(0, other.held_out_samples) == everything).all()
    assert (data.held_out(2, 3) == everything[2:5]).all()
    tokens = data.tokens("held-out")
    cut = [tokens[n * CONTEXT : n * CONTEXT + CONTEXT + 1].tolist() for n in range(data.held_out_samples)]
    assert sorted(everything.tolist()) == sorted(cut)


def test_a_sample_decodes_to_its_text(data: TokenData, tmp_path: Path) -> None:
    text = data.tokenizer().decode(data.batch([0])[0].tolist())
    assert len(text) >= CONTEXT
    assert any(text in path.read_text() for path in (tmp_path / "stories").iterdir()) or "\n" in text


def test_bits_per_byte_count_the_text_and_not_the_tokens(data: TokenData) -> None:
    split = data.manifest.held_out
    assert data.bits_per_byte(log(2)) == pytest.approx(split.tokens / split.text_bytes)


def test_other_data_than_the_run_names_is_refused(folder: Path, tmp_path: Path) -> None:
    digest = open_folder(folder, CONTEXT, 0).manifest.digest()
    spec = Data(source=Shards(path=str(folder)), context=CONTEXT, digest=digest)
    assert open_data(spec, 0, tmp_path / "home").manifest.digest() == digest
    with pytest.raises(SpecError) as caught:
        open_data(Data(source=Shards(path=str(folder)), digest="0" * 64), 0, tmp_path / "home")
    assert digest in caught.value.what
    assert "0" * 64 in caught.value.what
    assert "data.digest" in caught.value.hint


def test_a_context_longer_than_the_data_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"data\.context"):
        open_folder(folder, 1_000_000, 0)
    with pytest.raises(SpecError, match=r"data\.context"):
        open_folder(folder, 0, 0)


def test_a_changed_tokenizer_file_is_noticed(data: TokenData, folder: Path) -> None:
    path = folder / data.manifest.tokenizer.file
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(LocalError, match="hash"):
        data.tokenizer()
