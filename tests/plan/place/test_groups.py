from itertools import pairwise

import numpy as np
import pytest
from bench.plan import dtfm
from bench.plan.brute import partitions, random_links
from bench.plan.row import table

from atoll.plan.place.crew import Links, links_of
from atoll.plan.place.groups import Scale, Split, Volumes, dealt, split, split_of


def two_clusters(size: int) -> Links:
    """Fast inside, slow across."""
    at = np.repeat([0, 1], size)
    same = at[:, None] == at[None, :]
    return links_of(np.where(same, 0.001, 0.05), np.where(same, 1e9, 1e8))


def clusters_in(groups: Split, size: int) -> list[set[int]]:
    return [{place // size for place in group} for group in groups.groups]


def pipelines(found: Split, size: int) -> list[set[int]]:
    return [{place // size for place in pipeline} for pipeline in zip(*found.groups, strict=True)]


@pytest.mark.parametrize("row", table("dtfm"), ids=lambda row: f"{row['scenario']}-{row['placement']}")
def test_given_placements_cost_what_was_computed_elsewhere(row: dict[str, str]) -> None:
    found = split_of(dtfm.links_in(row["scenario"]), dtfm.VOLUMES, dtfm.placed(row["scenario"], row["placement"]))
    assert found.sync_s == pytest.approx(float(row["sync_s"]), abs=dtfm.ROUNDING)
    assert found.hand_s == pytest.approx(float(row["hand_s"]), abs=dtfm.ROUNDING)


@pytest.mark.parametrize("scenario", dtfm.scenarios())
def test_a_short_search_already_reaches_the_best_known(scenario: str) -> None:
    found = split(dtfm.links_in(scenario), dtfm.VOLUMES, dtfm.STAGES, trials=30)
    assert found.total_s <= (1 + dtfm.SLACK) * dtfm.best_known_s(scenario)


@pytest.mark.long
def test_all_gates_hold() -> None:
    assert [gate for gate in dtfm.gates() if not gate.holds] == []


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 100))])
def test_on_few_machines_no_split_costs_less(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, stages = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4)][seed % 5]
    links, _ = random_links(draw, count)
    volumes = Volumes(activation_bytes=10 ** draw.uniform(6, 9), gradient_bytes=10 ** draw.uniform(6, 9))
    scale = Scale(links, volumes, stages)
    best_s = min(scale.total_s(tuple(sorted(each))) for each in partitions(range(count), count // stages))
    assert split(links, volumes, stages).total_s == pytest.approx(best_s)


def test_what_is_heavier_stays_inside_and_both_ways_appear() -> None:
    links = two_clusters(4)
    inside: list[tuple[bool, bool]] = []
    for activation_bytes in 10.0 ** np.arange(5, 11):
        found = split(links, Volumes(activation_bytes=activation_bytes, gradient_bytes=1e8), stages=2)
        groups = all(len(each) == 1 for each in clusters_in(found, 4))
        whole = all(len(each) == 1 for each in pipelines(found, 4))
        inside.append((groups, whole))
    assert inside[0] == (True, False), "gradients dominate: replicas of a stage are near each other"
    assert inside[-1] == (False, True), "activations dominate: whole pipelines are near each other"
    turns = [one != other for one, other in pairwise(inside)]
    assert sum(turns) == 1, "as activations grow there is one point at which it turns"


def test_cards_are_dealt_to_every_number_of_groups_at_a_time() -> None:
    runs, pairs, stripes = dealt(range(8), 4)
    assert runs == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert pairs == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert stripes == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_members_at_the_same_place_are_the_pairing_that_was_paid_for() -> None:
    links, _ = random_links(np.random.default_rng(5), 12)
    volumes = Volumes(activation_bytes=3e8, gradient_bytes=1e8)
    found = split(links, volumes, 3, trials=100)
    hand = 2 * links.transfer_s(volumes.activation_bytes)
    paid_s = sum(hand[list(one), list(other)].max() for one, other in pairwise(found.groups))
    assert paid_s == pytest.approx(found.hand_s)
    assert sorted(place for group in found.groups for place in group) == list(range(12))


def test_the_same_seed_finds_the_same_split() -> None:
    links, _ = random_links(np.random.default_rng(7), 12)
    volumes = Volumes(activation_bytes=3e8, gradient_bytes=1e8)
    assert split(links, volumes, 4, trials=200) == split(links, volumes, 4, trials=200)
