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

from atoll.model.encoding import lines
from atoll.model.encoding.bins import PLAIN, Binned, Passes, to_buckets
from atoll.model.encoding.bits import packed_bytes
from atoll.model.encoding.floats import BF16_MAX, HALF_MAX, Short, to_short
from atoll.model.encoding.largest import largest_of as plain_largest
from atoll.model.encoding.ratios import ratio_counts as plain_ratios
from atoll.model.encoding.scales import NORM_BITS, added, from_scales, levels_of, no_seed, to_scales
from atoll.model.encoding.trials import equal_bits as _equal_bits
from atoll.model.encoding.trials import trial as _trial
from atoll.model.encoding.trust import launch, trusted
from atoll.model.encoding.wanted import Ends
from atoll.model.encoding.wanted import wanted as plain_wanted
from atoll.spec.axes.codec import Bf16, Buckets, E3m0, Fp16, Int8, Stochastic

WIDTHS = (32, 8192)
"""Rows that fit into one program's registers."""
TO_WHOLE = 1.5 * 2.0**23
"""Added to a small number and taken off again, it leaves the nearest whole one, of two the even one."""
SCALE_MIN = 2.0**-120
CONSTANTS = {"STEPS": 127.0, "SCALE_MIN": SCALE_MIN, "TO_WHOLE": TO_WHOLE}
"""Of int8."""
_TILE = 2048
"""Elements that one program makes int8 or powers of two of, or puts into bins."""
_LINES = 256
"""That one program adds up."""
_LONG_TILE = 4096
"""Of sums that one program passes over again and again, or of ratios that it counts at once."""
_TILES = 8
"""Of ratios that one program counts before it tells anybody."""
_FEW_BITS = (1, 2, 4)
"""Of bins that fill bytes, and are few enough to be gone through one after the other."""


def largest_of(rows: Tensor, keep: int) -> Tensor:
    """Return the places of so many of each row, rising; of equals the first."""
    if _fits(rows.shape[1]) and keep < rows.shape[1] and len(rows) and trusted(same_largest, rows.device):
        return _largest(rows, keep)
    return plain_largest(rows, keep)


def wanted(ends: Ends, bad: Tensor) -> Tensor:
    """Return what is to be sent, in memory of its own; a number becomes more than zero if any of it is not finite."""
    return (
        _wanted(ends, bad) if ends.base.numel() and trusted(same_wanted, ends.base.device) else plain_wanted(ends, bad)
    )


