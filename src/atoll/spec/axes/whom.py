"""Whom: which peers exchange with which, by which route."""

from __future__ import annotations

from atoll.spec.axes.axis import Axis

GROUP_MAX = 64
"""More members than this do not exchange directly with each other."""


class Butterfly(Axis, tag="butterfly"):
    """Members own shares of the chunk grid: each reduces its share for all and returns it to all."""

    group: int = GROUP_MAX
    """Members that exchange directly with each other; above that, groups add up and pass sums on."""


class Star(Axis, tag="star"):
    """One reduces everything for all and returns it: whoever leads the council, which everybody reaches.

    Who only trains can die, or sleep, and nobody waits for it; the one in the middle moves what all together move.
    """


class AllGather(Axis, tag="all-gather"):
    """Every member gets every contribution whole and reduces them for itself."""


class Ring(Axis, tag="ring"):
    """Sums go round: each member adds what is its own, encodes the sum again and passes it on to the next."""


class Trees(Axis, tag="trees"):
    """Sums go up trees that follow what links are measured to carry, and results come down the same."""

    roots: int = 4
    """Members among whom the chunks are shared as roots, at most."""
    gain: float = 0.1
    """Other trees are taken when a round would be shorter by this part of it."""


class Rings(Axis, tag="rings"):
    """Members are in clusters of near ones, each with an owner for every chunk: the owners of a chunk are a ring.

    Each cluster cuts the model in its own way; wherever one does, another ring begins, and all go round at once.
    """

    clusters: int


class Regions(Axis, tag="regions"):
    """Members are in regions of near ones: those of a region own shares of the grid, and regions exchange sums."""

    near_ms: float = 10.0
    """Round trips, as members measure them, within which they are near; who is near to nobody is a region alone."""


Carried = Ring | Trees | Rings
"""Routes on which nobody has all contributions: sums are carried from member to member."""


Owned = Butterfly | Star
"""Routes on which each chunk has an owner, who gets all contributions to it and returns what it makes of them."""


Route = Butterfly | Star | AllGather | Ring | Trees | Rings | Regions


class All(Axis, tag="all"):
    """Every member of the roster."""

    route: Route = Butterfly()


class Lattice(Axis, tag="lattice"):
    """Members have places on a lattice of so many dimensions: a round is along one of them, the next along the next."""

    side: int
    """Members along a dimension: those of a circle, at most; fewer where fewer have places enough."""
    dimensions: int = 2
    """At least; more where there are more members than places."""


class Drawn(Axis, tag="drawn"):
    """By lot, drawn anew for every round; who is over makes a circle larger."""

    size: int = 2


class Neighbours(Axis, tag="neighbours"):
    """In a ring, everybody with those next to it on either side: each takes from a circle of its own."""

    reach: int = 1


class Exponential(Axis, tag="exponential"):
    """In a ring, one way: everybody gives to one other, 1, 2, 4, ... places on in turn, and takes from as far back."""


class Segments(Axis, tag="segments"):
    """The model in parts: of each everybody takes its own and that of a few others, from whom it comes soonest."""

    count: int = 10
    sources: int = 2
    """From so many others each part is taken."""
    explore: float = 0.1
    """So often a source is drawn by lot, however slow its line is; 1: always, whatever lines are like."""


class Mesh(Axis, tag="mesh"):
    """Everybody with everybody, over each link by itself: what one gives another may differ from link to link."""

    teach_every: int = 0
    """Every so many rounds no work is done: everybody moves towards the weights of who has the least loss; 0: never."""
    pull: float = 0.75
    """So much of the way there."""

    def teaches(self, version: int) -> bool:
        """Return whether a round is one in which all learn from one."""
        return self.teach_every > 0 and version % self.teach_every == 0


Pattern = Lattice | Drawn | Neighbours | Exponential | Segments | Regions | Mesh


class Circles(Axis, tag="circles"):
    """A few members with each other, others among themselves: each keeps a model of its own, and these stay near."""

    pattern: Pattern
    all_every: int = 0
    """Every so many rounds all members take the mean of all; 0: in the last round only, which makes the run's model."""

    @property
    def route(self) -> Route:
        """Return how a circle exchanges, and all members in a round of all: by shares, between regions by sums."""
        return self.pattern if isinstance(self.pattern, Regions) else Butterfly()


Whom = All | Circles
