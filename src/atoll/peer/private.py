"""What a peer's own work leaves with it alone: the inner optimizer's state, and what its codec left out so far.

Both belong to the work on a lease. Where that does not count, both go back to what they were before it, from one file
(`private/V`); where it counts, both stay. A residual that is kept while its lease goes back would count samples twice.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atoll.errors import LocalError
from atoll.model.compute import Cost, Engine, Vector
from atoll.spec.recipe import Feedback, Residual


class Private:
    """The private state of one peer. Blocking; used through `Compute` only."""

    def __init__(self, engine: Engine, residual: Residual) -> None:
        self._engine = engine
        self.residual: Vector | None = np.zeros(engine.size, np.float32) if isinstance(residual, Feedback) else None
        """What the codec left out of contributions that count; none: it is forgotten."""

    @property
    def cost(self) -> Cost:
        """Return what saving or restoring costs."""
        return Cost(moved_bytes=8.0 * self._engine.size + (0 if self.residual is None else self.residual.nbytes))

    def save(self) -> bytes:
        """Return all of it as safetensors bytes."""
        if self.residual is None:
            return self._engine.private()
        inner = np.frombuffer(self._engine.private(), np.uint8)
        return save({"inner": inner, "residual": self.residual, "digest": _digest(inner, self.residual)})

    def restore(self, saved: bytes) -> None:
        """Take it back; raises `LocalError` when it is damaged or does not fit this model, and then changes nothing."""
        if self.residual is None:
            self._engine.restore(saved)
            return
        inner, residual = opened(saved)
        if residual.shape != self.residual.shape:
            raise LocalError("the saved residual belongs to another model", hint="it is from another run; drop it")
        self._engine.restore(inner)
        self.residual[:] = residual

    def forget(self) -> None:
        """Let nothing be left out: a residual that was lost cannot be sent."""
        if self.residual is not None:
            self.residual[:] = 0.0


def opened(saved: bytes) -> tuple[bytes, Vector]:
    """Return the inner state and the residual of what was saved with one, proven whole."""
    try:
        tensors = load(saved)
        inner, residual, digest = tensors["inner"], tensors["residual"], tensors["digest"]
    except (SafetensorError, KeyError) as error:
        raise LocalError(f"the saved private state cannot be read: {error}") from error
    if residual.dtype != np.float32 or _digest(inner, residual).tobytes() != digest.tobytes():
        raise LocalError("the saved private state is damaged", hint="it is dropped, and what was left out is lost")
    return inner.tobytes(), residual


def _digest(inner: NDArray[np.uint8], residual: Vector) -> NDArray[np.uint8]:
    digest = blake3(inner.data).update(residual.view(np.uint8).data).digest()
    return np.frombuffer(digest, np.uint8)
