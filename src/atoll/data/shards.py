"""Token shards: what prepared data looks like on disk.

    folder/
      manifest.json               what is here, where it came from, how it was made; its digest names the data
      tokenizer-<hash>.json       how the text became numbers
      train-00000-<hash>.bin      token ids, little-endian uint16 or uint32, documents one after the other
      held-out-00000-<hash>.bin

Files are named by their content and staged until the end; replacing `manifest.json` is the one step that
makes them the data set. So a crash, a full disk or two processes at once leave either the old data or the new.
A manifest holds no times and no paths: the same text prepared anywhere has the same digest.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Literal

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Meta, Struct
from numpy.typing import NDArray

from atoll.disk import full, is_full
from atoll.errors import AtollError, LocalError, SpecError

MANIFEST = "manifest.json"
SHARD_TOKENS = 1 << 24
_STAGED = ".staged-"
_ABANDONED_S = 86400.0
_CHUNK_BYTES = 1 << 20

SplitName = Literal["train", "held-out"]
SPLITS: tuple[SplitName, ...] = ("train", "held-out")
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="BLAKE3 in hex")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""Manifests travel between peers: a name must not be able to leave the folder."""
Count = Annotated[int, Meta(ge=0)]
Progress = Callable[[int, int], None]
"""Hears (done_bytes, total_bytes) of a long job now and then."""


class Shard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of tokens."""

    file: FileName
    split: SplitName
    tokens: Annotated[int, Meta(ge=1)]
    hash: Hash


class Split(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one side of the split holds."""

    tokens: Count
    """Ends of documents included."""
    documents: Count
    text_bytes: Count
    """UTF-8 bytes of its text: turns loss per token into bits per byte."""


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the text came from."""

    name: str
    origin: str = ""
    licence: str = ""
    text_hash: Hash
    """BLAKE3 over all documents in the order they were read."""


class TokenizerFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokenizer the shards were made with."""

    name: str
    file: FileName
    hash: Hash
    vocab_size: Annotated[int, Meta(ge=2, le=1 << 31)]
    end: Count
    """Id of the token that ends a document."""
    end_token: str


