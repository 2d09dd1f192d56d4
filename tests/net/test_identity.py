"""A peer's key: made once, kept private, never guessed at."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.errors import LocalError
from atoll.net.identity import Identity, load, short, verify
from atoll.net.transport import PeerId


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "peer" / "key"
    made = load(path)
    assert load(path) == made
    assert path.read_bytes() == made.secret
    assert len(made.peer) == 32


def test_only_the_owner_can_read_the_key(tmp_path: Path) -> None:
    path = tmp_path / "peer" / "key"
    load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path], "no draft stays behind"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load(path)
    path.chmod(mode)
    with pytest.raises(LocalError, match="others on this machine can read") as refused:
        load(path)
    assert f"chmod 600 {path}" in refused.value.hint


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_damaged_key_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(size))
    path.chmod(0o600)
    with pytest.raises(LocalError, match="not a key"):
        load(path)


def test_a_key_that_cannot_be_kept_is_a_local_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="cannot keep"):
        load(tmp_path / "file" / "key")


def test_racing_processes_agree_on_one_key(tmp_path: Path) -> None:
    path = tmp_path / "peer" / "key"
    with ThreadPoolExecutor(8) as threads:
        assert len({identity.peer for identity in threads.map(lambda _: load(path), range(32))}) == 1


def test_the_same_seed_is_the_same_peer() -> None:
    assert Identity.from_seed(b"\1" * 32) == Identity.from_seed(b"\1" * 32)
    assert Identity.from_seed(b"\1" * 32).peer != Identity.from_seed(b"\2" * 32).peer


def test_a_signature_holds_for_its_signer_and_its_words_only() -> None:
    ann, bob = Identity.from_seed(b"\1" * 32), Identity.from_seed(b"\2" * 32)
    signature = ann.sign(b"words")
    assert bob.verify(ann.peer, b"words", signature)
    assert not bob.verify(ann.peer, b"other words", signature)
    assert not ann.verify(bob.peer, b"words", signature)
    for nonsense in (b"", bytes(63), bytes(64), bytes(65)):
        assert not verify(ann.peer, b"words", nonsense)
    assert not verify(PeerId(b"short"), b"words", signature)
    assert not verify(PeerId(os.urandom(32)), b"words", signature)


def test_a_secret_is_not_printed() -> None:
    ann = Identity.from_seed(b"\1" * 32)
    assert "secret" not in repr(ann)
    assert repr(ann.secret) not in repr(ann)


def test_a_peer_is_called_by_eight_digits() -> None:
    assert short(PeerId(bytes.fromhex("00abcdef99") + bytes(27))) == "00abcdef"
