"""Memory that was freed is kept for the next chunk.

glibc gives the end of its heap back to the kernel as soon as a few hundred kilobytes are free there, and takes larger
blocks straight from the kernel each time. What comes from there is made zero first, page by page: a quarter of the time
in which a chunk becomes int8, and more than half of that in which it is decoded. A peer makes and drops chunks round
after round, so some is kept. Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
import sys

KEPT_BYTES = 32 * 2**20
"""What stays at the end of the heap when there is more than twice that."""
FROM_HEAP_BYTES = 16 * 2**20
"""Blocks below this come from the heap: twice the largest chunk, decoded. A model's whole vectors go back as before."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""As in malloc.h."""


def keep_freed() -> bool:
    """Let this process keep some of what it frees, and return whether its C library can."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = {_TRIM_THRESHOLD: 2 * KEPT_BYTES, _TOP_PAD: KEPT_BYTES, _MMAP_THRESHOLD: FROM_HEAP_BYTES}
    return mallopt is not None and all(mallopt(which, size) == 1 for which, size in wanted.items())
