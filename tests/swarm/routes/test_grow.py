"""Trees over measured links: how long they take beside a star and a ring, and what a slow link is left with."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from msgspec.structs import replace

from atoll.swarm.routes.grow import Cargo, Forest, Links, forecast_s, grown

MODEL = Cargo(400, 262_144.0)
"""A hundred million bytes."""
SEEDS = range(8)


def matrix(seed: int, *, widest: float = 10.0) -> Links:
    """Return the links of six to eight peers, the fastest so many times as fast as the slowest: 1 MB/s and more."""
    rng = Random(seed)
    count = rng.choice((6, 7, 8))
    byte_s, delay_s = ([[0.0] * count for _ in range(count)] for _ in range(2))
    for a in range(count):
        for b in range(a):
            byte_s[a][b] = byte_s[b][a] = 1e-6 / widest ** rng.random()
            delay_s[a][b] = delay_s[b][a] = rng.uniform(0.005, 0.05)
    return Links(byte_s, delay_s)


def star(links: Links, root: int = 0) -> Forest:
    return [(MODEL.chunks, (root,) * len(links.s_byte))]


def ring_s(links: Links) -> float:
    """Return what an all-reduce round a ring takes: each link carries 2 (N - 1) / N of it, in the order given."""
    hops = [(at - 1, at) for at in range(len(links.s_byte))]
    bytes_ = 2 * (len(hops) - 1) / len(hops) * MODEL.chunks * MODEL.chunk_bytes
    first_s = sum(MODEL.chunk_bytes * links.s_byte[a][b] + links.delay_s[a][b] for a, b in hops)
    return bytes_ * max(links.s_byte[a][b] for a, b in hops) + 2 * first_s


def carried(forest: Forest, a: int, b: int) -> int:
    """Return the chunks that go over a link."""
    return sum(chunks for chunks, up in forest if up[a] == b or up[b] == a)


@pytest.mark.parametrize("widest", [10.0, 100.0])
def test_on_unequal_links_trees_take_half_the_time_of_a_star_and_less_than_four_fifths_of_a_ring(widest: float) -> None:
    for seed in SEEDS:
        links = matrix(seed, widest=widest)
        took_s = forecast_s(grown(links, MODEL, 4), links, MODEL)
        assert took_s <= 0.5 * forecast_s(star(links), links, MODEL), f"seed {seed}"
        assert took_s <= 0.8 * ring_s(links), f"seed {seed}"


@pytest.mark.parametrize("roots", [1, 4])
def test_trees_never_take_longer_than_the_best_star(roots: int) -> None:
    for seed in SEEDS:
        for widest in (1.0, 3.0, 100.0):
            links = matrix(seed, widest=widest)
            took_s = forecast_s(grown(links, MODEL, roots), links, MODEL)
            best_s = min(forecast_s(star(links, root), links, MODEL) for root in range(len(links.s_byte)))
            assert took_s <= best_s


def test_all_chunks_have_a_tree_of_everybody_and_no_more_roots_than_allowed() -> None:
    for seed in SEEDS:
        links = matrix(seed)
        for roots in (1, 2, 4):
            forest = grown(links, replace(MODEL, chunks=37), roots)
            assert sum(chunks for chunks, _ in forest) == 37
            assert len({up[place] for _, up in forest for place in range(len(up)) if up[place] == place}) <= roots
            for _, up in forest:
                for place in range(len(up)):
                    for _ in up:
                        place = up[place]
                    assert up[place] == place, "whoever begins, it ends at a root"


def test_what_would_wait_for_a_busy_link_takes_an_idle_one_through_somebody_else() -> None:
    """With one root all the same: what makes it fast is that chunks go by more than one way."""
    parts = []
    for seed in SEEDS:
        links = matrix(seed)
        forest = grown(links, MODEL, 1)
        (root,) = {place for _, up in forest for place in range(len(up)) if up[place] == place}
        above = [{up[place] for _, up in forest} for place in range(len(links.s_byte)) if place != root]
        assert max(map(len, above)) > 1, "somebody's chunks are passed on to more than one"
        alone_s = min(forecast_s([(MODEL.chunks, up)], links, MODEL) for _, up in forest)
        parts.append(forecast_s(forest, links, MODEL) / alone_s)
    assert max(parts) < 1
    assert median(parts) < 0.6, "of what the best of its trees would take alone"


def test_a_link_that_becomes_ten_times_slower_is_left_with_less_than_a_fifth_of_its_bytes() -> None:
    for seed in SEEDS:
        links = matrix(seed)
        before = grown(links, MODEL, 4)
        pairs = [(a, b) for a in range(len(links.s_byte)) for b in range(a)]
        a, b = max(pairs, key=lambda pair: carried(before, *pair))
        byte_s = [list(row) for row in links.s_byte]
        byte_s[a][b] = byte_s[b][a] = 10 * byte_s[a][b]
        after = grown(Links(byte_s, links.delay_s), MODEL, 4)
        assert carried(after, a, b) < 0.2 * carried(before, a, b), f"seed {seed}"


def test_who_cannot_be_reached_by_everybody_is_reached_through_others() -> None:
    links = matrix(3)
    delay_s = [list(row) for row in links.delay_s]
    delay_s[0][1] = delay_s[1][0] = 1e9
    forest = grown(Links(links.s_byte, delay_s), MODEL, 4)
    assert carried(forest, 0, 1) == 0
    assert forecast_s(forest, Links(links.s_byte, delay_s), MODEL) < 1e9


def test_among_many_only_those_of_the_best_trees_are_roots() -> None:
    links = Links([[1e-6] * 24 for _ in range(24)], [[0.01 + 0.001 * (a + b) for a in range(24)] for b in range(24)])
    forest = grown(links, MODEL, 4)
    assert sum(chunks for chunks, _ in forest) == MODEL.chunks
    assert {place for _, up in forest for place in range(24) if up[place] == place} <= {0, 1, 2, 3}
