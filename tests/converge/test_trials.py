"""Convergence trials: the plain loop is the engine's DDP, the list keeps the protocol's promises, text is sifted."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.converge import plain, play, world
from bench.converge.archive import Package
from bench.converge.extract import paragraphs_of_markup, paragraphs_of_text, prose
from bench.converge.listed import FORTY_FIVE, SEEN, due, large, trials
from bench.converge.play import played
from bench.converge.record import append, done
from bench.converge.report import tables
from bench.converge.sift import Paper, Text, sift
from bench.converge.trial import CONTEXT, SAMPLES, How, Trial, run_of
from bench.converge.tries import delta, longer, solo
from msgspec import json
from msgspec.structs import replace

from atoll.model.shape import elements, shapes, size_of
from atoll.sim.loop import SimulationFailed
from atoll.spec.axes.optimizer import AdamW
from atoll.spec.axes.work import Cosine
from atoll.spec.load import load_recipe
from atoll.spec.run import Fresh, Run
from atoll.swarm.log import History, Key, Member
from atoll.swarm.messages import Standing
from atoll.swarm.policy.quotas import quotas_of
from atoll.swarm.state import Broker, Presence
from tests.converge.small import SENTENCE, SMALL
from tests.identity.small import BATCH, SAME, apart, ddp, engine_of
from tests.model.toys import ToyData

PEERS = 3
ADAM = AdamW(lr=3e-3, weight_decay=0.1)


def with_batch(run: Run, batch: int) -> Run:
    return replace(run, recipe=replace(run.recipe, work=replace(run.recipe.work, batch=batch)))


@pytest.mark.parametrize("micro", [0, 5])
def test_the_plain_loop_is_the_ddp_of_the_simulated_world(micro: int) -> None:
    run = ddp(outer=ADAM, rounds=8, start_with=PEERS, schedule=Cosine(warmup_steps=3, floor=0.05))
    together = world.play(run, PEERS, ToyData(), "cpu", compiled=False)
    alone = plain.train(with_batch(run, PEERS * BATCH), ToyData(), torch.device("cpu"), micro=micro)
    assert apart(alone.weights, engine_of(run).weights()) > 1e-2, "it has learned something"
    assert apart(alone.weights, together.weights) < SAME
    assert np.allclose(alone.losses, together.losses, atol=1e-5)
    assert together.moved_bytes > 8 * 2 * 2 / PEERS * 2 * 4 * len(alone.weights), "every round sends and receives"


def test_a_trial_is_played_judged_written_down_and_told(shards: Path, tmp_path: Path) -> None:
    together = delta("diloco", 4, 2e-3, {**SMALL, "budget.rounds": 3}, peers=2)
    alone = solo(2e-3)
    alone = replace(alone, changes={**alone.changes, **SMALL, "budget.rounds": 12})
    wild = replace(alone, name="ddp-wild", changes={**alone.changes, "recipe.channel.outer.merge.outer.lr": 1e9})
    for trial in (replace(together, batch=8), replace(alone, name="ddp-b4", batch=32), alone, wild):
        append(tmp_path / "record", played(trial, shards, "cpu", commit="abc", jobs=1))
    rows = done(tmp_path / "record")
    assert [row.bits_per_byte is None for row in rows] == [False, False, False, True]
    assert rows[0].moved_bytes > 0
    assert "diverged" in rows[3].failed
    assert all(row.trial.name in tables(rows) for row in rows)


def test_a_trial_in_parts_that_are_finer_at_first_is_played(shards: Path) -> None:
    """And its first round of what is named, in two bits, moves more than its sixth."""
    changes = {**SEEN[0].changes, **SMALL}
    moved = []
    for rounds in (1, 10, 11):  # of both parts in turn
        short = replace(SEEN[0], every=2, batch=16, changes={**changes, "budget.rounds": rounds})
        row = played(short, shards, "cpu", commit="abc", jobs=1)
        assert row.bits_per_byte is not None
        moved.append(row.moved_bytes)
    assert moved[0] > moved[2] - moved[1] > 0


def test_rounds_of_a_trial_that_grow_are_as_many_as_it_says(shards: Path) -> None:
    tokens = 8 * 2 * 40 * 16
    changes = {**SMALL, **longer(1.0, 9), "budget.tokens": tokens}
    trial = replace(delta("diloco", 3, 2e-3, changes, peers=2, grown=99), batch=16)
    row = played(trial, shards, "cpu", commit="abc", jobs=1)
    assert row.bits_per_byte is not None
    assert row.rounds == len(lengths(run_of(trial, shards), trial.peers, 16)) < 40 / 3, "what it came to, not 99"
    for each in (each for each in trials() if each.grown):
        run = run_of(each, shards)
        steps = lengths(run, each.peers, CONTEXT)
        assert (len(steps), sum(steps), steps[0]) == (each.rounds, each.steps, each.every)


def lengths(run: Run, peers: int, tokens_per_sample: int) -> list[int]:
    """Return how many steps the rounds of a run have, by what a broker would announce."""
    each = {bytes([number]) * 32: 1.0 for number in range(peers)}
    present = {peer: Presence(Member(peer, ()), Standing(0, "a", samples_s=speed)) for peer, speed in each.items()}
    broker = Broker(
        me=min(each),
        term=1,
        run=run,
        started_s=0.0,
        tokens_per_sample=tokens_per_sample,
        history=History(),
        present=present,
    )
    steps: list[int] = []
    while broker.spent < 1.0:
        _, quotas, _ = quotas_of(broker, Key("outer", len(steps) + 1), sorted(each))
        steps.append(max(quotas.values()) // run.recipe.work.batch)
        samples = broker.history.samples + sum(quotas.values())
        broker = replace(broker, history=History(version=len(steps), samples=samples))
    return steps


def test_of_a_trial_that_two_played_what_ended_first_counts(shards: Path, tmp_path: Path) -> None:
    alone = replace(solo(2e-3), changes={**solo(2e-3).changes, **SMALL, "budget.rounds": 2})
    first = played(alone, shards, "cpu", commit="first", jobs=1)
    for row in (first, replace(first, trial=replace(alone, name="other")), replace(first, commit="second")):
        append(tmp_path / "record", row)
    assert [(row.trial.name, row.commit) for row in done(tmp_path / "record")] == [
        (alone.name, "first"),
        ("other", "first"),
    ]


def test_gaps_are_to_the_lowest_mean_over_seeds_not_to_a_lucky_trial(shards: Path) -> None:
    alone = replace(solo(2e-3), changes={**solo(2e-3).changes, **SMALL, "budget.rounds": 2})
    one = played(alone, shards, "cpu", commit="abc", jobs=1)
    came_to = {
        "ddp-once": 1.1,
        "ddp-lucky": 1.0,
        "ddp-lucky-seed1": 1.6,
        "ddp-good": 1.25,
        "ddp-good-seed1": 1.15,
        "diloco": 1.26,
        "solo": 2.2,
    }
    rows = [
        replace(one, trial=replace(alone, name=name, seed=int(name.endswith("1"))), bits_per_byte=bits)
        for name, bits in came_to.items()
    ]
    told = tables(rows)
    assert "| ddp-good | 2 | 1.2000 | +0.00 % | 100.0 % |" in told
    assert "| ddp-lucky | 2 | 1.3000 | +8.33 % | 90.0 % |" in told
    assert "| diloco | 1.2600 | +5.00 % | 94.0 % |" in told


def test_what_a_device_breaks_is_no_result(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("unspecified launch failure")

    def fails(*given: object, **more: object) -> None:
        raise SimulationFailed("a peer broke")

    small = replace(delta("diloco", 4, 2e-3, {**SMALL, "budget.rounds": 3}, peers=2), batch=8)
    monkeypatch.setattr(world, "play", fails)
    assert played(small, shards, "cpu", commit="abc", jobs=1).failed == "a peer broke"
    monkeypatch.setattr(play, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert played(small, shards, "cuda", commit="abc", jobs=1).failed == "a peer broke"
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(RuntimeError, match="launch failure"):
        played(small, shards, "cuda", commit="abc", jobs=1)


@pytest.mark.parametrize("trial", trials(), ids=lambda trial: str(trial.name))
def test_a_trial_keeps_the_protocol(trial: Trial, shards: Path) -> None:
    run = run_of(trial, shards)
    assert trial.steps >= 2000 or trial in FORTY_FIVE
    assert trial.rounds >= 30
    assert run.recipe.work.batch * trial.peers * trial.alone == trial.batch
    trained = trial.steps * trial.batch
    assert SAMPLES - trial.every * trial.batch < trained <= SAMPLES, "all see the same text, up to one round"
    assert isinstance(run.model, Fresh)
    assert 15e6 <= elements(shapes(size_of(run.model), 0)) <= 20e6


def test_no_recipe_has_more_trials_than_ddp_and_no_name_is_twice() -> None:
    tries = Counter(trial.recipe for trial in trials() if not trial.seed and trial.alone == 1)
    grid = [trial for trial in trials() if trial.how is How.PLAIN and not trial.seed and trial.alone == 1]
    assert max(tries.values()) <= tries["ddp"] == len(grid) == 4 * 3 + 47
    assert {trial.batch for trial in grid} == {24, 48, 64, 96, 192}
    assert len({trial.name for trial in trials()}) == len(trials())


@pytest.mark.long
def test_a_trial_begins_in_a_process_of_its_own(shards: Path, tmp_path: Path) -> None:
    """On a device that does not exist: that is said by the process, which has found everything it runs."""
    asked = ["--shards", str(shards), "--only", "ddp-b96-lr0.002", "--record", str(tmp_path / "trials.jsonl")]
    command = [sys.executable, "-m", "bench.converge", *asked, "--device", "meadow", "--commit", "none"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stderr
    assert "ddp-b96-lr0.002: " in said
    assert "meadow" in said and "BrokenProcessPool" not in said


def test_the_bit_that_is_shipped_is_what_was_played(shards: Path) -> None:
    """But for its batch and schedule, which are each run's own."""
    played = large(0.12)
    assert played in trials()
    tried, shipped = run_of(played, shards).recipe, load_recipe("held-bit")
    assert tried.channel == shipped.channel
    assert replace(tried.work, batch=shipped.work.batch, schedule=shipped.work.schedule) == shipped.work


