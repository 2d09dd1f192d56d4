"""The simulation runs what the real world runs: nearly every line of a peer that real processes execute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from coverage import Coverage

from atoll import journal
from tests.world.shore import Shore, counted, counted_without, wait_for

SHARE_MIN = 0.95
ROOMS = ("peer", "swarm", "sync")
ENDLESS = 100_000


@pytest.mark.long
def test_the_simulation_executes_nearly_all_that_real_peers_execute(shore: Shore) -> None:
    imagined = _under_coverage(shore, "imagined")
    play = subprocess.Popen([sys.executable, *imagined, "-m", "tests.world.plays"], env=shore.env)
    shore.started.append(play)
    shore.launcher = (*_under_coverage(shore, "real"), "-m", "atoll.cli.main")
    _come_and_go(shore)
    _to_the_end(shore)
    assert play.wait(120) == 0
    real, simulated = _lines(shore.folder / "real"), _lines(shore.folder / "imagined")
    missed = {file: sorted(lines - simulated.get(file, set())) for file, lines in real.items()}
    total = sum(map(len, real.values()))
    share = 1 - sum(map(len, missed.values())) / total
    assert total > 800, "the real peers were measured"
    assert {file.split("/")[0] for file in real} == set(ROOMS)
    print(f"{share:.1%} of {total} lines; not simulated: { {file: lines for file, lines in missed.items() if lines} }")
    assert share >= SHARE_MIN


def _under_coverage(shore: Shore, world: str) -> tuple[str, ...]:
    """Return what makes Python note the lines of a peer that it executes."""
    (shore.folder / world).mkdir()
    settings = shore.folder / f"{world}.ini"
    packages = ",".join(f"atoll.{room}" for room in ROOMS)
    settings.write_text(f"[run]\nsource_pkgs = {packages}\nparallel = true\ndata_file = {shore.folder / world}/data\n")
    return ("-m", "coverage", "run", f"--rcfile={settings}")


def _lines(folder: Path) -> dict[str, set[int]]:
    """Return the statements that were executed, by file within its room; what several processes did is one."""
    measured = Coverage(data_file=str(folder / "data"), config_file=False)
    measured.combine([str(folder)])
    found: dict[str, set[int]] = {}
    for file in measured.get_data().measured_files():
        _, statements, _, missed, _ = measured.analysis2(file)
        within = Path(file).parts[max(at for at, part in enumerate(Path(file).parts) if part == "atoll") + 1 :]
        found["/".join(within)] = set(statements) - set(missed)
    return found


def _come_and_go(shore: Shore) -> None:
    """Train with halves on the wire: a third peer joins, a member is killed and comes back, all leave."""
    first = shore.organise(shore.run_file(rounds=ENDLESS, codec="fp16"), shore.folder / "a0")
    ticket = first.ticket()
    second = shore.join(ticket, shore.folder / "a1")
    wait_for(lambda: first.version() >= 2, "the second round", by=first.process)
    third = shore.join(ticket, shore.folder / "a2")
    wait_for(lambda: third.version() >= 1 and counted(first, third.name(), 0), "the joiner", by=third.process)
    name, version = second.name(), first.version()
    second.kill()
    wait_for(lambda: counted_without(first, name, version), "a round without the killed", by=first.process)
    second = shore.join(ticket, second.folder)
    version = first.version()
    wait_for(lambda: counted(first, name, version), "a round with it again", by=second.process)
    for peer in (third, second, first):
        peer.leave()
    assert [peer.ended() for peer in (third, second, first)] == [0, 0, 0]


def _to_the_end(shore: Shore) -> None:
    """Train with gradients at every step, to the end of the budget."""
    run = shore.run_file(rounds=4, recipe="ddp", steps=1, name="ddp.toml")
    first = shore.organise(run, shore.folder / "b0")
    second = shore.join(first.ticket(), shore.folder / "b1")
    assert [peer.ended() for peer in (first, second)] == [0, 0]
    assert first.saw(journal.RunFinished)
