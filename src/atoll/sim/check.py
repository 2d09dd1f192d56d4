"""What must hold, whatever went wrong: checks that read only journals and disks.

    one history   all peers that hold a version hold the same bits, and tell the same of its commit
    no fork       an epoch has one leader
    counted once  everybody works on the samples that are its own by the log, none is in two committed
                  contributions, none that came back is forgotten, nobody's inner state keeps work that does not
                  count, and the anchor is to the bit what the log says it should be: the counting model makes
                  visible what was lost, doubled or added up in another order
    durable       what a journal called committed no council could have forgotten, at any crash and at the end, and
                  its result was on two disks by then
    bad input     nonsense is blamed on who sent it, and on nobody else
    turned        knobs stand alike for everybody in every round, as a policy may turn them, and rounds are as long as
                  they say
    live          after the faults are over, rounds commit again and everybody gets to the newest one; no round
                  waits for a slow member beyond the run's patience, or for one that lacks the state to begin

Each returns the violations it found, as sentences; `promises/` has a file for each of these, and one for anchors. None
of them calls the code it judges, except to read its file formats and to step the outer optimizer at its scheduled rate.
"""

from __future__ import annotations

from atoll.sim.promises.anchors import as_the_log_says
from atoll.sim.promises.blame import blamed_rightly
from atoll.sim.promises.counted import (
    counted_once,
    inner_as_counted,
    leases_as_logged,
    none_forgotten,
    tokens_as_counted,
)
from atoll.sim.promises.disks import log_of_record
from atoll.sim.promises.durable import circles_of, durable, durable_at_crashes, held_by_two
from atoll.sim.promises.history import at_home, in_circles, one_commit, one_history, one_leader, readable
from atoll.sim.promises.knobs import as_the_knobs_say
from atoll.sim.promises.waiting import patient, ready
from atoll.sim.scenario import Outcome
from atoll.spec.run import Run


def violations(run: Run, outcome: Outcome) -> list[str]:
    """Return every broken promise of a play with counting models."""
    entries = log_of_record(outcome)
    return [
        *readable(outcome),
        *one_history(outcome.lines, at_home(run, entries)),
        *durable(outcome.lines, entries),
        *durable_at_crashes(outcome),
        *held_by_two(outcome, circles_of(run, entries)),
        *patient(run, outcome),
        *ready(outcome),
        *leases_as_logged(outcome.lines, entries),
        *counted_once(outcome.lines),
        *none_forgotten(outcome.lines),
        *inner_as_counted(run, outcome, entries),
        *one_commit(outcome.lines),
        *one_leader(outcome),
        *tokens_as_counted(run, outcome.lines, entries),
        *as_the_log_says(run, outcome, entries),
        *as_the_knobs_say(run, outcome.lines, entries),
        *blamed_rightly(outcome),
        *(f"peer {host.place} failed: {error}" for host in outcome.hosts for error in host.failures),
    ]


def settled(outcome: Outcome, room: int = 1) -> list[str]:
    """Return what keeps the world from being at peace: peers that are not on the highest version and digest.

    Where several rounds may be open they may be behind by all but one.
    """
    top = max((host.version for host in outcome.hosts), default=0)
    here = [host for host in outcome.hosts if (host.here or host.alive) and not host.gone]
    own = top in in_circles(outcome.lines)
    anchors = sorted({host.anchor for host in here if host.version == top and not own})
    behind = [host.place for host in here if host.version <= top - room]
    problems = [f"peers {behind} are behind version {top}"] if behind else []
    return problems + ([f"{len(anchors)} anchors of version {top}"] if len(anchors) > 1 else [])
