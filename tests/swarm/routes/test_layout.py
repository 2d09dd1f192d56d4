"""Routes: whatever the shards, every chunk of every contribution gets into one result, and that to everybody, once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.spec.axes.whom import Circles, Drawn, Exponential, Lattice, Neighbours, Pattern
from atoll.swarm.log import CIRCLES, Key
from atoll.swarm.messages import Contribution, set_id
from atoll.swarm.routes.circles import circles_of
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import Shard, by_region, cut, group_slices, groups_needed, take_over

CHUNKS = 12
PATTERNS: list[Pattern] = [Lattice(side=3), Drawn(), Neighbours(), Exponential()]


def names(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


def drawn(members: int, group_max: int, data: some.DataObject) -> tuple[Layout, list[bytes]]:
    """Return a layout with random shares, after a few owners died."""
    peers = names(members)
    groups = group_slices(peers, groups_needed(members, group_max))
    shards: list[Shard] = []
    for number, group in enumerate(groups):
        shares = data.draw(some.lists(some.floats(0.01, 1.0), min_size=len(group), max_size=len(group)))
        shards += cut(CHUNKS, group, shares, number)
    dead = data.draw(some.sets(some.sampled_from(peers), max_size=members - 1))
    live = [peer for peer in peers if peer not in dead]
    after: list[Shard] = []
    for number, group in enumerate(groups):
        own = tuple(shard for shard in shards if shard.group == number)
        after += take_over(own, dead, [peer for peer in group if peer in live] or live)
    return Layout(after, peers), peers


@settings(max_examples=150)
@given(some.integers(1, 14), some.integers(1, 6), some.data())
def test_every_chunk_goes_up_once_and_comes_down_once(members: int, group_max: int, data: some.DataObject) -> None:
    layout, peers = drawn(members, group_max, data)
    every = set(range(CHUNKS))
    for peer in peers:
        brought = [index for owner in layout.owners for index in layout.parts(owner, peer)]
        assert sorted(brought) == sorted(every), "each chunk is brought to one owner"
        assert {o for o in layout.owners if layout.parts(o, peer)} == set(layout.owners_for(peer))
    made = [index for owner in layout.owners for _, index in layout.roots(owner)]
    assert sorted(made) == sorted(every), "each chunk's result is made by one owner"
    for owner in layout.owners:
        assert layout.returns(owner) == {
            to: layout.returned(owner, to)
            for to in dict.fromkeys([*peers, *layout.owners])
            if layout.returned(owner, to)
        }
    for peer in peers:
        home = {index for index in every if layout.parts(peer, peer).count(index)}
        got = [index for owner in layout.owners for _, index in layout.returned(owner, peer)]
        assert set(got) | home == every, "whoever owns nothing gets everything from others"
    for owner in layout.owners:
        for group, index in layout.units(owner):
            root = layout.root(index)
            assert root == owner or (group, index) in layout.sums(owner)[root]
            assert root == owner or (0, index) in layout.returned(root, owner), "the result comes back to pass on"


def test_one_group_sends_no_sums_and_a_result_straight_home() -> None:
    a, b, c = names(3)
    layout = Layout(cut(CHUNKS, [a, b, c], [1.0] * 3), [a, b, c])
    assert layout.sums(a) == {}
    first = {(0, index) for index in range(4)}
    assert layout.returns(a) == {b: first, c: first}
    assert layout.roots(b) == [(0, index) for index in range(4, 8)]
    assert layout.set_for([1, None, 2], b) == [set_id([Contribution(a, 1), Contribution(c, 2)])] * CHUNKS


def test_roots_are_spread_over_the_groups() -> None:
    peers = names(6)
    shards = [s for g, group in enumerate(group_slices(peers, 3)) for s in cut(CHUNKS, group, [1.0, 1.0], g)]
    layout = Layout(shards, peers)
    assert [len(layout.roots(peer)) for peer in peers] == [2] * 6


def test_sets_that_differ_in_any_group_have_different_names() -> None:
    peers = names(4)
    shards = [s for g, group in enumerate(group_slices(peers, 2)) for s in cut(CHUNKS, group, [1.0, 1.0], g)]
    layout = Layout(shards, peers)
    sets: list[list[int | None]] = [
        [1, 1, 1, 1],
        [1, 1, 1, None],
        [None, 1, 1, 1],
        [1, 1, 1, 2],
        [1, 1, None, None],
        [None, None, 1, 1],
    ]
    assert len({layout.set_of(one, (0, 0)) for one in sets}) == 6


def test_where_everybody_gathers_everything_nothing_is_returned() -> None:
    a, b, c = names(3)
    layout = Layout([Shard(a, 0, 4, 0), Shard(c, 0, 4, 1)], [a, b, c], gather=True)
    assert layout.parts(a, b) == layout.parts(c, a) == layout.parts(a, a) == [0, 1, 2, 3]
    assert layout.parts(b, a) == [], "b was not here when it was planned"
    assert layout.roots(a) == layout.roots(c) == [(0, index) for index in range(4)]
    assert layout.returns(a) == {}
    assert layout.sums(a) == {}
    assert layout.returned(a, b) == set()


@settings(max_examples=100)
@given(some.integers(2, 9), some.sampled_from(PATTERNS), some.integers(1, 5), some.data())
def test_what_a_circle_makes_is_of_its_givers_and_goes_to_its_takers_alone(
    members: int, pattern: Pattern, version: int, data: some.DataObject
) -> None:
    peers = tuple(names(members))
    circles = circles_of(Circles(pattern=pattern), Key("outer", version, scope=CIRCLES), peers)
    owners = [data.draw(some.sampled_from(peers)) for _ in circles]  # whoever it is, in the end the broker
    layout = Layout([Shard(owner, 0, CHUNKS, number) for number, owner in enumerate(owners)], peers, circles=circles)
    assert sum(len(layout.roots(owner)) for owner in layout.owners) == CHUNKS * len(circles)
    assert not any(layout.sums(owner) for owner in layout.owners)
    for number, (circle, owner) in enumerate(zip(circles, owners, strict=True)):
        cells = {(number, index) for index in range(CHUNKS)}
        for peer in peers:
            gives = any(peer in other.givers for other, its in zip(circles, owners, strict=True) if its == owner)
            assert layout.parts(owner, peer) == (list(range(CHUNKS)) if gives else [])
            takes = peer in circle.takers and peer != owner
            assert (cells <= layout.returned(owner, peer)) == takes
    settled = [1 if place % 2 else None for place in range(members)]
    for peer in peers:
        (own,) = [circle for circle in circles if peer in circle.takers]
        within = [Contribution(p, 1) for p, serial in zip(peers, settled, strict=True) if serial and p in own.givers]
        assert layout.set_for(settled, peer) == [set_id(within)] * CHUNKS


@pytest.mark.parametrize(("members", "group_max", "sizes"), [(64, 64, [64]), (65, 64, [32, 33]), (7, 3, [2, 2, 3])])
def test_groups_are_as_few_and_as_even_as_can_be(members: int, group_max: int, sizes: list[int]) -> None:
    groups = group_slices(names(members), groups_needed(members, group_max))
    assert [len(group) for group in groups] == sizes
    assert [peer for group in groups for peer in group] == names(members)


@pytest.mark.parametrize("regions", [(0, 1, 0, 1, 2, 2), (0, 0, 0, 0, 1, 2), (0, 1, 2, 3, 4, 5), (0, 0, 0, 0, 0, 0)])
def test_between_regions_one_sum_and_one_result_of_every_chunk_goes_for_each_but_one(regions: tuple[int, ...]) -> None:
    peers = names(len(regions))
    groups = by_region(peers, regions)
    shards = [s for g, group in enumerate(groups) for s in cut(CHUNKS, group, [1.0] * len(group), g)]
    layout = Layout(shards, peers, regions=regions)
    assert layout.groups == groups
    where = dict(zip(peers, regions, strict=True))
    far = [(one, other) for one in peers for other in peers if where[one] != where[other]]
    parts = sum(len(layout.parts(other, one)) for one, other in far)
    sums = sum(len(layout.sums(one).get(other, ())) for one, other in far)
    results = sum(len(layout.returned(one, other)) for one, other in far)
    assert (parts, sums, results) == (0, CHUNKS * (len(groups) - 1), CHUNKS * (len(groups) - 1))
