"""Trees that sums go up: what is one, whom each passes what, and how everybody comes to the result."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import Shard
from atoll.swarm.routes.tree import Tree, Way, is_tree


@some.composite
def ups(draw: some.DrawFn, count: int) -> tuple[int, ...]:
    """Return any tree of so many: each hangs on one that came before it in some order."""
    order = draw(some.permutations(range(count)))
    up = [0] * count
    for at, place in enumerate(order):
        up[place] = order[draw(some.integers(0, at - 1))] if at else place
    return tuple(up)


@some.composite
def forests(draw: some.DrawFn) -> tuple[int, tuple[Tree, ...]]:
    count = draw(some.integers(1, 7))
    trees = draw(some.lists(some.builds(Tree, some.integers(1, 4), ups(count)), min_size=1, max_size=4))
    return count, tuple(trees)


def peers_of(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


def layout_of(count: int, trees: tuple[Tree, ...], *, late: int = 0) -> Layout:
    """Return the routes of trees over some members; so many others are members too, but not in them."""
    chunks = sum(tree.chunks for tree in trees)
    over = tuple(Tree(tree.chunks, (*tree.up, *[-1] * late)) for tree in trees)
    shards = [Shard(peer, 0, chunks, place) for place, peer in enumerate(peers_of(count))]
    return Layout(shards, peers_of(count + late), trees=over)


@given(forests())
def test_every_sum_goes_up_to_its_root_and_every_result_comes_down_to_all(drawn: tuple[int, tuple[Tree, ...]]) -> None:
    count, trees = drawn
    layout, peers = layout_of(count, trees, late=1), peers_of(count + 1)
    carriers, cells = peers[:-1], [(0, index) for index in range(layout.chunks)]
    sent = [(peer, to, index) for peer in carriers for to, units in layout.sums(peer).items() for _, index in units]
    assert len(sent) == (count - 1) * layout.chunks, "each sends each chunk on once, but its root"
    for peer, to, index in sent:
        tree = next(t for t, end in zip(trees, accumulate(t.chunks for t in trees), strict=True) if index < end)
        assert to == peers[tree.up[peers.index(peer)]]
    for peer in carriers:
        came = [cell for owner in carriers for cell in layout.returned(owner, peer)] + layout.roots(peer)
        assert sorted(came) == cells, "each result once, from the one above or made here"
        passed = {cell for to in peers for cell in layout.returned(peer, to)}
        assert passed | set(layout.roots(peer)) == layout.results(peer), "and what is passed on is known here"
        assert not any(layout.parts(owner, peer) for owner in carriers if owner != peer), "contributions stay at home"
    outside = [cell for owner in carriers for cell in layout.returned(owner, peers[-1])]
    assert sorted(outside) == cells, "who is in no tree gets it from the roots"


@given(some.integers(1, 8).flatmap(ups))
def test_who_is_in_a_tree_comes_after_all_below_it(up: tuple[int, ...]) -> None:
    way = Way(up, range(1))
    for at, place in enumerate(way.upwards):
        assert set(way.below[place]) <= set(way.upwards[:at])
        assert way.counts[place] == 1 + sum(way.counts[below] for below in way.below[place])
    assert way.counts[way.root] == len(up)
    assert is_tree(Tree(1, up), [True] * len(up))


@pytest.mark.parametrize(
    ("up", "inside"),
    [
        ((0, 0, 0), (True, True)),
        ((0, 0, 0), (True, True, False)),
        ((0, 0, -1), (True, True, True)),
        ((0, 1, 0), (True, True, True)),
        ((1, 2, 0), (True, True, True)),
        ((0, 2, 1), (True, True, True)),
        ((0, 7, 0), (True, True, True)),
        ((0, -2, 0), (True, True, True)),
        ((0, 2, -1), (True, True, False)),
    ],
)
def test_what_is_no_tree_of_just_these_members_is_none(up: tuple[int, ...], inside: tuple[bool, ...]) -> None:
    assert not is_tree(Tree(1, up), inside)


def test_a_tree_is_for_something() -> None:
    assert is_tree(Tree(1, (0, 0)), [True, True])
    assert not is_tree(Tree(0, (0, 0)), [True, True])


def test_sums_and_results_of_other_trees_have_other_names() -> None:
    settled = [1, 1, 1, 1]
    star, chain, other = (layout_of(4, (Tree(8, up),)) for up in ((0, 0, 0, 0), (0, 0, 1, 2), (0, 0, 0, 1)))
    both = layout_of(4, (Tree(4, (0, 0, 0, 0)), Tree(4, (1, 1, 1, 1))))
    assert len({layout.set_of(settled, (0, 0)) for layout in (star, chain, other, both)}) == 4
    names = [layout.sums_along(settled, layout.ways[0]) for layout in (star, chain, other)]
    assert names[0][3] == names[1][3] == names[2][3], "a leaf passes on its own, whatever is above it"
    assert names[0][2] == names[2][2] != names[1][2], "who has somebody below it passes on another sum"
    again = star.sums_along([1, 1, 1, 2], star.ways[0])
    assert again[:3] != names[0][:3], "the root's is of all"
    assert again[1:3] == names[0][1:3]
