"""From text to shards: split by document, the same everywhere, honest about bad input."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atoll.data.prepare import prepare
from atoll.data.samples import open_folder
from atoll.data.shards import Manifest, SplitName, read_manifest, verify
from atoll.data.tokenizer import END_ID
from atoll.errors import SpecError

Stories = Callable[..., Path]


def _documents(folder: Path, split: SplitName) -> list[str]:
    """Return the texts of one side, from its bytes-tokenized shards."""
    data = open_folder(folder, 1, 0)
    tokens = data.tokens(split)
    parts = np.split(tokens, np.flatnonzero(tokens == END_ID) + 1)
    assert parts[-1].size == 0, "a split ends with an end"
    return [data.tokenizer().decode(part.tolist()) for part in parts[:-1]]


def test_every_document_is_on_exactly_one_side(stories: Stories, tmp_path: Path) -> None:
    source = stories(count=60)
    manifest = prepare([source], tmp_path / "out", "bytes", held_out=0.2)
    train, held_out = (_documents(tmp_path / "out", split) for split in ("train", "held-out"))
    assert sorted(train + held_out) == sorted(path.read_text() for path in source.iterdir())
    assert (len(train), len(held_out)) == (manifest.train.documents, manifest.held_out.documents)
    assert 4 <= len(held_out) <= 24
    assert manifest.train.text_bytes == sum(len(text.encode()) for text in train)
    assert manifest.train.tokens == manifest.train.text_bytes + len(train)


def test_the_same_text_has_the_same_digest_wherever_it_lies(stories: Stories, tmp_path: Path) -> None:
    source = stories()
    one = prepare([source], tmp_path / "a" / "set", "bpe-300")
    two = prepare([source], tmp_path / "b" / "set", "bpe-300")
    assert one.digest() == two.digest()
    assert prepare([source], tmp_path / "c" / "set", "bpe-300", seed=1).digest() != one.digest()


def test_copies_of_a_document_are_never_on_both_sides(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text number {n % 30}"}) for n in range(90)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    prepare([tmp_path / "in.jsonl"], tmp_path / "out", "bytes", held_out=0.3)
    train, held_out = (_documents(tmp_path / "out", split) for split in ("train", "held-out"))
    assert held_out
    assert not set(train) & set(held_out)


def test_documents_of_a_group_stay_together(tmp_path: Path) -> None:
    lines = [json.dumps({"body": f"{n} of author {n % 20}", "author": str(n % 20)}) for n in range(100)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    prepare([tmp_path / "in.jsonl"], tmp_path / "out", "bytes", text_key="body", group_key="author", held_out=0.3)
    train, held_out = ({text.split()[-1] for text in _documents(tmp_path / "out", s)} for s in ("train", "held-out"))
    assert held_out
    assert not train & held_out


def test_adding_documents_moves_no_other_to_the_other_side(stories: Stories, tmp_path: Path) -> None:
    source = stories(count=50)
    prepare([source], tmp_path / "few", "bytes", held_out=0.2)
    prepare([source, stories(count=50, seed=2, name="more")], tmp_path / "many", "bytes", held_out=0.2)
    assert set(_documents(tmp_path / "few", "held-out")) <= set(_documents(tmp_path / "many", "held-out"))


@pytest.mark.parametrize("held_out", [1e-9, 1 - 1e-9])
def test_each_side_gets_at_least_one_document(stories: Stories, tmp_path: Path, held_out: float) -> None:
    manifest = prepare([stories(count=5)], tmp_path / "out", "bytes", held_out=held_out)
    assert min(manifest.train.documents, manifest.held_out.documents) == 1


def test_packed_and_windows_files_give_the_same_data(tmp_path: Path) -> None:
    text = "first paragraph\nof two lines\n\nsecond\n\n\n\nthird one\n"
    plain = text.encode()
    files = {
        "a.txt": plain,
        "b.txt.gz": gzip.compress(plain, mtime=0),
        "c.txt.xz": lzma.compress(plain),
        "d.txt": b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"),
    }
    digests = set()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        made = prepare([tmp_path / name], tmp_path / f"{name}.out", "bytes", split="blank-lines", name="same")
        digests.add(made.digest())
        assert made.train.documents + made.held_out.documents == 3
    assert len(digests) == 1


def test_the_tokenizer_is_learnt_from_the_training_side_only(tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": f"{word} " * 50}) for word in ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot")
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    prepare([tmp_path / "in.jsonl"], tmp_path / "out", "bpe-300", held_out=1e-9)
    data = open_folder(tmp_path / "out", 1, 0)
    held_out = data.tokenizer().decode(data.tokens("held-out").tolist()).split()[0]
    assert len(data.tokenizer().encode(f" {held_out}")) > 1
    others = {"alpha", "bravo", "charlie", "delta", "echo", "foxtrot"} - {held_out}
    assert all(len(data.tokenizer().encode(f" {word}")) == 1 for word in others)


def test_a_tokenizer_file_can_be_brought_along(stories: Stories, tmp_path: Path) -> None:
    source = stories()
    prepare([source], tmp_path / "one", "bpe-300")
    open_folder(tmp_path / "one", 8, 0).tokenizer().save(tmp_path / "model")
    manifest = prepare([source], tmp_path / "two", str(tmp_path / "model"))
    assert manifest.tokenizer.hash == read_manifest(tmp_path / "one").tokenizer.hash
    assert [shard.hash for shard in manifest.shards] == [s.hash for s in read_manifest(tmp_path / "one").shards]


def test_progress_grows_to_the_total(stories: Stories, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    source = stories()
    prepare([source], tmp_path / "out", "bpe-300", progress=lambda done, total: heard.append((done, total)))
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (3 * sum(path.stat().st_size for path in source.iterdir()),) * 2


def test_existing_data_is_only_replaced_when_asked(stories: Stories, tmp_path: Path) -> None:
    source = stories()
    first: Manifest = prepare([source], tmp_path / "out", "bytes")
    with pytest.raises(SpecError, match="already"):
        prepare([source], tmp_path / "out", "bytes", seed=5)
    assert verify(tmp_path / "out") == first
    assert prepare([source], tmp_path / "out", "bytes", seed=5, replace=True) == verify(tmp_path / "out")


def test_documents_by_file_may_be_blank_line_free(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\n\nb\n")
    with pytest.raises(SpecError) as caught:
        prepare([tmp_path / "one.txt"], tmp_path / "out", "bytes")
    assert "only one document" in caught.value.what
    assert "blank lines" in caught.value.hint
    assert prepare([tmp_path / "one.txt"], tmp_path / "out", "bytes", split="blank-lines").train.documents == 1


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("bad.txt", b"caf\xe9 \xff", "not UTF-8"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "bad.jsonl:2"),
        ("bad.jsonl", b'{"text": "a"}\n\n{"body": "b"}\n', "bad.jsonl:3"),
        ("bad.jsonl", b'{"text": 5}\n', "'text'"),
        ("bad.jsonl", b"[1]\n", "bad.jsonl:1"),
        ("bad.txt.gz", gzip.compress(b"text", mtime=0)[:-4], "damaged"),
        ("bad.txt.xz", b"nothing packed", "damaged"),
        ("bad.doc", b"text", "neither"),
        ("bad.txt", b"  \n \n", "no text"),
    ],
)
def test_bad_input_is_named_and_makes_nothing(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SpecError) as caught:
        prepare([tmp_path / name], tmp_path / "out", "bytes")
    assert said in caught.value.what
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_impossible_wishes_are_refused(stories: Stories, tmp_path: Path) -> None:
    source = stories()
    out = tmp_path / "out"
    calls: list[Callable[[], Manifest]] = [
        lambda: prepare([source], out, "bytes", held_out=1.0),
        lambda: prepare([source], out, "bytes", shard_tokens=0),
        lambda: prepare([source], out, "bpe-12"),
        lambda: prepare([source], out, "no-such-tokenizer"),
        lambda: prepare([source], source / "0000.txt", "bytes"),
        lambda: prepare([tmp_path / "absent"], out, "bytes"),
        lambda: prepare([], out, "bytes"),
    ]
    for call in calls:
        with pytest.raises(SpecError) as caught:
            call()
        assert caught.value.hint
