"""Text to numbers and back, the same everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data.tokenizer import END, END_ID, Tokenizer, bytes_tokenizer, load, train
from atoll.errors import AtollError, LocalError, SpecError

_TRAIN_AND_PRINT = """
import json, sys
from atoll.data.tokenizer import train
print(train(json.load(sys.stdin), 300).digest())
"""


@pytest.fixture(scope="module")
def bpe(story_texts: list[str]) -> Tokenizer:
    return train(story_texts, 300)


@given(text=st.text())
def test_bytes_come_back_as_the_text(text: str) -> None:
    tokenizer = bytes_tokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=50)
@given(text=st.text())
def test_a_bpe_comes_back_as_the_text(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_a_bpe_is_shorter_than_bytes_on_text_like_its_own(bpe: Tokenizer) -> None:
    text = "The gull meets the harbour until the lamp follows the tide. " * 3
    assert len(bpe.encode(text)) < len(text) / 2
    assert bpe.vocab_size == 300
    assert max(bpe.encode(text)) < 300


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_text_that_spells_the_end_does_not_end_a_document(kind: str, bpe: Tokenizer) -> None:
    tokenizer = bytes_tokenizer() if kind == "bytes" else bpe
    ids = tokenizer.encode(f"before {END} after")
    assert tokenizer.end not in ids
    assert tokenizer.decode([*ids, tokenizer.end]) == f"before {END} after"


def test_bytes_keep_their_ids_in_every_tokenizer_made_here(bpe: Tokenizer) -> None:
    vocab = json.loads(bpe.definition)["model"]["vocab"]
    plain = json.loads(bytes_tokenizer().definition)["model"]["vocab"]
    assert {token: vocab[token] for token in plain} == plain
    assert bpe.end == bytes_tokenizer().end == END_ID
    assert bytes_tokenizer().vocab_size == 257


def test_the_byte_tokenizers_file_gives_the_same_ids(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend

    text = "Grüße, 日本!\n\n  \x00 don't"
    backend = Backend.from_str(bytes_tokenizer().definition.decode())
    assert backend.encode(text).ids == list(text.encode())
    assert backend.decode(list(text.encode())) == text


def test_the_byte_tokenizer_never_changes() -> None:
    assert bytes_tokenizer().digest().startswith("2282d400eb29")


def test_training_does_not_depend_on_threads_or_hash_seeds(bpe: Tokenizer, story_texts: list[str]) -> None:
    source = Path(__file__).parents[2] / "src"
    for threads in ("1", "3"):
        env = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "PYTHONPATH": str(source)}
        command = [sys.executable, "-c", _TRAIN_AND_PRINT]
        done = subprocess.run(
            command, env=env, input=json.dumps(story_texts), capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == bpe.digest()


def test_a_saved_folder_loads_again(tmp_path: Path, bpe: Tokenizer) -> None:
    bpe.save(tmp_path / "model")
    for path in (tmp_path / "model", tmp_path / "model" / "tokenizer.json"):
        again = load(path)
        assert (again.digest(), again.end, again.vocab_size) == (bpe.digest(), bpe.end, bpe.vocab_size)
        assert again.encode("the tide meets the boat") == bpe.encode("the tide meets the boat")


def test_a_foreign_tokenizer_is_read_with_its_own_end(tmp_path: Path, bpe: Tokenizer) -> None:
    foreign = bpe.definition.replace(END.encode(), b"</s>")
    (tmp_path / "tokenizer.json").write_bytes(foreign)
    assert load(tmp_path).end_token == "</s>"
    assert load(tmp_path).end == END_ID
    (tmp_path / "tokenizer.json").write_bytes(bpe.definition.replace(END.encode(), b"[SEP]"))
    with pytest.raises(SpecError) as caught:
        load(tmp_path)
    assert "eos_token" in caught.value.hint
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "[SEP]"}}')
    assert load(tmp_path).end_token == "[SEP]"


def test_a_long_document_is_encoded_in_pieces_without_loss(bpe: Tokenizer) -> None:
    text = "a line of some length\n" * 60_000 + "no line ends here; " * 80_000
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text


def test_what_is_no_tokenizer_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path, kind in ((tmp_path / "absent.json", SpecError), (tmp_path, LocalError)):
        with pytest.raises(kind) as caught:
            load(path)
        assert str(path) in caught.value.what
        assert caught.value.hint


@pytest.mark.parametrize("size", [0, 257, 2_000_000])
def test_a_vocabulary_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(AtollError, match=str(size)):
        train(["text"], size)


def test_transformers_loads_a_saved_folder(tmp_path: Path, bpe: Tokenizer) -> None:
    pytest.importorskip("transformers")
    bpe.save(tmp_path)
    text = "the gull carries the lamp; 日本"
    code = "import sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
    code += "print(t(sys.argv[2])['input_ids'], t.eos_token_id, len(t))"
    command = [sys.executable, "-c", code, str(tmp_path), text]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == f"{bpe.encode(text)} {END_ID} 300"
