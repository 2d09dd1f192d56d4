"""A peer in another process for tests that block, freeze or kill it.

    python far_peer.py PORT SECRET_HEX BLOCK_S [REACH_HEX REACH_ADDRESS]

Prints its id and addresses, then echoes; after its first message it holds its interpreter for BLOCK_S.
With REACH it connects there first instead of waiting to be called.
"""

from __future__ import annotations

import asyncio
import sys
import time

from atoll.net.iroh import bind
from atoll.net.transport import Conn, ConnLost, PeerId, StreamClosed, StreamReset, Traffic


async def echo(conn: Conn, block_s: float) -> None:
    """Answer every message of every stream, one stream after the other."""
    while True:
        _, stream = await conn.accept()
        try:
            while True:
                message = await stream.recv()
                if block_s:
                    time.sleep(block_s)
                    block_s = 0
                await stream.send(message)
        except (StreamClosed, StreamReset):
            await stream.finish()


async def main(port: int, secret: bytes, block_s: float, reach: list[str]) -> None:
    transport = await bind(secret, host="0.0.0.0" if reach else "127.0.0.1", port=port, dead_after_s=2.0)
    print(transport.id.hex(), *transport.addresses(), flush=True)
    if reach:
        conn = await transport.connect(PeerId(bytes.fromhex(reach[0])), reach[1:])
        stream = await conn.open("hello", Traffic.CONTROL)
        await stream.send(b"across")
        print((await stream.recv()).decode(), flush=True)
        await transport.close()
        return
    while True:
        try:
            await echo(await transport.accept(), block_s)
        except ConnLost:
            continue


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), bytes.fromhex(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
