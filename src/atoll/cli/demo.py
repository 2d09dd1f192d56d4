"""`atoll demo`: four real peers train a small language model on this machine, and what came of it.

The result stands beside two honest rivals on the same held-out text: a bigram table fitted on all the
training text, and one peer that trained alone, in the plain way, on as many tokens as each of the four
had. Traffic stands beside what exchanging gradients every step would have sent.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.units import say_bytes, say_count, say_time

if TYPE_CHECKING:
    from atoll.data.samples import TokenData
    from atoll.spec.run import Run

SLICE_STEPS = 8
EVALUATE_SAMPLES = 16


def command(
    home: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    peers: Annotated[int, typer.Option(min=1, help="Peers, each a real process.")] = 4,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a key: budget.rounds=4")] = None,
    fresh: Annotated[bool, typer.Option("--fresh/--resume", help="Start anew, or go on with an earlier demo.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="No view; print everything as JSON.")] = False,
) -> None:
    """Train a small model with four real peers on this machine, and show what came of it."""
    from atoll.cli.machine import Machine, build_torch, cache, pinned
    from atoll.cli.train import train
    from atoll.data.samples import open_data
    from atoll.spec.load import demo_run

    if fresh and home.exists():
        shutil.rmtree(home)
    run = demo_run(overrides=overrides or ())
    began_s = time.monotonic()
    resume = f"atoll demo --resume --home {home}"
    summary = train(run, home, peers=peers, resume=resume, as_json=as_json, host="127.0.0.1")
    trained_s = time.monotonic() - began_s
    run = pinned(run, Machine())
    data = open_data(run.data, run.seeds.data, cache())
    size = build_torch(run, Machine(device="cpu", threads=1)).size
    rivals = {"bigram": _bigram(data), "alone": _alone(run)}
    folder = _export(home)
    outcome = _outcome(run, data, summary, rivals, size, peers, trained_s, folder)
    print(json.dumps(outcome) if as_json else _text(outcome))


def _bigram(data: TokenData) -> float:
    """Return the held-out loss of a bigram table fitted on all the training text."""
    from atoll.data.bigram import bigram_loss

    return bigram_loss(data.tokens("train"), [data.held_out(0, data.held_out_samples)], data.vocab_size)


def _alone(run: Run) -> float:
    """Return the held-out loss of one peer that trains alone, in the plain way, on its own share of the tokens."""
    from atoll.cli.machine import Machine, build_torch
    from atoll.model.compute import Step
    from atoll.spec.schedule import rate
    from atoll.spec.turns import round_steps

    engine = build_torch(run, Machine(device="cpu", threads=1))
    total, batch = run.budget.rounds * round_steps(run.recipe), run.recipe.work.batch
    steps = [
        Step(
            samples=tuple(range(i * batch, (i + 1) * batch)),
            rate=rate(run.recipe.work.schedule, i, i / total),
        )
        for i in range(total)
    ]
    said_s = time.monotonic()
    for first in range(0, total, SLICE_STEPS):
        engine.train(steps[first : first + SLICE_STEPS])
        if time.monotonic() - said_s > 5:
            said_s = time.monotonic()
            print(f"for comparison, one peer alone: step {first + SLICE_STEPS} of {total}", file=sys.stderr)
    held_out = engine.held_out()
    parts = [
        engine.evaluate(first, min(EVALUATE_SAMPLES, held_out - first))
        for first in range(0, held_out, EVALUATE_SAMPLES)
    ]
    return sum(loss for loss, _ in parts) / sum(tokens for _, tokens in parts)


def _export(home: Path) -> Path:
    from atoll.cli.export import export

    return export(home, home / "model")


def _sample(folder: Path, data: TokenData, prompt: str) -> str:
    from atoll.model.sample import generate_tokens, open_model

    model, shape = open_model(folder)
    tokenizer = data.tokenizer()
    start = tokenizer.encode(prompt)
    drawn = list(generate_tokens(model, start, 90, temperature=0.7, top_k=40, seed=1, window=shape.context))
    return prompt + tokenizer.decode(drawn)


def _outcome(
    run: Run,
    data: TokenData,
    summary: dict[str, Any],
    rivals: dict[str, float],
    size: int,
    peers: int,
    trained_s: float,
    folder: Path,
) -> dict[str, Any]:
    """Return everything the demo shows, as data."""
    from atoll.spec.turns import round_steps

    sent = [peer["round_sent_bytes"] for peer in summary["peers"]]
    steps = run.budget.rounds * round_steps(run.recipe)
    return {
        "schema": "atoll.demo/1",
        "parameters": size,
        "held_out": summary["held_out"],
        "bits_per_byte": data.bits_per_byte(summary["held_out"]),
        **rivals,
        "sent_bytes": max(sent),
        "ddp_bytes": int(2 * (peers - 1) / peers * size * 4 * steps),
        "tokens": summary["tokens"],
        "trained_s": trained_s,
        "sample": _sample(folder, data, "She was"),
        "checkpoint": str(folder),
        "report": summary,
    }


def _text(outcome: dict[str, Any]) -> str:
    """Return the outcome as people read it."""
    times = outcome["ddp_bytes"] / max(outcome["sent_bytes"], 1)
    rows = [
        f"trained {say_count(outcome['parameters'])} parameters on {say_count(outcome['tokens'])} tokens "
        f"in {say_time(outcome['trained_s'])}",
        "",
        "held-out loss, nats per token (lower is better)",
        f"  {len(outcome['report']['peers'])} peers together       {outcome['held_out']:.3f}   "
        f"({outcome['bits_per_byte']:.2f} bits per byte)",
        f"  one peer alone         {outcome['alone']:.3f}   (its own share of the tokens)",
        f"  bigram table           {outcome['bigram']:.3f}   (fitted on all the text)",
        "",
        f"the busiest peer sent {say_bytes(outcome['sent_bytes'])}; gradients every step (DDP, fp32) would have been "
        f"{say_bytes(outcome['ddp_bytes'])}, {times:.0f} times as much",
        "",
        "a sample:",
        *("  " + line for line in outcome["sample"].splitlines()),
        "",
        f"checkpoint: {outcome['checkpoint']}  (transformers.AutoModelForCausalLM loads it)",
        f"more text:  atoll generate {outcome['checkpoint']} --prompt 'It is'",
    ]
    return "\n".join(rows)