def test_what_follows_is_played_at_the_best_rate_once_that_is_known() -> None:
    tried = {"diloco-n8-h30-lr0.002": 1.3, "diloco-n8-h30-lr0.004": 1.2}
    fewer = "diloco-n2-h30-lr0.004"
    assert fewer in [trial.name for trial in trials(tried)], "the best so far"
    assert fewer not in [trial.name for trial in due(tried)], "another may be better"
    assert fewer in [trial.name for trial in due({**tried, "diloco-n8-h30-lr0.001": None})], "one that failed is not"
    assert "diloco-n2-h30-lr0.001" in [trial.name for trial in due({**tried, "diloco-n8-h30-lr0.001": 1.1})]


def test_prose_is_kept_and_code_is_not() -> None:
    page = (
        f"<head><title>No</title></head><p>{SENTENCE.format('<b>five</b>')}</p><pre>{SENTENCE}</pre><td>x = y[1]</td>"
    )
    assert prose(page, paragraphs_of_markup) == [SENTENCE.format("five").strip()]
    other = "El consejo de cinco pares acuerda el registro, y quien no está en él se entera de todo a su debido tiempo."
    text = f"{SENTENCE.format(5)}\n\n{other}\n \n0x00 0x01 0x02 0x03\n"
    assert prose(text, paragraphs_of_text) == [SENTENCE.format(5).strip()]


def test_a_paragraph_is_kept_once_and_nothing_held_out_was_trained_on(tmp_path: Path) -> None:
    def about(name: str) -> Package:
        return Package(name, name, "1", "MIT", "")

    def words(first: int, count: int = 80) -> str:
        letters = "abcdefghij"
        return " ".join("".join(letters[int(d)] for d in str(1000 + n)) for n in range(first, first + count))

    near = f"{words(0, 70)} and this is how it ends in another version"
    papers = [Paper("one", [words(0), words(0).upper(), near, words(100)]), Paper("two", [words(0)])]
    kept_out = [Paper("three", [f"{words(500)} {words(100, 13)}", words(300, 90)])]
    # With this share and seed one of the two names falls on the held-out side.
    rows = sift([(about("b"), kept_out), (about("a"), papers)], tmp_path / "out", 0.5, SEED)
    kept = [json.decode(line, type=Text) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [(row.package, row.held_out) for row in rows] == [("a", False), ("b", True)]
    assert [text.text for text in kept] == [f"{words(0)}\n\n{words(100)}", words(300, 90)]
    assert 0 < rows[1].overlapping < 0.05


SEED = 5