class Made(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the text became shards: what to repeat to get the same digest."""

    version: int
    tokenizer: str
    documents: str
    """What a document was: "file", "blank-lines" or "jsonl"."""
    held_out: float
    """The share of documents asked for."""
    seed: int
    shard_tokens: int


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a prepared data set; its digest is part of a run's identity."""

    format: Literal[1] = 1
    source: Source
    tokenizer: TokenizerFile
    made: Made
    dtype: Literal["uint16", "uint32"]
    train: Split
    held_out: Split
    shards: tuple[Shard, ...]

    def encoded(self) -> bytes:
        """Return the one byte form of it."""
        return msgspec.json.encode(self, order="deterministic")

    def digest(self) -> str:
        """Return the BLAKE3 of the byte form: the data's name to the world."""
        return blake3(self.encoded()).hexdigest()

    def split(self, name: SplitName) -> Split:
        """Return one side of the split."""
        return self.train if name == "train" else self.held_out

    def of(self, split: SplitName) -> list[Shard]:
        """Return the shards of one side, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def files(self) -> dict[str, tuple[str, int | None]]:
        """Return every file's hash and size (the tokenizer's size is not recorded)."""
        sizes: dict[str, tuple[str, int | None]] = {s.file: (s.hash, s.tokens * self.token_bytes) for s in self.shards}
        return sizes | {self.tokenizer.file: (self.tokenizer.hash, None)}

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in `data`, every claim about itself checked; `where` names it in errors."""
    hint = "it was edited, damaged or made by another version: prepare the data again with `atoll data prepare`"
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalError(f"{where}: not a data manifest: {error}", hint=hint) from error
    for name in SPLITS:
        said, counted = manifest.split(name).tokens, sum(shard.tokens for shard in manifest.of(name))
        if said != counted:
            raise LocalError(f"{where}: {name}: {said} tokens are claimed, its shards have {counted}", hint=hint)
    if manifest.dtype == "uint16" and manifest.tokenizer.vocab_size > 1 << 16:
        raise LocalError(f"{where}: dtype: uint16 cannot hold {manifest.tokenizer.vocab_size} tokens", hint=hint)
    if manifest.tokenizer.end >= manifest.tokenizer.vocab_size:
        raise LocalError(f"{where}: tokenizer.end: {manifest.tokenizer.end} is not in the vocabulary", hint=hint)
    if len(manifest.files()) != len(manifest.shards) + 1:
        raise LocalError(f"{where}: shards: two entries name the same file", hint=hint)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a data folder, after checking that its files are there and as long as they should be."""
    path = folder / MANIFEST
    try:
        manifest = decode_manifest(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise SpecError(
            f"{folder}: no data set here ({MANIFEST} is missing)",
            hint="check the path, or make it with `atoll data prepare INPUT --out FOLDER`",
        ) from error
    except OSError as error:
        raise LocalError(f"{path}: cannot be read ({error.strerror})", hint="check the file's permissions") from error
    for name, (_, size_bytes) in manifest.files().items():
        check_size(folder / name, size_bytes)
    return manifest


def check_size(path: Path, size_bytes: int | None) -> None:
    """Raise `LocalError` when a file of a data set is missing or has the wrong length."""
    if not path.is_file():
        raise LocalError(f"{path}: the file is missing", hint=_REPAIR)
    if size_bytes is not None and path.stat().st_size != size_bytes:
        raise LocalError(f"{path}: {path.stat().st_size} bytes long instead of {size_bytes}", hint=_REPAIR)


_REPAIR = "delete the data folder, then prepare, fetch or copy it again"


def verify(folder: Path, progress: Progress = lambda done_bytes, total_bytes: None) -> Manifest:
    """Return the manifest after comparing every file with its hash; raises `LocalError` naming the first bad one."""
    manifest = read_manifest(folder)
    total_bytes = sum((folder / name).stat().st_size for name in manifest.files())
    done_bytes = 0
    for name, (expected, _) in manifest.files().items():
        hasher = blake3()
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                done_bytes += len(chunk)
                progress(done_bytes, total_bytes)
        if hasher.hexdigest() != expected:
            raise LocalError(f"{folder / name}: its contents do not match the manifest's hash", hint=_REPAIR)
    return manifest


class Writer:
    """Stages a data set inside its folder; nothing is visible before `commit`, nothing is left after a failure."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.dtype: Literal["uint16", "uint32"] = "uint16" if vocab_size <= 1 << 16 else "uint32"
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._open: dict[SplitName, _OpenShard] = {}
        self._shards: dict[SplitName, list[Shard]] = {split: [] for split in SPLITS}
        self._staged: dict[str, Path] = {}

    def __enter__(self) -> Writer:
        with _local_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            _sweep_abandoned(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shard in self._open.values():
            shard.discard()
        for path in self._staged.values():
            path.unlink(missing_ok=True)

    def add(self, split: SplitName, tokens: NDArray[np.uint32]) -> None:
        """Append tokens to one side of the split."""
        while tokens.size:
            with _local_errors(self._folder):
                shard = self._open.get(split) or self._open.setdefault(split, _OpenShard(self._stage(), self.dtype))
                room = self._shard_tokens - shard.tokens
                shard.write(tokens[:room])
                tokens = tokens[room:]
                if shard.tokens == self._shard_tokens:
                    self._finish(split)

    def put(self, stem: str, suffix: str, data: bytes) -> str:
        """Stage a whole file; return the name it will have."""
        with _local_errors(self._folder):
            path = self._stage()
            name = f"{stem}-{blake3(data).hexdigest(length=6)}{suffix}"
            self._staged[name] = path
            with path.open("wb") as file:
                file.write(data)
                _settle(file)
        return name

    def finish(self) -> tuple[Shard, ...]:
        """Close the shards still open; return all of them, training first."""
        for split in list(self._open):
            with _local_errors(self._folder):
                self._finish(split)
        return tuple(shard for split in SPLITS for shard in self._shards[split])

    def commit(self, manifest: Manifest) -> None:
        """Make the staged files the data set of the folder; files only the former one used are removed."""
        former = _files_named(self._folder)
        with _local_errors(self._folder):
            for name, path in list(self._staged.items()):
                _replace(path, self._folder / name)
                del self._staged[name]
            sync_folder(self._folder)
            save(self._folder / MANIFEST, msgspec.json.format(manifest.encoded(), indent=2) + b"\n")
            for name in former - set(manifest.files()):
                with suppress(PermissionError):  # Windows keeps a file that another process has open
                    (self._folder / name).unlink(missing_ok=True)

    def _stage(self) -> Path:
        return self._folder / f"{_STAGED}{os.getpid()}-{secrets.token_hex(6)}"

    def _finish(self, split: SplitName) -> None:
        shard = self._open.pop(split)
        digest = shard.close()
        name = f"{split}-{len(self._shards[split]):05d}-{digest[:12]}.bin"
        self._staged[name] = shard.path
        self._shards[split].append(Shard(file=name, split=split, tokens=shard.tokens, hash=digest))


class _OpenShard:
    """A shard being written."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self.tokens = 0
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._hasher = blake3()
        self._file = path.open("wb")

    def write(self, tokens: NDArray[np.uint32]) -> None:
        data = tokens.astype(self._dtype).tobytes()
        self._file.write(data)
        self._hasher.update(data)
        self.tokens += int(tokens.size)

    def close(self) -> str:
        """Make it durable and return its hash."""
        try:
            _settle(self._file)
        except OSError:
            self.discard()
            raise
        self._file.close()
        return self._hasher.hexdigest()

    def discard(self) -> None:
        with suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self.path.unlink(missing_ok=True)


def save(path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old bytes or the new."""
    staged = path.with_name(f"{_STAGED}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with staged.open("wb") as file:
            file.write(data)
            _settle(file)
        _replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    if sys.platform == "win32":
        return  # names are durable by themselves there, and a folder cannot be opened
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _local_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full(folder, error, "data that was here before is intact") from error
        raise LocalError(f"{folder}: cannot be written ({error.strerror})", hint="check its permissions") from error


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(staged: Path, path: Path) -> None:
    try:
        os.replace(staged, path)
    except PermissionError:
        # Windows refuses while another process has the file open; its name says that its content is the same.
        if path.name == MANIFEST or not path.exists():
            raise
        staged.unlink()


def _files_named(folder: Path) -> set[str]:
    """Return the files the folder's present manifest names; none when it has no readable one."""
    try:
        return set(decode_manifest((folder / MANIFEST).read_bytes(), "").files())
    except (OSError, AtollError):
        return set()


def _sweep_abandoned(folder: Path) -> None:
    """Remove what a killed process staged long ago; a younger file may belong to one at work."""
    for path in folder.glob(f"{_STAGED}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
