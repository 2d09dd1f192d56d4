"""A play as a person meets it: how far it is on stderr, its journal in a file, and words where it does not end.

`atoll sim` and `atoll compare` play scenarios for seconds or for hours. Whatever ends one before its time, what was
written down until then is kept and it is said how things stood: a play that came to no end is one error, Ctrl-C one
line. A peer that broke an invariant is a defect of ours and stays a traceback.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import AtollError, SpecError

if TYPE_CHECKING:
    from atoll.journal import Line
    from atoll.model.compute import Engine, Step, Trained
    from atoll.model.held import Held
    from atoll.observe.progress import Progress
    from atoll.sim.scenario import Outcome, Scenario
    from atoll.spec.run import Run

SAY_AFTER_S = 2.0
"""Before this nothing is said of how far a play is; on a terminal its line changes as often."""
SAY_EVERY_S = 10.0
"""Where lines stay, as in a file, there are fewer of them."""
STORM_S = 60.0
"""How long a storm blows, of the world's time."""


class Teller:
    """Says now and then on stderr how far a play is: one line that changes on a terminal, few lines elsewhere."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title = title
        self.steps = 0
        """Really taken so far, by all peers."""
        self._quiet = quiet
        self._began_s = time.monotonic()
        self._live = sys.stderr.isatty()
        self._next_s = self._began_s + SAY_AFTER_S
        self._said = False

    def tell(self, what: Callable[[float], str]) -> None:
        """Say how it stands, if it is time to."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return
        self._next_s = now_s + (SAY_AFTER_S if self._live else SAY_EVERY_S)
        self._said = True
        text = f"{self.title}: {what(now_s - self._began_s)}"
        print(f"\r\x1b[2K{text}" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal at the beginning of a line."""
        if self._live and self._said:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


class _Told:
    """An engine that lets it be known when it takes a step: what is a moment there may be minutes of training here."""

    def __init__(self, engine: Engine, taken: Callable[[], None]) -> None:
        self._engine = engine
        self._taken = taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, steps: Sequence[Step]) -> Trained:
        return self._engine.train(_Passed(steps, self._taken))

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        return self._engine.gradients(_Passed(steps, self._taken), total)


class _Passed(list["Step"]):
    """Steps that say so when they are first gone through, one by one."""

    def __init__(self, steps: Sequence[Step], taken: Callable[[], None]) -> None:
        super().__init__(steps)
        self._taken: Callable[[], None] | None = taken

    def __iter__(self) -> Iterator[Step]:
        taken, self._taken = self._taken, None
        for step in super().__iter__():
            yield step
            if taken is not None:
                taken()


def play(
    scenario: Scenario,
    progress: Progress,
    teller: Teller,
    pace: Callable[[float], str],
    *,
    really: bool = True,
    hint: str = "",
) -> Outcome:
    """Play a scenario, folding its lines into `progress`, and say by `pace` how it stands after so many seconds.

    Where peers really train, that is said at steps too, and Ctrl-C heeded.
    """
    from atoll.sim.loop import SimulationFailed
    from atoll.sim.scenario import PeerBroke, simulate

    def taken() -> None:
        heed()
        teller.steps += 1
        teller.tell(pace)

    def build(run: Run) -> Engine:
        assert scenario.build is not None, "what is really trained is built"
        return cast("Engine", _Told(scenario.build(run), taken))

    def see(line: Line) -> None:
        heed()
        progress.add(line)
        if scenario.sees is not None:
            scenario.sees(line)
        teller.tell(pace)

    try:
        with hearing() as heed:
            return simulate(dataclasses.replace(scenario, sees=see, build=build if really else scenario.build))
    except PeerBroke:
        raise
    except SimulationFailed as error:
        what = f"{teller.title}: the play came to no end: {str(error).splitlines()[0]}; {_waiting(progress)}"
        raise AtollError(what, hint=hint) from error
    finally:
        teller.end()


def _waiting(progress: Progress) -> str:
    """Return what waits: the open round, with its peers by what they do, and who was refused last."""
    states = Counter(peer.state for peer in progress.peers.values())
    peers = ", ".join(f"{count} {'peer' if count == 1 else 'peers'} {state}" for state, count in sorted(states.items()))
    refused = "; refused was {}: {}".format(*progress.refused[-1]) if progress.refused else ""
    return f"round {progress.version + 1} waits, {peers or 'no peer started'}{refused}"


@contextmanager
def hearing() -> Iterator[Callable[[], None]]:
    """Yield what raises `KeyboardInterrupt` once Ctrl-C was pressed; pressed again it is raised wherever we are.

    Raised wherever we are it may be lost: what is called while something is thrown away passes no exception on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pressed, usual = False, signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, usual)

    def heed() -> None:
        if pressed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield heed
        heed()
    finally:
        signal.signal(signal.SIGINT, usual)


@contextmanager
def journalled(path: Path | None) -> Iterator[Callable[[Line], None]]:
    """Yield what takes a play's journal lines: they are in the file at the end, however the play ends.

    The file is opened before, so that one that cannot be written is known before anything is played.
    """
    import msgspec

    from atoll.cli.machine import writing

    if path is None:
        yield lambda line: None
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    lines: list[Line] = []
    try:
        yield lines.append
    finally:
        with writing(path), file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)


@contextmanager
def left_cleanly(how: Callable[[], str]) -> Iterator[None]:
    """Say on Ctrl-C how things stand, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that were about to start never will
        print(f"\nstopped{how()}", file=sys.stderr)
        raise


def fault_list(text: str, seed: int, peers: int) -> tuple[Any, ...]:
    """Return what `--faults` asks for, for one seed of one run."""
    from atoll.sim.faults import from_json, storm

    if text in ("", "none"):
        return ()
    if text == "storm":
        return storm(seed, peers, STORM_S)
    if text.startswith("storm="):
        raise SpecError(
            f"--faults {text}: a family brings its own runs", hint=f"atoll sim --seeds 0..200 --faults {text}"
        )
    path = Path(text)
    if not path.is_file():
        raise SpecError(f"--faults: {text!r} is neither a file nor known", hint='write "storm", or a stored list')
    return from_json(path.read_bytes())
