"""One of several peers on pretended machines that know of each other by a ticket only.

    python guest.py FOLDER

The first prints a ticket into FOLDER and greets everybody who comes; the others come and say who they are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from atoll.net.iroh import bind
from atoll.net.live import LiveTransport
from atoll.net.ticket import Contact, Ticket, parse_ticket, print_ticket
from atoll.net.transport import Traffic

RUN = "00112233445566778899aabbccddeeff"


async def invite(transport: LiveTransport, folder: Path, count: int) -> None:
    """Leave a ticket and greet `count` guests."""
    ticket = print_ticket(Ticket(RUN, (Contact(transport.id, tuple(transport.addresses())),)))
    (folder / "draft").write_text(ticket)
    (folder / "draft").rename(folder / "ticket")
    for _ in range(count):
        conn = await transport.accept()
        _, stream = await conn.accept()
        await stream.send(b"welcome, " + await stream.recv())
        await stream.finish()


async def visit(transport: LiveTransport, folder: Path, name: str) -> None:
    """Follow the ticket and print the greeting."""
    while not (folder / "ticket").exists():
        await asyncio.sleep(0.05)
    host = parse_ticket((folder / "ticket").read_text()).peers[0]
    conn = await transport.connect(host.peer, list(host.addresses))
    stream = await conn.open("hello", Traffic.CONTROL)
    await stream.send(name.encode())
    print((await stream.recv()).decode(), flush=True)
    await conn.closed()


async def main(folder: Path) -> None:
    index, count = int(os.environ["ATOLL_HOST_INDEX"]), int(os.environ["ATOLL_HOST_COUNT"])
    transport = await bind(os.urandom(32))
    assert all(address.startswith(os.environ["ATOLL_HOST_IP"]) for address in transport.addresses())
    async with asyncio.timeout(20):
        if index == 0:
            await invite(transport, folder, count - 1)
        else:
            await visit(transport, folder, f"guest {index}")
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
