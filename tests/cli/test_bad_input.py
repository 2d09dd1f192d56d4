"""What people and disks get wrong: one screen that names the cause and the fix, and nothing saved is harmed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.cli.export import newest_checkpoint
from atoll.net.identity import Identity
from atoll.net.ticket import Contact, Ticket, parse_ticket, print_ticket
from tests.few import few_of
from tests.world.shore import HERE, Peer, Shore, environment, make_shards, seats, wait_for

LINES_MAX = 15
ENDLESS = 100_000
GROWING = ("log", "journal.jsonl", "output.log")
"""Files that only grow."""
ABOUT_STARTS = ("ballot", "boots", "port", "run.json")
"""Files that say how often, where and with which budget a peer was started."""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Shore:
    folder = tmp_path_factory.mktemp("bad-input")
    return Shore(folder, make_shards(folder / "texts"), environment(folder / "atoll-home"))


@pytest.fixture(scope="module")
def trained(common: Shore) -> Path:
    """Return the folder of a run of one peer that was left after a few rounds."""
    home = common.folder / "home"
    [peer] = seats(home, 1)
    try:
        watched = common.start(*common.train(common.run_file(rounds=ENDLESS, start_with=1), home, 1))
        wait_for(lambda: peer.version() >= 3, "the third round", by=watched)
        peer.leave()
        assert watched.wait(30) == 0
        return home
    finally:
        common.end()


@pytest.fixture
def shore(tmp_path: Path, common: Shore) -> Iterator[Shore]:
    place = Shore(tmp_path, common.shards, common.env)
    yield place
    place.end()


def told(done: subprocess.CompletedProcess[str], code: int, *cause: str) -> str:
    """Check that a person was told in one screen what went wrong, and return the hint."""
    said = done.stderr.splitlines()
    errors = [line for line in said if line.startswith("error: ")]
    hints = [line for line in said if line.startswith("hint: ")]
    assert done.returncode == code, done.stderr
    assert len(said) < LINES_MAX
    assert "Traceback" not in done.stderr
    assert (len(errors), len(hints)) == (1, 1), done.stderr
    for words in cause:
        assert words in errors[0]
    return hints[0]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unharmed(before: dict[Path, bytes], folder: Path) -> bool:
    """Return whether everything saved before is still there, byte for byte."""
    now = contents(folder)
    for path, data in before.items():
        if path.name in GROWING:
            assert now[path].startswith(data), path
        elif path.name not in ABOUT_STARTS:
            assert now[path] == data, path
    return bool(before)


def resume(shore: Shore, home: Path) -> subprocess.CompletedProcess[str]:
    """Go on with a run for two more rounds."""
    rounds = newest(home) + 2
    done = shore.atoll(*shore.train(shore.run_file(rounds=rounds, start_with=1), home, 1))
    assert done.returncode != 0 or newest(home) == rounds
    return done


def newest(home: Path) -> int:
    """Return the version of a run's newest checkpoint."""
    return int(newest_checkpoint(home).stem)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# run files


@pytest.mark.parametrize(
    ("wrong", "right", "cause", "fix"),
    [
        ("[budget", "[budget]", "line 23, column 8", "the line reads: [budget"),
        ("bach = 2", "batch = 2", "recipe.work: unknown key 'bach'", "did you mean 'batch'"),
        ('batch = "two"', "batch = 2", "recipe.work.batch", "whole number"),
        ('base = "dilocco"', 'base = "diloco"', "recipe.base", "did you mean 'diloco'"),
        ("context = 0", "context = 16", "data.context: 0 is out of range", "between 8 and"),
        ("rounds = 3\ntokens = 9", "rounds = 3", "budget: both tokens and rounds", "exactly one"),
        ("heads = 3, kv", "heads = 2, kv", "model.size", "divide"),
        ("start_with = -1", "start_with = 1", "membership.start_with", "at least 1"),
    ],
)
def test_a_spoiled_run_file_is_refused_by_its_key(shore: Shore, wrong: str, right: str, cause: str, fix: str) -> None:
    run = shore.run_file(rounds=3, start_with=1)
    text = run.read_text()
    assert right in text
    run.write_text(text.replace(right, wrong, 1))
    home = shore.folder / "home"
    assert fix in told(shore.atoll(*shore.train(run, home, 1)), 2, str(run), cause)
    assert not home.exists()


def test_a_run_file_that_is_no_text_or_is_not_there_is_refused(shore: Shore) -> None:
    binary, missing = shore.folder / "binary.toml", shore.folder / "missing.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    told(shore.atoll("train", str(binary)), 2, str(binary))
    told(shore.atoll("train", str(missing)), 2, str(missing), "no such file")


def test_a_changed_run_file_does_not_touch_the_run_in_its_folder(shore: Shore, trained: Path) -> None:
    before = contents(trained)
    run = shore.run_file(rounds=ENDLESS, start_with=1, steps=3)
    assert "--home" in told(shore.atoll(*shore.train(run, trained, 1)), 2, str(trained), "holds run")
    assert contents(trained) == before


