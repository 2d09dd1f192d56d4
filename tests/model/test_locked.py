"""A vector's pages are locked when it comes again, once, and unlocked before its memory is given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atoll.model import locked


class Driver:
    """Writes down what it is asked."""

    def __init__(self, error: int = 0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._error = error

    def cudaHostRegister(self, *given: int) -> int:
        self.asked.append(("lock", *given))
        return self._error

    def cudaHostUnregister(self, address: int) -> int:
        self.asked.append(("unlock", address))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(locked, "_driver", lambda: made)
    return made


def test_the_second_time_locks_and_the_end_unlocks(driver: Driver) -> None:
    vector = np.zeros(2**19, np.float32)
    address = vector.ctypes.data
    locked.lock(vector)
    assert driver.asked == [], "somebody who comes once is not worth it"
    for _ in range(3):
        locked.lock(vector)
    assert driver.asked == [("lock", address, vector.nbytes, 0)]
    del vector
    assert driver.asked[1:] == [("unlock", address)]


def test_what_cannot_be_locked_is_not_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(error=1)
    monkeypatch.setattr(locked, "_driver", lambda: driver)
    monkeypatch.setattr(locked, "_take_note", lambda: driver.asked.append(("note",)))
    vector = np.zeros(2**19, np.float32)
    for _ in range(3):
        locked.lock(vector)
    del vector
    assert [asked for asked, *_ in driver.asked] == ["lock", "note"], "and its error is nobody else's"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_what_the_driver_refuses_does_not_break_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    vector = torch.zeros(2**19, pin_memory=True).numpy()
    for _ in range(3):
        locked.lock(vector)
    assert float(torch.ones(4, device="cuda").sum()) == 4.0


def test_another_vector_in_the_place_of_one_that_is_gone_begins_anew(driver: Driver) -> None:
    for _ in range(4):
        locked.lock(np.zeros(2**19, np.float32))
    assert driver.asked == []


def test_small_vectors_and_parts_with_gaps_stay_as_they_are(driver: Driver) -> None:
    for vector in (np.zeros(100, np.float32), np.zeros((2**18, 4), np.float32)[:, 0]):
        for _ in range(3):
            locked.lock(vector)
    assert driver.asked == []
