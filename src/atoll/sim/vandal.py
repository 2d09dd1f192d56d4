"""A stranger that means no good, as a fault: it talks to everybody and says nothing true.

It has a key of its own and the run's ticket, and it has listened to the honest ones. What it says is random bytes,
messages it heard (replayed, also on streams where they do not belong), and such messages with a few bytes or fields
changed. It opens streams as honest peers do, so that its nonsense gets past the first door as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from atoll.errors import PeerLost
from atoll.net.transport import PeerId, Traffic
from atoll.peer.links import TRAFFIC
from atoll.sim.conns import SimConn
from atoll.sim.network import SimTransport

HEARD_MAX = 64
"""Messages remembered of each stream tag."""
HEARD_BYTES_MAX = 65536
"""Longer ones are not remembered."""
ANSWER_S_MAX = 2.0
"""How long it waits for an answer before it says the next thing."""
MESSAGES_MAX = 5
"""Messages in one conversation."""
STRANGE_TAG = 0.05
"""Part of its streams that nobody has a handler for."""


class Eavesdropper:
    """What a vandal has heard of the honest ones, by stream tag."""

    def __init__(self) -> None:
        self.openings: dict[str, deque[bytes]] = {}
        self.messages: dict[str, deque[bytes]] = {}

    def hear(self, tag: str, message: bytes, opens: bool) -> None:
        """Remember a message."""
        if len(message) <= HEARD_BYTES_MAX:
            heard = self.openings if opens else self.messages
            heard.setdefault(tag, deque(maxlen=HEARD_MAX)).append(message)

    def all_of(self, tag: str) -> list[bytes]:
        return [*self.openings.get(tag, ()), *self.messages.get(tag, ())]


class Vandal:
    """One stranger at work."""

    def __init__(self, door: SimTransport, victims: Sequence[PeerId], heard: Eavesdropper, rng: Random) -> None:
        self.said = 0
        """Messages that left it."""
        self._door = door
        self._victims = victims
        self._heard = heard
        self._rng = rng
        self._conns: dict[PeerId, SimConn] = {}

    async def rampage(self, pause_s: float) -> None:
        """Go from victim to victim for ever."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            victim = self._rng.choice(self._victims)
            try:
                await self._converse(await self._reach(victim))
            except PeerLost:
                self._conns.pop(victim, None)

    async def _reach(self, victim: PeerId) -> SimConn:
        conn = self._conns.get(victim)
        if conn is None or conn.why is not None:
            address = self._door.network.address(victim)
            conn = self._conns[victim] = await self._door.connect(victim, [address])
        return conn

    async def _converse(self, conn: SimConn) -> None:
        rng = self._rng
        tags = sorted({*TRAFFIC, *self._heard.openings})
        tag = rng.choice(tags) if rng.random() >= STRANGE_TAG else "".join(rng.choices("abcxyz/-", k=6))
        stream = await conn.open(tag, TRAFFIC.get(tag, Traffic.CONTROL))
        try:
            for number in range(rng.randint(1, MESSAGES_MAX)):
                await stream.send(self._message(tag, opens=number == 0))
                self.said += 1
                if rng.random() < 0.5:
                    try:
                        async with asyncio.timeout(rng.uniform(0.0, ANSWER_S_MAX)):
                            await stream.recv()
                    except TimeoutError:
                        pass  # most of what it says has no answer
        finally:
            stream.reset()

    def _message(self, tag: str, *, opens: bool) -> bytes:
        """Return the next thing to say: an opening mostly as it should be, then anything."""
        rng = self._rng
        known = list(self._heard.openings.get(tag, ())) if opens else self._heard.all_of(tag)
        if rng.random() < 0.1:
            known = [message for other in sorted(self._heard.openings) for message in self._heard.all_of(other)]
        if not known or rng.random() < 0.15:
            return rng.randbytes(int(2 ** rng.uniform(0.0, 13.0)))
        message = rng.choice(known)
        drawn = rng.random()
        if drawn < (0.6 if opens else 0.25):
            return message
        return _bent(message, rng) if drawn < 0.8 else _broken(message, rng)


def _broken(message: bytes, rng: Random) -> bytes:
    """Return a message with bytes changed, taken out, put in, or its end missing."""
    data = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                del data[at:]
    return bytes(data)


def _bent(message: bytes, rng: Random) -> bytes:
    """Return a message that still parses, with one value changed: the kind of lie a check on types lets through."""
    try:
        value = msgspec.msgpack.decode(message[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _broken(message, rng)
    return message[:1] + msgspec.msgpack.encode(_bend(value, rng))


def _bend(value: Any, rng: Random) -> Any:
    """Return a value with one leaf of it changed."""
    match value:
        case dict() if value:
            key = rng.choice([*value])
            return {**value, key: _bend(value[key], rng)}
        case list() if value:
            at = rng.randrange(len(value))
            return [*value[:at], _bend(value[at], rng), *value[at + 1 :]] if rng.random() < 0.8 else value[:at]
        case bool():
            return not value
        case int():
            return rng.choice([0, 1, value + 1, max(0, value - 1), 2**31, 2**63 - 1, rng.randrange(2**32)])
        case float():
            return rng.choice([0.0, -value, float("nan"), float("inf"), 1e300])
        case bytes():
            return rng.choice([b"", rng.randbytes(max(1, len(value))), value[:-1], value + b"\0"])
        case str():
            return rng.choice(["", value[:-1], value + "\0", "x" * rng.randint(1, 300)])
        case _:
            return rng.choice([None, 0, "", b"", [], {}])
