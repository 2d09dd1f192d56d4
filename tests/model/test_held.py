"""What is left out is one vector, wherever it was last written to."""

from __future__ import annotations

import numpy as np

from atoll.model.compute import Vector
from atoll.model.held import Held


class Device:
    """Another memory, that counts how often something is brought from it."""

    def __init__(self, values: Vector) -> None:
        self.values, self.brought = values.copy(), 0

    def bring(self, values: Vector) -> None:
        self.brought += 1
        values[:] = self.values


def moved(size: int = 3) -> tuple[Held, Device]:
    left_out = Held(size)
    device = Device(left_out.read())
    left_out.move(device)
    return left_out, device


def test_what_was_written_elsewhere_is_read_here() -> None:
    left_out, device = moved()
    device.values[:] = 7.0
    assert left_out.read().tolist() == [7.0] * 3
    assert left_out.elsewhere() is device, "reading does not bring it back for good"
    device.values[:] = 8.0
    assert left_out.read().tolist() == [8.0] * 3


def test_it_is_brought_once_as_long_as_nobody_works_on_it_there() -> None:
    left_out, device = moved()
    for _ in range(3):
        left_out.read()
    assert device.brought == 1


def test_what_is_written_here_is_here_only() -> None:
    left_out, device = moved()
    device.values[:] = 7.0
    values = left_out.write()
    assert values.tolist() == [7.0] * 3
    values[:] = 9.0
    assert left_out.elsewhere() is None
    assert np.array_equal(left_out.read(), [9.0] * 3)
