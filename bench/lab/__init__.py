"""A network lab: hosts as namespaces of this machine, with the rates, latencies, losses and routers of a fleet.

    with Lab([Host(up_bytes_s=12.5e6, down_bytes_s=12.5e6)] * 4, between=lambda i, j: Path(latency_s=0.02)) as lab:
        running = [lab.start(i, ["python", "peer.py"]) for i in range(4)]

Every host has an address of its own and nothing else of this machine's network; real processes run inside. The links
are `switch.c`, compiled when it is first needed. Needs root on Linux, iproute2, a C compiler, and nftables where a host
stands behind a router. Whatever happens to the process that made a lab, a keeper that outlives it ends what runs inside
and takes the namespaces away.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path as File
from threading import Thread
from typing import Any

import platformdirs
from bench import usage

from atoll.errors import LocalError
from atoll.spec.fleet import Fleet, expand, link

HOSTS_MAX = 100
_OFFLOAD_S = 0.001
"""What the kernel may hand over in one piece: so much of a line's time, or a large piece would block the small."""
_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 3000, 65536
_QUEUE = "50ms"
"""What waits in a host for its line, at most."""
_BUCKET_S, _BUCKET_BYTES_MIN = 0.005, 16384
"""What a line may send at once: less, and the kernel's timer cannot fill it."""

_ROUTER = """
table ip home {
    chain out { type nat hook postrouting priority 100; oifname "wan" masquerade fully-random; }
    chain in {
        type filter hook input priority 0; policy drop
        ct state established,related accept
        iifname != "wan" accept
    }
    chain through {
        type filter hook forward priority 0; policy drop
        ct state established,related accept
        iifname "lan" oifname "wan" accept
    }
}
"""
"""A home router: out under its own address, from a new port for each destination; in only what answers."""

_KEEPER = """
cat >/dev/null
spaces() { ip netns list | awk -v own="$0-" 'index($1, own) == 1 { print $1 }'; }
pids() { for space in $(spaces); do ip netns pids "$space" 2>/dev/null; done; }
for pid in $(pids); do kill -TERM "$pid" 2>/dev/null; done
for _ in $(seq 30); do [ -z "$(pids)" ] && break; sleep 0.1; done
for pid in $(pids); do kill -KILL "$pid" 2>/dev/null; done
for space in $(spaces); do ip netns delete "$space"; done
"""
"""Waits for the end of its input, which is the end of the lab, and clears up."""


@dataclass(frozen=True)
class Host:
    """One host's line; 0 for no limit."""

    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    nat: bool = False
    """Behind a router that lets nobody in."""


@dataclass(frozen=True)
class Path:
    """What lies between two hosts, each way."""

    latency_s: float = 0.0
    loss: float = 0.0


def of_fleet(fleet: Fleet) -> tuple[list[Host], Callable[[int, int], Path]]:
    """Return the hosts of a fleet and what lies between them."""
    machines = expand(fleet)
    hosts = [Host(each.up_bytes_s, each.down_bytes_s, each.nat) for each in machines]

    def between(i: int, j: int) -> Path:
        found = link(fleet, machines[i].region, machines[j].region)
        return Path(found.latency_s, found.loss)

    return hosts, between


def missing() -> str:
    """Return why there can be no lab here, or nothing."""
    if not sys.platform.startswith("linux"):
        return "a network lab needs Linux: its hosts are network namespaces"
    if os.geteuid() != 0:
        return "a network lab needs root to make network namespaces: try again with sudo"
    wanted = {"ip": "iproute2", "tc": "iproute2", "cc": "a C compiler (gcc)"}
    for command, package in wanted.items():
        if shutil.which(command) is None:
            return f"a network lab needs the command '{command}': install {package}"
    return "" if File("/dev/net/tun").exists() else "a network lab needs /dev/net/tun: load the kernel module 'tun'"


