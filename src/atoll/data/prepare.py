"""From text to token shards, as a stream.

Pass one reads every document to place it on a side of the split; pass two (only to train a tokenizer) reads the
training side; the last pass encodes. A document goes by a seeded hash of its group, or of its content
when it has none: so identical documents are never on both sides, and adding documents moves no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from atoll.data import documents
from atoll.data.documents import Document, Inputs
from atoll.data.shards import (
    MANIFEST,
    SHARD_TOKENS,
    Made,
    Manifest,
    Progress,
    Shard,
    Source,
    Split,
    SplitName,
    TokenizerFile,
    Writer,
)
from atoll.data.tokenizer import Tokenizer, bytes_tokenizer, check_vocab, load, train
from atoll.errors import SpecError

PREPARATION = 1
"""Goes up when the same text would give other shards."""
HELD_OUT = 0.02
_BATCH_CHARS = 1 << 20
_BPE = re.compile(r"bpe-(\d{1,9})")


class _Survey(msgspec.Struct, frozen=True):
    """What the first pass found."""

    bound: int
    """Documents whose place is below this are held out."""
    text_hash: str


def prepare(
    inputs: Sequence[Path],
    out: Path,
    tokenizer: str = "bpe-4096",
    *,
    split: documents.Split = "file",
    text_key: str = "text",
    group_key: str = "",
    held_out: float = HELD_OUT,
    seed: int = 0,
    name: str = "",
    origin: str = "",
    licence: str = "",
    replace: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress = lambda done_bytes, total_bytes: None,
) -> Manifest:
    """Make a data set of text files in the folder `out`; return its manifest.

    `tokenizer` is "bytes", "bpe-N" (trained here, on the training side only) or a path. An existing data set is
    replaced only when asked, and stays whole until the new one is complete.
    """
    _check(out, held_out, shard_tokens, replace)
    chosen = _parse_tokenizer(tokenizer)
    texts = Inputs(paths=documents.find(inputs), split=split, text_key=text_key, group_key=group_key)
    passes = _Passes(texts, 3 if isinstance(chosen, int) else 2, progress)
    survey = _survey(passes.read(), held_out, seed)
    side = partial(side_of, bound=survey.bound, seed=seed)
    if isinstance(chosen, int):
        chosen = train((d.text for d in passes.read() if side(d) == "train"), chosen)
    with Writer(out, chosen.vocab_size, shard_tokens) as writer:
        counts = _encode(passes.read(), side, chosen, writer)
        manifest = Manifest(
            source=Source(name=name or out.name, origin=origin, licence=licence, text_hash=survey.text_hash),
            tokenizer=_stage_tokenizer(chosen, writer),
            made=Made(
                version=PREPARATION,
                tokenizer=tokenizer if _BPE.fullmatch(tokenizer) else chosen.name,
                documents=_say_documents(texts),
                held_out=held_out,
                seed=seed,
                shard_tokens=shard_tokens,
            ),
            dtype=writer.dtype,
            shards=(shards := writer.finish()),
            train=counts["train"].split(shards, "train"),
            held_out=counts["held-out"].split(shards, "held-out"),
        )
        writer.commit(manifest)
    return manifest


def _check(out: Path, held_out: float, shard_tokens: int, replace: bool) -> None:
    if not 0 < held_out < 1:
        raise SpecError(
            f"a held-out share of {held_out} is not possible", hint="choose one between 0 and 1, such as 0.02"
        )
    if shard_tokens < 1:
        raise SpecError(f"shards of {shard_tokens} tokens are not possible", hint=f"the usual size is {SHARD_TOKENS}")
    if out.exists() and not out.is_dir():
        raise SpecError(f"{out}: there is a file of that name", hint="choose another folder")
    if (out / MANIFEST).exists() and not replace:
        raise SpecError(f"{out}: holds a data set already", hint="choose another folder, or ask to replace it")


def check_tokenizer(tokenizer: str) -> None:
    """Raise `SpecError` unless the text names the bytes or a BPE that can be trained."""
    found = _BPE.fullmatch(tokenizer)
    if found:
        check_vocab(int(found[1]))
    elif tokenizer != "bytes":
        raise SpecError(
            f"tokenizer {tokenizer!r} is not known", hint='write "bytes" or "bpe-N", for example "bpe-1024"'
        )


def _parse_tokenizer(tokenizer: str) -> Tokenizer | int:
    """Return a tokenizer, or the size of the one to train."""
    if tokenizer == "bytes" or _BPE.fullmatch(tokenizer):
        check_tokenizer(tokenizer)
        return bytes_tokenizer() if tokenizer == "bytes" else int(tokenizer.removeprefix("bpe-"))
    return load(Path(tokenizer))


class _Passes:
    """Reads the same inputs several times, with one progress over all passes."""

    def __init__(self, inputs: Inputs, count: int, progress: Progress) -> None:
        self._inputs = inputs
        self._size_bytes = inputs.size_bytes
        self._total_bytes = self._size_bytes * count
        self._progress = progress
        self._done = 0

    def read(self) -> Iterator[Document]:
        before_bytes = self._done * self._size_bytes
        self._done += 1
        yield from documents.read(self._inputs, lambda done: self._progress(before_bytes + done, self._total_bytes))


def _place(document: Document, seed: int) -> int:
    """Return where a document falls among 2**64 places, evenly and for good."""
    key = f"{seed} group {document.group}" if document.group else f"{seed} text {document.text}"
    return int.from_bytes(blake3(key.encode(), derive_key_context="atoll held-out split 1").digest(length=8), "big")


def side_of(document: Document, bound: int, seed: int) -> SplitName:
    """Return on which side of the split a document falls: below the bound it is held out."""
    return "held-out" if _place(document, seed) < bound else "train"


def _survey(texts: Iterator[Document], held_out: float, seed: int) -> _Survey:
    """Return the bound that holds out the share asked for, and at least one document on each side."""
    lowest, highest = 1 << 64, -1
    hasher = blake3()
    for document in texts:
        place = _place(document, seed)
        lowest, highest = min(lowest, place), max(highest, place)
        text = document.text.encode()
        hasher.update(len(text).to_bytes(8, "big") + text)
    if lowest >= highest:
        raise SpecError(
            "there is only one document" if lowest == highest else "there is no text",
            hint="at least two are needed, one to train on and one to hold out; blank lines can part documents",
        )
    bound = min(max(int(held_out * 2.0**64), lowest + 1), highest)
    return _Survey(bound, hasher.hexdigest())


class _Count:
    """Documents and bytes of one side so far."""

    def __init__(self) -> None:
        self.documents = 0
        self.text_bytes = 0

    def split(self, shards: tuple[Shard, ...], name: SplitName) -> Split:
        tokens = sum(shard.tokens for shard in shards if shard.split == name)
        return Split(tokens=tokens, documents=self.documents, text_bytes=self.text_bytes)


def _encode(
    texts: Iterator[Document], side: Callable[[Document], SplitName], tokenizer: Tokenizer, writer: Writer
) -> dict[SplitName, _Count]:
    """Write every document's tokens, each followed by the end, to its side."""
    counts: dict[SplitName, _Count] = {"train": _Count(), "held-out": _Count()}
    end: NDArray[np.uint32] = np.array([tokenizer.end], np.uint32)
    for batch in _batches(texts):
        for document, ids in zip(batch, tokenizer.encode_many([d.text for d in batch]), strict=True):
            split = side(document)
            writer.add(split, np.concatenate([ids, end]))
            counts[split].documents += 1
            counts[split].text_bytes += len(document.text.encode())
    return counts


def _batches(texts: Iterator[Document]) -> Iterator[list[Document]]:
    """Group documents so that encoding uses all cores and memory stays bounded."""
    batch: list[Document] = []
    chars = 0
    for document in texts:
        batch.append(document)
        chars += len(document.text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _stage_tokenizer(tokenizer: Tokenizer, writer: Writer) -> TokenizerFile:
    return TokenizerFile(
        name=tokenizer.name,
        file=writer.put("tokenizer", ".json", tokenizer.definition),
        hash=tokenizer.digest(),
        vocab_size=tokenizer.vocab_size,
        end=tokenizer.end,
        end_token=tokenizer.end_token,
    )


def _say_documents(inputs: Inputs) -> str:
    kinds = {"jsonl" if ".jsonl" in path.suffixes else inputs.split for path in inputs.paths}
    return " and ".join(sorted(kinds))
