"""Shards on disk: strict manifests, all or nothing, damage noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atoll.data.prepare import prepare
from atoll.data.shards import MANIFEST, Writer, decode_manifest, read_manifest, verify
from atoll.errors import LocalError, SpecError

Stories = Callable[..., Path]

_PREPARE_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from atoll.data.prepare import prepare
from atoll.errors import LocalError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    prepare([Path(sys.argv[1])], Path(sys.argv[2]), "bytes", replace=True)
except LocalError as error:
    print(error.what, "|", error.hint)
"""


@pytest.fixture
def folder(stories: Stories, tmp_path: Path) -> Path:
    prepare([stories()], tmp_path / "data", "bytes", held_out=0.2, shard_tokens=3000)
    return tmp_path / "data"


def test_a_manifest_reads_back_as_written(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert decode_manifest(manifest.encoded(), "here") == manifest
    assert len(manifest.of("train")) > 2
    assert verify(folder) == manifest


def test_files_are_exactly_those_the_manifest_names(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {MANIFEST, *read_manifest(folder).files()}


def test_the_digest_does_not_depend_on_how_the_file_is_laid_out(folder: Path) -> None:
    before = read_manifest(folder).digest()
    content = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(dict(reversed(content.items()))))
    assert read_manifest(folder).digest() == before


def _edited(folder: Path, edit: Callable[[dict[str, object]], None]) -> bytes:
    content = json.loads((folder / MANIFEST).read_bytes())
    edit(content)
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda m: m.update(colour="blue"), "colour"),
        (lambda m: m.pop("dtype"), "dtype"),
        (lambda m: m.update(format=2), "format"),
        (lambda m: m["shards"][0].update(tokens="many"), "shards"),
        (lambda m: m["shards"][0].update(tokens=1), "train"),
        (lambda m: m["shards"][0].update(file="../../etc/passwd"), "file"),
        (lambda m: m["shards"][0].update(file=".hidden"), "file"),
        (lambda m: m["shards"][0].update(hash="abc"), "hash"),
        (lambda m: m["shards"][1].update(file=m["shards"][0]["file"]), "same file"),
        (lambda m: m["tokenizer"].update(vocab_size=70000), "uint16"),
        (lambda m: m["tokenizer"].update(end=257), "tokenizer.end"),
    ],
)
def test_a_wrong_manifest_is_refused_with_file_key_and_fix(
    folder: Path, edit: Callable[[dict[str, object]], None], said: str
) -> None:
    (folder / MANIFEST).write_bytes(_edited(folder, edit))
    with pytest.raises(LocalError) as caught:
        read_manifest(folder)
    assert str(folder / MANIFEST) in caught.value.what
    assert said in caught.value.what
    assert "atoll data prepare" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"{"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(LocalError, match="from a peer"):
        decode_manifest(data, "from a peer")


def test_a_flipped_bit_is_found_and_named(folder: Path) -> None:
    victim = folder / read_manifest(folder).of("train")[1].file
    data = bytearray(victim.read_bytes())
    data[100] ^= 4
    victim.write_bytes(data)
    read_manifest(folder)  # the length is right, so opening does not notice
    with pytest.raises(LocalError) as caught:
        verify(folder)
    assert str(victim) in caught.value.what
    assert caught.value.hint


def test_a_short_or_missing_shard_is_noticed_when_opening(folder: Path) -> None:
    victim = folder / read_manifest(folder).of("held-out")[0].file
    victim.write_bytes(victim.read_bytes()[:-2])
    with pytest.raises(LocalError, match=victim.name):
        read_manifest(folder)
    victim.unlink()
    with pytest.raises(LocalError, match="missing"):
        read_manifest(folder)


def test_a_folder_without_data_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(tmp_path)
    assert "atoll data prepare" in caught.value.hint


def test_verification_reports_progress_to_the_end(folder: Path) -> None:
    heard: list[tuple[int, int]] = []
    verify(folder, lambda done_bytes, total_bytes: heard.append((done_bytes, total_bytes)))
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1] == sum((folder / name).stat().st_size for name in read_manifest(folder).files())


def test_work_that_is_never_committed_leaves_no_trace(folder: Path) -> None:
    before = _contents(folder)
    with Writer(folder, 257, shard_tokens=10) as writer:
        writer.add("train", np.arange(25, dtype=np.uint32))
        writer.put("tokenizer", ".json", b"{}")
        assert len(_contents(folder)) > len(before)
    assert _contents(folder) == before


def test_replacing_removes_the_former_files(folder: Path, stories: Stories) -> None:
    former = read_manifest(folder)
    prepare([stories(seed=2, name="other")], folder, "bytes", replace=True)
    manifest = verify(folder)
    assert manifest.digest() != former.digest()
    assert {path.name for path in folder.iterdir()} == {MANIFEST, *manifest.files()}


def test_a_damaged_data_set_can_be_replaced(folder: Path, tmp_path: Path) -> None:
    digest = read_manifest(folder).digest()
    for path in folder.glob("train-*"):
        path.write_bytes(b"")
    (folder / MANIFEST).write_bytes(b"torn")
    prepare([tmp_path / "stories"], folder, "bytes", held_out=0.2, shard_tokens=3000, replace=True)
    assert verify(folder).digest() == digest


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are a POSIX thing")
def test_a_full_disk_is_said_and_leaves_the_data_intact(folder: Path, stories: Stories) -> None:
    before = _contents(folder)
    command = [sys.executable, "-c", _PREPARE_ON_A_FULL_DISK, str(stories(name="more", seed=3, count=80)), str(folder)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert "the disk is full" in done.stdout
    assert "free some space" in done.stdout
    assert _contents(folder) == before
    verify(folder)


def test_large_vocabularies_take_four_bytes_a_token(tmp_path: Path) -> None:
    assert Writer(tmp_path, 1 << 16).dtype == "uint16"
    assert Writer(tmp_path, (1 << 16) + 1).dtype == "uint32"


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
