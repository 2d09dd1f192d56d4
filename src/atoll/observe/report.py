"""What a run came to: the summary at its end, as a dict for programs and as text for people.

Every number is taken from the journal; where the journal is silent the report is too.
"""

from __future__ import annotations

from typing import Any

from atoll.observe.granularity import doubled, of_peer, of_run, say_granularity
from atoll.observe.progress import Progress, round_s
from atoll.spec.axes.control import Nobody
from atoll.spec.knobs import beginning
from atoll.spec.run import Run, identity
from atoll.units import say_bytes, say_count, say_time

TURNS_SHOWN = 3
"""Of a policy that turns often the last few turns are told to people; programs get all."""


def report(progress: Progress, run: Run | None = None) -> dict[str, Any]:
    """Return the summary of a run; `schema` names its form."""
    took_s = progress.last_s - progress.first_s if progress.first_s is not None else 0.0
    losses = progress.losses
    return {
        "schema": "atoll.report/1",
        "run": identity(run) if run else progress.run,
        "name": run.name if run else "",
        "state": progress.state,
        "rounds": progress.version,
        "rounds_of": run.budget.rounds if run and run.budget.rounds else None,
        "tokens": progress.tokens,
        "took_s": took_s,
        "tokens_s": progress.tokens / took_s if took_s > 0 else None,
        "round_s": round_s(progress),
        "granularity": of_run(progress),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "held_out": progress.held_out[max(progress.held_out)] if progress.held_out else None,
        "held_out_by_round": {str(version): loss for version, loss in sorted(progress.held_out.items())},
        "knobs": _knobs(progress, run),
        "staleness_max": max((age for each in progress.rounds.values() for age in each.staleness), default=0),
        "sent_bytes": progress.sent_bytes,
        "peers": [
            {
                "peer": peer.name,
                "state": peer.state,
                "device": peer.device,
                "round": peer.version,
                "tokens": peer.tokens,
                "sent_bytes": peer.sent_bytes,
                "received_bytes": peer.received_bytes,
                "round_sent_bytes": peer.round_sent_bytes,
                "contributions": sum(peer.name in each.contributors for each in progress.rounds.values()),
                "missed": peer.dropped,
                "granularity": of_peer(progress, peer.name),
            }
            for peer in sorted(progress.peers.values(), key=lambda each: each.name)
        ],
        "lost": [{"peer": who, "why": why} for who, why in progress.lost],
        "refused": [{"peer": who, "why": why} for who, why in progress.refused],
        "checkpoint": progress.checkpoint or None,
    }


def _knobs(progress: Progress, run: Run | None) -> list[dict[str, Any]] | None:
    """Return how a policy turned the knobs, in order; None where nobody does."""
    policy = run is not None and not isinstance(run.recipe.control, Nobody)
    if not policy and not progress.turns:
        return None
    before = beginning(run.recipe).steps if run is not None and policy else None
    told = []
    for version, turn in sorted(progress.turns.items()):
        told.append(
            {
                "from_round": version,
                "steps_before": before,
                "steps": turn.steps,
                "form": _form(run, turn.rung),
                "forms": {peer: _form(run, rung) for peer, rung in sorted(turn.each.items())},
                "delay": turn.delay,
                "outer_lr": turn.lr or None,
                "batch": turn.samples or None,
                "why": turn.why,
            }
        )
        before = turn.steps
    return told


def _form(run: Run | None, rung: int) -> str | None:
    """Return what an exchange is encoded in on a rung of the run's ladder; None where that is not known."""
    control = Nobody() if run is None else run.recipe.control
    if isinstance(control, Nobody) or not 0 <= rung < len(control.ladder):
        return None
    return str(control.ladder[rung].codec.__struct_config__.tag)


def text(summary: dict[str, Any]) -> str:
    """Return a report as people read it."""
    rounds = f"{summary['rounds']} of {summary['rounds_of']}" if summary["rounds_of"] else str(summary["rounds"])
    rows = [("run", f"{summary['name'] or summary['run'][:12]}, {summary['state']}"), ("rounds", rounds)]
    if summary["loss_last"] is not None:
        rows.append(("loss", f"{summary['loss_first']:.3f} in the first round, {summary['loss_last']:.3f} in the last"))
    if summary["held_out"] is not None:
        rows.append(("held-out", f"{summary['held_out']:.3f}"))
    rows.append(("tokens", _pace(summary)))
    if summary["granularity"] is not None and len(summary["peers"]) > 1:
        rows.append(("work", _granularity(summary["granularity"])))
    if summary["knobs"] is not None:
        rows += [("knobs", line) for line in _turns(summary["knobs"])]
    if summary["staleness_max"]:
        rows.append(("staleness", f"at most {summary['staleness_max']} rounds were committed while a peer worked on"))
    if summary["peers"]:
        rows.append(("sent", _traffic(summary)))
    if summary["lost"]:
        rows.append(("lost", ", ".join(sorted({each["peer"] for each in summary["lost"]}))))
    if summary["checkpoint"]:
        rows.append(("saved", summary["checkpoint"]))
    return "\n".join(f"{name:<10}{value}" for name, value in rows)


def _pace(summary: dict[str, Any]) -> str:
    took = f" in {say_time(summary['took_s'])}" if summary["took_s"] else ""
    rate = f" ({say_count(summary['tokens_s'])}/s)" if summary["tokens_s"] else ""
    return f"{say_count(summary['tokens'])}{took}{rate}"


def _granularity(granularity: float) -> str:
    times = f"{say_granularity(granularity)} times as long as the rest of a round"
    return f"{times}; twice the peers: at best {doubled(granularity):.2f} times as fast"


def _turns(knobs: list[dict[str, Any]]) -> list[str]:
    """Return the last few turns of the knobs, a line each with its reason."""
    if not knobs:
        return ["as the run began: nothing was turned"]
    earlier = [f"turned {len(knobs)} times, the last:"] if len(knobs) > TURNS_SHOWN else []
    return earlier + [_turn(each) for each in knobs[-TURNS_SHOWN:]]


def _turn(turn: dict[str, Any]) -> str:
    changed = turn["steps_before"] not in (None, turn["steps"])
    parts = [f"{turn['steps_before']} -> {turn['steps']} steps" if changed else f"{turn['steps']} steps"]
    parts += [turn["form"]] if turn["form"] else []
    parts += [f"batches of {turn['batch']} samples"] if turn["batch"] else []
    parts += [f"{len(turn['forms'])} peers in forms of their own"] if turn["forms"] else []
    return f"{', '.join(parts)}, from round {turn['from_round']} on: {turn['why']}"


def _traffic(summary: dict[str, Any]) -> str:
    each = summary["sent_bytes"] / len(summary["peers"])
    return f"{say_bytes(summary['sent_bytes'])} by {len(summary['peers'])} peers, {say_bytes(each)} each"
