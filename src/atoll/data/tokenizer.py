"""Text to numbers and back: bytes, a trained byte-level BPE, or any `tokenizer.json`.

The tokenizers made here share one layout: ids 0..255 are the bytes themselves, 256 ends a document, merges
follow in the order they were learnt. We write `tokenizer.json` ourselves from the learnt merges, so its bytes,
and hence the data's digest, do not depend on how a version of the `tokenizers` library spells its files.
This is that library's only door; the byte tokenizer works without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from atoll.errors import LocalError, SpecError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

END = "<|end|>"
END_ID = 256
VOCAB_MAX = 1 << 20
_ENDS_KNOWN = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
_PIECE_CHARS = 1 << 20
"""Longer documents are encoded in pieces: the library's memory grows with the length of one text."""


class Tokenizer:
    """Text to token ids and back, with one token that ends a document."""

    def __init__(self, definition: bytes, end: str, name: str) -> None:
        self.definition = definition
        """The bytes of its `tokenizer.json`."""
        self.end_token = end
        self.name = name
        self._plain = definition == _definition(())
        self._backend = None if self._plain else _backend(definition, name)
        self.vocab_size, self.end = (END_ID + 1, END_ID) if self._backend is None else _sizes(self._backend, end, name)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without an end; a spelt-out special token is ordinary text."""
        ids: list[int] = self.encode_many([text])[0].tolist()
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text."""
        if self._backend is None:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
        pieces = [_pieces(text) for text in texts]
        done = iter(self._backend.encode_batch_fast([p for some in pieces for p in some], add_special_tokens=False))
        return [np.concatenate([np.asarray(next(done).ids, np.uint32) for _ in some]) for some in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; ends are left out, broken UTF-8 becomes the replacement character."""
        if self._backend is None:
            return bytes(i for i in ids if i < END_ID).decode(errors="replace")
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def digest(self) -> str:
        """Return the BLAKE3 of the definition."""
        return blake3(self.definition).hexdigest()

    def files(self) -> dict[str, bytes]:
        """Return the files `transformers.AutoTokenizer` loads it from."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self.end_token,
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
        }
        return {"tokenizer.json": self.definition, "tokenizer_config.json": json.dumps(config, indent=2).encode()}

    def save(self, folder: Path) -> None:
        """Write `files` into a Hugging Face folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files().items():
            (folder / name).write_bytes(data)


def bytes_tokenizer() -> Tokenizer:
    """Return the tokenizer whose tokens are the bytes."""
    return Tokenizer(_definition(()), END, "bytes")


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE learnt from `texts`; the same texts give the same tokenizer everywhere."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    check_vocab(vocab_size)
    learner = Backend(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,  # the end is added afterwards
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return Tokenizer(_definition([(a, b) for a, b in merges]), END, f"bpe-{vocab_size}")


def check_vocab(vocab_size: int) -> None:
    """Raise `SpecError` unless a BPE of that many tokens can be trained."""
    if not END_ID + 1 < vocab_size <= VOCAB_MAX:
        raise SpecError(
            f"a tokenizer of {vocab_size} tokens cannot be trained",
            hint=f'256 bytes and an end are always there: write "bpe-N" with N from {END_ID + 2} to {VOCAB_MAX}',
        )


def load(path: Path, end: str = "") -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` or of a Hugging Face folder; `end` names its end token."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        definition = file.read_bytes()
    except OSError as error:
        raise SpecError(
            f"{file}: cannot read the tokenizer ({error.strerror})",
            hint='give "bytes", "bpe-N", a tokenizer.json or a folder that holds one',
        ) from error
    return Tokenizer(definition, end or _find_end(file, definition), file.parent.name or file.name)


def _find_end(file: Path, definition: bytes) -> str:
    """Return the end token its configuration names, or a well-known one it contains."""
    config = file.with_name("tokenizer_config.json")
    if config.is_file():
        named = _decode_json(config.read_bytes(), config).get("eos_token")
        named = named.get("content") if isinstance(named, dict) else named
        if isinstance(named, str):
            return named
    backend = _backend(definition, str(file))
    for token in _ENDS_KNOWN:
        if backend.token_to_id(token) is not None:
            return token
    raise SpecError(
        f"{file}: which token ends a document is not said",
        hint=f'put a tokenizer_config.json with "eos_token" beside it, or use one of: {", ".join(_ENDS_KNOWN)}',
    )


def _decode_json(data: bytes, file: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise SpecError(f"{file}: not JSON as expected: {error}", hint="download the tokenizer again") from error


def _backend(definition: bytes, name: str) -> Backend:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(definition.decode())
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        raise LocalError(f"{name}: not a tokenizer.json: {error}", hint="is the file complete? get it again") from error
    backend.encode_special_tokens = True  # or text that spells an end token could end its own document
    backend.no_truncation()
    backend.no_padding()
    return backend


def _sizes(backend: Backend, end: str, name: str) -> tuple[int, int]:
    """Return vocabulary size (ids may have gaps) and the end's id."""
    end_id = backend.token_to_id(end)
    if end_id is None:
        raise SpecError(f"{name}: the tokenizer has no token {end!r}", hint="name the token that ends a document")
    return max(backend.get_vocab(with_added_tokens=True).values()) + 1, end_id


def _pieces(text: str) -> list[str]:
    """Cut a long text into pieces, at ends of lines where there are any."""
    pieces = []
    while len(text) > _PIECE_CHARS:
        cut = text.rfind("\n", 1, _PIECE_CHARS) + 1 or _PIECE_CHARS
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def _definition(merges: Sequence[tuple[str, str]]) -> bytes:
    """Return our `tokenizer.json`: bytes, the end, then what the merges make."""
    vocab = {letter: byte for byte, letter in enumerate(_letters())} | {END: END_ID}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": bool(merges)}
    end = {"id": END_ID, "content": END, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | {"special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }
    return json.dumps(content, ensure_ascii=False).encode()


def _letters() -> list[str]:
    """Return the letter that stands for each byte in a byte-level `tokenizer.json`.

    Printable Latin-1 stands for itself; the other bytes take the letters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
