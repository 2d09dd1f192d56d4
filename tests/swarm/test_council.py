"""Who votes: how many, who gets a seat, who loses one, and always one change at a time."""

from __future__ import annotations

import pytest

from atoll import journal
from atoll.swarm.broker import GONE_S_MAX, SEAT_S, seats
from atoll.swarm.log import CouncilChanged
from atoll.swarm.messages import Stuck
from tests.swarm.table import A, B, C, D, E, Table, small_run


def council(table: Table) -> tuple[bytes, ...]:
    return table.broker.history.council


def together(*peers: bytes) -> Table:
    """Return a table at which so many sit, with a round open."""
    table = Table(small_run(start_with=len(peers)))
    table.join(*peers)
    return table


@pytest.mark.parametrize(("peers", "voting"), [(1, 1), (2, 1), (3, 3), (6, 3), (7, 5), (19, 5), (20, 7), (1000, 7)])
def test_an_odd_number_votes_and_one_alone_while_there_are_fewer_than_three(peers: int, voting: int) -> None:
    assert seats(peers) == voting


def test_the_organiser_alone_votes_until_there_are_three() -> None:
    assert council(together(A)) == (A,)
    assert council(together(A, B)) == (A,)
    assert council(together(A, B, C)) == (A, B, C)


def test_a_council_grows_by_one_record_per_member() -> None:
    changes = together(A, B, C).records(CouncilChanged)
    assert [change.members for change in changes] == [(A,), (A, B), (A, B, C)]


def test_a_fourth_peer_has_no_seat_until_one_is_free() -> None:
    assert council(together(A, B, C, D)) == (A, B, C)


def test_a_member_that_is_back_soon_keeps_its_seat() -> None:
    table = together(A, B, C, D)
    table.go(C)
    table.tick(SEAT_S - 1)
    table.join(C)
    table.tick(SEAT_S)
    assert council(table) == (A, B, C)


def test_a_member_that_stays_away_loses_its_seat_to_one_that_is_there() -> None:
    table = together(A, B, C, D)
    table.go(C)
    table.tick(SEAT_S + 1)
    assert council(table) == (A, B, D)
    assert [change.members for change in table.records(CouncilChanged)][-2:] == [(A, B, C, D), (A, B, D)]
    assert "has lost its seat" in table.notes(journal.CouncilChanged)[-1].why


def test_nobody_loses_a_seat_that_nobody_else_can_take() -> None:
    table = together(A, B, C)
    table.go(C)
    table.tick(GONE_S_MAX / 2)
    assert council(table) == (A, B, C)


def test_the_council_shrinks_when_fewer_than_three_are_left() -> None:
    table = together(A, B, C)
    table.leave(C)
    table.tick(1.0)
    assert council(table) == (A,)


def test_a_larger_run_has_a_larger_council() -> None:
    more = [bytes([x]) * 32 for x in range(6, 9)]
    table = together(A, B, C, D, E, *more)
    assert len(council(table)) == 5


def test_who_cannot_be_reached_by_others_has_no_seat() -> None:
    table = together(A, B, C, D)
    table.say(D, Stuck(*table.plan_id(), C, never=True))
    table.tick(1.0)
    assert council(table) == (A, B, D)


def test_two_hidden_peers_leave_the_one_that_all_can_reach_alone() -> None:
    table = together(A, B, C)
    table.say(B, Stuck(*table.plan_id(), C, never=True))
    table.say(C, Stuck(*table.plan_id(), B, never=True))
    table.tick(1.0)
    assert council(table) == (A,)
