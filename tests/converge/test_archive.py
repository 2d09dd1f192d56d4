"""Packages of a record: asked of the archive's pools where apt has another version by now."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from bench.converge import archive, text
from bench.converge.archive import Package, digest, fetch, places, recorded
from bench.converge.sift import Row


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an archive's folder, which is served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    folder = tmp_path / "mirror"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        monkeypatch.setattr(archive, "MIRROR", f"http://127.0.0.1:{server.server_port}")
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder
        server.shutdown()


def package(name: str, source: str, version: str, content: bytes) -> Package:
    return Package(name, source, version, "MIT", digest(content))


def cached(cache: Path, file: str, content: bytes) -> None:
    (cache / "packages").mkdir(parents=True, exist_ok=True)
    (cache / "packages" / file).write_bytes(content)


def test_an_older_version_comes_from_the_pool_and_takes_the_newer_ones_place(mirror: Path, tmp_path: Path) -> None:
    old = package("linux-doc-6.1", "linux", "1:6.1.190-1+b2", b"old")
    there = mirror / "debian-security/pool/updates/main/l/linux/linux-doc-6.1_6.1.190-1+b2_all.deb"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"old")
    cached(tmp_path, "linux-doc-6.1_6.1.192-1_all.deb", b"new")
    assert fetch(["linux-doc-6.1"], [old], tmp_path) == []
    assert {deb.name: deb.read_bytes() for deb in (tmp_path / "packages").iterdir()} == {there.name: b"old"}


def test_what_is_gone_or_has_other_bytes_is_told_and_what_there_was_stays(mirror: Path, tmp_path: Path) -> None:
    gone, other = package("a-doc", "a", "1", b"old"), package("b-doc", "b", "1", b"old")
    there = mirror / "debian/pool/main/b/b/b-doc_1_all.deb"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"something else")
    for name in ("a-doc", "b-doc"):
        cached(tmp_path, f"{name}_2_all.deb", b"new")
    assert fetch(["a-doc", "b-doc"], [gone, other], tmp_path) == ["a-doc", "b-doc"]
    assert {deb.read_bytes() for deb in (tmp_path / "packages").iterdir()} == {b"new"}


def test_what_is_as_recorded_is_asked_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "urlopen", lambda *given, **more: pytest.fail("there was no need to ask"))
    cached(tmp_path, "a-doc_1_all.deb", b"old")
    assert fetch(["a-doc"], [package("a-doc", "a", "1", b"old")], tmp_path) == []


def test_sources_of_libraries_have_folders_by_four_letters() -> None:
    assert next(places(package("libx-doc", "libx", "2-1", b""))) == "debian/pool/main/libx/libx/libx-doc_2-1_all.deb"


def test_another_text_than_the_records_is_told_of_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, cache = tmp_path / "manifest.jsonl", tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(text, "MANIFEST", record)
    was = [Row("a-doc", "a", "1", "MIT", "first", False, 1, 1, "")]
    text._write_down(was, cache)
    text._write_down(was, cache)
    assert [each.blake3 for each in recorded(record)] == ["first"]
    assert not list(cache.iterdir())
    text._write_down([Row("a-doc", "a", "2", "MIT", "second", False, 1, 1, "")], cache)
    assert [each.blake3 for each in recorded(record)] == ["first"], "what the trials were played with"
    assert [each.blake3 for each in recorded(cache / record.name)] == ["second"]
    assert "a-doc" in capsys.readouterr().err
