"""Silence is counted in ticks of our own."""

from __future__ import annotations

import pytest

from atoll.net.pulse import Pulse


def silent_ticks(pulse: Pulse, heard: int) -> int:
    """Return how many ticks without a new sign of life it takes to give up."""
    assert not pulse.dead(heard)
    ticks = 1
    while not pulse.dead(heard):
        ticks += 1
    return ticks


@pytest.mark.parametrize("dead_after_s", [0.5, 1.0, 5.0, 5.5, 30.0])
def test_a_silent_peer_is_given_up_within_the_bound(dead_after_s: float) -> None:
    pulse = Pulse(dead_after_s)
    silent_s = silent_ticks(pulse, 7) * pulse.tick_s
    assert 0.7 * dead_after_s <= silent_s <= dead_after_s


def test_any_sign_of_life_starts_the_count_anew() -> None:
    pulse = Pulse(5.0)
    for heard in range(100):
        assert not pulse.dead(heard)
        assert not pulse.dead(heard)
    assert silent_ticks(pulse, 100) == silent_ticks(Pulse(5.0), 0)


def test_pings_go_out_once_a_second_or_faster() -> None:
    assert Pulse(5.0).tick_s == 1.0
    assert Pulse(60.0).tick_s == 1.0
    assert Pulse(1.0).tick_s == 0.2
