"""How replicas stay one model: independent choices, one record each.

A recipe is local work plus named channels; a channel is a point on the axes when, what, whom, merge,
overlap, barrier, late and home. A number that belongs to one choice cannot be set for another, so nothing needs
asserting later; a choice that is not built yet does not exist here, so it is refused, not approximated.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace


class Axis(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Base of a choice on an axis: strict, immutable, defaults left out of the canonical form."""


# when: what triggers an exchange


class Every(Axis, tag="every"):
    """Exchange after a fixed number of local steps."""

    steps: int

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has."""
        return self.steps

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return "model"


class Fragments(Axis, tag="fragments"):
    """Exchange the model in parts, in turn: each a fixed number of local steps after its last turn."""

    steps: int
    """Between two exchanges of the same part; a multiple of `count`."""
    count: int
    pattern: Literal["strided", "sequential", "packed", "drawn"] = "strided"
    """Layers in turn, layers in runs (with them what is before the first and after the last), tensors by size; or
    elements by lot, drawn anew whenever all parts have had their turn."""

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has: in each one part is exchanged."""
        return self.steps // self.count

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return f"fragment {(number - 1) % self.count}"


class Tensors(Axis, tag="tensors"):
    """Exchange tensors in turn, from the last to the first: as many at a time as travel during a backward pass."""

    steps: int
    """Of a period, in which each tensor has one turn at least; a multiple of `count`."""
    count: int
    """Exchanges in a period, all as many steps apart."""
    passes: float
    """Backward passes that an exchange of the whole model takes: for such lines the turns are made."""

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has: after them some tensors are exchanged."""
        return self.steps // self.count

    def unit(self, version: int) -> str:
        """Return what a round is about."""
        return f"turn {(version - 1) % self.count}"


class Growth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a batch of all together grows while a run goes on: evenly at first, then twofold."""

    every: int
    """Rounds from one size to the next."""
    add: int
    """So many samples more each time, as long as there are fewer than `until`;"""
    until: int
    most: int
    """from then on twice as many, and never more than this."""


