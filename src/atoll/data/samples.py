"""An opened data set: training samples in the one global order, and held-out samples.

A sample is context + 1 consecutive tokens of a split's concatenated stream, starting at a multiple of the context;
the last token of one is the first of the next, so every token but the very first is predicted once an epoch. Shards
are memory-mapped: opening costs nothing, and peers on one machine share the pages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.data import corpus
from atoll.data.order import indices_of
from atoll.data.shards import SPLITS, Manifest, SplitName, read_manifest
from atoll.data.tokenizer import END_ID, Tokenizer
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Corpus, Data

_HELD_OUT_SEED = 0
"""Held-out samples have one order for all runs, whatever their seed: losses stay comparable."""


class TokenData:
    """A data set as one run reads it."""

    def __init__(self, folder: Path, manifest: Manifest, context: int, seed: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.vocab_size = manifest.tokenizer.vocab_size
        self.context = context
        self._seed = seed
        self._streams = {split: _Stream(folder, manifest, split) for split in SPLITS}
        self.samples = self._streams["train"].samples(context)
        self.held_out_samples = self._streams["held-out"].samples(context)

    def batch(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the samples at these positions of the global order, as (positions, context + 1)."""
        return self._rows("train", indices_of(positions, self.samples, self._seed))

    def held_out(self, first: int, count: int) -> NDArray[np.int64]:
        """Return held-out samples [first, first + count), as (count, context + 1).

        They come in a fixed shuffled order, so that the first few already speak for all documents.
        """
        assert 0 <= first <= first + count <= self.held_out_samples, (first, count, self.held_out_samples)
        positions = np.arange(first, first + count, dtype=np.int64)
        return self._rows("held-out", indices_of(positions, max(1, self.held_out_samples), _HELD_OUT_SEED))

    def tokens(self, split: SplitName) -> NDArray[np.uint32]:
        """Return a whole split as one array in memory."""
        stream = self._streams[split]
        return stream.read(0, stream.tokens).astype(np.uint32)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer the shards were made with."""
        about = self.manifest.tokenizer
        path = self.folder / about.file
        tokenizer = Tokenizer(path.read_bytes(), about.end_token, about.name)
        if tokenizer.digest() != about.hash:
            raise LocalError(
                f"{path}: its contents do not match the manifest's hash", hint="copy or prepare the data again"
            )
        return tokenizer

    def bits_per_byte(self, loss: float) -> float:
        """Return a held-out loss in nats per token as bits per byte of text, comparable between tokenizers."""
        split = self.manifest.held_out
        return loss / log(2) * split.tokens / split.text_bytes

    def _rows(self, split: SplitName, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        stream = self._streams[split]
        rows = np.empty((len(indices), self.context + 1), dtype=np.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            row[:] = stream.read(index * self.context, self.context + 1)
        return rows


class _Stream:
    """The shards of one split as one sequence of tokens."""

    def __init__(self, folder: Path, manifest: Manifest, split: SplitName) -> None:
        shards = manifest.of(split)
        dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._maps = [np.memmap(folder / shard.file, dtype, "r", shape=(shard.tokens,)) for shard in shards]
        self._starts = [0, *accumulate(shard.tokens for shard in shards)]
        self.tokens = self._starts[-1]

    def samples(self, context: int) -> int:
        return max(0, (self.tokens - 1) // context)

    def read(self, first: int, count: int) -> NDArray[np.integer]:
        """Return `count` tokens from `first` on, across shards where need be."""
        assert 0 <= first < first + count <= self.tokens, (first, count, self.tokens)
        parts: list[NDArray[np.integer]] = []
        while count > 0:
            shard = bisect_right(self._starts, first) - 1
            inside = first - self._starts[shard]
            part = self._maps[shard][inside : inside + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def open_data(data: Data, seed: int, home: Path) -> TokenData:
    """Open what a run reads; a corpus that ships with Atoll is prepared under `home` the first time."""
    folder = corpus.ensure(data.source, home) if isinstance(data.source, Corpus) else Path(data.source.path)
    return open_folder(folder, data.context, seed, digest=data.digest)


def vocab_size_of(data: Data) -> int:
    """Return how many tokens a run's vocabulary has, without preparing its data."""
    if not isinstance(data.source, Corpus):
        return read_manifest(Path(data.source.path)).tokenizer.vocab_size
    kind, _, size = data.source.tokenizer.partition("-")
    return int(size) if kind == "bpe" else END_ID + 1


def open_folder(folder: Path, context: int, seed: int, digest: str = "") -> TokenData:
    """Open a prepared folder; `digest` is the manifest digest it must have, if any."""
    if context < 1:
        raise SpecError(f"data.context: {context} tokens per sample are not possible", hint="choose 1 or more")
    manifest = read_manifest(folder)
    if digest and digest != manifest.digest():
        raise SpecError(
            f"{folder}: this is not the data of the run: its digest is {manifest.digest()}, the run names {digest}",
            hint="get the run's data from a peer or make it the same way; or, for a new run, remove data.digest",
        )
    opened = TokenData(folder, manifest, context, seed)
    if opened.samples == 0:
        raise SpecError(
            f"data.context: {context} tokens per sample, but the training split has only {manifest.train.tokens}",
            hint="choose a smaller context or more data",
        )
    return opened
