"""How replicas stay one model: independent choices, one record each.

A recipe is local work plus named channels; a channel is a point on the axes when, what, whom, merge,
overlap, barrier, late and home. A number that belongs to one choice cannot be set for another, so nothing needs
asserting later; a choice that is not built yet does not exist here, so it is refused, not approximated.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from atoll.spec.axes.codec import Codec, Fp32, Sign
from atoll.spec.axes.control import Control, Nobody
from atoll.spec.axes.merge import Mean, Merge, Rda
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import (
    Barrier,
    Block,
    Delay,
    Discard,
    Full,
    Home,
    Late,
    OneRound,
    Overlap,
    Regional,
    Replicated,
    RoundsLate,
)
from atoll.spec.axes.what import Feedback, Forget, LowRank, Nearest, Params, What
from atoll.spec.axes.when import Fragments, Named, When
from atoll.spec.axes.whom import All, Butterfly, Carried, Circles, Mesh, Whom
from atoll.spec.axes.work import Work


class Finer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A form of a channel's first rounds, when most depends on what is left out."""

    rounds: int
    """So many of each part's own rounds have it."""
    codec: Codec
    result: Codec | None = None
    part: int = 1
    """Of those that have their turns; where there are none it is all of the model."""


class Channel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of exchange."""

    when: When
    what: What
    merge: Merge
    whom: Whom = All()
    overlap: Overlap = Block()
    barrier: Barrier = Full()
    late: Late = Discard()
    home: Home = Replicated()
    finer: tuple[Finer, ...] = ()
    """Forms of first rounds, where they are not what they are later."""
    forms: dict[str, Codec] = {}
    """The form of a peer's contributions, by its id, where it is not `what.codec`; results are all in that."""

    @property
    def carries(self) -> bool:
        """Return whether who is not done when a round ends works on."""
        return not isinstance(self.late, Discard)

    @property
    def common(self) -> bool:
        """Return whether all members have the same model after every round."""
        return isinstance(self.whom, All)

    @property
    def regional(self) -> Regional | None:
        """Return how regions hold states of their own below one of all; None: they do not."""
        return self.home if isinstance(self.home, Regional) else None

    @property
    def polar(self) -> bool:
        """Return whether tensors travel as directions and lengths."""
        return isinstance(self.merge.combine, Rda)

    def group_max(self, members: int) -> int:
        """Return how many of so many members exchange directly: only of a mean can groups make their parts."""
        route = self.whom.route
        return route.group if isinstance(route, Butterfly) and isinstance(self.merge.combine, Mean | Rda) else members

    @property
    def ahead(self) -> int:
        """Return for how many rounds after the open one members have leases, to go on with while it is exchanged."""
        match self.overlap:
            case Block():
                return 0
            case Delay() | OneRound():
                return 1
            case RoundsLate(rounds=rounds):
                return rounds if self.room == 1 else 0

    @property
    def room(self) -> int:
        """Return how many rounds may be open at once: one more than results are late by, each with its own leases.

        Only where what a contribution leaves with its maker, if anything, can be taken out again after the next ones,
        and nothing is left with owners.
        """
        adds_up = self.what.residual in (Forget(), Feedback(decay=1.0)) and self.what.owners == Forget()
        if not isinstance(self.overlap, RoundsLate) or not adds_up or self.phases > 1:
            return 1
        return self.overlap.rounds + 1

    @property
    def phases(self) -> int:
        """Return how many rounds the same work takes: two, where what is sent depends on what came back before."""
        return 2 if isinstance(self.what.transform, LowRank) else 1

    @property
    def mesh(self) -> Mesh | None:
        """Return how everybody exchanges with everybody over links of their own; None: they do not."""
        return self.whom.pattern if isinstance(self.whom, Circles) and isinstance(self.whom.pattern, Mesh) else None

    def of_weights(self, version: int, *, of_all: bool) -> bool:
        """Return whether weights travel, as they are, in a round of a channel whose other rounds are of gradients."""
        mesh = self.mesh
        return mesh is not None and (of_all or mesh.teaches(version))

    def with_weights(self) -> Channel:
        """Return what the channel is in such a round."""
        return replace(self, what=Params(), merge=Merge(outer=Assign()))

    def holds(self, version: int, *, of_all: bool = False) -> bool:
        """Return whether a round leaves everybody's work for the next: it finds out where or what that will be."""
        tells = of_all and self.regional is not None
        return tells or self.of_weights(version, of_all=of_all) or version % self.phases != 0

    def worked(self, first: int, end: int) -> int:
        """Return how many of the rounds from one to before another have work of their own."""
        mesh = self.mesh
        if mesh is None or not mesh.teach_every:
            return (end - first) // self.phases
        return end - first - ((end - 1) // mesh.teach_every - (first - 1) // mesh.teach_every)

    def unit(self, version: int) -> str:
        """Return what a round is about."""
        return "directions" if version % self.phases else self.when.unit(version)

    @property
    def parts(self) -> int:
        """Return in how many parts the model has its turns, where these follow from a round's number alone."""
        return self.when.count if isinstance(self.when, Fragments | Named) else 1

    def in_round(self, number: int) -> Channel:
        """Return what the channel is in one of its rounds: in a form of the first ones, perhaps."""
        if not self.finer:
            return self
        turn, part = divmod(number - 1, self.parts)
        form = next((form for form in self.finer if form.part == part + 1 and turn < form.rounds), None)
        if form is None:
            return self
        merged = form.codec if form.result is None else form.result
        rounding = self.what.rounding if isinstance(merged, Sign) else Nearest()
        return replace(self, what=replace(self.what, codec=form.codec, result=form.result, rounding=rounding))

    def codec_of(self, peer: bytes) -> Codec:
        """Return the form in which a peer contributes."""
        return self.forms.get(peer.hex(), self.what.codec) if self.forms else self.what.codec

    def kept_by(self, peer: bytes) -> Codec:
        """Return the form in which a peer keeps its contribution: what goes into carried sums is not rounded."""
        return Fp32() if isinstance(self.whom.route, Carried) else self.codec_of(peer)


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to train together."""

    work: Work
    channel: dict[str, Channel]
    control: Control = Nobody()
    about: str = ""
    """One line for `atoll recipes`."""
    paper: str = ""
    reproduced: str = ""
    """What of the paper this recipe reproduces, and which constants are whose."""
    reconstructed: str = ""
    """Parts of the method that are made up or unchecked here, for want of the paper's own; empty: none are."""
