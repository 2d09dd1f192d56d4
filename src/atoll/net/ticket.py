"""What people pass on so that others can join: a run and where to find some of its peers, as one word.

    atoll1 | base32 of: length, body, checksum

A ticket travels through chat, mail and paper, so it survives line breaks and capitals, its alphabet
has no 0 or 1 to mistake for O and L (they are read as these), and the length and the checksum let
`parse_ticket` say *how* it was damaged. It is no secret: whoever holds it may ask, not enter.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from atoll.errors import SpecError
from atoll.net.transport import PeerId

_NAME = "atoll"
_VERSION = "1"
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_LENGTH_BYTES = 2
_CHECK_BYTES = 4
_BODY_BYTES_MAX = 2047  # so that the length takes four letters of which the first is always "a"
_WHOLE = "copy the whole ticket, from 'atoll1' to its last letter, and paste it again"

_ADDRESS_CHARS_MAX = 260
_ADDRESS = r"^[^\s]+:[0-9]{1,5}$"
_Address = Annotated[str, Meta(max_length=_ADDRESS_CHARS_MAX, pattern=_ADDRESS)]
_Contact = tuple[Annotated[bytes, Meta(min_length=32, max_length=32)], Annotated[list[_Address], Meta(max_length=16)]]
_Body = tuple[
    Annotated[bytes, Meta(min_length=16, max_length=16)], Annotated[list[_Contact], Meta(min_length=1, max_length=8)]
]
_decoder = msgspec.msgpack.Decoder(_Body)


ADDRESSES_MAX = 16
"""Addresses of one peer."""


def is_address(text: str) -> bool:
    """Return whether this can stand in a ticket: "host:port"."""
    return len(text) <= _ADDRESS_CHARS_MAX and re.fullmatch(_ADDRESS, text) is not None


@dataclass(frozen=True)
class Contact:
    """A peer that lets others in, and where it listens ("host:port")."""

    peer: PeerId
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ticket:
    """An invitation: the run's id (32 hex digits) and one to eight peers to ask."""

    run: str
    peers: tuple[Contact, ...]


def print_ticket(ticket: Ticket) -> str:
    """Return the ticket as one word of small letters and digits."""
    contacts = [(bytes(contact.peer), list(contact.addresses)) for contact in ticket.peers]
    body = msgspec.msgpack.encode((bytes.fromhex(ticket.run), contacts))
    assert len(body) <= _BODY_BYTES_MAX, "a ticket this long is not pasteable: name fewer peers or addresses"
    _decoder.decode(body)  # raises here, at the one who made it, if a field does not fit
    return _NAME + _VERSION + _letters(_sealed(body))


def parse_ticket(text: str) -> Ticket:
    """Return the ticket in `text`, or raise `SpecError` saying how it is damaged."""
    word = "".join(text.split()).lower()
    version = word[len(_NAME) : len(_NAME) + 1]
    if not word.startswith(_NAME) or not ("1" <= version <= "9"):
        hint = "a ticket begins with 'atoll1'; `atoll train` prints one"
        raise SpecError(f"{_clip(text)!r} is not a ticket", hint=hint)
    if version != _VERSION:
        hint = "install the version of Atoll that the ticket was printed with"
        raise SpecError(f"this ticket is of version {version}, and this Atoll reads version {_VERSION}", hint=hint)
    try:
        run, contacts = _decoder.decode(_unsealed(_checked_letters(word)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # the checksum was right: it was printed like this
        raise SpecError(f"the ticket holds no invitation: {error}", hint="ask for a new ticket") from error
    return Ticket(run.hex(), tuple(Contact(PeerId(peer), tuple(addresses)) for peer, addresses in contacts))


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _checked_letters(word: str) -> str:
    """Return what follows the prefix, each letter being one that a ticket can have."""
    start = len(_NAME) + len(_VERSION)
    letters = word[start:].replace("0", "o").replace("1", "l")
    for place, letter in enumerate(letters, start=start + 1):
        if letter not in _ALPHABET:
            raise SpecError(f"a ticket has no {letter!r} (character {place})", hint=_WHOLE)
    return letters


def _sealed(body: bytes) -> bytes:
    data = struct.pack(">H", len(body)) + body
    return data + hashlib.sha256(b"atoll ticket" + data).digest()[:_CHECK_BYTES]


def _unsealed(letters: str) -> bytes:
    """Return the body once length and checksum are right."""
    mistyped = SpecError("the ticket has a mistyped character: its checksum does not match", hint=_WHOLE)
    if len(letters) < _count(_LENGTH_BYTES):
        raise SpecError("the ticket is cut short: nearly all of it is missing", hint=_WHOLE)
    (size,) = struct.unpack(">H", _bytes(letters[: _count(_LENGTH_BYTES)])[:_LENGTH_BYTES])
    if size > _BODY_BYTES_MAX:
        raise mistyped
    wanted = _count(_LENGTH_BYTES + size + _CHECK_BYTES)
    if len(letters) < wanted:
        raise SpecError(f"the ticket is cut short: {wanted - len(letters)} characters are missing", hint=_WHOLE)
    body = _bytes(letters[:wanted])[_LENGTH_BYTES : _LENGTH_BYTES + size]
    if _letters(_sealed(body)) != letters[:wanted]:
        raise mistyped
    if len(letters) > wanted:
        raise SpecError(f"{len(letters) - wanted} characters too many after the ticket", hint=_WHOLE)
    return body


def _count(size_bytes: int) -> int:
    """Return how many letters spell `size_bytes` bytes."""
    return -(-size_bytes * 8 // 5)


def _letters(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def _bytes(letters: str) -> bytes:
    """Return the bytes that `letters` spell, with nothing of a byte that is only begun."""
    return base64.b32decode(letters.upper() + "a".upper() * (-len(letters) % 8))[: len(letters) * 5 // 8]