# data


@pytest.mark.parametrize("damage", few_of(("flipped", "short", "missing"), ("flipped",)))
def test_a_corrupt_shard_is_named_and_nobody_trains_on_it(shore: Shore, damage: str) -> None:
    shore.shards = Path(shutil.copytree(shore.shards, shore.folder / "shards"))
    shard = max(shore.shards.glob("*.bin"), key=lambda path: path.stat().st_size)
    match damage:
        case "flipped":
            flip(shard, shard.stat().st_size // 2)
        case "short":
            shard.write_bytes(shard.read_bytes()[:-2])
        case _:
            shard.unlink()
    before = contents(shore.shards)
    assert "again" in told(shore.atoll("data", "verify", str(shore.shards)), 3, str(shard))
    home = shore.folder / "home"
    done = shore.atoll(*shore.train(shore.run_file(rounds=1, start_with=1), home, 1))
    assert "again" in told(done, 3, str(shard))
    assert contents(shore.shards) == before
    assert not list(home.rglob("checkpoint/*"))


# tickets


def test_a_mistyped_ticket_is_refused_before_anything_starts(shore: Shore) -> None:
    good = print_ticket(Ticket("ab" * 16, (Contact(Identity.from_seed(bytes(32)).peer, ("127.0.0.1:1",)),)))
    for bad, cause in (
        (good[:40] + ("a" if good[40] != "a" else "b") + good[41:], "mistyped"),
        (good[:-5], "cut short"),
        ("hello", "not a ticket"),
    ):
        assert "ticket" in told(shore.atoll("join", bad, "--home", str(shore.folder / "home")), 2, cause)
    assert not (shore.folder / "home").exists()


def test_a_ticket_of_another_run_is_refused_by_name(shore: Shore) -> None:
    organiser = shore.organise(shore.run_file(rounds=1), shore.folder / "organiser")
    ticket = parse_ticket(organiser.ticket())
    other = print_ticket(replace(ticket, run="ab" * 16))
    done = shore.atoll("join", other, "--home", str(shore.folder / "home"), *HERE, "--json")
    assert "ticket" in told(done, 5, ticket.run, "ab" * 16)
    assert organiser.process is not None
    assert organiser.process.poll() is None, "the organiser was not disturbed"


def test_a_ticket_that_leads_nowhere_says_where_it_looked(shore: Shore, trained: Path) -> None:
    gone = parse_ticket(Peer(trained / "peers" / "0").ticket())
    done = shore.atoll("join", print_ticket(gone), "--home", str(shore.folder / "home"), *HERE, "--json")
    assert "fresh ticket" in told(done, 4, gone.peers[0].addresses[0])


# disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty file system of its own, which only root can make."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("left_bytes", [40_000, pytest.param(0, marks=pytest.mark.long)])
def test_a_full_disk_ends_the_peer_and_harms_nothing(
    shore: Shore, trained: Path, small_disk: Path, left_bytes: int
) -> None:
    home = Path(shutil.copytree(trained, small_disk / "home"))
    filler = small_disk / "filler"
    fill(filler, left_bytes)
    before = contents(home)
    assert "free some space" in told(resume(shore, home), 3, str(home))
    assert unharmed(before, home)
    filler.unlink()
    assert resume(shore, home).returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="there is no such limit")
def test_a_file_that_must_not_grow_ends_the_peer_and_harms_nothing(shore: Shore, trained: Path) -> None:
    """What a full disk or a quota does, as anybody can make it."""
    home = Path(shutil.copytree(trained, shore.folder / "home"))
    before = contents(home)
    words = shore.train(shore.run_file(rounds=newest(home) + 2, start_with=1), home, 1)
    command = ["sh", "-c", 'ulimit -f 40 && exec "$@"', "sh", sys.executable, *shore.launcher, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=shore.env, timeout=90, check=False)
    assert "free some space" in told(done, 3, str(home))
    assert unharmed(before, home)


def fill(path: Path, left_bytes: int) -> None:
    """Let a file take what is free on its disk, but for so many bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - left_bytes))


# checkpoints


@pytest.mark.parametrize("at", [9, pytest.param(-1, marks=pytest.mark.long)])
def test_a_checkpoint_with_a_flipped_byte_is_named_and_the_hint_helps(shore: Shore, trained: Path, at: int) -> None:
    home = Path(shutil.copytree(trained, shore.folder / "home"))
    checkpoint = newest_checkpoint(home)
    flip(checkpoint, at)
    before = contents(home)
    assert "delete this file" in told(resume(shore, home), 3, str(checkpoint), "damaged")
    assert "delete this file" in told(shore.atoll("export", str(home), str(shore.folder / "out")), 3, str(checkpoint))
    assert unharmed(before, home)
    assert not (shore.folder / "out").exists()
    checkpoint.unlink()
    assert resume(shore, home).returncode == 0
