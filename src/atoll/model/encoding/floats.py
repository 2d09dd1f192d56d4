"""Values in two bytes each on any device: as `sync.codec` makes them, to the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.spec.axes.codec import Bf16, Fp16

Short = Fp16 | Bf16

HALF_MAX = 65504.0
BF16_MAX = 3.3895314e38


def to_short(codec: Short, values: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, and write what is left out of them."""
    most, kind = (HALF_MAX, torch.float16) if isinstance(codec, Fp16) else (BF16_MAX, torch.bfloat16)
    short = values.clamp(-most, most).to(kind)
    if left is not None:
        torch.sub(values, short, out=left)
    return short.view(torch.uint8)
