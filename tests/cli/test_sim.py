"""`atoll sim RUN.toml`: what is refused before it is played, said on the way, and left on Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll import journal
from atoll.cli.play import Teller, hearing, journalled, play
from atoll.errors import AtollError
from atoll.observe.progress import Progress
from atoll.sim.compute import CountingEngine
from atoll.sim.scenario import Scenario, on_fleet, simulate
from atoll.spec.fleet import load_fleet
from atoll.spec.load import load_run
from atoll.spec.run import Run
from tests.cli import toy
from tests.cli.toy import COMMAND, ENVIRONMENT
from tests.world.warm import atoll

RUN = toy.RUN + "[membership]\nstart_with = 4\n"
EVERY_ROUND = ("--set", "membership.start_with=1", "--set", "membership.contributors_min=4")
ENDLESS = ("--set", "budget.rounds=1000000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process group of its own, as a terminal does, and end it in the end."""
    with subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def line_with(process: subprocess.Popen[str], what: str) -> str:
    """Return the first line on stderr that says so."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if what in line:
            return line
    raise AssertionError(f"{what!r} was never said: {said}")


def ctrl_c(process: subprocess.Popen[str]) -> str:
    """Interrupt a command and all it started, as a terminal does, and return its last words."""
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said and "Warning" not in said
    return said


# how many peers


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--peers", "2"), "start_with"),
        (("--peers", "2", "--fleet", "homes"), "start_with"),
        (("--peers", "2", "--seeds", "0..2"), "start_with"),
        (("--peers", "2", *EVERY_ROUND), "contributors_min"),
    ],
    ids=["a switch", "homes", "a search", "every round"],
)
def test_a_run_that_waits_for_more_peers_than_there_are_is_refused(
    folder: Path, words: tuple[str, ...], key: str
) -> None:
    done = atoll("sim", "run.toml", *words, cwd=folder)
    assert done.returncode == 2
    assert f"error: membership.{key} is 4, and there are 2 peers\n" in done.stderr
    assert f"hint: --set membership.{key}=2" in done.stderr


def test_with_the_key_of_the_hint_it_is_played(folder: Path) -> None:
    done = atoll("sim", "run.toml", "--peers", "2", "--set", "membership.start_with=2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["report"]
    assert (told["rounds"], len(told["peers"])) == (2, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("sim", "run.toml"),
        ("sim", "run.toml", "--seeds", "0..2"),
        ("compare", "run.toml"),
        ("plan", "--model", "125m", "--tokens", "1000000000"),
        ("recipes", "--model", "125m"),
    ],
    ids=["sim", "a search", "compare", "plan", "recipes"],
)
def test_more_peers_than_a_fleet_has_are_refused_by_every_command(folder: Path, words: tuple[str, ...]) -> None:
    done = atoll(*words, "--fleet", "lan", "--peers", "99", cwd=folder)
    assert done.returncode == 2
    assert "error: --peers 99: fleet 'lan' has 4 machines\nhint: --peers 4 at most" in done.stderr


def test_a_play_that_comes_to_no_end_is_one_error_that_says_what_waits(folder: Path) -> None:
    machines, delays_s = on_fleet(load_fleet("lan"))
    scenario = Scenario(run=load_run(folder / "run.toml"), machines=machines[:2], delays_s=delays_s, limit_s=60.0)

    def played() -> None:
        with journalled(folder / "lines.jsonl") as keep:
            heard = dataclasses.replace(scenario, sees=keep)
            play(heard, Progress(), Teller("toy"), lambda _: "", really=False, hint="try another")

    with pytest.raises(AtollError) as caught:
        played()
    first, _, rest = caught.value.what.partition("\n")
    assert first == "toy: the play came to no end: not done after 60.0 virtual seconds; round 1 waits, 2 peers started"
    assert (rest, caught.value.hint) == ("", "try another")
    assert any(isinstance(line.event, journal.PeerJoined) for line in journal.read(folder / "lines.jsonl"))


# journals and Ctrl-C


def test_a_journal_gets_its_folders_and_one_that_cannot_be_written_is_said_before_the_play(folder: Path) -> None:
    done = atoll("sim", "run.toml", "--journal", "new/deep/lines.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert any(isinstance(line.event, journal.RunFinished) for line in journal.read(folder / "new/deep/lines.jsonl"))
    with started(folder, "sim", "run.toml", *ENDLESS, "--journal", "new/deep") as process:
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "error: new/deep: cannot be written (Is a directory)\nhint: " in said
    assert "Traceback" not in said


def test_ctrl_c_says_where_the_run_stood_and_leaves_the_journal_so_far(folder: Path) -> None:
    with started(folder, "sim", "run.toml", *ENDLESS, "--journal", "lines.jsonl") as process:
        line_with(process, "of virtual time")
        said = ctrl_c(process)
    assert "stopped in round " in said and " of 1000000; " in said
    assert "its journal so far is in lines.jsonl; a simulation starts anew" in said
    committed = [
        line for line in journal.read(folder / "lines.jsonl") if isinstance(line.event, journal.RoundCommitted)
    ]
    assert committed


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_ctrl_c_ends_a_search_at_once_with_what_it_found(folder: Path, processes: str) -> None:
    with started(folder, "sim", "--seeds", "0..4000", "--faults", "storm=pair", "--processes", processes) as process:
        line_with(process, " of 4000 seeds, 0 broken")
        began_s = time.monotonic()
        said = ctrl_c(process)
    assert time.monotonic() - began_s < 5.0
    assert "stopped after " in said and " of 4000 seeds, none of them broke a promise; a search starts anew" in said


# on the way


def test_real_training_says_how_far_it_is_before_the_first_round_is_committed(folder: Path) -> None:
    words = ("--real-compute", "--device", "cpu", "--set", "recipe.channel.outer.when.steps=1000000")
    with started(folder, "sim", "run.toml", *words) as process:
        line_with(process, "toy: round 1 of 2, ")
        assert "stopped in round 1 of 2; a simulation starts anew" in ctrl_c(process)


class Thing:
    """Something that can be thrown away."""


def press(_: object = None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def while_something_is_thrown_away(heard: list[str]) -> None:
    with hearing() as heed:
        thing = Thing()
        watched = weakref.ref(thing, press)
        heed()
        del thing
        heard.append("it is gone" if watched() is None else "it is there")
        heed()
        heard.append("nobody was heard")


def when_the_play_is_over(heard: list[str]) -> None:
    with hearing():
        press()
        heard.append("nobody heeds it any more")


def who_is_not_heard_presses_again(heard: list[str]) -> None:
    with hearing():
        press()
        heard.append("once")
        press()
        heard.append("twice")


@pytest.mark.parametrize(
    ("pressed", "until"),
    [
        (while_something_is_thrown_away, ["it is gone"]),
        (when_the_play_is_over, ["nobody heeds it any more"]),
        (who_is_not_heard_presses_again, ["once"]),
    ],
)
def test_ctrl_c_is_never_lost(pressed: Callable[[list[str]], None], until: list[str]) -> None:
    usual, heard = signal.getsignal(signal.SIGINT), list[str]()
    with pytest.raises(KeyboardInterrupt):
        pressed(heard)
    assert heard == until
    assert signal.getsignal(signal.SIGINT) is usual


def test_what_a_policy_chose_is_in_the_summary(folder: Path) -> None:
    words = ("--set", "recipe.base='auto'", "--set", "budget.rounds=4")
    done = atoll("sim", "run.toml", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (knobs,) = [line for line in done.stdout.splitlines() if line.startswith("knobs")]
    assert "3 -> " in knobs and " from round 4 on: of the last rounds' " in knobs
    (turn,) = json.loads(atoll("sim", "run.toml", *words, "--json", cwd=folder).stdout)["report"]["knobs"]
    assert (turn["from_round"], turn["steps_before"]) == (4, 3)
    assert f"-> {turn['steps']} steps, {turn['form']}, " in knobs and turn["why"] in knobs


def test_steps_are_counted_while_they_are_taken_and_come_to_the_same(folder: Path) -> None:
    run = load_run(folder / "run.toml")
    machines, delays_s = on_fleet(load_fleet("lan"))

    def build(run: Run) -> CountingEngine:
        engine = CountingEngine(seed=run.seeds.data, size=256, tokens_per_sample=run.data.context)
        engine.life = 1
        return engine

    scenario = Scenario(run=run, machines=machines, delays_s=delays_s, build=build)
    teller = Teller("toy")
    told = play(scenario, Progress(), teller, lambda _: "")
    assert teller.steps == 2 * 4 * 3, "two rounds of four peers"
    assert told.trace == simulate(scenario).trace
