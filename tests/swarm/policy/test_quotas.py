"""How much each member works: by speed, in whole batches, and no other than before without a reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll.spec.axes.when import Every, TargetBatch
from atoll.spec.axes.work import ByRate, BySpeed, Cosine, Same
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Run
from atoll.swarm.log import History, Key, Member
from atoll.swarm.messages import Standing
from atoll.swarm.policy.quotas import FASTER_MAX, quotas_of
from atoll.swarm.state import Broker, Note, Presence

BATCH, STEPS = 4, 30
KEY = Key("outer", 1)


def peer(number: int) -> bytes:
    return bytes([number]) * 32


def broker(speeds: Mapping[bytes, float], *, target: int = 0, by_speed: bool = True, least: int = 1) -> Broker:
    recipe = load_recipe("ddp" if target else "diloco")
    ((name, channel),) = recipe.channel.items()
    channel = replace(channel, when=TargetBatch(samples=target) if target else Every(steps=STEPS))
    work = replace(recipe.work, batch=BATCH, quota=BySpeed(least=least) if by_speed and not target else Same())
    run = Run(name="q", recipe=replace(recipe, work=work, channel={name: channel}), budget=Budget(rounds=1))
    present = {p: Presence(Member(p, ()), Standing(0, "a", samples_s=speed)) for p, speed in speeds.items()}
    return Broker(me=peer(0), term=1, run=run, started_s=0.0, tokens_per_sample=1, history=History(), present=present)


def quotas(speeds: list[float], **how: int) -> list[int]:
    known = {peer(number): speed for number, speed in enumerate(speeds)}
    _, found, _ = quotas_of(broker(known, **how), KEY, sorted(known))  # type: ignore[arg-type]
    return [found[p] for p in sorted(found)]


def test_where_work_does_not_follow_speed_all_work_the_same() -> None:
    assert quotas([1.0, 5.0, 0.0], by_speed=False) == [STEPS * BATCH] * 3


@pytest.mark.parametrize(
    ("speeds", "steps"),
    [
        ([2.0, 2.0, 2.0], [30, 30, 30]),
        ([4.0, 2.0, 1.0], [30, 15, 7]),
        ([100.0, 1.0, 100.0], [30, 1, 30]),
        ([0.0, 0.0], [30, 30]),
        ([4.0, 0.0, 2.0, 2.0], [30, 15, 15, 15]),
        ([float("nan"), float("inf"), -1.0, 2.0], [30, 30, 30, 30]),
    ],
)
def test_the_fastest_takes_all_steps_and_others_what_they_manage_meanwhile(
    speeds: list[float], steps: list[int]
) -> None:
    assert quotas(speeds) == [BATCH * each for each in steps]


def test_everybody_takes_some_steps() -> None:
    assert quotas([100.0, 100.0, 1.0], least=3) == [120, 120, 12]


@given(some.lists(some.floats(0.01, 1000.0), min_size=1, max_size=20), some.integers(1, 5000))
def test_a_batch_of_all_together_is_shared_out_to_the_last_sample(speeds: list[float], target: int) -> None:
    found = quotas(speeds, target=target)
    batches = -(-target // BATCH)
    assert all(each >= BATCH and each % BATCH == 0 for each in found)
    assert sum(found) == BATCH * max(batches, len(speeds))


def test_a_batch_of_all_together_is_shared_out_by_speed() -> None:
    assert quotas([4.0, 2.0, 1.0, 1.0], target=320) == [160, 80, 40, 40]


def test_a_speed_that_nobody_could_have_does_not_get_all_the_work() -> None:
    found = quotas([1e30, 1.0, 1.0], target=4 * 5200)
    assert found[0] == 4 * 5000
    assert found[0] / sum(found) <= FASTER_MAX / (FASTER_MAX + 2)


def test_quotas_stay_until_a_round_would_be_clearly_shorter() -> None:
    speeds = {peer(0): 4.0, peer(1): 2.0}
    first, told, notes = quotas_of(broker(speeds), KEY, sorted(speeds))
    assert [type(note) for note in notes] == [Note]
    for slower, changes in ((1.9, False), (1.2, True)):
        present = broker(speeds | {peer(1): slower}).present
        _, now, said = quotas_of(replace(first, present=present), KEY, sorted(speeds))
        assert (now != told, bool(said)) == (changes, changes)


def test_who_comes_or_goes_changes_the_quotas_of_a_batch_of_all_together() -> None:
    speeds = {peer(number): 1.0 for number in range(4)}
    first, _, _ = quotas_of(broker(speeds, target=96), KEY, sorted(speeds))
    _, fewer, _ = quotas_of(first, KEY, sorted(speeds)[:3])
    assert list(fewer.values()) == [32, 32, 32]


def at_rate(rule: ByRate, budget: Budget, history: History) -> int:
    """Return the steps of a round of four members, of a run whose rate falls to a tenth."""
    one = broker(dict.fromkeys(map(peer, range(4)), 1.0), by_speed=False)
    work = replace(one.run.recipe.work, quota=rule, schedule=Cosine(warmup_steps=1000, floor=0.1))
    run = replace(one.run, recipe=replace(one.run.recipe, work=work), budget=budget)
    _, found, _ = quotas_of(replace(one, run=run, history=history), KEY, sorted(one.present))
    assert len({*found.values()}) == 1
    return next(iter(found.values())) // BATCH


def test_rounds_have_more_steps_the_further_the_rate_has_fallen() -> None:
    def after(part: float, rule: ByRate) -> int:
        return at_rate(rule, Budget(tokens=10**6), History(samples=round(part * 10**6)))

    line = ByRate(power=1.0, most=1000)
    assert [after(part, line) for part in (0.0, 0.5, 0.9)] == [30, round(30 / 0.55), round(30 / 0.122)]
    assert [after(part, ByRate(most=1000)) for part in (0.0, 0.5)] == [30, round(30 / 0.55**2)]
    assert after(0.5, ByRate(power=0.0, most=1000)) == 30
    assert after(0.9, ByRate(power=1.0, most=100)) == 100


def test_the_last_of_growing_rounds_takes_what_is_left_of_a_budget() -> None:
    members, tokens = 4, 100_000
    left = 7 * members * BATCH - 1
    assert at_rate(ByRate(most=1000), Budget(tokens=tokens), History(samples=tokens - left)) == 7
    by_rounds = History(version=9, samples=10**9)
    assert at_rate(ByRate(power=1.0, most=1000), Budget(rounds=18), by_rounds) == round(30 / 0.55), (
        "of rounds it is their number"
    )
