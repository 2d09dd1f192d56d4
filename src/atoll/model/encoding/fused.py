"""The codecs that most recipes send, in as few passes over a CUDA device's memory as will do, to the same bits.

`model.encoding.codec` makes a codec out of whole-vector operations, each of which reads and writes everything; here one
kernel reads a block once and keeps it in registers until its bytes are written. Triton compiles them, which comes with
torch on Linux. Compilers may fuse a multiplication with the addition after it, or divide by halves; both are forbidden
below, and a device gets a kernel only if that makes the same bits there as the plain form (`model.encoding.trust`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from atoll.model.encoding.bins import PLAIN, Binned, Passes, to_buckets
from atoll.model.encoding.bits import packed_bytes
from atoll.model.encoding.floats import BF16_MAX, HALF_MAX, Short, to_short
from atoll.model.encoding.scales import NORM_BITS, from_scales, levels_of, no_seed, to_scales
from atoll.model.encoding.trials import equal_bits, trial
from atoll.model.encoding.trust import fits, launch, trusted
from atoll.model.encoding.wanted import Ends
from atoll.model.encoding.wanted import wanted as plain_wanted
from atoll.spec.axes.codec import Bf16, Buckets, E3m0, Fp16, Int8, Stochastic

TO_WHOLE = 1.5 * 2.0**23
"""Added to a small number and taken off again, it leaves the nearest whole one, of two the even one."""
SCALE_MIN = 2.0**-120
CONSTANTS = {"STEPS": 127.0, "SCALE_MIN": SCALE_MIN, "TO_WHOLE": TO_WHOLE}
"""Of int8."""
_TILE = 2048
"""Elements that one program makes int8 or powers of two of, or puts into bins."""
_FEW_BITS = (1, 2, 4)
"""Of bins that fill bytes, and are few enough to be gone through one after the other."""


def wanted(ends: Ends, bad: Tensor, made: Tensor | None = None) -> Tensor:
    """Return what is to be sent; a number becomes more than zero if any of it is not finite.

    It is in memory of its own, or, where a kernel makes it, in what is given for that: this may be where what was left
    out before is. Nothing is written there that is not finite.
    """
    if ends.base.numel() and trusted(same_wanted, ends.base.device):
        return _wanted(ends, bad, made)
    return plain_wanted(ends, bad)


def row_peaks(ends: Ends, width: int, bad: Tensor) -> Tensor:
    """Return the largest magnitude of every so many values that are to be sent, a power of two; `bad` as `wanted`."""
    if width <= _TILE and ends.base.numel() and trusted(same_peaks, ends.base.device):
        return _row_peaks(ends, width, bad)
    return _plain_peaks(ends, width, bad)


def _plain_peaks(ends: Ends, width: int, bad: Tensor) -> Tensor:
    rows = plain_wanted(ends, bad).view(-1, width)
    peaks: Tensor = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    return peaks


def short(codec: Short, values: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks in two bytes an element, a row each, and write what is left out of them."""
    return (_short if len(values) and trusted(same_short, values.device) else to_short)(codec, values, left)


