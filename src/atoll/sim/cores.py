"""A computer's cores: what moving bytes and running jobs takes of them, where a fleet says how many there are.

    sender's line ─> receiver's line            bytes, with headers
    sender's loop    receiver's loop            one thread of each peer encrypts, hashes, parses
    sender's cores   receiver's cores           shared with all jobs, and with all peers on that computer

Each of these is a link of the fluid model (`flows`) that a byte takes something of. A job is a flow too, of processor
time instead of bytes: one thread, so never more than one core. Whoever says nothing of cores has enough of them.

The numbers are what whole peers took, not only their links: `python -m bench.calibrate --fit FILE` measures them again.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from atoll.net.transport import Traffic
from atoll.sim.flows import Flow, Fluid
from atoll.spec.fleet import LinkName, Processor

GBIT_BYTES = 1e9 / 8
JOB_UNIT_S = 5e-8
"""A job against flows: it grows with them as if this were one byte of it, since a busy loop carries a dozen flows and
the two are one thread each."""


class Toll(Struct, frozen=True, kw_only=True):
    """What one kind of link takes for what it carries."""

    send_s_gbit: float
    """Processor time per gigabit that is sent."""
    receive_s_gbit: float
    awake: float
    """And the part of a core that each end of a line needs while it is full: on a slow one packets come one by one, and
    each wakes whoever waits for it; on a fast one many come together."""
    line: float
    """How much of a line's time a byte of a message takes: with its headers and acknowledgements, and with what
    congestion control leaves idle or shares out unevenly (`python -m bench.mesh`)."""
    threads: float
    """Cores that one peer can use for its links at once: its loop is one thread, which over TLS does all and over iroh,
    with a thread of its own, two thirds."""
    death_heard: bool
    """When a process dies its machine says so; otherwise only silence tells."""


# Of the first computer that was measured. Its settings on lines of 25 and 500 Mbit/s gave a price per gigabit and one
# for staying awake by hand, as `bench.calibrate.moving` does it: they were measured before there was a second price.
TOLLS: dict[LinkName, Toll] = {
    "tls": Toll(send_s_gbit=0.33, receive_s_gbit=0.39, awake=0.054, line=1.08, threads=1.0, death_heard=True),
    "iroh": Toll(send_s_gbit=0.99, receive_s_gbit=0.69, awake=0.088, line=1.27, threads=1.5, death_heard=False),
}


def toll_of(processor: Processor) -> Toll:
    """Return what links take on a computer: what its fleet says, otherwise what was measured."""
    known = TOLLS[processor.links]
    return Toll(
        send_s_gbit=known.send_s_gbit if processor.send_s_gbit is None else processor.send_s_gbit,
        receive_s_gbit=known.receive_s_gbit if processor.receive_s_gbit is None else processor.receive_s_gbit,
        awake=known.awake if processor.awake is None else processor.awake,
        line=known.line,
        threads=known.threads,
        death_heard=known.death_heard,
    )


class Cores:
    """The cores of one computer."""

    def __init__(self, fluid: Fluid, count: float) -> None:
        self.link = fluid.link(count)
        self._fluid = fluid

    def work(self, cpu_s: float) -> Work:
        """Begin a job of so much processor time."""
        return Work(self._fluid, self.link, cpu_s)


class Work:
    """A job that takes a core's time, or less where others want it too."""

    def __init__(self, fluid: Fluid, cores: int, cpu_s: float) -> None:
        self._fluid = fluid
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flow = Flow(
            links=(cores,),
            weights=(JOB_UNIT_S,),
            traffic=Traffic.ROUND,
            size_bytes=cpu_s / JOB_UNIT_S,
            limit_bytes_s=1 / JOB_UNIT_S,
            done=self._end,
        )
        fluid.start(self._flow)

    async def done(self) -> None:
        """Wait for its end; cancelled: it goes on."""
        await asyncio.shield(self._over)

    def stretch(self, times: float) -> None:
        """Let what is left of it take so many times the time."""
        self._fluid.stretch(self._flow, times)

    def stop(self) -> None:
        """Take it off, since its process is gone."""
        self._fluid.stop(self._flow)

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
