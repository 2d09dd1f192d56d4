"""What peers say to each other, as bytes: one version byte, then one tagged record in msgpack.

Every protocol declares its messages as a union of records and owns one `Wire` for that union. Bytes
from another machine are checked here and nowhere else: what comes out of `decode` has the right types,
and whatever is wrong with the bytes becomes a `BadMessage`, never another exception. A field of type
`memoryview` points into the received bytes instead of copying them: use it for bulk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from atoll.net.transport import MESSAGE_BYTES_MAX, Malformed

WIRE_VERSION = 1
LONG_BYTES = 2048
"""A message that is worth remembering."""

M = TypeVar("M")


class BadMessage(Malformed):
    """Another peer sent bytes that are no message of this protocol."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of every wire message: strict, immutable, tagged by its `kind`."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return `message` as `Wire.decode` expects it."""
    return bytes((WIRE_VERSION,)) + _encoder.encode(message)


_DATA = b"\xa4data"
_HEAD_BYTES_MAX = 512


def bulk_bytes(message: bytes) -> int:
    """Return how many bytes of a message are its `data`, the last field of those that carry a vector's values."""
    at = message.find(_DATA, 0, _HEAD_BYTES_MAX)
    return len(msgspec.msgpack.decode(memoryview(message)[at + len(_DATA) :], type=memoryview)) if at >= 0 else 0


class Wire(Generic[M]):
    """The messages of one protocol."""

    def __init__(self, kinds: Any, *, remember: int = 0) -> None:
        """Accept exactly the records of the union `kinds`, and remember so many long ones of the last.

        Messages never change, so where many peers are one process, those who are told the same can share it.
        """
        self.kinds = kinds
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._recall = lru_cache(remember)(self._decode) if remember else None

    def decode(self, data: bytes | memoryview, limit: int = MESSAGE_BYTES_MAX) -> M:
        """Return the message in `data`, or raise `BadMessage` saying what is wrong with it."""
        if len(data) > limit:
            raise BadMessage(f"a message of {len(data)} bytes is over the limit of {limit}")
        if len(data) == 0:
            raise BadMessage("an empty message")
        if data[0] != WIRE_VERSION:
            hint = "the other peer runs another version of Atoll: update the older of the two"
            raise BadMessage(f"wire version {data[0]}, expected {WIRE_VERSION}", hint=hint)
        try:
            body = memoryview(data)[1:]
            recall = self._recall if len(body) >= LONG_BYTES else None
            message: M = self._decode(body) if recall is None else recall(bytes(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage(f"not a message of this protocol: {str(error)[:200]}") from error
        return message
