"""`atoll sim`: the same run in virtual time on an imagined fleet."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.errors import AtollError, SpecError
from atoll.units import say_time

if TYPE_CHECKING:
    from atoll.journal import Line
    from atoll.observe.progress import Progress
    from atoll.sim.scenario import Scenario
    from atoll.sim.storm import Verdict
    from atoll.spec.run import Run

SAY_EVERY_S = 2.0
STORM_S = 60.0


def command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="What to train, and how.")],
    fleet: Annotated[str, typer.Option(help="A fleet file, or a shipped fleet: lan, homes.")] = "lan",
    peers: Annotated[int, typer.Option(min=0, help="Use only so many machines of the fleet; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the world: keys, faults, owners' habits.")] = 0,
    seeds: Annotated[str, typer.Option(help="Search seeds A..B (B not included) for broken promises.")] = "",
    faults: Annotated[str, typer.Option(help='"storm", or a file with a stored fault list.')] = "",
    real_compute: Annotated[bool, typer.Option("--real-compute", help="Really train: true losses.")] = False,
    device: Annotated[str, typer.Option(help="With --real-compute: auto, cpu, cuda or cuda:N.")] = "auto",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a key: recipe.work.batch=4")] = None,
    journal: Annotated[Path | None, typer.Option(help="Write all peers' journal lines to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Play a run in virtual time: the same peers, imagined machines and links, faults from a seed."""
    from atoll.spec.load import load_run

    run = load_run(run_file, overrides=overrides or ())
    if seeds:
        _search(run, fleet, peers, seeds, faults, as_json=as_json)
        return
    scenario = _scenario(run, fleet, peers, seed, faults, device if real_compute else "")
    outcome = _play(scenario, journal, modelled=not real_compute, as_json=as_json)
    print(json.dumps(outcome) if as_json else _text(outcome))


def _scenario(run: Run, fleet: str, peers: int, seed: int, faults: str, device: str) -> Scenario:
    """Return what is to be played; with a device, compute is real."""
    from atoll.cli.local import with_peers
    from atoll.sim.scenario import Scenario, losses_of, on_fleet, stand_in
    from atoll.spec.fleet import load_fleet

    imagined = load_fleet(fleet)
    machines, delays_s = on_fleet(imagined)
    machines = machines[: peers or None]
    run = with_peers(run, len(machines))
    if device:
        from atoll.cli.machine import Machine, build_torch, pinned

        machine = Machine(device=device, threads=1)
        run, build, scale = pinned(run, machine), lambda run: build_torch(run, machine), 1.0
    else:
        build, scale = stand_in(run, vocabulary(run))
    return Scenario(
        run=run,
        machines=machines,
        delays_s=delays_s,
        losses=losses_of(imagined),
        seed=seed,
        faults=_faults(faults, seed, len(machines)),
        build=build,
        scale=scale,
    )


def vocabulary(run: Run) -> int:
    """Return the size of the run's vocabulary without preparing its data."""
    from atoll.spec.run import Shards

    if isinstance(run.data.source, Shards):
        from atoll.data.shards import read_manifest

        return read_manifest(Path(run.data.source.path)).tokenizer.vocab_size
    kind, _, size = run.data.source.tokenizer.partition("-")
    return int(size) if kind == "bpe" else 257


def _faults(text: str, seed: int, peers: int) -> tuple[Any, ...]:
    from atoll.sim.faults import from_json, storm

    if text in ("", "none"):
        return ()
    if text == "storm":
        return storm(seed, peers, STORM_S)
    path = Path(text)
    if not path.is_file():
        raise SpecError(f"--faults: {text!r} is neither a file nor known", hint='write "storm", or a stored list')
    return from_json(path.read_bytes())


