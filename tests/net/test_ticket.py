"""A ticket survives chat and mail, and says how it was damaged when it did not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import SpecError
from atoll.net.ticket import Contact, Ticket, parse_ticket, print_ticket
from atoll.net.transport import PeerId

ADDRESSES = some.sampled_from(["192.168.1.7:4000", "10.0.0.1:65535", "[2001:db8::1]:4000", "gpu.example.org:4001"])
CONTACTS = some.builds(
    Contact, some.binary(min_size=32, max_size=32).map(PeerId), some.lists(ADDRESSES, max_size=5).map(tuple)
)
TICKETS = some.builds(
    Ticket,
    some.binary(min_size=16, max_size=16).map(bytes.hex),
    some.lists(CONTACTS, min_size=1, max_size=4).map(tuple),
)

TICKET = Ticket("00112233445566778899aabbccddeeff", (Contact(PeerId(bytes(range(32))), ("192.168.1.7:4000",)),))
WORD = print_ticket(TICKET)


@given(TICKETS)
def test_a_ticket_comes_back(ticket: Ticket) -> None:
    assert parse_ticket(print_ticket(ticket)) == ticket


def test_a_ticket_is_one_short_word() -> None:
    assert WORD.startswith("atoll1")
    assert WORD.isalnum()
    assert WORD.lower() == WORD
    assert len(WORD) < 150
    assert not set(WORD.removeprefix("atoll1")) & set("0189"), "letters that look alike are not used"


def test_capitals_spaces_and_line_breaks_do_not_matter() -> None:
    broken = "\n  ".join(WORD[at : at + 20] for at in range(0, len(WORD), 20))
    assert parse_ticket(f" {broken.upper()}\r\n") == TICKET


def test_zero_and_one_are_read_as_the_letters_they_look_like() -> None:
    start, rest = WORD[:6], WORD[6:]
    assert parse_ticket(start + rest.replace("o", "0").replace("l", "1")) == TICKET


@given(TICKETS, some.data())
def test_any_one_mistyped_character_is_noticed(ticket: Ticket, data: some.DataObject) -> None:
    word = print_ticket(ticket)
    at = data.draw(some.integers(6, len(word) - 1))
    letter = data.draw(some.sampled_from("abcdefghijklmnopqrstuvwxyz234567").filter(lambda letter: letter != word[at]))
    with pytest.raises(SpecError, match="mistyped|cut short|too many") as refused:
        parse_ticket(word[:at] + letter + word[at + 1 :])
    assert refused.value.hint


@given(TICKETS, some.data())
def test_a_cut_ticket_is_called_cut(ticket: Ticket, data: some.DataObject) -> None:
    word = print_ticket(ticket)
    with pytest.raises(SpecError, match="cut short"):
        parse_ticket(word[: data.draw(some.integers(6, len(word) - 1))])


def test_it_says_how_many_characters_are_missing() -> None:
    with pytest.raises(SpecError, match="7 characters are missing"):
        parse_ticket(WORD[:-7])


def test_characters_that_follow_a_ticket_are_noticed() -> None:
    with pytest.raises(SpecError, match="3 characters too many"):
        parse_ticket(WORD + "abc")


def test_a_character_outside_the_alphabet_is_named_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"no '-' \(character 11\)"):
        parse_ticket(WORD[:10] + "-" + WORD[10:])


def test_a_newer_ticket_asks_for_another_version() -> None:
    with pytest.raises(SpecError, match="version 2"):
        parse_ticket("atoll2" + WORD[6:])


@pytest.mark.parametrize("text", ["", "atoll", "hello", "https://example.org/atoll1", "atollx" + WORD[6:]])
def test_what_is_no_ticket_is_called_so(text: str) -> None:
    with pytest.raises(SpecError, match="is not a ticket"):
        parse_ticket(text)


@given(some.text())
def test_no_text_raises_anything_else(text: str) -> None:
    for whole in (text, "atoll1" + text):
        try:
            assert parse_ticket(whole).peers
        except SpecError as error:
            assert error.hint
