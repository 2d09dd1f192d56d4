"""What anchors must be where the model is exchanged in parts, or channels take turns: worked out a second time.

Peers then have weights of their own, since what was not exchanged stays as their work left it. The log tells whose work
counted and on which samples; journals tell whether a peer began from its own weights or, after a loss, from the anchor.
From both everybody's weights follow round by round, and from these the anchors, to the bit. Who claims to have begun
from its own must have been in the round before; who did not, though it was, must have something to show for it. Where a
peer began a round in both ways, in two lives, nobody can tell which one counted: there this ends.

What a peer holds is what the codec left out of each part when that was last its turn in a round that counts it: its
weights are so far from the anchor's. Who says that it lost this, and has no weights of its own to show that it found
them again, may have either: there this ends too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from atoll import journal
from atoll.journal import Line
from atoll.model.compute import Vector
from atoll.model.moments import equal_parts
from atoll.net.identity import short
from atoll.sim.compute import CountingEngine, first_weights
from atoll.sim.expected import combined_in, moved_by, sent
from atoll.sim.lives import Lives
from atoll.sim.retell import Committed, commits
from atoll.spec.axes.codec import Bf16, Fp16, Fp32
from atoll.spec.axes.merge import Mean, Rda, Trimmed
from atoll.spec.axes.pace import Block, Discard
from atoll.spec.axes.what import Feedback, Grad, Hold, Nearest, Params
from atoll.spec.axes.when import Parts
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.spec.schedule import rate
from atoll.spec.turns import Turn, makes_model, rarest, round_steps, starts_apart, turn_of
from atoll.swarm.log import MODEL, Entry
from atoll.sync.merge import Anchor, Pushes, advance, approach, first_anchor
from atoll.sync.units import Unit, directed, units_in, whole


def in_parts(run: Run) -> bool:
    """Return whether peers keep weights of their own from round to round."""
    channels = run.recipe.channel.values()
    return len(channels) > 1 or any(isinstance(channel.when, Parts) for channel in channels)


def told(channel: Channel) -> bool:
    """Return whether what a channel's rounds come to follows from log and journals."""
    what, merge = channel.what, channel.merge
    waits = isinstance(channel.overlap, Block) and isinstance(channel.late, Discard) and not isinstance(what, Grad)
    codecs = [what.codec, *(form.codec for form in channel.finer)]
    forms = all(isinstance(codec, Fp32 | Fp16 | Bf16) for codec in codecs) and what.transform is None
    elementwise = forms and not isinstance(what.residual, Feedback)
    elementwise = elementwise and not (isinstance(what.residual, Hold) and what.residual.shared)
    elementwise = elementwise and isinstance(what.rounding, Nearest)
    mean = isinstance(merge.combine, Mean | Trimmed | Rda) and merge.combine.weights != "tokens^2/steps"
    return waits and elementwise and mean and channel.common


class Start(Struct, frozen=True):
    """How a peer began its work on a round."""

    own: bool
    excused: bool
    """Something happened since the round before by which weights of one's own are lost."""
    lost: bool
    """What it held may be lost: it said so, and has not begun from weights of its own since."""


def starts(lines: Iterable[Line]) -> dict[tuple[str, int], set[Start]]:
    """Return how everybody began each round, by short name, in all its lives."""
    found: dict[tuple[str, int], set[Start]] = {}
    excused: dict[str, bool] = {}
    lost: set[str] = set()
    for line in lines:
        match line.event:
            case journal.LeaseTaken(version=version, own=own):
                lost -= {line.peer} if own else set()
                start = Start(own, excused.get(line.peer, False), line.peer in lost)
                found.setdefault((line.peer, version), set()).add(start)
                excused[line.peer] = False
            case journal.PeerStarted() | journal.StateFetched():
                excused[line.peer] = True
            case journal.PrivateStateReset():
                excused[line.peer] = True
                lost.add(line.peer)
            case journal.ResidualLost(chunks=0):
                lost.add(line.peer)
            case _:
                pass
    return found


