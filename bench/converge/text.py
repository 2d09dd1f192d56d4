"""Text for convergence trials: English documentation out of Debian packages, de-duplicated, split by whole sources.

    python -m bench.converge.text CACHE            fetch, extract, sift, and make shards in CACHE/shards
    python -m bench.converge.text CACHE --sift     the same from what was extracted before

Packages are those of `sources.txt`, of one Debian release, in the versions of `manifest.jsonl` where the archive still
has them (`bench.converge.archive`). A source is a Debian source package, so that manuals of one program are never on
both sides. What was taken from where, in which version and under which licence is written beside the list as
`manifest.jsonl`, or into the cache where it is not what was there before; the text itself stays in the cache.

    packages -- extract --> paragraphs -- sift --> documents -- atoll.data.prepare --> shards
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from bench.converge.archive import RELEASE, Package, digest, fetch, recorded
from bench.converge.extract import documents, licences
from bench.converge.sift import Paper, Row, sift
from bench.show import ending

from atoll.data.prepare import prepare

TOKENIZER = "bpe-4096"
HELD_OUT, SEED = 0.04, 1
HERE = Path(__file__).parent
SOURCES, MANIFEST = HERE / "sources.txt", HERE / "manifest.jsonl"
LICENCE = "each package's own: see bench/converge/manifest.jsonl"


def extract(deb: Path, out: Path) -> None:
    """Write a package's description and its prose, one JSON line each; nothing to do where that was done before."""
    kept, name = out / f"{deb.name.partition('_')[0]}.jsonl", digest(deb.read_bytes())
    if kept.exists() and _about(kept).blake3 == name:
        return
    about = Package(_field(deb, "Package"), _source(deb), _field(deb, "Version"), licences(deb), name)
    lines = [msgspec.json.encode(about)]
    lines += [msgspec.json.encode(Paper(path, paragraphs)) for path, paragraphs in documents(deb)]
    draft = kept.with_suffix(".draft")
    draft.write_bytes(b"\n".join(lines) + b"\n")
    draft.rename(kept)


def extracted(names: list[str], folder: Path) -> Iterator[tuple[Package, list[Paper]]]:
    """Yield what packages hold, in the order of their sources."""
    files = [folder / f"{name}.jsonl" for name in names]
    abouts = {file: _about(file) for file in files}
    for file in sorted(files, key=lambda file: (abouts[file].source, file.name)):
        _, *lines = file.read_bytes().splitlines()
        yield abouts[file], [msgspec.json.decode(line, type=Paper) for line in lines]


def _about(file: Path) -> Package:
    """Return what an extracted text is of."""
    with file.open("rb") as lines:
        return msgspec.json.decode(lines.readline(), type=Package)


def _field(deb: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", str(deb), name], check=True, capture_output=True, text=True).stdout.strip()


def _source(deb: Path) -> str:
    """Return the source package, without a version of its own."""
    return (_field(deb, "Source") or _field(deb, "Package")).partition(" ")[0]


def _write_down(rows: list[Row], cache: Path) -> None:
    """Say what text was taken from: beside the list, but in the cache where it is not what the record has."""
    record = {each.package: each.blake3 for each in recorded(MANIFEST)}
    others = [row.package for row in rows if record and record.get(row.package) != row.blake3]
    manifest = cache / MANIFEST.name if others else MANIFEST
    if others:
        print(f"another text than before, of {', '.join(others)}: {manifest}", file=sys.stderr)
    manifest.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--sift", action="store_true", help="begin with what was extracted before")
    options = parser.parse_args()
    cache: Path = options.cache
    names = SOURCES.read_text().split()
    texts = cache / "texts"
    with ending():
        if not options.sift:
            texts.mkdir(parents=True, exist_ok=True)
            if gone := fetch(names, recorded(MANIFEST), cache):
                print(f"not to be had as recorded, so the text will be another: {', '.join(gone)}", file=sys.stderr)
            debs = sorted((cache / "packages").glob("*.deb"))
            with ProcessPoolExecutor() as pool:
                list(
                    pool.map(partial(extract, out=texts), (deb for deb in debs if deb.name.partition("_")[0] in names))
                )
        rows = sift(extracted(names, texts), cache / "documents.jsonl", HELD_OUT, SEED)
        _write_down(rows, cache)
        prepare(
            [cache / "documents.jsonl"],
            cache / "shards",
            TOKENIZER,
            group_key="source",
            held_out=HELD_OUT,
            seed=SEED,
            name="documentation",
            origin=f"Debian {RELEASE}",
            licence=LICENCE,
            replace=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
