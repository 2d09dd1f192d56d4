"""How long a round waits: from what was measured, in words, and never less than a busy machine needs."""

from __future__ import annotations

from msgspec.structs import replace

from atoll import journal
from atoll.swarm.messages import Standing
from atoll.swarm.policy.patience import BUSY_S, FEW_S, STALL_S, patience, patience_s_min, stall
from atoll.swarm.routes.shares import Bulk
from tests.swarm.table import BULK, A, B, C, D, E, Table, small_run

MB = 1_000_000


def trained(took_s: float, *, home_s: float = 0.0, rounds: int = 1, patience_s_max: float = 3600.0) -> Table:
    """Return a table where three members have done some rounds, each so long, and the next one is open."""
    table = Table(small_run(start_with=3, rounds=50, patience_s_max=patience_s_max))
    table.join(A, B, C)
    for _ in range(rounds):
        table.tick(took_s)
        table.contribute(A, B, C)
        table.reduce(A, B, C)
        table.tick(home_s)
        table.hold(A, B, C)
        table.stand(A, B, C)
    return table


def measured(table: Table, rate_mb_s: float, peers: tuple[bytes, ...] = (A, B, C), size_mb: int = 60) -> None:
    table.broker = replace(table.broker, bulks={"outer": (Bulk(BULK.chunks, size_mb * MB // BULK.chunks),)})
    version = table.broker.history.version
    for peer in peers:
        table.say(peer, Standing(version, f"anchor-{version}", int(rate_mb_s * MB), int(rate_mb_s * MB)))


def test_who_was_in_the_last_round_is_waited_for_four_times_the_median_and_what_a_busy_machine_may_lose() -> None:
    table = trained(5.0)
    table.tick(6.0)
    table.contribute(A, B)
    table.tick(4 * 6.0 + BUSY_S - 6.0 - 0.5)
    assert table.plan_of(A).settled is None
    table.tick(0.5)
    assert table.settled_of(A) == [A, B]
    assert table.notes(journal.RoundSettled)[-1].why == "4 times the median of 6.0 s and 10 s"


def test_while_few_have_contributed_the_last_rounds_say_how_long_it_takes() -> None:
    table = trained(5.0)
    table.tick(5.0)
    table.contribute(A)
    limit_s, why = patience(table.broker, table.round)
    assert limit_s == 4 * 5.0 + FEW_S
    assert why == "4 times the last rounds' median of 5.0 s and 60 s"
    table.tick(limit_s - 5.0)
    assert table.settled_of(A) == [A]


def test_a_slow_line_is_given_the_time_its_bytes_take() -> None:
    table = trained(5.0)
    measured(table, 1.0)
    table.tick(5.0)
    table.contribute(A, B)
    limit_s, why = patience(table.broker, table.round)
    assert limit_s == 4 * 5.0 + 2 * 80.0 + BUSY_S, "60 MB of its own, and a third of that for one other"
    assert "80.0 s for 80.0 MB at 1.0 MB/s" in why


def test_the_ceiling_of_the_spec_is_above_all() -> None:
    table = trained(5.0, patience_s_max=50.0)
    measured(table, 1.0)
    table.tick(5.0)
    table.contribute(A, B)
    limit_s, why = patience(table.broker, table.round)
    assert limit_s == 5.0 + 50.0
    assert "the spec's 50 s" in why


def test_results_may_stand_still_for_four_times_what_they_took_before_however_long_the_work_is() -> None:
    table = trained(600.0, home_s=20.0)
    table.tick(600.0)
    table.contribute(A, B, C)
    limit_s, why = stall(table.broker, table.round)
    assert limit_s == 4 * 20.0 + BUSY_S
    assert "the 20.0 s that results took" in why
    table.tick(limit_s)
    assert table.round.attempt == 1
    table.tick(0.1)
    assert table.round.attempt == 2
    assert "nothing moved for 90 s: 4 times the 20.0 s" in table.notes(journal.RoundReplanned)[-1].why


def test_results_may_stand_still_for_four_times_what_their_bytes_take() -> None:
    table = trained(600.0, home_s=1.0)
    measured(table, 1.0)
    limit_s, why = stall(table.broker, table.round)
    assert limit_s == 4 * 80.0 + BUSY_S
    assert "80.0 MB at 1.0 MB/s" in why


def test_a_round_may_always_stand_still_for_a_while_and_longer_with_every_plan() -> None:
    table = trained(0.1, home_s=0.1)
    assert stall(table.broker, table.round)[0] == STALL_S
    again = replace(table.round, attempt=table.round.attempt + 2)
    limit_s, why = stall(table.broker, again)
    assert limit_s == 4 * STALL_S
    assert "doubled 2 times" in why


def test_times_of_long_ago_are_forgotten() -> None:
    table = trained(50.0, home_s=50.0)
    for _ in range(3):
        table.tick(1.0)
        table.finish_round(A, B, C)
    assert table.broker.pace.work_s == (1.0, 1.0, 1.0)
    assert max(table.broker.pace.return_s) < 1.0


def test_a_commit_waits_half_as_long_again_for_those_who_nearly_have_the_result() -> None:
    table = trained(5.0)
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.tick(4.0)
    table.hold(A, B)
    table.tick(1.9)
    assert table.broker.history.version == 1, "C may have it any moment"
    table.tick(0.1)
    assert table.broker.history.version == 2


def reduced_by_five() -> Table:
    """Return a table where five members with lines of 10 MB/s have done all but hold the result of 60 MB."""
    table = Table(small_run(start_with=5))
    table.join(A, B, C, D, E)
    measured(table, 10.0, (A, B, C, D, E))
    table.contribute(A, B, C, D, E)
    table.reduce(A, B, C, D, E)
    return table


def test_while_more_than_half_lack_the_result_a_commit_waits_for_the_busiest_owner() -> None:
    table = reduced_by_five()
    table.hold(A, B)
    table.tick(9.5)
    assert table.broker.history.version == 0, "a fifth of 60 MB to three others, and its own: 9.6 s"
    table.tick(0.1)
    assert table.broker.history.version == 1


def test_a_commit_does_not_wait_for_the_busiest_owner_where_most_have_the_result() -> None:
    table = reduced_by_five()
    table.hold(A, B, C)
    table.tick()
    assert table.broker.history.version == 1


def test_a_commit_waits_for_nobody_when_all_have_the_result() -> None:
    table = trained(5.0)
    measured(table, 10.0)
    table.contribute(A, B, C)
    table.reduce(A, B, C)
    table.hold(A, B, C)
    assert table.broker.history.version == 2


def test_the_cheap_bound_on_patience_is_never_above_it() -> None:
    for rounds in (0, 1):
        for limit_s in (20.0, 3600.0):
            for who in ((), (A,), (A, B)):
                table = trained(5.0, rounds=rounds, patience_s_max=limit_s)
                measured(table, 1.0)
                table.tick(3.0)
                table.contribute(*who)
                assert patience_s_min(table.broker, table.round) <= patience(table.broker, table.round)[0]
