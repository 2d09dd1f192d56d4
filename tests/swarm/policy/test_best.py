"""Who teaches: the one with the least loss, and nobody who says what cannot be."""

from __future__ import annotations

import math

import pytest
from msgspec import UNSET

from atoll import journal
from atoll.net.identity import short
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Run
from atoll.swarm.log import History, Key, Member
from atoll.swarm.messages import Standing
from atoll.swarm.policy.best import teacher
from atoll.swarm.state import Broker, Note, Presence

KEY = Key("outer", 100)


def peer(number: int) -> bytes:
    return bytes([number]) * 32


def asked(*losses: float | None) -> tuple[bytes, list[journal.Event]]:
    """Return who teaches where members say these losses, and what the journal gets."""
    run = Run(name="b", recipe=load_recipe("dlion"), budget=Budget(rounds=1))
    present = {
        peer(number): Presence(Member(peer(number), ()), Standing(0, "a", loss=UNSET if loss is None else loss))
        for number, loss in enumerate(losses)
    }
    broker = Broker(me=peer(0), term=1, run=run, started_s=0.0, tokens_per_sample=1, history=History(), present=present)
    best, notes = teacher(broker, KEY, sorted(present))
    return best, [note.event for note in notes if isinstance(note, Note)]


def test_the_least_loss_teaches_and_of_equals_the_first() -> None:
    assert asked(3.0, 2.5, 2.8)[0] == peer(1)
    assert asked(3.0, 2.5, 2.5)[0] == peer(1)
    assert asked(None, None, 3.0)[0] == peer(2)
    assert asked(None, None) == (b"", [])


@pytest.mark.parametrize("lie", [-math.inf, -1.0, 0.0, math.nan, math.inf])
def test_what_is_no_loss_is_refused_and_said_to_be_whose(lie: float) -> None:
    best, told = asked(3.0, lie, 2.8)
    assert best == peer(2)
    assert [event.who for event in told if isinstance(event, journal.MessageRefused)] == [short(peer(1))]


def test_what_is_far_better_than_most_is_passed_over_but_nobody_is_blamed() -> None:
    best, told = asked(3.0, 0.01, 2.8, 2.9)
    assert best == peer(2)
    (event,) = told
    assert isinstance(event, journal.TeacherChosen)
    assert event.losses[short(peer(1))] == 0.01


def test_liars_alone_teach_nobody() -> None:
    best, told = asked(-1.0, math.nan)
    assert best == b""
    assert len(told) == 2