def int8(codec: Int8, values: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, and write what is left out of them."""
    whole_words = values.shape[1] % 4 == 0
    if fits(codec.block) and whole_words and len(values) and trusted(same_int8, values.device):
        return _int8(codec.block, values, left)
    return _leaving(codec, values, left)


def stochastic(codec: Stochastic, values: Tensor, keys: Tensor | None, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, by the keys of each, and write what is left out of them."""
    count = values.shape[1]
    whole_words = count % 8 == 0 and packed_bytes(count, codec.bits) % 4 == 0
    if fits(codec.block) and whole_words and len(values) and trusted(same_stochastic, values.device, codec.bits):
        return _stochastic(codec, values, keys, left)
    return _leaving(codec, values, left, keys)


def _leaving(codec: Int8 | Stochastic, values: Tensor, left: Tensor | None, keys: Tensor | None = None) -> Tensor:
    wire = to_scales(codec, values, keys)
    if left is not None:
        torch.sub(values, from_scales(codec, wire, values.shape[1]), out=left)
    return wire


def e3m0(codec: E3m0, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    whole_words = values.shape[1] % 8 == 0
    if fits(codec.block) and whole_words and len(values) and trusted(same_e3m0, values.device):
        return _e3m0(codec.block, values)
    return to_scales(codec, values)


def buckets(codec: Buckets, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    fast = codec.bits in _FEW_BITS and len(values) and trusted(same_buckets, values.device)
    return to_buckets(codec, values.contiguous(), FUSED if fast else PLAIN)


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import kernels

    return kernels


def same_int8(device: torch.device) -> bool:
    """Return whether int8 is the same bytes and leaves the same, of blocks of zeros and of the smallest numbers too."""
    values = trial((4, 4004), device)
    return all(
        _same(values, partial(_int8, codec.block, values), partial(_leaving, codec, values))
        for codec in (Int8(block=32), Int8())
    )


def same_short(device: torch.device) -> bool:
    """Return whether halves are the same bytes and leave the same."""
    values, codecs = trial((9, 1001), device), (Fp16(), Bf16())
    return all(_same(values, partial(_short, each, values), partial(to_short, each, values)) for each in codecs)


def same_stochastic(device: torch.device, bits: int = 4) -> bool:
    """Return whether chance rounds to the same bytes, in so many bits."""
    values = trial((6, 2080), device)
    keys = torch.arange(12, device=device).view(6, 2) * 0x15A4E35F
    return all(
        _same(values, partial(_stochastic, codec, values, keys), partial(_leaving, codec, values, keys=keys))
        for codec in (Stochastic(bits=bits, block=block) for block in (32, 512))
    )


def _ends_tried(shape: tuple[int, int], device: torch.device) -> list[Ends]:
    """Return ways and means, with what was left out before and without."""
    base, weights, before = (trial(shape, device).roll(shift, 0) for shift in range(3))
    return [
        Ends(base, weights, 1, None, 1.0),
        Ends(base, weights, 1, before, 0.95),
        Ends(base, None, 7, None, 1.0),
        Ends(base, None, 3, before, 0.9),
    ]


def same_peaks(device: torch.device) -> bool:
    """Return whether rows have the same largest magnitudes, and whether it is said of one that is not finite."""
    for ends in _ends_tried((5, 1024), device):
        ours, theirs = torch.zeros(2, dtype=torch.int32, device=device)
        for width in (1, 8, 1024):
            if not equal_bits(_row_peaks(ends, width, ours), _plain_peaks(ends, width, theirs)) or ours or theirs:
                return False
        if not all(_says_odd(ends, width, odd) for width in (1, 8, 1024) for odd in (torch.nan, torch.inf, -torch.inf)):
            return False
    return True


def _says_odd(ends: Ends, width: int, odd: float) -> bool:
    """Return whether it is said of a single value that it is not finite."""
    base, bad = ends.base.clone(), torch.zeros(1, dtype=torch.int32, device=ends.base.device)
    base[3, 7] = odd
    _row_peaks(ends._replace(base=base), width, bad)
    return bool(bad)


def same_wanted(device: torch.device) -> bool:
    """Return whether ways and means, with what was left out before and without, are the same."""
    ends = _ends_tried((5, 1003), device)
    for each in ends:
        ours, theirs = torch.zeros(2, dtype=torch.int32, device=device)
        if not equal_bits(_wanted(each, ours), plain_wanted(each, theirs)) or ours or theirs:
            return False
    way, bad = ends[1], torch.zeros(1, dtype=torch.int32, device=device)
    there = torch.empty_like(way.base) if way.before is None else way.before.clone()
    within = equal_bits(_wanted(way._replace(before=there), bad, there), plain_wanted(way, bad))
    return within and not bad and keeps_out_odd(_wanted, device)


def keeps_out_odd(make: Callable[[Ends, Tensor, Tensor], object], device: torch.device) -> bool:
    """Return whether it is said of a single value that it is not finite, and none is written to what was left out."""
    for odd in (torch.nan, torch.inf, -torch.inf):
        there, bad = torch.ones((2, 4096), device=device), torch.zeros(1, dtype=torch.int32, device=device)
        base = torch.ones_like(there)
        base[1, 4000] = odd
        make(Ends(base, None, 1, there, 0.5), bad, there)
        if not (bad > 0).all() or not there.isfinite().all():
            return False
    return True


def _same(values: Tensor, ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]) -> bool:
    """Return whether two ways make the same bytes and leave the same."""
    left, other = torch.empty_like(values), torch.empty_like(values)
    return torch.equal(ours(left), theirs(other)) and equal_bits(left, other)


def same_e3m0(device: torch.device) -> bool:
    """Return whether powers of two are the same bytes."""
    values = trial((6, 4008), device)
    return all(torch.equal(_e3m0(block, values), to_scales(E3m0(block=block), values)) for block in (32, 64, 2048))


def same_buckets(device: torch.device) -> bool:
    """Return whether bins are the same bytes, of chunks of every length and size."""
    codecs = [Buckets(bits=bits, width=width) for bits in _FEW_BITS for width in (2.0, 6.0)]
    some = [trial((12, count), device) for count in (1, 3, 4100)]
    return all(torch.equal(to_buckets(c, values, FUSED), to_buckets(c, values)) for c in codecs for values in some)


def _wanted(ends: Ends, bad: Tensor, made: Tensor | None = None) -> Tensor:
    assert made is None or made.is_contiguous(), "what is to be sent is written row by row"
    base, weights, before = ends.in_rows()
    made = torch.empty_like(base) if made is None else made
    launch(
        _kernels().wanted,
        (-(-base.numel() // _TILE),),
        base,
        weights,
        before,
        made,
        bad,
        base.numel(),
        float(ends.steps),
        float(ends.decay),
        WAY=ends.weights is not None,
        FED=ends.before is not None,
        TILE=_TILE,
    )
    return made


def _row_peaks(ends: Ends, width: int, bad: Tensor) -> Tensor:
    base, weights, before = ends.in_rows()
    rows, many = base.numel() // width, _TILE // width
    peaks = torch.empty(rows, device=base.device)
    launch(
        _kernels().row_peaks,
        (-(-rows // many),),
        base,
        weights,
        before,
        peaks,
        bad,
        rows,
        float(ends.steps),
        float(ends.decay),
        WAY=ends.weights is not None,
        FED=ends.before is not None,
        WIDTH=width,
        ROWS=many,
    )
    return peaks


def _short(codec: Short, values: Tensor, left: Tensor | None) -> Tensor:
    held = values.contiguous()
    wire = torch.empty((len(values), 2 * values.shape[1]), dtype=torch.uint8, device=values.device)
    upper = isinstance(codec, Bf16)
    launch(
        _kernels().halves,
        (-(-held.numel() // _TILE),),
        held,
        wire.view(torch.int16),
        held if left is None else left,
        held.numel(),
        UPPER=upper,
        HALF_MAX=BF16_MAX if upper else HALF_MAX,
        LEAVES=left is not None,
        TILE=_TILE,
    )
    return wire


def _int8(block: int, values: Tensor, left: Tensor | None = None) -> Tensor:
    chunks, count = values.shape
    blocks = -(-count // block)
    wire = torch.empty((chunks, 4 * blocks + count), dtype=torch.uint8, device=values.device)
    many, held = max(1, _TILE // block), values.contiguous()
    launch(
        _kernels().int8,
        (chunks, -(-blocks // many)),
        held,
        wire.view(torch.float32),
        wire.view(torch.int8),
        held if left is None else left,
        count,
        blocks,
        BLOCK=block,
        MANY=many,
        LEAVES=left is not None,
        **CONSTANTS,
    )
    return wire


def _stochastic(codec: Stochastic, values: Tensor, keys: Tensor | None, left: Tensor | None = None) -> Tensor:
    (chunks, count), held = values.shape, values.contiguous()
    blocks = -(-count // codec.block)
    row_bytes = 4 * blocks + packed_bytes(count, codec.bits)
    wire = torch.empty((chunks, row_bytes), dtype=torch.uint8, device=values.device)
    many = max(1, _TILE // codec.block)
    launch(
        _kernels().stochastic,
        (chunks, -(-blocks // many)),
        held,
        wire.view(torch.float32),
        wire,
        (no_seed(values) if keys is None else keys).contiguous(),
        held if left is None else left,
        count,
        blocks,
        row_bytes,
        EIGHTHS=codec.block // 8,
        MANY=many,
        BITS=codec.bits,
        LEVELS=levels_of(codec.bits),
        NORM_BITS=NORM_BITS,
        SCALE_MIN=SCALE_MIN,
        LEAVES=left is not None,
    )
    return wire


def _e3m0(block: int, values: Tensor) -> Tensor:
    chunks, count = values.shape
    blocks = -(-count // block)
    wire = torch.empty((chunks, 4 * blocks + count // 2), dtype=torch.uint8, device=values.device)
    many = max(1, _TILE // block)
    given = (values.contiguous(), wire.view(torch.float32), wire, count, blocks)
    shape = {"HALF": block // 2, "MANY": many, "SCALE_MIN": SCALE_MIN, "OCTAVES": 7}
    launch(_kernels().e3m0, (chunks, -(-blocks // many)), *given, **shape)
    return wire


class FusedPasses:
    """The passes of bins, one kernel each."""

    def total(self, values: Tensor, unit: Tensor) -> Tensor:
        sums = _parts(values)
        launch(_kernels().bin_total, sums.shape, values, unit, sums, values.shape[1], TILE=_TILE)
        return sums.sum(1)

    def squares(self, values: Tensor, centre: Tensor, unit: Tensor) -> Tensor:
        sums = _parts(values)
        given = (values, centre, unit, sums, values.shape[1])
        launch(_kernels().bin_squares, sums.shape, *given, TILE=_TILE, TO_WHOLE=TO_WHOLE)
        return sums.sum(1)

    def binned(self, values: Tensor, centre: Tensor, per_step: Tensor, unit: Tensor, bits: int) -> Binned:
        (chunks, count), group = values.shape, 8 // bits
        codes = torch.empty((chunks, packed_bytes(count, bits)), dtype=torch.uint8, device=values.device)
        sums, counts = _parts(values, 1 << bits), _parts(values, 1 << bits)
        given = (values, centre, per_step, unit, codes, sums, counts, count, codes.shape[1])
        shape = {"BITS": bits, "GROUP": group, "GROUPS": _TILE // group}
        launch(_kernels().bin_codes, sums.shape[:2], *given, **shape, TO_WHOLE=TO_WHOLE)
        return Binned(codes, sums.sum(1), counts.sum(1))


FUSED: Passes = FusedPasses()


def _parts(values: Tensor, *numbers: int) -> Tensor:
    """Return room for what each program comes to, chunk by chunk."""
    shape = (len(values), -(-values.shape[1] // _TILE), *numbers)
    return torch.empty(shape, dtype=torch.int64, device=values.device)
