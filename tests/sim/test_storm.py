"""Two hundred storms of all families (`make long` plays ten thousand more): a storm each, and the calm after it.

While a storm lasts no promise may break; after it everybody must come to peace on the newest anchor, within the
stated bound. A failure names the command that shrinks and stores the seed.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.sim.case import CALM_ROUNDS, SCHEMA, Case, Verdict, calm_s_max, from_json, play, to_json
from atoll.sim.faults import LEADER, Crash, CrashAt, Fault, Leave, Partition, Pause, SlowDisk, Vandal
from atoll.sim.scenario import on_fleet
from atoll.sim.search import jobs_of, play_job, spread, tallies, text
from atoll.sim.skies import FAMILIES, REPLACED_S, STAY_MIN, STORM_S, case_of, family_of
from atoll.sim.storm import case_of as own_case
from atoll.sim.storm import shrunk
from atoll.spec.fleet import Always, Machine, load_fleet
from atoll.spec.load import decode_run, demo_run
from atoll.spec.run import Run, canonical
from tests.few import few_of

SEEDS = 200
QUICK = 10
"""Of these seeds so many are played in `make test`, the others in `make long`."""
CHUNK = 10
STORMY_SHARE = 0.8
"""Part of the seeds in which rounds commit while faults are on."""
HOMES = 5
HOMES_ROUNDS = 3
"""That many of them, where the storm strikes an ordinary run."""
HOMES_CHUNK = 10
"""At a time."""
HOMES_STORM_S = 60.0


def told(verdicts: list[Verdict]) -> str:
    """Return how to look at what broke."""
    return "\n".join(
        f"atoll sim --seeds {v.seed}..{v.seed + 1} --faults storm={v.family}   # {'; '.join(v.broken[:3])[:400]}"
        for v in verdicts
        if v.broken
    )


@pytest.mark.parametrize("first", few_of(range(0, SEEDS, CHUNK), range(0, QUICK, CHUNK)))
def test_no_storm_breaks_a_promise_and_after_it_everybody_is_on_the_newest_anchor(first: int) -> None:
    verdicts = [play_job(job) for job in jobs_of(first, first + CHUNK)]
    assert not told(verdicts), "look with\n" + told(verdicts)
    assert all(verdict.rounds >= verdict.stormy_rounds + CALM_ROUNDS for verdict in verdicts)
    stormy = [verdict.seed for verdict in verdicts if verdict.stormy_rounds]
    assert len(stormy) >= STORMY_SHARE * CHUNK, f"too little happened in the storms of {first}..{first + CHUNK}"


def homes(peers: int) -> tuple[Run, list[Machine], dict[tuple[str, str], float]]:
    """Return a DiLoCo run and homes in three regions, so slow that a round takes a few seconds."""
    changes = [f"membership.start_with={peers}", "budget.rounds=100000", "recipe.channel.outer.when.steps=8"]
    machines, delays_s = on_fleet(load_fleet("homes"))
    slow = [replace(m, availability=Always(), device=replace(m.device, flop_s=2e11)) for m in machines[:peers]]
    return demo_run(overrides=changes), slow, delays_s


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, HOMES_CHUNK))
def test_five_homes_go_on_committing_while_a_storm_is_on(first: int) -> None:
    last = first + HOMES_CHUNK
    verdicts = [play(own_case(*homes(HOMES), seed, until_s=HOMES_STORM_S)) for seed in range(first, last)]
    assert [verdict.broken for verdict in verdicts if verdict.broken] == []
    assert all(verdict.rounds >= verdict.stormy_rounds + CALM_ROUNDS for verdict in verdicts)
    stormy = [verdict.seed for verdict in verdicts if verdict.stormy_rounds >= HOMES_ROUNDS]
    assert len(stormy) >= STORMY_SHARE * HOMES_CHUNK, f"too little happened in {first}..{last}"


def test_the_seeds_are_spread_over_all_families() -> None:
    seen = [family_of(seed) for seed in range(SEEDS)]
    assert set(seen) == set(FAMILIES)
    assert len(FAMILIES) >= 8
    assert all(seen.count(family) >= SEEDS // (4 * len(FAMILIES)) for family in FAMILIES)


def test_every_storm_is_about_a_run_that_a_person_could_have_written() -> None:
    for seed in range(300):
        run = case_of(family_of(seed), seed).run
        assert decode_run(canonical(run)) == run


def test_cases_are_dealt_out_to_processes_and_come_back_in_order() -> None:
    jobs = jobs_of(0, 4, "pair")
    alone, together = list(spread(play_job, jobs, 1)), list(spread(play_job, jobs, 2))
    assert [verdict.seed for verdict in together] == [0, 1, 2, 3]
    assert alone == together
    (row,) = tallies(together)
    assert (row.family, row.seeds) == ("pair", 4)
    assert "pair" in text([row])


@cache
def cases(family: str, count: int = 40) -> tuple[Case, ...]:
    return tuple(case_of(family, seed) for seed in range(count))


def faults(family: str) -> list[Fault]:
    return [fault for case in cases(family) for fault in case.faults]


def test_the_families_have_what_their_names_say() -> None:
    peers = [len(case.machines) for family in FAMILIES for case in cases(family)]
    assert (min(peers), max(peers)) == (2, 30)
    assert any(case.entrances for case in cases("tide")) and any(isinstance(f, Leave) for f in faults("tide"))
    assert any(isinstance(f, Crash) and f.peer == LEADER for f in faults("regent"))
    assert all(isinstance(f, Crash) and f.restart_after_s is None for f in faults("succession"))
    partitions = [f for f in faults("rift") if isinstance(f, Partition)]
    assert {f.one_way for f in partitions} == {True, False}
    sides = {
        (len(f.side), len(case.machines)) for case in cases("rift") for f in case.faults if isinstance(f, Partition)
    }
    assert (2, 5) in sides and (2, 4) in sides
    assert any(case.losses for case in cases("fog"))
    assert {type(f).__name__ for f in faults("rot")} >= {"FullDisk", "SlowDisk", "Crash"}
    assert all({f.peer for f in case.faults} == set(range(len(case.machines))) for case in cases("blackout"))  # type: ignore[union-attr]
    assert any(isinstance(f, Vandal) for f in faults("vandal"))
    assert any(isinstance(f, CrashAt) for f in faults("doubt"))
    assert any(isinstance(f, SlowDisk) and f.peer == LEADER for f in faults("regent"))
    assert any(isinstance(f, Pause) for f in faults("squall"))
    assert all(case.run.membership.contributors_min == 2 for case in cases("pair"))
    assert any(case.hesitates for case in cases("squall"))


def test_no_family_loses_for_good_what_a_council_cannot_replace() -> None:
    some = 0
    for case in (case for family in FAMILIES for case in cases(family, 80)):
        lost = [f for f in case.faults if isinstance(f, Crash | CrashAt | Leave) and f.restart_after_s is None]
        late = {entrance.peer for entrance in case.entrances if entrance.round}
        going = {f.peer for f in case.faults if isinstance(f, Leave) or f in lost}
        there = len(case.machines) - len(late)
        assert not lost or there - len(going - late) >= STAY_MIN
        assert all(later.at_s - first.at_s >= REPLACED_S - 0.01 for first, later in pairwise(lost))
        for fault in lost[1:]:
            crashes = [f for f in case.faults if isinstance(f, Crash | Leave) and f.at_s < fault.at_s]
            backs_s = [f.at_s + f.restart_after_s for f in crashes if f.restart_after_s is not None]
            assert all(fault.at_s >= back_s + REPLACED_S - 0.01 for back_s in backs_s)
        assert all(fault.at_s < case.until_s for fault in lost)
        some += len(lost) > 1
    assert some > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_every_storm_is_over_when_the_calm_begins(family: str) -> None:
    for case in cases(family, 20):
        for fault in case.faults:
            lasts_s = (getattr(fault, "for_s", None) or 0.0) + (getattr(fault, "restart_after_s", None) or 0.0)
            assert 0 <= fault.at_s <= fault.at_s + lasts_s <= case.until_s + 0.01, (case.seed, fault)


def test_a_case_is_the_same_each_time_and_differs_from_seed_to_seed() -> None:
    assert case_of("squall", 3) == case_of("squall", 3)
    one, again, other = play(case_of("pair", 3)), play(case_of("pair", 3)), play(case_of("pair", 4))
    assert one == again
    assert one.trace != other.trace


def test_a_stored_case_replays_to_the_byte() -> None:
    case = case_of("pair", 5)
    verdict = play(case)
    stored = from_json(to_json(case, verdict))
    assert stored.trace == verdict.trace
    assert play(stored).trace == verdict.trace
    assert replace(stored, trace="", made_with="", broken=()) == case


def test_what_is_no_case_is_refused() -> None:
    text = to_json(case_of("pair", 0), play(case_of("pair", 0)))
    with pytest.raises(SpecError, match="not a stored case"):
        from_json(b"[]")
    with pytest.raises(SpecError, match="unknown field"):
        from_json(text.replace(b'"seed"', b'"sead"', 1))
    with pytest.raises(SpecError, match=r"atoll\.case/9"):
        from_json(msgspec.json.encode(msgspec.json.decode(text) | {"schema": "atoll.case/9"}))
    assert from_json(text).schema == SCHEMA


def test_a_run_that_stands_still_for_good_is_said_to_and_shrinks_to_why() -> None:
    case = case_of("pair", 1)
    assert case.run.membership.contributors_min == 2
    lost = (Crash(at_s=20.0, peer=1, restart_after_s=None), Crash(at_s=20.5, peer=0, restart_after_s=3.0))
    harmless = (Pause(at_s=3.0, peer=0, for_s=0.5), Pause(at_s=9.0, peer=1, for_s=0.5))
    case = replace(case, machines=case.machines[:2], faults=(*harmless, *lost), tickets={}, until_s=30.0)
    case = replace(case, run=replace(case.run, membership=replace(case.run.membership, start_with=2)))
    least, verdict = shrunk(case)
    assert least.faults == lost[:1]
    assert any("of calm" in what for what in verdict.broken)
    assert verdict.rounds == verdict.stormy_rounds
    assert verdict.calm_s == pytest.approx(calm_s_max(case), abs=10.0)


def test_a_storm_blows_on_a_run_of_ones_own() -> None:
    verdict = play(own_case(*homes(3), 0, until_s=STORM_S))
    assert verdict.broken == []
    assert play(own_case(*homes(3), 0, until_s=STORM_S, faults=verdict.faults)).trace == verdict.trace
