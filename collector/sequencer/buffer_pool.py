# SPDX-License-Identifier: Apache-2.0
"""Memory for released records: pieces that are used again, with the layout of the file."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = mmap.PAGESIZE
_MEMORY_BYTES = 4 << 20
PIECE_BYTES = _MEMORY_BYTES - PAGE_BYTES
"""Each piece has a fixed cost, that of a thousand records: the recorded traffic has evicted the
code for pieces from the core's caches."""
LEAST_BYTES = 64 << 10
"""New memory for a smaller piece costs little."""
_KEPT, _WARM = 4, 2
_HUGE_BYTES = 2 << 20


class _Lender:
    """Lends memory to an array. When its last view is deleted, in any thread, the memory is free
    again."""

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


class Pool:
    """Lends memory for pieces: new pages would cost more than the work on the records.

    One thread calls rows(); any thread may delete the arrays. The pool makes up to _KEPT pieces
    when they are needed. When all are lent, rows() makes arrays of the needed size that are not
    used again, so that records behind a slow disk take no more memory than they need.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque()
        self._made = 0

    @property
    def free(self) -> int:
        """How many pieces are not lent."""
        return len(self._free)

    def warm(self) -> None:
        """Make the first pieces: new memory during a burst takes too long."""
        for whole in [self.rows(PIECE_BYTES, np.dtype(np.uint8)) for _ in range(_WARM)]:
            whole[:] = 0

    def rows(self, count: int, dtype: np.dtype[Any], place_bytes: int = 0) -> NDArray[Any]:
        """So many contiguous rows, not initialized.

        place_bytes: their offset in the file. Memory of the pool has the same offset within a page:

            file    | page ...  place_bytes ->[rows    | page
            memory  | page ...  start       ->[rows    | page
        """
        nbytes = count * dtype.itemsize
        if not LEAST_BYTES <= nbytes <= PIECE_BYTES:
            return np.empty(count, dtype)
        if not self._free:
            if self._made == _KEPT:
                return np.empty(count, dtype)
            self._made += 1
            self._free.append(_new_memory())
        lent = np.asarray(_Lender(self._free.pop(), self._free))
        start = place_bytes % PAGE_BYTES
        whole: NDArray[Any] = lent[start : start + nbytes].view(dtype)
        return whole


def _new_memory() -> NDArray[np.uint8]:
    """Memory of a piece, in huge pages where the kernel has them: fewer pages to look up."""
    mapped = mmap.mmap(-1, _MEMORY_BYTES + _HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    skip = -int(whole.ctypes.data) % _HUGE_BYTES
    return whole[skip : skip + _MEMORY_BYTES]
