"""The network lab: hosts meet over nothing but its links, the links are as asked for, and nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path as File

import pytest
from bench.lab import Host, Lab, Path, missing, of_fleet

from atoll.errors import LocalError
from atoll.spec.fleet import load_fleet

ROOT = File(__file__).parents[2]
GUEST = File(__file__).with_name("guest.py")
MBIT = 1e6 / 8

FLEET = """
name = "three"
[defaults]
up = "50 Mbit"
down = "80 Mbit"
device = { flops = "1 TFLOP" }
[[machine]]
name = "open"
region = "eu"
[[machine]]
name = "hidden"
count = 2
region = "us"
nat = true
[[link]]
between = ["eu", "us"]
latency = "45 ms"
loss = 0.01
"""

TIMED = """
import os, socket, sys, time
index, first = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IPS"].split()[0]
size = int(sys.argv[1])
if index == 0:
    with socket.create_server((first, 5000)) as door:
        line, _ = door.accept()
        line.sendall(line.recv(1))
        came, began_s = 0, time.monotonic()
        while piece := line.recv(2**20):
            came += len(piece)
        print("got", came, time.monotonic() - began_s)
else:
    for _ in range(100):
        try:
            line = socket.create_connection((first, 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began_s = time.monotonic()
    line.sendall(b"x")
    line.recv(1)
    print("trip", time.monotonic() - began_s)
    line.sendall(bytes(size))
    line.close()
"""
"""One host sends to another and both say how long it took."""

needs_lab = pytest.mark.skipif(bool(missing()), reason=missing())


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def on_hosts(fleet: File | str, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bench.lab", str(fleet), *command]
    return subprocess.run(words, capture_output=True, text=True, env=_env())


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def timed(
    hosts: list[Host], path: Path, size: int, then: Callable[[Lab], None] = lambda lab: None
) -> dict[str, list[float]]:
    """Return what the two hosts say of a transfer between them, once something was done to the lab."""
    with Lab(hosts, lambda i, j: path) as lab:
        then(lab)
        command = [sys.executable, "-c", TIMED, str(size)]
        running = [lab.start(i, command, stdout=subprocess.PIPE, text=True) for i in range(2)]
        said = "".join(process.communicate()[0] for process in running)
    return {word: list(map(float, numbers)) for word, *numbers in map(str.split, said.splitlines())}


def test_a_fleet_says_who_there_is_and_what_lies_between(tmp_path: File) -> None:
    (tmp_path / "three.toml").write_text(FLEET)
    hosts, between = of_fleet(load_fleet(tmp_path / "three.toml"))
    assert hosts[0] == Host(50 * MBIT, 80 * MBIT) and [host.nat for host in hosts] == [False, True, True]
    assert between(0, 2) == Path(0.045, 0.01)
    assert between(1, 2) == Path(0.001, 0.0)


@needs_lab
def test_peers_on_separate_hosts_meet_by_ticket(tmp_path: File) -> None:
    before = namespaces()
    ran = on_hosts("lan", "--hosts", "3", "--", sys.executable, str(GUEST), str(tmp_path))
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert sorted(ran.stdout.splitlines()) == ["[1] welcome, guest 1", "[2] welcome, guest 2"]
    assert namespaces() <= before


@needs_lab
def test_links_have_the_rate_and_the_latency_that_were_asked_for() -> None:
    """The best of three: a machine with other work is only ever held up."""
    hosts, path = [Host(20 * MBIT, 80 * MBIT), Host(40 * MBIT, 20 * MBIT)], Path(latency_s=0.02)
    said = [timed(hosts, path, 5_000_000) for _ in range(3)]
    assert min(each["trip"][0] for each in said) == pytest.approx(0.04, abs=0.015)
    assert {each["got"][0] for each in said} == {5_000_000}
    best = max(size / took_s for size, took_s in (each["got"] for each in said))
    assert 0.8 * 40 * MBIT < best < 40 * MBIT, "what the sender's line carries up and the receiver's down"


@needs_lab
def test_a_lossy_path_loses_packets_and_nothing_else() -> None:
    said = timed([Host(), Host()], Path(latency_s=0.001, loss=0.02), 2_000_000)
    assert said["got"][0] == 2_000_000


@needs_lab
def test_a_rate_can_change_while_the_lab_is_open() -> None:
    """The best of three here too."""
    hosts = [Host(40 * MBIT, 40 * MBIT)] * 2
    said = [timed(hosts, Path(), 2_000_000, then=lambda lab: lab.set_rate(1, 10 * MBIT, 0)) for _ in range(3)]
    best = max(size / took_s for size, took_s in (each["got"] for each in said))
    assert 0.8 * 10 * MBIT < best < 10 * MBIT


TICKS = """
import os, socket, sys, time
index, first = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IPS"].split()[0]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
    if index == 0:
        door.bind((first, 5000))
    while True:
        if index == 0:
            print(door.recv(100).decode(), flush=True)
        else:
            door.sendto(b"%f" % time.monotonic(), (first, 5000))
            time.sleep(0.02)
"""


@needs_lab
def test_a_cable_can_be_pulled_and_put_back() -> None:
    with Lab([Host()] * 2) as lab:
        hearing, ticking = [lab.start(i, [sys.executable, "-c", TICKS], stdout=subprocess.PIPE) for i in range(2)]
        with hearing, ticking:
            assert hearing.stdout is not None
            heard = [float(hearing.stdout.readline()) for _ in range(5)]
            lab.unplug(1)
            time.sleep(1.0)
            lab.plug_in(1)
            heard += [float(hearing.stdout.readline()) for _ in range(50)]
            for process in (hearing, ticking):
                process.kill()
    gaps = sorted(later - earlier for earlier, later in pairwise(heard))
    assert gaps[-1] > 0.8 > 0.5 > gaps[-2], "one silence, as long as the cable was out"


@needs_lab
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables")
def test_hosts_behind_routers_call_but_cannot_be_called(tmp_path: File) -> None:
    before = namespaces()
    (tmp_path / "three.toml").write_text(FLEET)
    probe = "import os, bench.nat; print(os.environ['ATOLL_HOST_IP'], bench.nat.probe())"
    ran = on_hosts(tmp_path / "three.toml", "--", sys.executable, "-c", probe)
    assert ran.returncode == 0, ran.stderr
    heard = [line.partition(" [")[2] for line in sorted(ran.stdout.splitlines())]
    assert heard == ["1, 2]", "0]", "0]"], ran.stdout
    assert namespaces() <= before


@needs_lab
def test_the_first_failure_is_the_result_and_nothing_stays_behind() -> None:
    before = namespaces()
    ran = on_hosts(
        "lan", "--hosts", "2", "--", "bash", "-c", "echo $ATOLL_HOST_INDEX; [[ $ATOLL_HOST_INDEX != 1 ]] || exit 7"
    )
    assert ran.returncode == 7, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    assert namespaces() <= before


@needs_lab
def test_a_lab_whose_maker_is_killed_leaves_nothing_behind() -> None:
    before = namespaces()
    words = [sys.executable, "-m", "bench.lab", "lan", "--hosts", "2", "--", "bash", "-c", "echo here; sleep 600"]
    maker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=_env())
    assert maker.stdout is not None and "here" in maker.stdout.readline()
    assert namespaces() - before
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    deadline_s = time.monotonic() + 10
    while namespaces() - before and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert namespaces() <= before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lan"], "say what to run"),
        (["lan", "--"], "say what to run"),
        (["nowhere", "--", "true"], "no fleet is called 'nowhere'"),
    ],
)
def test_a_wrong_call_explains_itself(arguments: list[str], said: str) -> None:
    ran = on_hosts(arguments[0], *arguments[1:])
    assert ran.returncode == 2
    assert said in ran.stderr


def test_without_what_it_needs_a_lab_says_what_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalError, match="sudo"), Lab([Host()]):
        pass
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in missing()
