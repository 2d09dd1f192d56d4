"""A round that is given up and announced again in the same words while a peer trains is another round to it."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from atoll.peer.work import work
from atoll.sim.links import Link
from atoll.swarm.log import Entry, Key, Record, RoundAnnounced, RoundVoided
from tests.peer.desks import VERSION, Desk, Office, anchor, digest, play

KEY = Key("outer", VERSION + 1)
ANNOUNCED = RoundAnnounced(KEY, b"\x01", (80,), digest(), 0)
"""For the only member: work of 60 ms."""


def learns(desk: Desk, *records: Record) -> None:
    for record in records:
        desk.member.learn(Entry(desk.member.history.next_index, record, 1))
    desk.member.changes.notify()


def test_who_trains_meanwhile_contributes_to_the_round_that_is_open_now() -> None:
    async def scene(office: Office) -> None:
        office.history = replace(office.history, announced=VERSION)
        desk = await office.sit(0, anchor())
        desk.member.digest = digest()
        learns(desk, ANNOUNCED)
        first = desk.member.desks[KEY.version]
        desk.life.start(work(desk.member))
        await asyncio.sleep(0.02)
        assert desk.member.begun is not None, "it is at work"
        learns(desk, RoundVoided(KEY), ANNOUNCED)
        await asyncio.sleep(1.0)
        assert desk.member.desks[KEY.version] is not first
        assert desk.member.desks[KEY.version].own is not None

    play({0: Link(up_bytes_s=1e9, down_bytes_s=1e9)}, scene)
