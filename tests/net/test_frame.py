"""Messages in a byte stream, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.net.frame import END_MARK, Ended, Inbox, TooLong, header


@given(some.lists(some.binary(max_size=50)), some.data())
def test_messages_come_out_as_they_went_in(messages: list[bytes], data: some.DataObject) -> None:
    stream = b"".join(header(message) + message for message in messages) + END_MARK
    inbox, got = Inbox(), []
    while stream:
        cut = data.draw(some.integers(1, inbox.lacks))
        inbox.feed(stream[:cut])
        stream = stream[cut:]
        while not inbox.ended and (message := inbox.pop(50)) is not None:
            got.append(message)
    assert got == messages
    with pytest.raises(Ended):
        inbox.pop(50)


def test_a_long_message_is_refused_before_it_has_come() -> None:
    inbox = Inbox()
    inbox.feed(header(bytes(11)))
    assert inbox.pop(11) is None
    with pytest.raises(TooLong, match="11 bytes is over the limit of 10"):
        inbox.pop(10)


def test_half_a_message_stays() -> None:
    inbox = Inbox()
    assert not inbox.begun and inbox.lacks == 4
    inbox.feed(header(b"hello"))
    inbox.feed(b"hel")
    assert inbox.pop(10) is None and inbox.begun and inbox.lacks == 2
    inbox.feed(b"lo")
    assert inbox.pop(10) == b"hello"
    assert not inbox.begun
