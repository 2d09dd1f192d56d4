"""Runs of chunks by formula beside the exchange's own routes, asked chunk by chunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from atoll.plan.flows import Flow, Lengths, flows_of, layout_of, lengths_of, regions_of
from atoll.plan.lines import Line, lines_of
from atoll.spec.axes.whom import Butterfly
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import Channel
from atoll.swarm.log import ALL, CIRCLES, Key
from atoll.swarm.routes.circles import circles_of, copies_of
from atoll.swarm.routes.layout import Layout
from atoll.sync.grid import grid_of

ELEMENTS = 64 * 1000 + 7
"""A last chunk that is shorter."""


def one_by_one(layout: Layout, lengths: Lengths, members: Sequence[bytes]) -> list[list[Flow]]:
    """Return parts, sums and results as the exchange would find them: every chunk by itself."""

    def size(form: str, chunks: Sequence[int], of: bytes = b"") -> int:
        found = lengths.part[of] if of else getattr(lengths, form)
        return sum(found.of(range(index, index + 1)) for index in chunks)

    owners = layout.owners
    parts = [(m, o, size("part", layout.parts(o, m), m)) for o in owners for m in members if m != o]
    sums = [(o, to, size("sum", [i for _, i in cells])) for o in owners for to, cells in layout.sums(o).items()]
    back = [(o, to, size("result", [i for _, i in cells])) for o in owners for to, cells in layout.returns(o).items()]
    return [parts, sums, back]


def added_up(flows: Sequence[Flow]) -> Counter[tuple[bytes, bytes]]:
    found: Counter[tuple[bytes, bytes]] = Counter()
    for sender, receiver, size_bytes in flows:
        found[sender, receiver] += size_bytes
    return +found


Sums = list[Counter[tuple[bytes, bytes]]]


def both_ways(channel: Channel, key: Key, lines: Sequence[Line]) -> tuple[Sums, Sums]:
    """Return what goes from whom to whom by runs of chunks, and chunk by chunk."""
    known = {number.to_bytes(4, "big"): line for number, line in enumerate(lines)}
    members = tuple(known)
    rates = tuple(int(line.up_bytes_s) for line in lines)
    circles = circles_of(channel.whom, key, members, rates, regions_of(channel, known))
    grid = replace(grid_of(ELEMENTS, channel.what.codec), copies=copies_of(channel.whom, key, len(members)))
    layout, lengths = layout_of(channel, grid, known, circles), lengths_of(channel, grid, members)
    by_runs, expected = flows_of(layout, lengths), one_by_one(layout, lengths, members)
    return list(map(added_up, by_runs)), list(map(added_up, expected))


@pytest.mark.parametrize("name", recipe_names())
def test_runs_of_chunks_come_to_what_the_exchange_asks_for_one_by_one(name: str) -> None:
    lines = lines_of(expand(load_fleet("town")))
    for channel in load_recipe(name).channel.values():
        for scope in (CIRCLES, ALL):
            by_runs, expected = both_ways(channel, Key("", 3, scope=scope), lines)
            assert by_runs == expected
            assert any(by_runs)


@pytest.mark.parametrize("members", [7, 12])
def test_so_they_do_with_sums_between_groups(members: int) -> None:
    channel = load_recipe("held-bit").channel["outer"]
    lines = [Line(up_bytes_s=1e6 * (1 + n % 5), down_bytes_s=1e7, reached=n % 3 > 0) for n in range(members)]
    grouped = replace(channel, whom=replace(channel.whom, route=Butterfly(group=3)))
    by_runs, expected = both_ways(grouped, Key("", 1), lines)
    assert by_runs == expected
    assert by_runs[1], "groups send sums"
