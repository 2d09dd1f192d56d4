"""Lines: delay, rate, curves and streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.cost.links import Curve, Message, arrivals_s, curve_bytes_s, curve_s, streams_bytes_s, transfer_s

FAR = Curve(c2=-0.002, c1=0.05, c0=0.2, bytes_s_max=0.6e9)


def test_streams_add_up_until_the_line_is_full() -> None:
    """Between Europe and the United States, 1 to 80 streams (Erben et al. 2024), in gigabits."""
    measured = np.array([0.21, 1.06, 2.09, 4.27, 6.17, 6.20])
    streams = np.array([1.0, 5, 10, 20, 40, 80])
    carried = streams_bytes_s(streams, np.full(6, 0.103 * 0.95), np.full(6, 6.2e9 / 8)) * 8 / 1e9
    assert carried == pytest.approx(measured, rel=0.05)


def test_a_small_message_sees_less_of_a_line() -> None:
    rates = curve_bytes_s(FAR, np.array([1e6, 4e6, 64e6, 4e9, 1e12]))
    assert list(rates) == sorted(rates)
    assert rates[0] == pytest.approx(0.2e9)
    assert rates[-1] == 0.6e9
    assert curve_s(FAR, 1e6) == pytest.approx(1e6 / 0.2e9)


@given(st.floats(0, 1e15), st.floats(-0.2, 0.2), st.floats(0, 3), st.floats(-10, 10))
def test_a_curve_never_leaves_what_is_possible(size: float, c2: float, c1: float, c0: float) -> None:
    curve = Curve(c2=c2, c1=c1, c0=c0, bytes_s_max=1e9)
    assert 1e6 <= float(curve_bytes_s(curve, size)) <= 1e9


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e6)), min_size=1, max_size=8), st.floats(0, 1))
def test_messages_on_one_line_go_one_after_the_other(raw: list[tuple[float, float]], latency_s: float) -> None:
    messages = [Message(*each) for each in raw]
    found = arrivals_s(messages, latency_s, 1e6)
    for message, arrived in zip(messages, found, strict=True):
        assert arrived >= transfer_s(message.size_bytes, latency_s, 1e6) + message.ready_s - 1e-9
    for i in range(1, len(found)):
        assert found[i] - found[i - 1] >= messages[i].size_bytes / 1e6 - 1e-9
    assert found[-1] <= max(m.ready_s for m in messages) + sum(m.size_bytes for m in messages) / 1e6 + latency_s + 1e-9
