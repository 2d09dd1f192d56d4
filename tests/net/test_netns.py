"""Peers on separate machines, or nearly: network namespaces joined by nothing but a bridge and a ticket."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "netns.sh"
GUEST = Path(__file__).with_name("guest.py")


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def can_make_namespaces() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run([SCRIPT, "1", "none", "--", "true"], capture_output=True).returncode == 0


def on_machines(count: int, *command: str, routers: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])}
    words = [str(SCRIPT), str(count), "50mbit", *routers, "--", *command]
    return subprocess.run(words, capture_output=True, text=True, env=env)


needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason="needs root and network namespaces")


@needs_namespaces
def test_peers_on_separate_machines_meet_by_ticket(tmp_path: Path) -> None:
    before = namespaces()
    ran = on_machines(3, sys.executable, str(GUEST), str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[1] welcome, guest 1", "[2] welcome, guest 2"]
    assert namespaces() <= before


@needs_namespaces
def test_the_first_failure_is_the_result_and_nothing_stays_behind() -> None:
    before = namespaces()
    ran = on_machines(2, "bash", "-c", "echo $ATOLL_HOST_INDEX; [[ $ATOLL_HOST_INDEX != 1 ]] || exit 7")
    assert ran.returncode == 7
    assert sorted(ran.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    assert namespaces() <= before


@needs_namespaces
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables")
def test_machines_behind_routers_call_but_cannot_be_called() -> None:
    before = namespaces()
    probe = "import os, bench.nat; print(os.environ['ATOLL_HOST_IP'], bench.nat.probe())"
    ran = on_machines(3, sys.executable, "-c", probe, routers=("nat=1,2",))
    assert ran.returncode == 0, ran.stderr
    heard = [line.partition(" [")[2] for line in sorted(ran.stdout.splitlines())]
    assert heard == ["1, 2]", "0]", "0]"], ran.stdout
    assert namespaces() <= before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["0", "none", "--", "true"],
        ["2", "fast", "--", "true"],
        ["2", "none", "true"],
        ["2", "none", "nat=x", "--", "true"],
    ],
)
def test_a_wrong_call_explains_itself(arguments: list[str]) -> None:
    ran = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "COUNT RATE [nat=INDEX,...] -- COMMAND" in ran.stderr
