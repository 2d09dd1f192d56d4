"""`atoll sim`: the same run in virtual time on an imagined fleet, and the search for faults that break a promise.

atoll sim RUN.toml                          one run, one seed
atoll sim [RUN.toml] --seeds 0..200         many seeds; without a run, the families of `sim.skies`
atoll sim --faults points                   a crash before and after every kind of send and sync
atoll sim --replay CASE.json                a stored case, to the byte
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import OutcomeJson
from atoll.errors import SpecError
from atoll.units import say_bytes, say_time

if TYPE_CHECKING:
    from atoll.observe.progress import Progress
    from atoll.sim.scenario import Scenario
    from atoll.spec.run import Run


HEARD = {
    "--replay": {"replay", "journal"},
    "--faults points": {"faults", "processes"},
    "--seeds without a run file": {"seeds", "faults", "cases", "processes"},
    "--seeds": {"run_file", "fleet", "peers", "seeds", "faults", "cases", "processes", "overrides"},
}
"""What each search listens to, besides --json: whatever else is said would be passed over, so it is refused."""


def command(
    context: typer.Context,
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="What to train, and how; a search may do without.")
    ] = None,
    fleet: Annotated[str, typer.Option(help="A fleet file, or a shipped fleet: lan, homes, town, ...")] = "lan",
    peers: Annotated[int, typer.Option(min=0, help="Use only so many machines of the fleet; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the world: keys, faults, owners' habits.")] = 0,
    seeds: Annotated[str, typer.Option(help="Search seeds A..B (B not included) for broken promises.")] = "",
    faults: Annotated[
        str, typer.Option(help='"storm", "storm=FAMILY", "points", or a file with a stored fault list.')
    ] = "",
    replay: Annotated[Path | None, typer.Option(metavar="CASE.json", help="Play a stored case again.")] = None,
    cases: Annotated[Path, typer.Option(help="Folder for cases that a search finds.")] = Path("cases"),
    processes: Annotated[int, typer.Option(min=0, help="Processes of a search; 0: one per core.")] = 0,
    real_compute: Annotated[bool, typer.Option("--real-compute", help="Really train: true losses.")] = False,
    device: Annotated[str, typer.Option(help="With --real-compute: auto, cpu, cuda or cuda:N.")] = "auto",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a key: recipe.work.batch=4")] = None,
    journal: Annotated[Path | None, typer.Option(help="Write all peers' journal lines to this file.")] = None,
    as_json: OutcomeJson = False,
) -> None:
    """Play a run in virtual time: the same peers, imagined machines and links, faults from a seed."""
    from atoll.cli import search
    from atoll.spec.load import load_run

    if replay is not None:
        _heed(context, "--replay")
        search.replay(replay, journal, as_json=as_json)
        return
    if faults == "points":
        _heed(context, "--faults points")
        search.points(processes, as_json=as_json)
        return
    if run_file is None:
        if not seeds:
            raise SpecError("no run file was given", hint="atoll sim RUN.toml, or atoll sim --seeds 0..200")
        _heed(context, "--seeds without a run file")
        search.families(search.seed_range(seeds), faults, cases, processes, as_json=as_json)
        return
    if seeds:
        _heed(context, "--seeds")
    run = load_run(run_file, overrides=overrides or ())
    if seeds:
        search.own_run(run, fleet, peers, search.seed_range(seeds), faults, cases, processes, as_json=as_json)
        return
    scenario = _scenario(run, fleet, peers, seed, faults, device if real_compute else "")
    outcome = _play(scenario, journal, modelled=not real_compute, as_json=as_json)
    print(json.dumps(outcome) if as_json else _text(outcome))


def _heed(context: typer.Context, search: str) -> None:
    """Refuse what was said on the command line and a search does not listen to."""
    heard = HEARD[search]
    for each in context.command.params:
        source = context.get_parameter_source(str(each.name))
        if each.name not in {*heard, "as_json"} and source is not None and source.name == "COMMANDLINE":
            named = "a run file" if each.name == "run_file" else each.opts[0]
            options = ", ".join(p.opts[0] for p in context.command.params if p.name in heard and p.name != "run_file")
            raise SpecError(f"{named}: not with {search}", hint=f"leave it out: that listens to {options} and --json")


def _scenario(run: Run, fleet: str, peers: int, seed: int, faults: str, device: str) -> Scenario:
    """Return what is to be played; with a device, compute is real."""
    from atoll.cli.local import check_enough, with_peers
    from atoll.cli.play import fault_list
    from atoll.data.samples import vocab_size_of
    from atoll.sim.scenario import Scenario, losses_of, on_fleet, somebody_failed, stand_in
    from atoll.spec.fleet import first, load_fleet

    imagined = load_fleet(fleet)
    machines = first(imagined, peers)
    check_enough(run, len(machines))
    run = with_peers(run, len(machines))
    if device:
        from atoll.cli.machine import Machine, build_torch, pinned

        machine = Machine(device=device, threads=1)
        run, build, scale = pinned(run, machine), lambda run: build_torch(run, machine), 1.0
    else:
        build, scale = stand_in(run, vocab_size_of(run.data))
    return Scenario(
        run=run,
        machines=machines,
        delays_s=on_fleet(imagined)[1],
        losses=losses_of(imagined),
        seed=seed,
        faults=fault_list(faults, seed, len(machines)),
        build=build,
        scale=scale,
        enough=somebody_failed,
    )


def _play(scenario: Scenario, journal: Path | None, *, modelled: bool, as_json: bool) -> dict[str, Any]:
    """Play a scenario with progress on stderr and return its summary."""
    from atoll.cli.play import Teller, journalled, left_cleanly, play
    from atoll.observe.progress import Progress
    from atoll.observe.report import report

    progress, run = Progress(), scenario.run
    teller = Teller(run.name, quiet=as_json)
    with left_cleanly(lambda: _stopped(progress, run, journal)), journalled(journal) as keep:
        scenario = dataclasses.replace(scenario, sees=keep)
        outcome = play(
            scenario,
            progress,
            teller,
            lambda _: _pace(progress, run, teller.steps),
            really=not modelled,
            hint="--journal FILE shows what everybody said until then",
        )
    failed = {str(host.place): str(host.failed) for host in outcome.hosts if host.failed is not None}
    anchors = {host.anchor for host in outcome.hosts if host.version == progress.version}
    summary = report(progress, run)
    if modelled:
        summary = _without_decoration(summary)
    return {
        "schema": "atoll.sim/1",
        "seed": scenario.seed,
        "trace": outcome.trace,
        "virtual_s": outcome.took_s,
        "events": outcome.callbacks,
        "anchor": min(anchors) if len(anchors) == 1 else None,
        "failed": failed,
        "modelled": modelled,
        "between_regions_bytes": outcome.crossed_bytes,
        "report": summary,
    }


def _pace(progress: Progress, run: Run, steps: int) -> str:
    """Return where a run stands; before a step is really taken there is no loss, and with modelled compute none is."""
    parts = [_open_round(progress, run)]
    if steps:
        parts.append(f"{steps} {'step' if steps == 1 else 'steps'} taken by all")
        parts += [] if progress.loss is None else [f"training loss {progress.loss:.3f}"]
    return ", ".join([*parts, f"{say_time(progress.last_s)} of virtual time"])


def _open_round(progress: Progress, run: Run) -> str:
    """Return the round that is worked on, and of how many where the budget says so."""
    rounds = run.budget.rounds
    return f"round {min(progress.version + 1, rounds)} of {rounds}" if rounds else f"round {progress.version + 1}"


def _stopped(progress: Progress, run: Run, journal: Path | None) -> str:
    """Return where a run stood when it was stopped."""
    so_far = f"; its journal so far is in {journal}" if journal is not None else ""
    return f" in {_open_round(progress, run)}{so_far}; a simulation starts anew"


def _without_decoration(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary of modelled compute: no losses, since nothing was trained."""
    return summary | {"loss_first": None, "loss_last": None, "held_out": None, "held_out_by_round": {}}


def _text(outcome: dict[str, Any]) -> str:
    from atoll.observe.report import text

    rows = [
        text(outcome["report"]),
        f"virtual time  {say_time(outcome['virtual_s'])}",
        f"anchor        {outcome['anchor'] or 'peers do not agree'}",
        f"trace         {outcome['trace']}  (seed {outcome['seed']})",
    ]
    if outcome["between_regions_bytes"]:
        rows.append(f"crossed       {say_bytes(outcome['between_regions_bytes'])} of rounds went between regions")
    if outcome["modelled"]:
        rows.append("compute is modelled: times and bytes are, losses are not; --real-compute really trains")
    rows += [f"peer {place} failed: {why}" for place, why in outcome["failed"].items()]
    return "\n".join(rows)
