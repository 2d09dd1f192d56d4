"""Packages out of Debian's archive: those of a record, to the byte, where the archive still has them.

Apt gives the newest version of a package, and that changes with security updates. What it gives in another version than
the record's is asked of the archive's pools under its own name: there an older version stays for a while after it has
left the index.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import msgspec
from blake3 import blake3

RELEASE = "bookworm"
MIRROR = "http://deb.debian.org"
ARCHIVES = (
    f"debian {RELEASE} main non-free",
    f"debian {RELEASE}-updates main",
    f"debian-security {RELEASE}-security main",
)
POOLS = ("debian/pool/main", "debian-security/pool/updates/main", "debian/pool/non-free")
BUILDS = ("all", "arm64", "amd64")
ANSWER_S = 60.0


class Package(msgspec.Struct, frozen=True):
    """One package that text was taken from."""

    package: str
    source: str
    version: str
    licence: str
    blake3: str
    """Of the package as fetched."""


def recorded(manifest: Path) -> list[Package]:
    """Return the packages that text was taken from before."""
    lines = manifest.read_bytes().splitlines() if manifest.exists() else []
    return [msgspec.json.decode(line, type=Package) for line in lines]


def fetch(names: list[str], record: list[Package], cache: Path) -> list[str]:
    """Bring packages into the cache, and return the names of those that are not to be had as recorded."""
    packages = cache / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not list(packages.glob(f"{name}_*.deb"))]
    if missing:
        _download(missing, cache)
    return [each.package for each in record if each.package in names and not _is_there(each, packages)]


def _download(names: list[str], cache: Path) -> None:
    """Let apt fetch packages, with lists of its own, so that this machine's stay as they are."""
    lists, listed = cache / "lists", cache / "sources.list"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    listed.write_text("".join(f"deb {MIRROR}/{each}\n" for each in ARCHIVES))
    own = [f"-oDir::Etc::SourceList={listed.resolve()}", "-oDir::Etc::SourceParts=/dev/null"]
    apt = ["apt-get", "--quiet", *own, f"-oDir::State::Lists={lists.resolve()}"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *names], cwd=cache / "packages", check=True)


def _is_there(wanted: Package, packages: Path) -> bool:
    """Return whether a package is as recorded, if need be after it was asked of the pools."""
    there = sorted(packages.glob(f"{wanted.package}_*.deb"))
    if any(digest(deb.read_bytes()) == wanted.blake3 for deb in there):
        return True
    for place in places(wanted):
        try:
            with urlopen(f"{MIRROR}/{quote(place)}", timeout=ANSWER_S) as answer:
                found: bytes = answer.read()
        except (OSError, HTTPException):
            continue
        if digest(found) == wanted.blake3:
            for deb in there:
                deb.unlink()
            (packages / place.rpartition("/")[2]).write_bytes(found)
            return True
    return False


def places(wanted: Package) -> Iterator[str]:
    """Yield where in the archive a version of a package may be."""
    version = wanted.version.partition(":")[2] or wanted.version  # names of files have no epoch
    initial = wanted.source[: 4 if wanted.source.startswith("lib") else 1]
    for pool in POOLS:
        for build in BUILDS:
            yield f"{pool}/{initial}/{wanted.source}/{wanted.package}_{version}_{build}.deb"


def digest(data: bytes) -> str:
    """Return what names a file's content in the record."""
    return blake3(data).hexdigest()
