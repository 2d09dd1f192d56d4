"""A real peer whose model stands still: everything but the training is as in `atoll peer`.

    python -m bench.still --home FOLDER --elements 25000000 (--run RUN.json | --ticket TICKET) [--host H] [--links tls]

Its local steps take no time and its contribution is noise from its own key, so that what a round takes is the exchange:
announced, contributed, reduced, returned, synced to disk, committed, with leases, digests and encryption as always.
With `--step-s` each takes so long, after the first `--quick-steps`: then the line is free for somebody who joins.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from atoll.cli.machine import Machine, real_box
from atoll.model.compute import Cost, Engine, Moments, Step, Trained, Vector
from atoll.model.held import Held, added_up, less_held
from atoll.net.ticket import parse_ticket
from atoll.net.transport import LinkKind
from atoll.peer.life import Start, Stop, live
from atoll.spec.axes.codec import Codec
from atoll.spec.load import decode_run
from atoll.spec.run import Run

NOISE = 1e-3


class StillEngine:
    """A vector that local steps move by fixed noise."""

    def __init__(self, elements: int, seed: int, quick_steps: int, step_s: float) -> None:
        self._quick_steps = quick_steps
        self._step_s = step_s
        self._done = 0
        self._noise = NOISE * np.random.default_rng(seed).random(elements, np.float32)
        self._assigned = np.zeros(elements, np.float32)
        self._moved = 0

    @property
    def size(self) -> int:
        return self._noise.size

    @property
    def tokens_per_sample(self) -> int:
        return 1

    def cost(self, samples: int, steps: int = 0) -> Cost:
        return Cost()

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        return self._assigned[first:end] + np.float32(self._moved) * self._noise[first:end]

    @property
    def layout(self) -> dict[str, int]:
        return {"weight": self.size}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.size,)}

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        """Take the weights over without a copy: they are only read."""
        assert (first, weights.size) == (0, self.size), "it has no parts"
        self._assigned, self._moved = weights if less is None else less_held(weights, less.read(), part), 0

    def train(self, steps: Sequence[Step]) -> Trained:
        self._done += len(steps)
        if self._done > self._quick_steps:
            time.sleep(self._step_s * len(steps))
        self._moved += len(steps)
        samples = sum(len(step.samples) for step in steps)
        return Trained(steps=len(steps), samples=samples, tokens=samples, loss_sum=float(len(steps)))

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        return added_up(lambda steps: (self.train(()), self._noise.copy()), steps, total)

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        """Return nothing: no layer is given anything."""
        return {}

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> None:
        """Return nothing: it is no device."""

    def encoder(self, codec: Codec) -> None:
        """Return nothing: it is no device."""

    def transforms(self) -> None:
        """Return nothing: it is no device."""

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        return float(count), count

    def held_out(self) -> int:
        return 1

    def private(self) -> bytes:
        return b""

    def restore(self, private: bytes) -> None:
        """There is nothing to take back."""


async def run_peer(home: Path, machine: Machine, start: Start, still: Callable[[int], StillEngine]) -> None:
    """Be such a peer until asked to leave; `still` makes its model from a seed."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask, "asked to leave")
    box = await real_box(home, machine)

    async def build(run: Run) -> Engine:
        seed = int.from_bytes(box.transport.id[:8], "big")
        return await box.compute.run(lambda: still(seed), Cost())

    box = replace(box, build=build)
    try:
        await live(box, start, stop)
    finally:
        await box.compute.close()
        await box.beside.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--quick-steps", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--ticket", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--links", type=LinkKind, choices=list(LinkKind), default=LinkKind.AUTO)
    options = parser.parse_args()
    if options.run is not None:
        start = Start(run=decode_run(options.run.read_bytes(), source=str(options.run)))
    else:
        ticket = parse_ticket(options.ticket)
        start = Start(run_id=ticket.run, contacts={each.peer: each.addresses for each in ticket.peers})
    machine = Machine(device="cpu", threads=1, host=options.host, links=options.links)
    still = partial(StillEngine, options.elements, quick_steps=options.quick_steps, step_s=options.step_s)
    asyncio.run(run_peer(options.home, machine, start, lambda seed: still(seed=seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