@dataclass
class Lab:
    """Hosts on a pretended network."""

    hosts: Sequence[Host]
    between: Callable[[int, int], Path] = lambda i, j: Path()
    name: str = field(default_factory=lambda: f"atoll{os.getpid()}")
    _keeper: subprocess.Popen[bytes] | None = None
    _switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Lab:
        if why := missing():
            raise LocalError(why)
        if any(host.nat for host in self.hosts) and shutil.which("nft") is None:
            raise LocalError("a host behind a router needs the command 'nft': install nftables")
        if not 1 <= len(self.hosts) <= HOSTS_MAX:
            raise LocalError(f"a network lab has 1 to {HOSTS_MAX} hosts, not {len(self.hosts)}")
        self._keeper = subprocess.Popen(
            ["bash", "-c", _KEEPER, self.name], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate()
        if self._keeper is not None:
            self._keeper.communicate()

    # what can be done with it

    def space(self, index: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self.name}-{index}"

    def address(self, index: int) -> str:
        """Return a host's own address."""
        return f"192.168.{index}.2" if self.hosts[index].nat else self.public(index)

    def public(self, index: int) -> str:
        """Return what others see of a host: behind a router, the router's address."""
        return f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}.{index + 1}"

    def start(
        self, index: int, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on a host; it learns from its environment who and where it is."""
        count = range(len(self.hosts))
        about = {
            "ATOLL_HOST_INDEX": str(index),
            "ATOLL_HOST_COUNT": str(len(count)),
            "ATOLL_HOST_IP": self.address(index),
            "ATOLL_HOST_IPS": " ".join(map(self.address, count)),
            "ATOLL_PUBLIC_IPS": " ".join(map(self.public, count)),
        }
        inside = ["ip", "netns", "exec", self.space(index), *command]
        return subprocess.Popen(inside, env={**(os.environ if env is None else env), **about}, **options)

    def set_rate(self, index: int, up_bytes_s: float, down_bytes_s: float) -> None:
        """Change a host's line from now on; one without a limit upwards stays so."""
        self._shape("change", index, up_bytes_s)
        self._tell(f"rate {index} {down_bytes_s:.1f}")

    def unplug(self, index: int) -> None:
        """Let nothing come from a host or reach it any more, without a word to anybody."""
        self._tell(f"link {index} down")

    def plug_in(self, index: int) -> None:
        """Undo `unplug`."""
        self._tell(f"link {index} up")

    # what it takes

    def switch_cpu_s(self) -> float:
        """Return the processor time that the switch has used."""
        assert self._switch is not None, "the lab is open"
        return usage.cpu_s([self._switch.pid])

    def carried_bytes(self) -> int:
        """Return what lines with a limit have carried upwards, headers of every packet and all."""
        carried = 0
        for index, host in enumerate(self.hosts):
            if host.up_bytes_s:
                outside, card = self._card(index)
                shown = ["ip", "netns", "exec", outside, "tc", "-s", "-j", "qdisc", "show", "dev", card]
                found = json.loads(subprocess.run(shown, check=True, capture_output=True, text=True).stdout)
                carried += next(each["bytes"] for each in found if each["kind"] == "tbf")
        return carried

    # how it is made

    def _build(self) -> None:
        count = range(len(self.hosts))
        paths = {(i, j): self.between(i, j) for i in count for j in count if i < j}
        self._switch = subprocess.Popen(
            [compiled()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if any(path.loss for path in paths.values()):
            self._tell("lossy")
        for index in count:
            self._add(index)
        for (i, j), path in paths.items():
            self._tell(f"path {i} {j} {path.latency_s:.9f} {path.loss:.9f}")
        self._tell("start")
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "ready\n":
            raise LocalError("the lab's switch did not start; it has said why")
        for index in count:
            self._address(index)

    def _add(self, index: int) -> None:
        """Make a host's namespace, its router's where it has one, and the card towards the network."""
        host, space = self.hosts[index], self.space(index)
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
        if host.nat:
            _ip("netns", "add", f"{space}-nat")
            _ip("-n", f"{space}-nat", "link", "set", "lo", "up")
        self._tell(f"host {' '.join(self._card(index))} {host.down_bytes_s:.1f}")

    def _address(self, index: int) -> None:
        """Give a card its address and switch it on."""
        host, (outside, card) = self.hosts[index], self._card(index)
        piece = _PIECE_BYTES_MAX if not host.up_bytes_s else int(_OFFLOAD_S * host.up_bytes_s)
        piece = min(max(piece, _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
        mac = f"02:00:00:00:{index >> 8:02x}:{index & 255:02x}"
        _ip("-n", outside, "link", "set", card, "address", mac, "gso_max_size", str(piece))
        self._shape("add", index, host.up_bytes_s)
        _ip("-n", outside, "address", "add", f"{self.public(index)}/24", "dev", card)
        _ip("-n", outside, "link", "set", card, "up")
        lan = f"{self.public(index).rpartition('.')[0]}.0/24"
        _ip("-n", outside, "route", "replace", lan, "dev", card, "src", self.public(index), *_congestion())
        if host.nat:
            self._route(index)

    def _card(self, index: int) -> tuple[str, str]:
        """Return where the card towards the network is, and what it is called."""
        return (f"{self.space(index)}-nat", "wan") if self.hosts[index].nat else (self.space(index), "eth0")

    def _shape(self, verb: str, index: int, up_bytes_s: float) -> None:
        """Let a card send no faster than this; its own kernel holds back whoever wants to."""
        if up_bytes_s:
            outside, card = self._card(index)
            burst = max(_BUCKET_BYTES_MIN, int(_BUCKET_S * up_bytes_s))
            bucket = ["tbf", "rate", f"{8 * up_bytes_s:.0f}bit", "burst", str(burst), "latency", _QUEUE]
            _run(["ip", "netns", "exec", outside, "tc", "qdisc", verb, "dev", card, "root", *bucket])

    def _route(self, index: int) -> None:
        space, router = self.space(index), f"{self.space(index)}-nat"
        _run(["ip", "netns", "exec", router, "sysctl", "-q", "net.ipv4.ip_forward=1"])
        _run(["ip", "netns", "exec", router, "nft", "-f", "-"], said=_ROUTER)
        _ip("-n", router, "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", router, "address", "add", f"192.168.{index}.1/24", "dev", "lan")
        _ip("-n", router, "link", "set", "lan", "up")
        _ip("-n", space, "address", "add", f"192.168.{index}.2/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "route", "add", "default", "via", f"192.168.{index}.1", *_congestion())

    def _tell(self, line: str) -> None:
        assert self._switch is not None and self._switch.stdin is not None, "the lab is open"
        self._switch.stdin.write(line + "\n")
        self._switch.stdin.flush()


def everywhere(lab: Lab, command: Sequence[str]) -> int:
    """Run a command on all hosts, print what it says with the host's index, and return the first failure's status."""
    count = range(len(lab.hosts))
    running = [lab.start(i, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in count]
    readers = [Thread(target=_echo, args=(i, process), daemon=True) for i, process in enumerate(running)]
    for reader in readers:
        reader.start()
    codes = [process.wait() for process in running]
    for reader in readers:
        reader.join()
    return next((code for code in codes if code), 0)


def _echo(index: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"[{index}] {line}", end="", flush=True)


def compiled() -> str:
    """Return the switch as a program, compiling it unless that was done before."""
    source = File(__file__).with_name("switch.c")
    digest = sha256(source.read_bytes()).hexdigest()[:16]
    program = File(platformdirs.user_cache_dir("atoll")) / f"switch-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = program.with_suffix(f".{os.getpid()}")
        _run(["cc", "-O2", "-o", str(draft), str(source)])
        draft.rename(program)
    return str(program)


def _congestion() -> list[str]:
    """Return how a route says that TCP is to be what it is nearly everywhere, whatever this machine is set to."""
    known = File("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return ["congctl", "cubic"] if "cubic" in known else []


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str], said: str = "") -> None:
    done = subprocess.run(command, input=said, capture_output=True, text=True)
    if done.returncode != 0:
        raise LocalError(f"{' '.join(command)}: {done.stderr.strip()}")
