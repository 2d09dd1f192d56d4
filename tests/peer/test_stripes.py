"""Over how many streams bulk goes: as many as twice the measured rate needs on a path as long as measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from atoll.net.transport import PeerId
from atoll.peer.links import Links
from atoll.peer.stripes import STRIPES_MAX, stripe, stripes_to


def links(rate_bytes_s: float, round_trip_s: float | None) -> Links:
    up = SimpleNamespace(rate_bytes_s=lambda: rate_bytes_s)
    return cast("Links", SimpleNamespace(line=SimpleNamespace(up=up), round_trip_s=lambda peer: round_trip_s))


@pytest.mark.parametrize(
    ("rate_bytes_s", "round_trip_s", "streams"),
    [
        (0, None, 1),  # nothing is known
        (12.5e6, 0.04, 1),
        (12.5e6, 0.1, 2),
        (125e6, 0.001, 1),
        (6.25e6, 0.2, 2),  # as much as one stream carries on that path: there may be more to get
        (12.5e6, 0.2, 4),
        (125e6, 0.3, STRIPES_MAX),
    ],
)
def test_there_are_streams_for_twice_the_rate(rate_bytes_s: float, round_trip_s: float | None, streams: int) -> None:
    assert stripes_to(links(rate_bytes_s, round_trip_s), PeerId(b""), 1000) == streams


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_no_more_streams_than_chunks(chunks: int) -> None:
    assert stripes_to(links(125e6, 0.3), PeerId(b""), chunks) == max(1, chunks)


def test_every_chunk_goes_over_one_stream() -> None:
    chunks = [5, 6, 7, 8, 11, 12]
    assert sorted(index for number in range(4) for index in stripe(chunks, number, 4)) == chunks
