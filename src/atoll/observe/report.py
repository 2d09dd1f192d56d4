"""What a run came to: the summary at its end, as a dict for programs and as text for people.

Every number is taken from the journal; where the journal is silent the report is too.
"""

from __future__ import annotations

from typing import Any

from atoll.observe.granularity import doubled, of_peer, of_run, say_granularity
from atoll.observe.progress import Progress, round_s
from atoll.spec.run import Run, identity
from atoll.units import say_bytes, say_count, say_time


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


def _traffic(summary: dict[str, Any]) -> str:
    each = summary["sent_bytes"] / len(summary["peers"])
    return f"{say_bytes(summary['sent_bytes'])} by {len(summary['peers'])} peers, {say_bytes(each)} each"
