"""Where a peer listens, as text: "host:port", with brackets around an IPv6 host. The same place in UDP and in TCP."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress


def join(host: str, port: int) -> str:
    """Return host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Return host and port of an address; raises `ValueError` for what is none."""
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 2**16:
        raise ValueError(f"no such port: {port}")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach a numeric address."""
    return ipaddress.ip_address(split(address)[0]).is_loopback


def is_everywhere(host: str) -> bool:
    """Return whether a numeric host stands for all interfaces; raises `ValueError` for what is no number."""
    return ipaddress.ip_address(host).is_unspecified


async def resolve(addresses: list[str]) -> list[str]:
    """Return the addresses as numbers, looking names up; what cannot be read or found is left out."""
    found: list[str] = []
    for address in addresses:
        with contextlib.suppress(OSError, ValueError):
            host, port = split(address)
            found += [join(number, port) for number in await _numbers(host)]
    return list(dict.fromkeys(found))


async def _numbers(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        answers = await asyncio.get_running_loop().getaddrinfo(host, None)
        return [str(answer[4][0]) for answer in answers]
