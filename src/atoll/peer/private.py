"""What a peer's own work leaves with it alone.

    inner     the inner optimizer's state
    residual  what its codec left out of contributions so far
    given     what came of its last contribution, until it holds its share of what the result leaves out of that
    links     likewise on each of its links, where these get different ones
    local     its weights when it last contributed, where it goes on from there instead of from the anchor
    lead      how far it is ahead of the anchor, where it counts its own contribution before the others' come

All of it belongs to the work on a lease. Where that does not count, all goes back to what it was before, from one file
(`private/V`); where it counts, all stays. A residual that is kept while its lease goes back would count samples twice.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atoll.errors import LocalError
from atoll.model.compute import Cost, Engine, Vector
from atoll.model.held import Held, less_held
from atoll.model.moments import exchanged
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.control import Auto
from atoll.spec.axes.pace import Block, Delay, OneRound
from atoll.spec.axes.what import Feedback, Grad, Hold
from atoll.spec.axes.when import Parts
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.turns import rarest
from atoll.sync.overlap import Lead
from atoll.sync.units import Places

EVERYTHING = slice(None)
MAYBE = ("local", "given")
"""What there is at some times only."""
LINK = "link "
"""So the name of what was left out on a link begins, before that of who is at its end."""


def goes_on(channel: Channel) -> bool:
    """Return whether a peer that has contributed goes on from weights of its own, instead of from the next anchor."""
    return not isinstance(channel.overlap, Block) or isinstance(channel.when, Parts)


class Private:
    """One peer's own state beside its engine's; used through `Compute` only, but for `local`'s being there or not."""

    def __init__(self, engine: Engine, recipe: Recipe) -> None:
        self._engine = engine
        channel, control = rarest(recipe), recipe.control  # the others keep nothing
        keeps = isinstance(channel.what.residual, Feedback | Hold)
        self._linked = keeps and channel.mesh is not None
        self.residual = Held(engine.size) if keeps and not self._linked else None
        """What the codec left out of contributions that count; none: it is forgotten."""
        self.links: dict[bytes, Held] = {}
        """Likewise of what went over the link to each peer, where there is any."""
        self._hold = channel.what.residual if isinstance(channel.what.residual, Hold) else None
        self.given: Vector | None = None
        """What was made of our last contribution, as others decode it; none: nothing of its result is to be held."""
        self.local: Vector | None = None
        """Where the next steps start from; none: from the anchor."""
        self._thresholds: dict[tuple[str, int], Vector] = {}
        self._remembers: Codec | None = None
        """Whose thresholds they are."""
        eager = isinstance(channel.overlap, OneRound) and channel.overlap.eager
        self.lead = Lead(channel.merge.outer, engine.size) if eager else None
        late = isinstance(control, Auto) and any(isinstance(rung.overlap, Delay) for rung in control.ladder)
        own = late or any(goes_on(each) for each in recipe.channel.values())
        self._inner_vectors = 0 if exchanged(recipe) else 2
        self._saves_local = own and not isinstance(channel.what, Grad)

    @property
    def cost(self) -> Cost:
        """Return what saving or restoring costs."""
        lead = 0 if self.lead is None else len(self.lead.vectors())
        local = self._saves_local and self.local is not None
        vectors = (self.residual is not None) + (self.given is not None) + len(self.links) + local + lead
        return Cost(moved_bytes=4.0 * self._engine.size * (self._inner_vectors + vectors))

    @property
    def moves(self) -> bool:
        """Return whether work leaves something here besides the inner optimizer's state."""
        return self.feeds_back or self._saves_local

    @property
    def feeds_back(self) -> bool:
        """Return whether what is left out is kept."""
        return self.residual is not None or self._linked

    @property
    def held(self) -> Held | None:
        """Return what counts in our own weights only, until it is sent; None: nothing does."""
        return None if self._hold is None else self.residual

    @property
    def shared(self) -> float:
        """Return how much we hold of what results leave out of our contributions."""
        return 0.0 if self._hold is None else self._hold.shared

    @property
    def held_part(self) -> float:
        """Return how much of that counts: the rest is given up."""
        return 1.0 if self._hold is None else self._hold.decay

    def threshold(self, codec: Codec, unit: str, first: int) -> Vector:
        """Return what a codec remembers of the chunk from an element of a unit on, to be moved: in memory only.

        After a restart, or in another form, choices begin exactly; what they leave out is kept all the same.
        """
        if codec != self._remembers:
            self._remembers, self._thresholds = codec, {}
        return self._thresholds.setdefault((unit, first), np.zeros(2, np.float32))

    def save(self, residual: Vector | None = None) -> bytes:
        """Return all of it as safetensors bytes, perhaps with another residual."""
        if not self.moves:
            return self._engine.private()
        inner = np.frombuffer(self._engine.private(), np.uint8)
        vectors = self._vectors() | ({} if residual is None else {"residual": residual})
        return save({"inner": inner, **vectors, "digest": _digest(inner, vectors)})

    def restore(self, saved: bytes) -> None:
        """Take it back; raises `LocalError` when it is damaged or does not fit this model, and then changes nothing."""
        if not self.moves:
            self._engine.restore(saved)
            return
        inner, vectors = opened(saved)
        links = {name: vectors.pop(name) for name in list(vectors) if self._linked and name.startswith(LINK)}
        own = self._own_vectors()
        if self.residual is not None:
            own["residual"] = self.residual.write()
        mine = own | {name: np.empty(self._engine.size, np.float32) for name in MAYBE}
        fits = all(vector.shape == (self._engine.size,) for vector in links.values())
        alike = {*vectors, *MAYBE} == mine.keys() and all(v.shape == mine[name].shape for name, v in vectors.items())
        if not (fits and alike):
            raise LocalError("the saved private state belongs to another model", hint="it is another run's; drop it")
        self._engine.restore(inner)
        self.local, self.given = vectors.pop("local", None), vectors.pop("given", None)
        self.links = {bytes.fromhex(name.removeprefix(LINK)): Held.of(vector) for name, vector in links.items()}
        for name, vector in vectors.items():
            mine[name][:] = vector

    def from_anchor(self, saved: bytes) -> bytes:
        """Return the same saved state without weights of our own: the anchor has moved on since they were."""
        if not self.moves:
            return saved
        inner, vectors = opened(saved)
        vectors.pop("local", None)
        kept = np.frombuffer(inner, np.uint8)
        return save({"inner": kept, **vectors, "digest": _digest(kept, vectors)})

    def beginning(self, anchor: Vector, run: slice | Places = EVERYTHING) -> Vector:
        """Return where work from an anchor begins, not to be written to: there, but for what we hold of our own."""
        if self.held is None:
            return anchor if run is EVERYTHING else anchor[run]
        return less_held(anchor[run], self.held.read()[run], self.held_part)

    def forget(self) -> None:
        """Begin with nothing left out, and from the anchor."""
        if self.residual is not None:
            self.residual.write()[:] = 0.0
        self.links = {}
        self.start_anew()

    def start_anew(self) -> None:
        """Begin from the anchor, with what the codec left out."""
        self.local = self.given = None
        if self.lead is not None:
            self.lead.forget()

    def _vectors(self) -> dict[str, Vector]:
        """Return what is saved beside the inner state, in its own memory."""
        return self._own_vectors() | {LINK + peer.hex(): left_out.read() for peer, left_out in self.links.items()}

    def _own_vectors(self) -> dict[str, Vector]:
        """Return likewise without what was left out on links."""
        vectors = {} if self.residual is None else {"residual": self.residual.read()}
        if self._saves_local and self.local is not None:
            vectors["local"] = self.local
        if self.given is not None:
            vectors["given"] = self.given
        return vectors if self.lead is None else vectors | self.lead.vectors()


def opened(saved: bytes) -> tuple[bytes, dict[str, Vector]]:
    """Return the inner state and the vectors of what was saved with some, proven whole."""
    try:
        tensors = load(saved)
        inner, digest = tensors.pop("inner"), tensors.pop("digest")
    except (SafetensorError, KeyError) as error:
        raise LocalError(f"the saved private state cannot be read: {error}") from error
    whole = all(vector.dtype == np.float32 for vector in tensors.values())
    if not whole or _digest(inner, tensors).tobytes() != digest.tobytes():
        raise LocalError("the saved private state is damaged", hint="it is dropped, and what was left out is lost")
    return inner.tobytes(), tensors


def _digest(inner: NDArray[np.uint8], vectors: dict[str, Vector]) -> NDArray[np.uint8]:
    hasher = blake3(inner.data, max_threads=blake3.AUTO)
    for name in sorted(vectors):
        hasher.update(name.encode() + b"\0").update(vectors[name].view(np.uint8).data)
    return np.frombuffer(hasher.digest(), np.uint8)
