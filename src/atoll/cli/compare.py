"""`atoll compare`: one run under several recipes on one imagined fleet, really trained in virtual time.

Each recipe is a trial: the run with that recipe, the same tokens for all, played by `sim` with real compute. What a
trial leaves is its journal, kept beside the report and named by everything that decides it, so that a trial is played
once; table and report read journals and nothing else.
"""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from atoll.cli.options import OutcomeJson
from atoll.errors import SpecError
from atoll.units import say_count, say_counted, say_time

if TYPE_CHECKING:
    from atoll.cli.machine import Machine as Here
    from atoll.journal import Line
    from atoll.observe.comparison import Comparison, Entry
    from atoll.observe.progress import Progress
    from atoll.sim.scenario import Outcome, Scenario
    from atoll.spec.fleet import Fleet, Machine
    from atoll.spec.run import Run

LOOKS = 16
"""So often a trial looks at the held-out loss on its way, unless the run file says how often."""


Named = Annotated[str, typer.Option("--recipes", help="Recipes, by comma: names, recipe files, or own.")]
Tokens = Annotated[int, typer.Option("--tokens", min=0, help="Tokens for each recipe; 0: the run's own budget.")]
As = Annotated[
    str,
    typer.Option("--as", metavar="SIZE[:TOKENS]", help="Times and bytes as of this size, with so many tokens a step."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a key for all, or for one: ddp:recipe.work.batch=4")
]
Out = Annotated[Path, typer.Option("--out", help="The report; journals are kept in a folder beside it.")]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the flags say."""

    run_file: Path
    recipes: list[str]
    fleet: str
    peers: int
    tokens: int
    """For each recipe; 0: as many as the run has."""
    stands_for: str
    """The size whose times and bytes are told; empty: the run's own."""
    solo: bool
    seed: int
    faults: str
    device: str
    overrides: list[str]


def command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="What to train.")],
    recipes: Named = "ddp,diloco,sparseloco",
    fleet: Annotated[str, typer.Option(help="A fleet file, or a shipped fleet: lan, homes, town, ...")] = "lan",
    peers: Annotated[int, typer.Option(min=0, help="Use only so many machines of the fleet; 0: all.")] = 0,
    tokens: Tokens = 0,
    stands_for: As = "",
    solo: Annotated[bool, typer.Option("--solo/--no-solo", help="Also one peer alone with its own share.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the world: keys, owners' habits, faults.")] = 0,
    faults: Annotated[str, typer.Option(help='"storm", or a file with a stored fault list.')] = "",
    device: Annotated[str, typer.Option(help="Where to train: auto, cpu, cuda or cuda:N.")] = "auto",
    overrides: Sets = None,
    out: Out = Path("compare.html"),
    as_json: OutcomeJson = False,
) -> None:
    """Train one run under several recipes on an imagined fleet and put what came of it side by side."""
    from atoll.observe.comparison import data, text

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    if not names:
        raise SpecError("--recipes: no recipe is named", hint="--recipes ddp,diloco; `atoll recipes` lists them")
    drawn = _report_wanted(out)
    asked = Asked(
        run_file=run_file,
        recipes=names,
        fleet=fleet,
        peers=peers,
        tokens=tokens,
        stands_for=stands_for,
        solo=solo,
        seed=seed,
        faults=faults,
        device=device,
        overrides=overrides or [],
    )
    comparison = _Play(asked).all(out.with_suffix(".runs"))
    print(json.dumps(data(comparison)) if as_json else text(comparison))
    if drawn:
        _write_report(comparison, out)


def _report_wanted(out: Path) -> bool:
    """Return whether a report can be drawn; where it cannot, say so and how it could before hours are spent."""
    from atoll.errors import LocalError
    from atoll.observe.plots import check

    if out.suffix != ".html":
        raise SpecError(f"--out {out}: the report is an HTML file", hint=f"--out {out.with_suffix('.html')}")
    try:
        check()
    except LocalError as error:
        print(f"no report: {error.what}; hint: {error.hint}. The table comes all the same.", file=sys.stderr)
        return False
    return True


def _write_report(comparison: Comparison, out: Path) -> None:
    from atoll.cli.machine import writing
    from atoll.observe.page import page

    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(comparison), "utf-8")
    print(f"report: {out}", file=sys.stderr)