def short(codec: Short, values: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks in two bytes an element, a row each, and write what is left out of them."""
    return (_short if len(values) and trusted(same_short, values.device) else to_short)(codec, values, left)


def int8(codec: Int8, values: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, and write what is left out of them."""
    whole_words = values.shape[1] % 4 == 0
    if _fits(codec.block) and whole_words and len(values) and trusted(same_int8, values.device):
        return _int8(codec.block, values, left)
    return _leaving(codec, values, left)


def stochastic(codec: Stochastic, values: Tensor, keys: Tensor | None, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, by the keys of each, and write what is left out of them."""
    count = values.shape[1]
    whole_words = count % 8 == 0 and packed_bytes(count, codec.bits) % 4 == 0
    if _fits(codec.block) and whole_words and len(values) and trusted(same_stochastic, values.device, codec.bits):
        return _stochastic(codec, values, keys, left)
    return _leaving(codec, values, left, keys)


def _leaving(codec: Int8 | Stochastic, values: Tensor, left: Tensor | None, keys: Tensor | None = None) -> Tensor:
    wire = to_scales(codec, values, keys)
    if left is not None:
        torch.sub(values, from_scales(codec, wire, values.shape[1]), out=left)
    return wire


def ratio_counts(values: Tensor, limits: Tensor, bits: int, shift: int) -> Tensor:
    """Return how many magnitudes have each byte at a place of their ratio to a limit, after such bits before it."""
    fast = values.numel() and trusted(same_ratios, values.device)
    return (_ratio_counts if fast else plain_ratios)(values, limits, bits, shift)


def line_scores(values: Tensor, line: int) -> Tensor:
    """Return the sum of the magnitudes of each line, for chunks of whole lines a row each."""
    if _is_power(line) and 1 < line <= WIDTHS[1] and len(values) and trusted(same_lines, values.device):
        return _line_scores(values, line)
    return added(values.view(len(values), -1, line).abs())


def line_choice(scores: Tensor, keep: int, known: Tensor | None) -> Tensor:
    """Return the places of so many lines of each chunk, rising, and move what is known of the thresholds.

    A kernel is trusted for the number of lines and the part of them that it was tried with: compilers make other code
    of round numbers.
    """
    if len(scores) and trusted(same_choices, scores.device, scores.shape[1], keep):
        return _line_choice(scores, keep, known)
    return lines.chosen(scores, keep, known)


def e3m0(codec: E3m0, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    whole_words = values.shape[1] % 8 == 0
    if _fits(codec.block) and whole_words and len(values) and trusted(same_e3m0, values.device):
        return _e3m0(codec.block, values)
    return to_scales(codec, values)


def buckets(codec: Buckets, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    fast = codec.bits in _FEW_BITS and len(values) and trusted(same_buckets, values.device)
    return to_buckets(codec, values.contiguous(), FUSED if fast else PLAIN)


def _fits(width: int) -> bool:
    return WIDTHS[0] <= width <= WIDTHS[1] and _is_power(width)


def _is_power(width: int) -> bool:
    return width & (width - 1) == 0


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import kernels

    return kernels


def same_largest(device: torch.device) -> bool:
    """Return whether the largest are the same ones, equals and the smallest numbers among them."""
    rows = _trial((16, 1024), device)
    return all(torch.equal(_largest(rows, keep), plain_largest(rows, keep)) for keep in (1, 16, 64, 1000))


def same_int8(device: torch.device) -> bool:
    """Return whether int8 is the same bytes and leaves the same, of blocks of zeros and of the smallest numbers too."""
    values = _trial((4, 4004), device)
    return all(
        _same(values, partial(_int8, codec.block, values), partial(_leaving, codec, values))
        for codec in (Int8(block=32), Int8())
    )


def same_short(device: torch.device) -> bool:
    """Return whether halves are the same bytes and leave the same."""
    values, codecs = _trial((9, 1001), device), (Fp16(), Bf16())
    return all(_same(values, partial(_short, each, values), partial(to_short, each, values)) for each in codecs)


def same_stochastic(device: torch.device, bits: int = 4) -> bool:
    """Return whether chance rounds to the same bytes, in so many bits."""
    values = _trial((6, 2080), device)
    keys = torch.arange(12, device=device).view(6, 2) * 0x15A4E35F
    return all(
        _same(values, partial(_stochastic, codec, values, keys), partial(_leaving, codec, values, keys=keys))
        for codec in (Stochastic(bits=bits, block=block) for block in (32, 512))
    )


def same_ratios(device: torch.device) -> bool:
    """Return whether as many ratios have each byte, to the largest of a row and to what nothing reaches."""
    for count in (5003, 8192):
        values = _trial((6, count), device)
        largest = values.abs().amax(1, keepdim=True)
        limits = torch.where(largest > 0, largest, torch.inf).expand(values.shape).contiguous()
        limits[5] = torch.inf
        some = (values.abs() / limits).view(torch.int32)[:, 7].tolist()
        tried = sorted({(shift, ratio >> shift + 8) for shift in (24, 16, 8, 0) for ratio in some})
        given = (values.view(-1), limits.view(-1))
        if not all(torch.equal(_ratio_counts(*given, r, s), plain_ratios(*given, r, s)) for s, r in tried):
            return False
    return True


def same_lines(device: torch.device) -> bool:
    """Return whether sums of lines are the same."""
    values = _trial((3, 16 * 5003), device)
    sums = ((_line_scores(values, line), added(values.view(3, -1, line).abs())) for line in (2, 16))
    return all(torch.equal(*both) for both in sums)


def same_choices(device: torch.device, many: int, keep: int) -> bool:
    """Return whether so many of so many lines are chosen alike: exactly, of too few and of more than enough."""
    scores = _trial((3, many), device).abs()
    if not torch.equal(_line_choice(scores, keep, None), lines.chosen(scores, keep, None)):
        return False
    known = torch.zeros((len(scores), 2), device=scores.device)
    for part in (1.0, 0.5, 3.0):
        ours, theirs = known.clone(), known.clone()
        places = _line_choice(scores, keep, ours), lines.chosen(scores, keep, theirs)
        if not (torch.equal(*places) and torch.equal(ours, theirs)):
            return False
        known = ours * part
    return True


def same_wanted(device: torch.device) -> bool:
    """Return whether ways and means, with what was left out before and without, are the same."""
    base, weights, before = (_trial((5, 1003), device).roll(shift, 0) for shift in range(3))
    ends = [
        Ends(base, weights, 1, None, 1.0),
        Ends(base, weights, 1, before, 0.95),
        Ends(base, None, 7, None, 1.0),
        Ends(base, None, 3, before, 0.9),
    ]
    for each in [*ends, Ends(base / 0.0, None, 1, None, 1.0)]:
        ours, theirs = torch.zeros(2, dtype=torch.int32, device=device)
        if not (_equal_bits(_wanted(each, ours), plain_wanted(each, theirs)) and torch.equal(ours > 0, theirs > 0)):
            return False
    return True


def _same(values: Tensor, ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]) -> bool:
    """Return whether two ways make the same bytes and leave the same."""
    left, other = torch.empty_like(values), torch.empty_like(values)
    return torch.equal(ours(left), theirs(other)) and _equal_bits(left, other)


def same_e3m0(device: torch.device) -> bool:
    """Return whether powers of two are the same bytes."""
    values = _trial((6, 4008), device)
    return all(torch.equal(_e3m0(block, values), to_scales(E3m0(block=block), values)) for block in (32, 64, 2048))


def same_buckets(device: torch.device) -> bool:
    """Return whether bins are the same bytes, of chunks of every length and size."""
    codecs = [Buckets(bits=bits, width=width) for bits in _FEW_BITS for width in (2.0, 6.0)]
    some = [_trial((12, count), device) for count in (1, 3, 4100)]
    return all(torch.equal(to_buckets(c, values, FUSED), to_buckets(c, values)) for c in codecs for values in some)


def _largest(rows: Tensor, keep: int) -> Tensor:
    places = torch.empty((len(rows), keep), dtype=torch.int64, device=rows.device)
    warps = 8 if rows.shape[1] > 2048 else 4
    launch(_kernels().largest, (len(rows),), rows.contiguous(), places, keep, WIDTH=rows.shape[1], num_warps=warps)
    return places


def _wanted(ends: Ends, bad: Tensor) -> Tensor:
    base, weights, before = ends.base.contiguous(), ends.weights, ends.before
    made = torch.empty_like(base)
    launch(
        _kernels().wanted,
        (-(-base.numel() // _TILE),),
        base,
        base if weights is None else weights.contiguous(),
        base if before is None else before.contiguous(),
        made,
        bad,
        base.numel(),
        float(ends.steps),
        float(ends.decay),
        WAY=weights is not None,
        FED=before is not None,
        TILE=_TILE,
    )
    return made


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


def _ratio_counts(values: Tensor, limits: Tensor, bits: int, shift: int) -> Tensor:
    counts = torch.zeros(256, dtype=torch.int64, device=values.device)
    grid = (-(-values.numel() // (_LONG_TILE * _TILES)),)
    given = (values.contiguous(), limits.contiguous(), counts, values.numel(), bits)
    launch(_kernels().ratio_counts, grid, *given, SHIFT=shift, TILE=_LONG_TILE, TILES=_TILES)
    return counts


def _line_scores(values: Tensor, line: int) -> Tensor:
    scores = torch.empty((len(values), values.shape[1] // line), device=values.device)
    shape = {"LINE": line, "HALVINGS": line.bit_length() - 1, "MANY": max(1, _LINES * 16 // line)}
    grid = (-(-scores.numel() // shape["MANY"]),)
    launch(_kernels().line_scores, grid, values.contiguous(), scores, scores.numel(), **shape)
    return scores


def _line_choice(scores: Tensor, keep: int, known: Tensor | None) -> Tensor:
    chunks, many = scores.shape
    limit = scores.new_full((chunks,), torch.inf) if known is None else lines.limit_of(known)
    places = torch.empty((chunks, keep), dtype=torch.int64, device=scores.device)
    reached, lowest = torch.empty(chunks, dtype=torch.int32, device=scores.device), torch.empty_like(limit)
    given = (scores.contiguous(), limit, places, reached, lowest, many, keep)
    shape = {"TILE": _LONG_TILE, "TILES": -(-many // _LONG_TILE)}
    launch(_kernels().line_choice, (chunks,), *given, **shape, num_warps=8)
    if known is not None:
        lines.move(known, reached, keep, lowest)
    return places


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