class TargetBatch(Axis, tag="target-batch"):
    """Exchange when all together have worked through so many samples, each at its own speed."""

    samples: int
    growth: Growth | None = None
    """How they become more; none: they stay as many."""

    def samples_in(self, version: int) -> int:
        """Return how many samples a round is of."""
        samples, growth = self.samples, self.growth
        if growth is None:
            return samples
        for _ in range((version - 1) // growth.every):
            if samples >= growth.most:
                break
            samples = min(samples + growth.add if samples < growth.until else 2 * samples, growth.most)
        return samples

    @property
    def round_steps(self) -> int:
        """Return how many steps a round has: one, on a batch of all together."""
        return 1

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return "model"


Parts = Fragments | Tensors
"""Rounds that are about a part of the model each."""
When = Every | Parts | TargetBatch


# what: which quantity, in which form on the wire


class Fp32(Axis, tag="fp32"):
    """Four bytes an element, exact."""


class Fp16(Axis, tag="fp16"):
    """Two bytes an element: IEEE half, values beyond its range clipped to the largest half."""


class Bf16(Axis, tag="bf16"):
    """Two bytes an element: the upper half of an fp32, rounded to the nearest."""


BLOCK_MIN, BLOCK_MAX = 16, 65536
"""Elements that may share a scale: in smaller blocks int8 would be no shorter than fp16."""


class Int8(Axis, tag="int8"):
    """A byte an element: 255 even steps between plus and minus the largest of its block, whose size is sent too."""

    block: int = 256
    """Elements that share a step; each block costs four bytes more."""


class Buckets(Axis, tag="buckets"):
    """So many bits an element: even bins around the chunk's mean, each sent as the mean of what fell into it."""

    bits: int = 8
    width: float = 12.0
    """Standard deviations from the first bin to the last; what lies outside falls into those."""


class E3m0(Axis, tag="e3m0"):
    """Four bits an element: a sign and one of seven powers of two below its block's largest, or zero."""

    block: int = 64
    """Elements that share a scale; each block costs four bytes more."""


class Sign(Axis, tag="sign"):
    """A bit an element: its sign, times the mean magnitude of its block."""

    block: int = 4096


class Stochastic(Axis, tag="stochastic"):
    """So many bits an element: even steps of its block's norm, up or down by chance so that the mean is right."""

    bits: int = 8
    block: int = 512


Quantiser = Fp32 | Fp16 | Bf16 | Int8 | Buckets | E3m0 | Sign | Stochastic
"""What becomes of a value."""


class TopK(Axis, tag="top-k"):
    """Of each block the largest only: where they are in as few bits as a place in the block needs, and their values."""

    keep: int = 64
    block: int = 4096
    """A power of two, at most 65536."""
    values: Quantiser = Fp32()


class Threshold(Axis, tag="threshold"):
    """Only what is at least so large; how many that are differs from chunk to chunk, and from round to round."""

    least: float
    scaled: bool = False
    """True: times the schedule's factor, so that what counts as large shrinks with the steps that it is made of."""
    values: Quantiser = Fp32()


class Significance(Axis, tag="significance"):
    """Only what is at least such a part of the weight it is to change (Gaia's filter)."""

    least: float = 0.01
    """In the first round."""
    shrinks: bool = True
    """Whether it is divided by the square root of the round's number in later ones."""
    values: Quantiser = Fp32()


class MaxN(Axis, tag="max-n"):
    """Only what is within N % of the largest of its tensor: of 100 everything, of 10 what is at least 90 % of that.

    N is of each link, and its sender's affair: what comes says itself what it is about.
    """

    least: float = 0.85
    most: float = 100.0
    """Between these: as much as the link was measured to carry in the time of a step's work."""
    values: Quantiser = Fp32()


class CacheLines(Axis, tag="cache-lines"):
    """Only whole lines of neighbouring values: those of the largest sums."""

    keep: float = 0.01
    """Part of the lines; at least one of each chunk."""
    line: int = 16
    remember: bool = True
    """Find them by a threshold that is kept from round to round and follows; False: exactly, every time."""
    values: Quantiser = Fp32()


Above = Threshold | Significance | MaxN
"""What sends whatever is large enough: as long as its values make it."""
Sparse = TopK | Above | CacheLines
"""What sends some values only."""
Codec = Quantiser | Sparse


class Forget(Axis, tag="forget"):
    """What the codec leaves out is lost."""


class Feedback(Axis, tag="feedback"):
    """What the codec leaves out is kept and added to the next contribution (error feedback)."""

    decay: float = 1.0
    """So much of it is kept."""


class Hold(Axis, tag="hold"):
    """What the codec leaves out is kept until it is sent, and counts in the peer's own weights meanwhile."""


Residual = Forget | Feedback | Hold


class Dct(Axis, tag="dct"):
    """The frequencies of each tile of a tensor (orthonormal cosine transform) in place of its values."""

    tile: int = 64
    """Elements along a side of a tile, at most: the largest divisor of the tensor's own side up to this."""


class LowRank(Axis, tag="low-rank"):
    """Two thin factors in place of each matrix, found in two rounds: a few directions, then what lies along them."""

    rank: int = 4
    """Directions, at most: no more than the shorter side of a matrix has."""
    least: float = 2.0
    """Times that both factors together must be smaller than the tensor; others travel whole, as vectors always do."""


class _Quantity(Axis):
    """Something to exchange, and its form on the wire."""

    codec: Codec = Fp32()
    transform: Dct | LowRank | None = None
    """What the codec is given, and what results are made of; none: values themselves."""
    residual: Residual = Forget()
    result: Codec | None = None
    """The form of what contributions are merged into; none: the same as theirs."""
    owners: Forget | Feedback = Forget()
    """What becomes of what is left out of results: lost, or kept by who owns the chunk and added to its next result."""

    def merged(self) -> Codec:
        """Return the codec of results."""
        return self.codec if self.result is None else self.result


class Delta(_Quantity, tag="delta"):
    """The anchor minus the local weights."""


class Grad(_Quantity, tag="grad"):
    """The mean gradient of the steps since the last exchange, taken at the anchor."""


class Params(_Quantity, tag="params"):
    """The local weights themselves."""


What = Delta | Grad | Params


# whom: which peers, by which route


GROUP_MAX = 64
"""More members than this do not exchange directly with each other."""


class Butterfly(Axis, tag="butterfly"):
    """Members own shares of the chunk grid: each reduces its share for all and returns it to all."""

    group: int = GROUP_MAX
    """Members that exchange directly with each other; above that, groups add up and pass sums on."""


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
Route = Butterfly | AllGather | Ring | Trees | Rings | Regions


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


# merge: how contributions are weighed, combined and applied


class Assign(Axis, tag="assign"):
    """Move the anchor by the whole combined delta (plain averaging of weights)."""


class Sgd(Axis, tag="sgd"):
    """Heavy-ball or plain gradient descent; `nesterov` as PyTorch defines it."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False


class DelayedNesterov(Axis, tag="delayed-nesterov"):
    """Nesterov descent that takes its momentum from so many contributions together, for those that come one by one."""

    lr: float
    """Of one step on the mean of `every` contributions."""
    every: int
    """Contributions after which the momentum moves; a round that merges several counts as that many, all alike."""
    momentum: float = 0.9
    spread: float = 0.0
    """So much of the momentum goes with each contribution in between, the rest when it moves; 1 / every at most."""


class AdamW(Axis, tag="adamw"):
    """Adam with decoupled weight decay."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


class Lamb(Axis, tag="lamb"):
    """Adam whose step in each tensor is as long as that tensor, times the rate: for large batches."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01


class SignSgd(Axis, tag="sign-sgd"):
    """Steps of the same size in every coordinate, against the sign."""

    lr: float
    weight_decay: float = 0.0


class _Combiner(Axis):
    """A way to make one of many contributions."""

    weights: Literal["uniform", "samples", "tokens^2/steps", "mass"] = "uniform"
    """`tokens^2/steps`: tokens, times tokens per step, of all its leases since what a contributor sends was last
    committed. `mass`: a number that everybody has beside a model of its own and passes on with it (push-sum). Who
    misses a round keeps all of its own, so whoever does, no step is lost and all count the same."""


class Mean(_Combiner, tag="mean"):
    """Weighted mean over the contributors."""


class MeanPresent(_Combiner, tag="mean-present"):
    """Weighted mean of each coordinate over those contributors that sent it."""


class Sum(_Combiner, tag="sum"):
    """All contributions added up, as a parameter server adds updates to its weights; all weigh the same."""


class Trimmed(_Combiner, tag="trimmed"):
    """Weighted mean of each coordinate without its largest and its smallest values."""

    drop: float = 0.25
    """So many of the contributors at either end, rounded up; of one or two nobody can be told apart, nor dropped."""


Over = Literal["chunk", "tensor", "whole"]
"""What a length is of: one chunk, which its owner has; one tensor, or all of a round, for those who have everything."""


class MedianNormClip(_Combiner, tag="median-norm-clip"):
    """Weighted mean of contributions, those longer than the median made as long as that."""

    over: Over = "tensor"


class CentredClip(_Combiner, tag="centred-clip"):
    """The centre from which contributions, none counted as farther than a radius, pull evenly (CenteredClip)."""

    radius: float = 1.0
    """In lengths of the median contribution."""
    iterations: int = 20
    over: Over = "whole"


class Rda(_Combiner, tag="rda"):
    """Of each tensor the mean direction at the mean length (radial-directional averaging); of embeddings the mean.

    Directions and lengths travel in place of values, so that whoever has a part of them can average it.
    """


Combine = Mean | MeanPresent | Sum | Trimmed | MedianNormClip | CentredClip | Rda

Outer = Assign | Sgd | DelayedNesterov | SignSgd | AdamW | Lamb


class Merge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Combine contributions, then move the anchor."""

    outer: Outer
    combine: Combine = Mean()
    scheduled: bool = False
    """True when the local schedule's factor also scales the outer learning rate (gradients need this)."""


# overlap, barrier, late, home: when the result is applied, who is waited for, what becomes of the late, where outer
# state lives


class Block(Axis, tag="block"):
    """Wait for the result before going on."""


class Blend(Axis, tag="blend"):
    """Move from the local weights to the new anchor."""

    keep: float = 0.0
    """So much of the local weights stays."""


class Shift(Axis, tag="shift"):
    """Put the new anchor in the place of what was contributed; steps since then stay as they are."""


class Delay(Axis, tag="delay"):
    """Go on for some steps of the next round while a result is on its way, then take it in."""

    steps: int
    """A result that is not there by then is waited for."""
    reconcile: Blend | Shift = Blend()


class OneRound(Axis, tag="one-round"):
    """Go on with the whole next round while a result is on its way; it is where the round after that starts from."""

    eager: bool = True
    """Start with our own share of the newest contributions too, before those of the others come."""


class RoundsLate(Axis, tag="rounds-late"):
    """Go on for so many rounds while results are on their way: gradients are of the anchor of so many rounds before."""

    rounds: int


Overlap = Block | Delay | OneRound | RoundsLate


class Full(Axis, tag="full"):
    """A round waits for everybody who is there, as long as the run's patience lasts."""


class Seconds(Axis, tag="seconds"):
    """So long."""

    s: float = 0.0


class Slack(Axis, tag="slack"):
    """A part of the time until the next round's contributions are due, as the last rounds came."""

    part: float


class Quorum(Axis, tag="quorum"):
    """A round ends when so many have contributed and a grace is over, whoever is missing."""

    contributors: int = 1
    """Everybody, where there are fewer."""
    grace: Seconds | Slack = Seconds()


Barrier = Full | Quorum


class Discard(Axis, tag="discard"):
    """A contribution that missed its round is dropped and its lease goes back."""


class Carry(Axis, tag="carry"):
    """Who is not done when a round ends keeps its lease and works on: it contributes to the round that is open then."""


class StandIn(Axis, tag="stand-in"):
    """Who is not done when a round ends lends its circle the weights it has, works on, and joins what that made later.

    It counts as one more beside those whose mean that is, and contributes what comes of it.
    """


Late = Discard | Carry | StandIn


class Replicated(Axis, tag="replicated"):
    """Every member holds and steps the outer state."""


class Channel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of exchange."""

    when: When
    what: What
    merge: Merge
    whom: Whom = All()
    overlap: Overlap = Block()
    barrier: Barrier = Full()
    late: Late = Discard()
    home: Replicated = Replicated()
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
                return rounds

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
        return self.of_weights(version, of_all=of_all) or version % self.phases != 0

    def worked(self, first: int, end: int) -> int:
        """Return how many of the rounds from one to before another have work of their own."""
        mesh = self.mesh
        if mesh is None or not mesh.teach_every:
            return (end - first) // self.phases
        return end - first - ((end - 1) // mesh.teach_every - (first - 1) // mesh.teach_every)

    def unit(self, version: int) -> str:
        """Return what a round is about."""
        return "directions" if version % self.phases else self.when.unit(version)

    def codec_of(self, peer: bytes) -> Codec:
        """Return the form in which a peer contributes."""
        return self.forms.get(peer.hex(), self.what.codec) if self.forms else self.what.codec

    def kept_by(self, peer: bytes) -> Codec:
        """Return the form in which a peer keeps its contribution: what goes into carried sums is not rounded."""
        return Fp32() if isinstance(self.whom.route, Carried) else self.codec_of(peer)


# work: what happens between exchanges


class Constant(Axis, tag="constant"):
    """The same rate throughout, after a linear warm-up."""

    warmup_steps: int = 0


class Cosine(Axis, tag="cosine"):
    """Linear warm-up, then half a cosine down to `floor` of the peak at the end of the budget."""

    warmup_steps: int = 0
    floor: float = 0.1


class Wsd(Axis, tag="wsd"):
    """Warm-up, stable, then a linear decay to `floor` over the last `decay` of the budget."""

    warmup_steps: int = 0
    decay: float = 0.2
    floor: float = 0.0


class Cyclic(Axis, tag="cyclic"):
    """Down to `floor` of the peak within each round, by the same factor at every step; the next starts at the peak."""

    warmup_steps: int = 0
    floor: float = 0.25


Schedule = Constant | Cosine | Wsd | Cyclic


class Accumulate(Axis, tag="accumulate"):
    """Only accumulate gradients: the weights move at the exchange."""


class Muon(Axis, tag="muon"):
    """Momentum made orthonormal, for the matrices inside the model; AdamW for embeddings, head and vectors."""

    lr: float
    adamw: AdamW
    """For what is not a matrix inside the model."""
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1


Inner = AdamW | Sgd | Muon | Accumulate


class Same(Axis, tag="same"):
    """Everybody takes all steps of a round."""


class BySpeed(Axis, tag="by-speed"):
    """The fastest takes all steps of a round, others as many as they manage in that time."""

    least: int = 1
    """So many steps everybody takes."""


class Growing(Axis, tag="growing"):
    """Everybody takes the same steps: so many times more from the round on that follows one that moved little."""

    below: float
    """What little is: a part of the length of the anchor's weights."""
    factor: int = 2
    most: int = 2**20
    """Steps of a round at most."""


Quota = Same | BySpeed | Growing


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Local work of one peer between exchanges."""

    inner: Inner
    batch: int = 8
    """Samples per local step."""
    micro_batch: int = 0
    """Samples per forward pass; the step accumulates them. 0: the whole batch at once."""
    clip: float = 0.0
    """Largest norm of a local gradient; 0: no clipping."""
    schedule: Schedule = Constant()
    quota: Quota = Same()


# control: who turns the knobs while a run goes on


class Nobody(Axis, tag="none"):
    """Everything stays as the recipe has it."""


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A form that the exchange may take."""

    codec: Codec
    result: Codec | None = None
    route: Route = Butterfly()


class Rung(Form, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A form that the exchange may take, and how rare and how late it may be in that form."""

    steps: int
    """Local steps between two exchanges at most."""
    overlap: Block | Delay = Block()
    """Whether results may come late: then by so many steps at most, and no more than exchanges take."""


class Auto(Axis, tag="auto"):
    """The broker does: it measures rounds, and climbs the ladder no farther than exchanges take too much of them."""

    ladder: tuple[Rung, ...]
    """From what is best for the model to what is fewest bytes."""
    share: float = 0.1
    """Of a round's time the exchange may take so much."""
    least: int = 10
    """Local steps between two exchanges at least."""
    outer_lr: tuple[tuple[int, float], ...] = ()
    """From so many members on, the outer optimizer has this rate; empty: the one it is given."""


class Hide(Axis, tag="hide"):
    """The broker does: it hides exchanges behind work, by how late results are and by how much is sent, together.

    A run is taken to last as long as its rounds, and to need so many times more of them:

        1 + penalty * (amplify ^ (rounds that results are late) / (part of the values that is sent) - 1)
    """

    ladder: tuple[Form, ...]
    """From what sends everything to what is fewest bytes."""
    penalty: float = 0.01
    amplify: float = 2.0
    """Lateness makes what is left out so much worse, with every round."""
    every: int = 10
    """Rounds that are measured before anything is decided."""


class Match(Axis, tag="match"):
    """The broker does: each peer contributes in the finest form that its line carries in the time that all have for it.

    That is the time of the fastest line in the finest form, or that of the work, if that is longer.
    """

    ladder: tuple[Form, ...]
    """The finest first, in which everybody begins; they differ in nothing but their codecs."""
    every: int = 10
    """Rounds that are measured before anything is decided."""


Policy = Auto | Hide | Match
"""Who writes knobs, for a ladder of forms."""
Control = Nobody | Policy


class Knobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a policy writes: everything else of a channel stays as the recipe has it."""

    rung: int
    steps: int
    delay: int = 0
    """Steps that results come late by, or rounds where a policy counts in those; 0: they are waited for."""
    lr: float = 0.0
    """Of the outer optimizer; 0: as the recipe has it."""
    each: tuple[tuple[bytes, int], ...] = ()
    """Peers whose contributions are on a rung of their own, and on which; sorted."""


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