class _Play:
    """What is asked for, made ready: trials that need only be played."""

    def __init__(self, asked: Asked) -> None:
        from atoll.cli.play import fault_list
        from atoll.spec.fleet import first, load_fleet
        from atoll.spec.variant import alone, variants

        self.asked = asked
        self.fleet: Fleet = load_fleet(asked.fleet)
        self.machines: list[Machine] = first(self.fleet, asked.peers)
        self.chosen = variants(asked.run_file, asked.recipes, asked.overrides)
        self.own = alone(asked.run_file, asked.overrides).run
        self.faults = fault_list(asked.faults, asked.seed, len(self.machines))
        self.larger = _larger(self.own, asked.stands_for)
        self.stands_for_parameters = 0 if self.larger is None else _parameters(self.larger.of(self.own))
        # What can be wrong with words is said before torch is imported, which takes seconds.
        self.parameters = _parameters(self.own)
        self.here = _here(asked.device)
        self.tokens, self.runs = self._runs()

    def _runs(self) -> tuple[int, dict[str, Run]]:
        """Return the tokens that every recipe gets, and the run of each trial."""
        from atoll.cli.machine import pinned
        from atoll.spec.variant import SOLO, budget_tokens, with_tokens

        count = len(self.machines)
        tokens = budget_tokens(self.own, [each.run for each in self.chosen], count, self.asked.tokens)
        runs = {each.label: with_tokens(each.run, tokens, count, LOOKS) for each in self.chosen}
        if self.asked.solo:
            runs = {SOLO: with_tokens(self.own, tokens // count, 1, LOOKS), **runs}
        return tokens, {label: pinned(run, self.here) for label, run in runs.items()}

    @property
    def scale(self) -> float:
        return self.stands_for_parameters / self.parameters if self.asked.stands_for else 1.0

    def all(self, kept: Path) -> Comparison:
        """Play what has not been played before and return everything side by side."""
        from atoll import __version__
        from atoll.cli.play import left_cleanly
        from atoll.observe.comparison import Comparison

        entries = []
        with left_cleanly(lambda: _kept(kept)):
            for number, label in enumerate(self.runs, start=1):
                entries.append(self._entry(label, kept, f"{label} ({number} of {len(self.runs)})"))
        return Comparison(
            name=self.own.name,
            fleet=self.fleet.name,
            fleet_about=self.fleet.about,
            peers=len(self.machines),
            parameters=self.parameters,
            tokens=self.tokens,
            seed=self.asked.seed,
            device=self.here.device,
            command=shlex.join(["atoll", *sys.argv[1:]]),
            kept=str(kept),
            entries=tuple(entries),
            faults=self.asked.faults,
            stands_for=self.asked.stands_for,
            stands_for_parameters=self.stands_for_parameters,
            version=__version__,
        )

    def _entry(self, label: str, kept: Path, title: str) -> Entry:
        """Return one recipe's trial, from its journal if that was kept."""
        from atoll.observe.comparison import Entry
        from atoll.observe.trial import fold_trial

        scenario = self._scenario(label)
        path = kept / f"{label}-{_key(scenario, self.here.device)}.jsonl.gz"
        reused = path.is_file()
        if reused:
            print(f"{title}: kept from before in {path}", file=sys.stderr)
        else:
            _keep(path, _played(scenario, title))
        return Entry(trial=fold_trial(label, _lines(path)), run=self.runs[label], reused=reused)

    def _scenario(self, label: str) -> Scenario:
        """Return what is played for a recipe: the whole fleet, or its fastest machine for who trains alone."""
        from atoll.cli.local import with_peers
        from atoll.cli.machine import build_torch
        from atoll.sim.scenario import Scenario, losses_of, on_fleet, somebody_failed
        from atoll.spec.variant import SOLO

        times = 1.0 if self.larger is None else self.larger.times(self.runs[label])
        machines = [_slower(machine, times) for machine in self.machines]
        if label == SOLO:
            machines = [_always(max(machines, key=lambda each: each.device.reached_flop_s))]
        return Scenario(
            run=with_peers(self.runs[label], len(machines)),
            machines=machines,
            delays_s=on_fleet(self.fleet)[1],
            losses=losses_of(self.fleet),
            seed=self.asked.seed,
            faults=() if label == SOLO else self.faults,
            build=lambda run: build_torch(run, self.here),
            scale=self.scale,
            enough=somebody_failed,
        )


def _here(device: str) -> Here:
    from atoll.cli.machine import Machine
    from atoll.model.engine import pick_device

    return Machine(device=str(pick_device(device)), threads=1)


def _parameters(run: Run) -> int:
    """Return how many parameters a run exchanges."""
    from atoll.data.samples import vocab_size_of
    from atoll.model.folder import layout_of
    from atoll.model.shape import elements

    return elements(layout_of(run, vocab_size_of(run.data))[1])


class _Larger(NamedTuple):
    """A size that a run's model stands for."""

    size: str
    samples: float
    """Of it that one of the run's own stands for."""

    def of(self, run: Run) -> Run:
        """Return the run with a model of that size."""
        from msgspec.structs import replace

        from atoll.spec.run import Fresh

        return replace(run, model=Fresh(size=self.size))

    def times(self, run: Run) -> float:
        """Return how many times longer its steps take than the run's own."""
        batch = run.recipe.work.batch
        return _step_flop(self.of(run), self.samples * batch) / _step_flop(run, batch)


def _step_flop(run: Run, samples: float) -> float:
    """Return the work of one step of so many samples."""
    from atoll.data.samples import vocab_size_of
    from atoll.model.folder import layout_of
    from atoll.model.shape import step_cost, train_cost

    shape, layout = layout_of(run, vocab_size_of(run.data))
    return samples * train_cost(shape, 1).flop + step_cost(layout, run.recipe.work.inner).flop


def _larger(run: Run, text: str) -> _Larger | None:
    """Return the size that a run's model is to stand for; None: it stands for itself."""
    if not text:
        return None
    size, colon, step = text.partition(":")
    if colon and not (step.isdecimal() and 0 < int(step) < 2**40):
        raise SpecError(
            f"--as: {step!r} is no number of tokens", hint="--as 125m:32768, for 32,768 tokens a step and peer"
        )
    from atoll.spec.run import SIZES, Folder
    from atoll.spec.strict import near

    if size not in SIZES:
        raise SpecError(f"--as: there is no size '{size}'", hint=f"known sizes: {', '.join(SIZES)}{near(size, SIZES)}")
    if isinstance(run.model, Folder):
        raise SpecError("--as: a pretrained folder stands for itself", hint="leave --as out, or compare a fresh model")
    return _Larger(size, int(step) / (run.recipe.work.batch * run.data.context) if step else 1.0)


def _slower(machine: Machine, times: float) -> Machine:
    from msgspec.structs import replace

    return replace(machine, device=replace(machine.device, flop_s=machine.device.flop_s / times))


def _always(machine: Machine) -> Machine:
    """Return a machine that nobody switches off: alone there is no one to come back to."""
    from msgspec.structs import replace

    from atoll.spec.fleet import Always

    return replace(machine, availability=Always())


# playing and keeping


def _with_last_words(outcome: Outcome) -> list[Line]:
    """Return a play's journal, in the end with why it was over for peers that failed by themselves."""
    from atoll.journal import Line, PeerStopped
    from atoll.net.identity import short

    at_s = outcome.lines[-1].at_s if outcome.lines else 0.0
    failed = [(short(bytes(host.peer)), host.failed) for host in outcome.hosts if host.failed is not None]
    return [*outcome.lines, *(Line(at_s, peer, PeerStopped(why=str(why))) for peer, why in failed)]


def _played(scenario: Scenario, title: str) -> list[Line]:
    """Play a trial with progress on stderr and return its journal."""
    from atoll.cli.play import Teller, play
    from atoll.observe.progress import Progress, part_done

    progress = Progress()

    def pace(spent_s: float) -> str:
        return _pace(progress, part_done(progress, scenario.run) or 0.0, spent_s)

    hint = "finished recipes are kept; try another --seed, or leave this recipe out"
    return _with_last_words(play(scenario, progress, Teller(title), pace, hint=hint))


def _pace(progress: Progress, done: float, spent_s: float) -> str:
    """Return where a trial stands, and how long it may still take."""
    loss = "" if progress.loss is None else f", training loss {progress.loss:.3f}"
    left = f", about {say_time(spent_s * (1 - done) / done)} left" if done > 0.05 else ""
    return f"round {progress.version}, {100 * done:.0f} % of its tokens ({say_count(progress.tokens)}){loss}{left}"


def _key(scenario: Scenario, device: str) -> str:
    """Return the name of everything that decides a trial's journal."""
    from importlib.metadata import version

    from blake3 import blake3

    from atoll import __version__
    from atoll.spec.fleet import played
    from atoll.spec.run import canonical, identity

    what = {
        "identity": identity(scenario.run),
        "run": scenario.run,
        "machines": [played(machine) for machine in scenario.machines],
        "delays_s": sorted((*pair, delay_s) for pair, delay_s in scenario.delays_s.items()),
        "losses": sorted((*pair, loss) for pair, loss in scenario.losses.items()),
        "faults": list(scenario.faults),
        "seed": scenario.seed,
        "scale": scenario.scale,
        "weighs": "values to scale, heads as they are, and so counted; steps with what Muon multiplies",
        "device": device,
        "made_by": [__version__, version("torch")],
    }
    return blake3(canonical(what)).hexdigest(length=8)


def _keep(path: Path, lines: list[Line]) -> None:
    """Write a journal that is complete, under its name only once it is."""
    import msgspec

    from atoll.cli.machine import writing

    draft = path.with_suffix(".draft")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(draft, "wb", compresslevel=5) as file:
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")
        draft.replace(path)


def _lines(path: Path) -> Iterator[Line]:
    """Yield a kept journal."""
    from atoll.errors import LocalError
    from atoll.journal import parse

    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                yield parse(line)
    except (OSError, EOFError) as error:
        raise LocalError(f"{path}: cannot be read ({error})", hint="remove it: it is played again") from error


def _kept(kept: Path) -> str:
    """Return what is there already, for who stops before the end."""
    done = len(list(kept.glob("*.jsonl.gz"))) if kept.is_dir() else 0
    return f": {say_counted(done, 'finished trial')} kept in {kept}; the same command goes on from there"
