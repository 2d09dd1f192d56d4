"""Named corpora: the same data on every machine, made once, by however many processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atoll.data import corpus
from atoll.data.samples import open_data
from atoll.data.shards import verify
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Corpus, Data

_OPEN_AND_PRINT = """
import sys
from pathlib import Path
from atoll.data.samples import open_data
from atoll.spec.run import Corpus, Data
print(open_data(Data(source=Corpus(tokenizer="bytes")), 0, Path(sys.argv[1])).manifest.digest())
"""


def test_the_corpus_that_ships_opens_by_name_and_never_changes(tmp_path: Path) -> None:
    data = open_data(Data(source=Corpus(tokenizer="bytes")), 0, tmp_path)
    assert data.vocab_size == 257
    assert data.manifest.train.text_bytes + data.manifest.held_out.text_bytes == 4_009_067
    assert data.manifest.train.documents + data.manifest.held_out.documents == 269
    assert data.manifest.digest() == "42b5d4f06b8cc088480679f39c7d55327529f20337046bf40e26e8cac946efc3"
    assert "public domain" in data.manifest.source.licence


def test_the_default_data_of_a_run_has_one_digest_everywhere(tmp_path: Path) -> None:
    data = open_data(Data(), 0, tmp_path)
    assert data.vocab_size == 1024
    assert data.manifest.digest() == "6a2e5a9598685c1654c51d67477514612ddb96123cea1d09f350f54931e9a0e1"
    text = data.tokenizer().decode(data.batch([0])[0].tolist())
    assert len(text.split()) > 30


def test_several_processes_may_prepare_the_same_corpus_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OPEN_AND_PRINT, str(tmp_path)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    all_of_them = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate(timeout=120)[0].strip() for process in all_of_them}
    assert [process.returncode for process in all_of_them] == [0, 0, 0, 0]
    (folder,) = (tmp_path / "data").iterdir()
    assert digests == {verify(folder).digest()}
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *verify(folder).files()}


def test_an_unknown_corpus_gets_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        corpus.ensure(Corpus(name="austin"), tmp_path)
    assert "'austen'" in caught.value.hint


def test_an_unknown_tokenizer_is_refused_before_any_work(tmp_path: Path) -> None:
    for name in ("bpe-big", "bpe-7", "../x", "tokenizer.json"):
        with pytest.raises(SpecError):
            corpus.ensure(Corpus(tokenizer=name), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_must_be_fetched_says_how(tmp_path: Path) -> None:
    with pytest.raises(LocalError) as caught:
        corpus.ensure(Corpus(name="kjv", tokenizer="bytes"), tmp_path)
    assert "atoll data fetch kjv --tokenizer bytes" in caught.value.hint


def test_a_notice_lies_beside_every_corpus_that_ships() -> None:
    folder = Path(corpus.__file__).with_name("corpora")
    notice = (folder / "NOTICE").read_text()
    shipped = {path.name for path in folder.iterdir()} - {"NOTICE"}
    assert shipped == {f"{name}.jsonl.xz" for name in corpus.EMBEDDED}
    assert all(name in notice for name in shipped)
