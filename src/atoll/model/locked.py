"""Vectors in the host's memory that a CUDA device reads and writes at the speed of its bus: page-locked ones.

From other memory a driver copies through a small buffer of its own, at a fifth of that speed. Locking takes about as
long as one such copy, so a vector is locked when it comes a second time: anchors and residuals stay where they are for
as long as a peer lives. It is unlocked before its memory is given back. Where locking fails nothing is lost but time.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import torch

from atoll.model.compute import Vector

_LEAST_BYTES = 2**20
_known: weakref.WeakValueDictionary[int, Vector] = weakref.WeakValueDictionary()
"""Vectors that came at least once, by where they are as objects."""
_locked: set[int] = set()


def lock(vector: Vector) -> None:
    """Lock a vector's pages if it was here before."""
    name = id(vector)
    if vector.nbytes < _LEAST_BYTES or not vector.flags.c_contiguous or name in _locked:
        return
    if torch.from_numpy(vector).is_pinned():
        return
    if _known.get(name) is not vector:
        _known[name] = vector
        return
    _locked.add(name)
    address = vector.ctypes.data
    done = int(_driver().cudaHostRegister(address, vector.nbytes, 0)) == 0
    if not done:
        _take_note()
    # A vector is forgotten before its memory is, and so is what is asked of it here.
    weakref.finalize(vector, _forget, name, address if done else None).atexit = False


def _forget(name: int, address: int | None) -> None:
    _locked.discard(name)
    if address is not None:
        _driver().cudaHostUnregister(address)


def _take_note() -> None:
    """Let the driver's last error be known: otherwise it is whoever starts the next kernel who is told of it."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _driver() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
