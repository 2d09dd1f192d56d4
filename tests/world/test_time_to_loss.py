"""What `bench.train` rests on: whoever trains does the same work, and the moment of a loss is read right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.rivals.member import Place
from bench.rivals.trainee import Trainee
from bench.train.__main__ import reached
from bench.train.maths import steps_of
from bench.train.setting import Setting, System
from bench.train.task import Judge, Rates, hand_out, run_of

from atoll.model.engine import build_engine
from atoll.spec.load import load_run

SETTING = Setting(System.OURS, peers=2, rates=Rates(steps=2), rounds=2)


@pytest.mark.long
def test_a_rivals_worker_trains_as_our_engine_does(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    hand_out(judge, tmp_path, SETTING.rates, keep_every=1)
    theirs = Trainee(tmp_path, Place(1, ["a", "b"]))
    (tmp_path / "run.toml").write_text(run_of("same", SETTING.peers, SETTING.rates))
    ours = build_engine(load_run(tmp_path / "run.toml"), judge.data, device="cpu")
    assert np.array_equal(theirs.weights(), ours.weights())
    for turn in range(SETTING.rounds):
        ours.train(steps_of(SETTING, turn, index=1))
    for _ in range(SETTING.rounds * SETTING.rates.steps):
        theirs.local_step(theirs.optimizer)
    assert np.abs(theirs.weights() - ours.weights()).max() < 1e-6


def test_no_sample_goes_to_two_workers() -> None:
    steps = [step for turn in range(3) for index in range(2) for step in steps_of(SETTING, turn, index)]
    samples = [sample for step in steps for sample in step.samples]
    assert sorted(samples) == list(range(len(samples)))


@pytest.mark.parametrize(
    ("target", "round_", "at_s"), [(2.5, 1.5, 15.0), (2.0, 2.0, 20.0), (1.0, None, None), (3.5, None, None)]
)
def test_a_loss_is_reached_on_the_line_between_two_looks(
    target: float, round_: float | None, at_s: float | None
) -> None:
    assert reached([(1, 10.0, 3.0), (2, 20.0, 2.0), (3, 30.0, 2.2)], target) == (round_, at_s)
