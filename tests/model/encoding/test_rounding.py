"""Rows rounded by inputs on a device: as good as on the processor, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.model.encoding import rounding
from atoll.model.encoding.rounding import RowsThere, plain
from atoll.sync.by_inputs import RowsHere, prepared
from tests.model.child import said_by
from tests.sync.test_by_inputs import a_matrix, few_directions

INTERPRETED = """
import torch
from atoll.model.encoding.rounding import as_good
print(as_good(torch.device("cpu")))
"""
TENSOR, DAMPING = "layers.0.weight", 0.3
ALL = slice(0, 96)


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows rounded by what the kernel is held against."""
    monkeypatch.setattr(rounding, "by_kernel", plain)


def test_the_kernel_is_as_good_as_the_plain_form() -> None:
    pytest.importorskip("triton")
    assert said_by(INTERPRETED, TRITON_INTERPRET="1").split() == ["True"]


@pytest.mark.parametrize("damping", [0.1, 1.0])
def test_what_is_known_of_inputs_is_what_the_processor_knows(damping: float) -> None:
    moments = few_directions(160)
    there, here = rounding.prepared(torch.from_numpy(moments), damping), prepared(moments, damping)
    assert there is not None
    assert here is not None
    assert all(np.allclose(one.numpy(), other, atol=1e-5) for one, other in zip(there, here, strict=True))


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("columns", [ALL, slice(40, 96), slice(0, 50)], ids=str)
def test_rows_and_parts_of_rows_come_back_as_from_the_processor(columns: slice) -> None:
    moments, width = few_directions(96), columns.stop - columns.start
    wanted = a_matrix(30, width).reshape(30, width)
    sizes = np.full_like(wanted, 0.9)
    given = (columns, wanted, sizes)
    rows, processor = RowsThere({TENSOR: torch.from_numpy(moments)}, DAMPING), RowsHere({TENSOR: moments}, DAMPING)
    known, same = rows.known(TENSOR), processor.known(TENSOR)
    assert known is not None
    assert same is not None
    there, here = rows.rounded(known, *given), processor.rounded(same, *given)
    assert (there[0] == here[0]).mean() > 0.99, "but where two are as good"
    assert np.allclose(there[1], there[0] @ same[1][columns, columns], atol=1e-4)


def test_of_a_layer_that_is_given_nothing_nothing_is_known() -> None:
    nothing, lost = torch.zeros(8, 8), torch.full((8, 8), torch.nan)
    rows = RowsThere({"nothing": nothing, "lost": lost}, DAMPING)
    assert [rows.known(name) for name in ("nothing", "lost", "else")] == [None] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_device_rounds_rows_itself() -> None:
    assert rounding.rounds_on(torch.device("cuda"))
