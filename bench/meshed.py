"""What goes over each link by itself, for `bench.phases`: a contribution as `peer.mesh` makes it, here or on a device.

Every link has a residual of its own, carries about one value in a hundred here, and is searched for how near to the
largest of its tensor that is; a peer keeps all of its own. On a device `encode` ends when chunks are there, and
`contribute` when they are in the host's memory; of both the gradient and what was left out on links are there.
"""

from __future__ import annotations

import torch
from bench.transforms import COLUMNS, Measure

from atoll.model.compute import Encoder, Near, Vector
from atoll.model.encoding import fused, sieve
from atoll.model.encoding.above import Kept
from atoll.model.encoding.codec import encode_above
from atoll.model.encoding.encoder import TorchEncoder
from atoll.model.encoding.peaks import least_of
from atoll.model.encoding.wanted import Ends
from atoll.model.held import Held
from atoll.peer.mesh import Given, Link, encoded, most_over
from atoll.peer.train import Gradients
from atoll.spec.axes.codec import MaxN
from atoll.spec.axes.what import Feedback, Grad
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import grid_of
from atoll.sync.units import Tensor, whole

SENT_PART = 0.01
PLACE_BYTES = 2
CHECKED_LINKS, CHECKED_ROUNDS, CHECKED_ELEMENTS = 2, 3, 2**21


class Linked:
    """A gradient of square matrices that goes over so many links, and what was left out on each."""

    def __init__(self, codec: MaxN, values: Vector, links: int, encoder: Encoder | None) -> None:
        size, unit = COLUMNS**2, whole(values.size, codec)
        tensors = [Tensor("", first, min(first + size, values.size)) for first in range(0, values.size, size)]
        sent = int(SENT_PART * values.size)
        room_bytes = wire_bytes(codec.values, sent) + PLACE_BYTES * sent
        gradient = Gradients(Held.of(values), 1)
        self.given = Given(b"", 1, Grad(codec=codec, residual=Feedback()), unit, tensors, gradient)
        self.sizes = tuple(each.end - each.first for each in tensors)
        self.keep = most_over(codec, unit.grid, room_bytes)
        self.residuals = [Held(values.size) for _ in range(links)]
        self._encoder = encoder

    def contribute(self) -> list[memoryview]:
        """Return all chunks of a contribution; what is left out is kept."""
        made = encoded(self.given, self._encoder)
        links = [None, *(Link(self.keep, residual) for residual in self.residuals)]
        return [chunk for link in links for chunk in made(link)]


def in_chunks(codec: MaxN, values: Vector) -> Vector:
    """Return the whole chunks of a vector."""
    return values[: values.size - values.size % grid_of(values.size, codec).chunk]


def here(codec: MaxN, values: Vector, links: int) -> Measure:
    """Return how it is made on the processor."""
    linked = Linked(codec, values, links, None)
    return Measure({"encode": linked.contribute}, _bits(linked))


def there(device: torch.device, codec: MaxN, values: Vector, links: int) -> Measure:
    """Return how it is made on a device, and whether to the same bits."""
    linked = Linked(codec, values, links, _encoder(device, codec, values))
    rows = torch.from_numpy(values).to(device).view(-1, linked.given.unit.grid.chunk)
    left_out, bad = [torch.zeros_like(rows) for _ in range(links)], torch.zeros(1, dtype=torch.int32, device=device)

    def over(left: torch.Tensor) -> Kept:
        ends = Ends(rows, None, 1, left, 1.0)
        least = least_of(codec, Near(linked.sizes, linked.keep), [ends], bad)
        assert int(bad) == 0, "as an encoder asks before it writes"
        made = sieve.sifted(type(codec.values), ends, least, left, bad)
        if made is None:
            return encode_above(codec, fused.wanted(ends, bad), least, left=left)
        return made.kept(made.keeps.cpu().numpy())

    return Measure(
        {
            "encode": lambda: [encode_above(codec, rows, 0.0), *map(over, left_out)],
            "contribute": linked.contribute,
        },
        _bits(linked),
        _same(device, codec, values[:CHECKED_ELEMENTS]),
    )


def _encoder(device: torch.device, codec: MaxN, values: Vector) -> TorchEncoder:
    return TorchEncoder(codec, torch.zeros(values.size, device=device))


def _bits(linked: Linked) -> float:
    """Return how long a contribution is when something has been left out before, in bits of an element."""
    linked.contribute()
    return 8 * sum(map(len, linked.contribute())) / linked.given.unit.size


def _same(device: torch.device, codec: MaxN, values: Vector) -> bool:
    """Return whether contributions of some rounds have the processor's bytes, and leave the same on each link."""
    forms = (_encoder(device, codec, values), None)
    ours, theirs = (Linked(codec, values, CHECKED_LINKS, encoder) for encoder in forms)
    for _ in range(CHECKED_ROUNDS):
        if list(map(bytes, ours.contribute())) != list(map(bytes, theirs.contribute())):
            return False
    pairs = zip(ours.residuals, theirs.residuals, strict=True)
    return all(one.read().tobytes() == other.read().tobytes() for one, other in pairs)
