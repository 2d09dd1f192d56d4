"""A peer in another process for tests that block, freeze or kill it.

    python far_peer.py iroh|tls PORT BLOCK_S

Prints its id and addresses, then echoes; after its first message it holds its event loop for BLOCK_S.
"""

from __future__ import annotations

import asyncio
import sys
import time

from atoll.net.transport import Conn, ConnLost, StreamClosed, StreamReset
from tests.net.loopback import bind

SECRET = b"\7" * 32


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


async def main(kind: str, port: int, block_s: float) -> None:
    transport = await bind(kind, SECRET, host="127.0.0.1", port=port, silence_s_max=2.0)
    print(transport.id.hex(), *transport.addresses(), flush=True)
    while True:
        try:
            await echo(await transport.accept(), block_s)
        except ConnLost:
            continue


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
