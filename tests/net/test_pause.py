"""The pause before iroh is asked again: as long as it takes for the rest to be there, never long enough to matter."""

from __future__ import annotations

import asyncio

from atoll.net.iroh import PAUSE_S_MAX, PAUSE_S_MIN, Pause


def paused(pause: Pause, *, enough: bool) -> None:
    asyncio.run(pause.take())
    pause.learn(enough=enough)


def test_a_pause_that_was_too_short_gets_longer_up_to_a_limit() -> None:
    pause, before_s = Pause(), 0.0
    while pause.length_s < PAUSE_S_MAX:
        assert pause.length_s > before_s
        before_s = pause.length_s
        paused(pause, enough=False)
    paused(pause, enough=False)
    assert pause.length_s == PAUSE_S_MAX


def test_one_that_was_enough_gets_shorter_so_that_nobody_waits_for_good() -> None:
    pause = Pause()
    for _ in range(20):
        paused(pause, enough=False)
    for _ in range(100):
        paused(pause, enough=True)
    assert pause.length_s == PAUSE_S_MIN


def test_what_was_done_without_a_pause_says_nothing_about_it() -> None:
    pause = Pause()
    paused(pause, enough=False)
    length_s = pause.length_s
    for enough in (True, False, True):
        pause.learn(enough=enough)
    assert pause.length_s == length_s
