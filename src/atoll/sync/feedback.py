"""Error feedback: what a codec left out of one contribution goes into the next.

    wanted = decay * residual + values;  sent = what arrives of it;  residual = wanted - sent

With a decay of 1 nothing is ever lost: all that was sent and the residual add up to all that was wanted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Codec
from atoll.sync.codec import decoded, encode


def encode_fed_back(
    codec: Codec,
    values: Vector,
    residual: Vector,
    decay: float,
    seed: int = 0,
    least: float | Vector | None = None,
    rounded: Callable[[Vector], Vector] | None = None,
) -> memoryview:
    """Return the wire bytes of values and what was left out before; the residual becomes what is left out now.

    `rounded` says what values are to become, of what their codec can say; none: what is nearest to each.
    """
    wanted = np.multiply(residual, np.float32(decay))
    wanted += values
    data = encode(codec, wanted if rounded is None else rounded(wanted), seed, least)
    np.subtract(wanted, decoded(codec, data, values.size), out=residual)
    return data
