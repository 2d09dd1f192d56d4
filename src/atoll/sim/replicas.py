"""What each peer's own weights must be where rounds are in circles: worked out from the log and what journals tell.

The log says who was in which circle and whose work counted; journals say who applied what, who passed a round over and
who took the weights of another. From these the weights of every peer follow to the bit, version by version, as a
common anchor follows from the log alone. What cannot be known is left out, not guessed: a contribution from
weights that a peer held two kinds of in two lives, and everything made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from atoll import journal
from atoll.journal import Line
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.sim.compute import first_weights
from atoll.sim.expected import contribution, factor_of, sent, trained, weight_of
from atoll.sim.masses import masses_of
from atoll.sim.retell import Committed, commits
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.what import Params
from atoll.spec.run import Run
from atoll.swarm.log import ALL, Entry
from atoll.swarm.routes.circles import Circle, circles_in, results_of
from atoll.sync.grid import grid_of
from atoll.sync.merge import Anchor, advance, approach, first_anchor, meet


class Replicas:
    """Everybody's weights, as far as they are known."""

    def __init__(self, run: Run, size: int, entries: list[Entry], honest_until: float) -> None:
        self._run = run
        self._channel = next(iter(run.recipe.channel.values()))
        self._first = first_anchor(self._channel.merge.outer, first_weights(run.seeds.data, size))
        self._commits = {each.version: each for each in commits(entries) if each.version <= honest_until}
        self._weighs = self._channel.merge.combine.weights == "mass"
        self._masses = masses_of(self._channel.whom, entries) if self._weighs else {}
        self._held: dict[tuple[str, int], Anchor | None] = {}
        self._doubtful: set[tuple[str, int]] = set()
        """Whose weights of which version were not the same in all its lives."""
        self._newest: dict[str, int] = {}
        self._working: dict[str, tuple[int, int]] = {}
        """What everybody works on, by the round it was handed out for, and from which version's weights it began."""
        self._began: dict[tuple[str, int], set[int]] = {}
        """From which version's weights contributions were made, by whom and for which round: in two lives maybe two."""
        self._lent: dict[tuple[str, int], int | None] = {}
        self._among: dict[tuple[str, int], int] = {}
        """Of how many it was the mean what somebody took as a version."""
        self._made: dict[tuple[int, str], Vector | None] = {}
        """What circles made, by version and root; none: not known."""

    def of(self, who: str, version: int) -> Anchor | None:
        """Return somebody's weights, by its short name; None: they are not known."""
        return self._first if version == 0 else self._held.get((who, version))

    def follow(self, lines: Iterable[Line]) -> None:
        """Go through all journals in the order in which things happened."""
        for line in lines:
            match line.event:
                case journal.RoundCommitted(version=version) as event if version in self._commits:
                    self._make(self._commits[version], event)
                case journal.RoundApplied(version=version, circle=circle):
                    self._apply(line.peer, version, circle)
                case journal.RoundPassedOver(version=version):
                    before = self.of(line.peer, version - 1)
                    self._hold(line.peer, version, _at(version, before) if before is not None else None)
                case journal.WeightsLent(version=version, of=of):
                    self._lend(line.peer, version, of)
                case journal.WorkProgressed(version=first):
                    if self._working.get(line.peer, (0, 0))[0] != first:
                        self._working[line.peer] = first, self._newest.get(line.peer, 0)
                case journal.PeerStarted() | journal.InnerStateRestored():
                    self._working.pop(line.peer, None)
                case journal.ContributionSent(version=version):
                    began = self._working.get(line.peer, (0, version - 1))[1]
                    self._began.setdefault((line.peer, version), set()).add(began)
                case journal.StateFetched(version=version, donors=donors):
                    self._hold(line.peer, version, self.of(donors[0], version) if donors else None)
                case _:
                    pass

    def _hold(self, who: str, version: int, anchor: Anchor | None) -> None:
        before = self._held.get((who, version))
        if (who, version) in self._held and not _same(before, anchor):
            self._doubtful.add((who, version))
        self._held[who, version] = anchor
        self._newest[who] = version

    def _lend(self, who: str, version: int, of: int) -> None:
        """Note which weights somebody lent a round; what it lent in two lives may be either."""
        self._lent[who, version] = of if self._lent.get((who, version), of) == of else None

    def _make(self, committed: Committed, event: journal.RoundCommitted) -> None:
        """Work out what each circle made, when the first journal says that it did."""
        announced = committed.announced
        circles = circles_in(self._channel.whom, announced) or (Circle(announced.members, announced.members),)
        roots: Sequence[str] = event.circles or [""]
        gave: dict[bytes, Vector | None] = {}
        for root, made in zip(roots, results_of(circles), strict=True):
            if (committed.version, root) not in self._made:
                parts = [circles[each] for each in made.circles]
                self._made[committed.version, root] = self._result(committed, parts, gave)

    def _result(
        self, committed: Committed, circles: Sequence[Circle], gave: dict[bytes, Vector | None]
    ) -> Vector | None:
        """Return what circles make together, each its part of the model."""
        if self._channel.mesh is not None:  # of a model for each link, all of it
            return self._mean(committed, circles[0], gave)
        merged = np.zeros_like(self._first.weights)
        grid = grid_of(len(merged), self._channel.what.codec)
        for circle in circles:
            run = circle.chunks(grid.chunks)
            if not run:
                continue
            mean = self._mean(committed, circle, gave)
            if mean is None:
                return None
            part = slice(grid.bounds(run[0])[0], grid.bounds(run[-1])[1])
            merged[part] = mean[part]
        return merged

    def _mean(self, committed: Committed, circle: Circle, gave: dict[bytes, Vector | None]) -> Vector | None:
        """Return what a circle makes; `gave` remembers what its members gave, for the others that they give it to."""
        leases, version = committed.announced.leases, committed.version
        still = self._channel.mesh is not None and committed.announced.holds
        codec = Fp32() if still else self._channel.what.codec
        total, weight = np.zeros_like(self._first.weights), 0.0
        masses = self._masses[version].before if self._weighs else {}
        for group in committed.announced.groups:  # of a region's circle one has anything in it
            part = np.zeros_like(total)
            for peer in (p for p in circle.givers if p in group and p in (*committed.contributors, *committed.lent)):
                if peer not in gave:
                    lent = peer in committed.lent
                    gave[peer] = self._lent_by(peer, version) if lent else self._given(committed, peer)
                if (given := gave[peer]) is None:
                    return None
                mass = masses.get(peer, 1.0)
                weighs = mass if self._weighs else self._weight(committed, circle, peer, leases[peer])
                part = part + sent(codec, given) * np.float32(weighs)
                weight += weighs
            total = total + part
        return sent(codec, total / np.float32(weight)) if weight else None

    def _weight(self, committed: Committed, circle: Circle, peer: bytes, lease: list[int]) -> float:
        """Return what somebody's contribution counts for in a circle."""
        announced, mesh = committed.announced, self._channel.mesh
        if mesh is None or not announced.holds:
            return weight_of(self._channel, lease)
        if not announced.best or sum(giver in committed.contributors for giver in circle.givers) < 2:
            return 1.0
        return mesh.pull if peer == announced.best else 1 - mesh.pull

    def _lent_by(self, peer: bytes, version: int) -> Vector | None:
        """Return the weights that a member lent a round."""
        of = self._lent.get((short(peer), version))
        anchor = self._sure(peer, of) if of is not None else None
        return anchor.weights if anchor is not None else None

    def _sure(self, peer: bytes, version: int) -> Anchor | None:
        """Return a member's weights of a version, if they were the same in all its lives."""
        return None if (short(peer), version) in self._doubtful else self.of(short(peer), version)

    def _given(self, committed: Committed, peer: bytes) -> Vector | None:
        """Return what a member contributed: from where its work began, and joined with what it has taken since."""
        announced, version = committed.announced, committed.version
        starts = self._began.get((short(peer), version), set()) if announced.carry else {version - 1}
        if len(starts) != 1:
            return None
        (began,) = starts
        start, anchor = self._sure(peer, began), self._sure(peer, version - 1)
        if start is None or anchor is None:
            return None
        if announced.holds:
            given = start.weights
        elif announced.key.scope == ALL:
            given = trained(self._run, start, announced.leases[peer])
        else:
            given = contribution(self._run, self._channel, start, announced.leases[peer])
        if began < version - 1:
            among = next((n for v in range(version - 1, began, -1) if (n := self._among.get((short(peer), v), 0))), 0)
            given = (anchor.weights * np.float32(among) + given) / np.float32(among + 1) if among else given
        mass = self._masses[version].before.get(peer, 1.0) if self._weighs else 1.0
        return given if mass == 1.0 else start.weights + (given - start.weights) / np.float32(mass)

    def _apply(self, who: str, version: int, circle: str) -> None:
        """Step somebody's weights by what it says that it applied; a state that was fetched has said so before."""
        committed = self._commits.get(version)
        of_all = committed is not None and committed.announced.key.scope == ALL
        if committed is None or not (circle or of_all):
            return
        merged, before = self._made.get((version, circle)), self.of(who, version - 1)
        if merged is None or (before is None and not of_all):
            self._hold(who, version, None)
            return
        after = _at(version, before if before is not None else self._first)
        self._among[who, version] = self._count(committed, who)
        outer, factor = self._channel.merge.outer, factor_of(self._run, {0: self._channel}, version)
        if of_all:
            meet(after, merged)
        elif own := self._own_part(committed, who):
            after.weights[:] = after.weights * np.float32(own) + merged * np.float32(1 - own)
        elif committed.announced.holds:
            after.weights[:] = merged
        elif isinstance(self._channel.what, Params):
            approach(outer, after, merged, factor)
        else:
            advance(outer, after, merged, factor)
        self._hold(who, version, after)

    def _count(self, committed: Committed, who: str) -> int:
        """Return of how many it is the mean what somebody takes of a round."""
        announced, in_ = committed.announced, (*committed.contributors, *committed.lent)
        circles = circles_in(self._channel.whom, announced)
        givers = next((c.givers for c in circles if any(short(p) == who for p in c.takers)), announced.members)
        return sum(peer in in_ for peer in givers)

    def _own_part(self, committed: Committed, who: str) -> float:
        """Return how much of its own weights stays with somebody who takes what it is not in; 0: it is in it."""
        members = committed.announced.members
        peer = next((p for p in members if short(p) == who), b"")
        if not self._weighs or not peer or peer in committed.contributors:
            return 0.0
        before, after = self._masses[committed.version]
        return before.get(peer, 1.0) / after[peer]


def _at(version: int, anchor: Anchor) -> Anchor:
    """Return the same weights as those of another version, in memory of their own."""
    copy = anchor.copy()
    return Anchor(version, copy.weights, copy.outer)


def _same(one: Anchor | None, other: Anchor | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(one.vectors()[name], vector) for name, vector in other.vectors().items())
