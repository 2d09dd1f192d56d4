"""How long bytes take over one line: a delay and a rate, a rate that grows with the message, a rate of many streams.

    alpha-beta     alpha + x / beta: the first occupies nobody, the second the line (DT-FM, FusionAI, CrossPipe)
    curve          x / beta(x), with beta a parabola in log2 of the megabytes up to a plateau (measured so by Sailor)
    streams        one TCP stream carries a window per round trip; n of them n windows, until the line is full

Messages on one directed line go one after the other, in the order in which they are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from atoll.plan.cost.flops import Number

WINDOW_BYTES = 2.55e6
"""What one stream has under way: fits six paths of 103 to 272 ms that Erben et al. (2024) measured, 2.4 to 2.7 MB."""
MESSAGE_BYTES_MIN = 1e3
"""Below this a curve is not followed down."""
PLATEAU_PART_MIN = 1e-3
"""A parabola that falls below this part of its plateau says nothing more."""


class Curve(Struct, frozen=True, kw_only=True):
    """A rate that depends on how long a message is: c2 l^2 + c1 l + c0 gigabytes per second, l = log2(MB)."""

    c2: float
    c1: float
    c0: float
    bytes_s_max: float


def transfer_s(size_bytes: Number, latency_s: Number, rate_bytes_s: Number) -> Number:
    """Return when the last byte has arrived."""
    return latency_s + size_bytes / rate_bytes_s


def curve_bytes_s(curve: Curve, size_bytes: Number) -> Number:
    """Return the rate that a message of this length sees."""
    megabytes = np.log2(np.maximum(size_bytes, MESSAGE_BYTES_MIN) / 1e6)
    rate = (curve.c2 * megabytes**2 + curve.c1 * megabytes + curve.c0) * 1e9
    # Past the top of a parabola that opens downwards lies no measurement: a longer message is not slower.
    top = -curve.c1 / (2 * curve.c2) if curve.c2 < 0 else np.inf
    rate = np.where(megabytes > top, curve.bytes_s_max, rate)
    return np.clip(rate, PLATEAU_PART_MIN * curve.bytes_s_max, curve.bytes_s_max)


def curve_s(curve: Curve, size_bytes: float) -> float:
    """Return how long a message takes on a line whose rate follows a curve."""
    return float(size_bytes / curve_bytes_s(curve, size_bytes)) if size_bytes else 0.0


def streams_bytes_s(
    streams: Number, round_trip_s: Number, cap_bytes_s: Number, window_bytes: float = WINDOW_BYTES
) -> Number:
    """Return what so many TCP streams carry together: min(C, n W / RTT)."""
    return np.minimum(cap_bytes_s, streams * window_bytes / round_trip_s)


class Message(NamedTuple):
    """Something to send: when it is ready, and how long it is."""

    ready_s: float
    size_bytes: float


def arrivals_s(messages: Sequence[Message], latency_s: float, rate_bytes_s: float) -> list[float]:
    """Return when messages arrive that go over one line in the order given, each as soon as it is ready."""
    free_s, found = 0.0, []
    for message in messages:
        free_s = max(free_s, message.ready_s) + message.size_bytes / rate_bytes_s
        found.append(free_s + latency_s)
    return found