def _play(scenario: Scenario, journal: Path | None, *, modelled: bool, as_json: bool) -> dict[str, Any]:
    """Play a scenario with progress on stderr and return its summary."""
    import msgspec

    from atoll.observe.progress import Progress
    from atoll.observe.report import report
    from atoll.observe.view import round_line
    from atoll.sim.scenario import simulate

    progress, said = Progress(), [time.monotonic(), 0.0]

    def see(line: Line) -> None:
        progress.add(line)
        if not as_json and progress.version > said[1] and time.monotonic() - said[0] > SAY_EVERY_S:
            said[:] = [time.monotonic(), progress.version]
            print(_pace(progress) if modelled else round_line(progress, scenario.run), file=sys.stderr)

    outcome = simulate(dataclasses.replace(scenario, sees=see))
    if journal is not None:
        journal.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in outcome.lines))
    failed = {str(host.place): str(host.failed) for host in outcome.hosts if host.failed is not None}
    anchors = {host.anchor for host in outcome.hosts if host.version == progress.version}
    summary = report(progress, scenario.run)
    if modelled:
        summary = _without_decoration(summary, scenario.scale)
    return {
        "schema": "atoll.sim/1",
        "seed": scenario.seed,
        "trace": outcome.trace,
        "virtual_s": outcome.took_s,
        "events": outcome.callbacks,
        "anchor": min(anchors) if len(anchors) == 1 else None,
        "failed": failed,
        "modelled": modelled,
        "report": summary,
    }


def _pace(progress: Progress) -> str:
    """Return where a run with modelled compute stands: no loss, since nothing is trained."""
    return f"round {progress.version}  {say_time(progress.last_s)} of virtual time"


def _without_decoration(summary: dict[str, Any], scale: float) -> dict[str, Any]:
    """Return a summary of modelled compute: no losses, since nothing was trained, and round bytes of the real model."""
    peers = [
        peer
        | {
            "round_sent_bytes": int(peer["round_sent_bytes"] * scale),
            "sent_bytes": int(peer["sent_bytes"] + peer["round_sent_bytes"] * (scale - 1)),
            "received_bytes": None,
        }
        for peer in summary["peers"]
    ]
    nothing: dict[str, Any] = {"loss_first": None, "loss_last": None, "held_out": None, "held_out_by_round": {}}
    return summary | nothing | {"peers": peers, "sent_bytes": sum(peer["sent_bytes"] for peer in peers)}


def _text(outcome: dict[str, Any]) -> str:
    from atoll.observe.report import text

    rows = [
        text(outcome["report"]),
        f"virtual time  {say_time(outcome['virtual_s'])}",
        f"anchor        {outcome['anchor'] or 'peers do not agree'}",
        f"trace         {outcome['trace']}  (seed {outcome['seed']})",
    ]
    if outcome["modelled"]:
        rows.append("compute is modelled: times and bytes are, losses are not; --real-compute really trains")
    rows += [f"peer {place} failed: {why}" for place, why in outcome["failed"].items()]
    return "\n".join(rows)


def _search(run: Run, fleet: str, peers: int, seeds: str, faults: str, *, as_json: bool) -> None:
    """Play many seeds and print which of them broke a promise; exit 1 when one did."""
    from atoll.sim.scenario import on_fleet
    from atoll.sim.storm import weather
    from atoll.spec.fleet import load_fleet

    first, last = _range(seeds)
    machines, delays_s = on_fleet(load_fleet(fleet))
    machines = machines[: peers or None]
    verdicts: list[Verdict] = []
    said_s = time.monotonic()
    for seed in range(first, last):
        drawn = None if faults in ("", "storm") else _faults(faults, seed, len(machines))
        verdicts.append(weather(run, machines, delays_s, seed, until_s=STORM_S, faults=drawn))
        if verdicts[-1].broken:
            print(f"seed {seed}: {'; '.join(verdicts[-1].broken[:3])}", file=sys.stderr)
        if not as_json and time.monotonic() - said_s > SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{len(verdicts)} of {last - first} seeds", file=sys.stderr)
    broken = [v for v in verdicts if v.broken]
    if as_json:
        found = {str(verdict.seed): verdict.broken for verdict in broken}
        print(json.dumps({"schema": "atoll.seeds/1", "seeds": len(verdicts), "broken": found}))
    else:
        print(f"{len(verdicts)} seeds, {len(broken)} with a broken promise")
    if broken:
        raise AtollError(
            f"{len(broken)} of {len(verdicts)} seeds broke a promise",
            hint=f"replay the first: atoll sim RUN.toml --fleet {fleet} --seeds {broken[0].seed}..{broken[0].seed + 1}",
        )


def _range(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise SpecError(f"--seeds: {text!r} is not a range", hint="write for example 0..200")
    return int(first), int(last)