class PartByPart:
    """Everybody's weights, and the anchors that follow."""

    def __init__(
        self, run: Run, size: int, entries: list[Entry], lines: list[Line], honest_until: float, lives: Lives
    ) -> None:
        self._run = run
        self._layout = CountingEngine(seed=run.seeds.data, size=size, moments=equal_parts(run.recipe)).layout
        self._lives = lives
        channels = run.recipe.channel
        self._units = {name: units_in(channel, self._layout) for name, channel in channels.items()}
        self._starts = starts(lines)
        self._local: dict[bytes, Vector] = {}
        """The weights of those who were in the last round and go on from there."""
        self.held: dict[bytes, Vector] = {}
        """What everybody's codec left out, where that stays in its weights."""
        residual = rarest(run.recipe).what.residual
        self._held_part = np.float32(residual.decay if isinstance(residual, Hold) else 0.0)
        outer, apart = rarest(run.recipe).merge.outer, starts_apart(run.recipe)
        anchor = first_anchor(outer, first_weights(run.seeds.data, size), apart=apart)
        self.anchors = {0: anchor}
        self.problems: list[str] = []
        for committed in commits(entries):
            if committed.version > honest_until or not self._is_known(committed):
                break
            anchor = self._after(anchor, committed)
            self.anchors[anchor.version] = anchor

    def _is_known(self, committed: Committed) -> bool:
        """Return whether it is known from where each contributor began, and note what cannot have been."""
        version, known = committed.version, True
        for peer in committed.contributors:
            claims = self._starts.get((short(peer), version), set())
            for claim in sorted(claims, key=lambda claim: claim.own):
                if claim.own and peer not in self._local:
                    self.problems.append(f"version {version}: {short(peer)} began from weights it cannot have")
                elif not claim.own and peer in self._local and not claim.excused:
                    self.problems.append(f"version {version}: {short(peer)} began anew without a reason")
            known = known and len({claim.own for claim in claims}) == 1
            known = known and (peer in self._local or not any(claim.own for claim in claims))
            known = known and not (self._holds_some(peer) and any(claim.lost for claim in claims))
        return known

    def _after(self, anchor: Anchor, committed: Committed) -> Anchor:
        """Return the anchor after one more round, and remember everybody's weights."""
        turn, unit = self._turn(committed)
        trained = {peer: self._trained(anchor, peer, committed) for peer in committed.contributors}
        given = {peer: unit.take(w) for peer, w in trained.items()}
        if not isinstance(turn.channel.what, Params):
            given = {peer: unit.take(anchor.start) - values for peer, values in given.items()}
        if isinstance(turn.channel.what.residual, Hold):
            for peer, values in given.items():
                self._hold(peer, unit, values - sent(turn.channel.kept_by(peer), values), len(anchor.weights))
        tensors = directed(unit, self._layout) if turn.channel.polar else []
        merged = combined_in(turn.channel, committed, given, tensors)
        stepped = self._stepped(anchor, turn, unit, merged, committed)
        goes_on = isinstance(turn.channel.when, Parts)
        self._local = {}
        for peer, weights in trained.items():
            if goes_on:
                unit.put(weights, unit.take(self._beginning(stepped, peer)))
                self._local[peer] = weights
        return stepped

    def _turn(self, committed: Committed) -> tuple[Turn, Unit]:
        """Return which channel a round was of, and what it was about: all of the model, where its key says so."""
        turn = turn_of(self._run.recipe, committed.version)
        units = self._units[turn.name]
        if committed.announced.key.unit == MODEL:
            return turn, whole(sum(unit.size for unit in units), turn.channel.what.codec)
        return turn, units[(turn.number - 1) % len(units)].in_pass((turn.number - 1) // len(units))

    def _hold(self, peer: bytes, unit: Unit, left_out: Vector, size: int) -> None:
        """Remember what was left out of a part; of the others somebody holds what it held."""
        unit.put(self.held.setdefault(peer, np.zeros(size, np.float32)), left_out)

    def _holds_some(self, peer: bytes) -> bool:
        return peer in self.held and bool(self.held[peer].any())

    def _beginning(self, anchor: Anchor, peer: bytes) -> Vector:
        """Return where somebody begins from an anchor: there, but for what it holds."""
        if peer not in self.held:
            return anchor.weights
        return anchor.weights - self._held_part * self.held[peer]

    def _trained(self, anchor: Anchor, peer: bytes, committed: Committed) -> Vector:
        """Return what work on its lease made of a peer's weights."""
        (own,) = {claim.own for claim in self._starts[short(peer), committed.version]}
        start = self._local[peer] if own else self._beginning(anchor, peer)
        life = self._lives.get((short(peer), committed.version), 0)
        return moved_by(self._run, start, committed.announced.leases[peer], life)

    def _stepped(self, anchor: Anchor, turn: Turn, unit: Unit, merged: Vector, committed: Committed) -> Anchor:
        """Return the anchor with what a round is about stepped by its result: from where such steps start."""
        apart = starts_apart(self._run.recipe) and makes_model(self._run.recipe, turn.name)
        state = {name: unit.take(vector).copy() for name, vector in anchor.outer.items()}
        part = Anchor(anchor.version, unit.take(anchor.start if apart else anchor.weights).copy(), state)
        take = approach if isinstance(turn.channel.what, Params) else advance
        part = take(turn.channel.merge.outer, part, merged, self._factor(turn, committed.version), Pushes())
        after = Anchor(anchor.version + 1, anchor.weights.copy(), {name: v.copy() for name, v in anchor.outer.items()})
        unit.put(after.weights, part.weights)
        for name, vector in part.outer.items():
            unit.put(after.outer[name], vector)
        if apart:
            after.start[:] = after.weights
        return after

    def _factor(self, turn: Turn, version: int) -> float:
        if not turn.channel.merge.scheduled:
            return 1.0
        run = self._run
        return rate(
            run.recipe.work.schedule, (version - 1) * round_steps(run.recipe), (version - 1) / run.budget.rounds
        )
