# SPDX-License-Identifier: Apache-2.0
"""Memory for what is released to the spool: pieces that are used again, and lie as in the file."""

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
"""A piece has its price, whatever its size: that of a thousand records, since the traffic that is
recorded has put all that handles it out of the core's caches."""
LEAST_BYTES = 64 << 10
"""Below this, fresh memory costs little."""
_KEPT, _WARM = 4, 2
_HUGE_BYTES = 2 << 20


class _Lender:
    """Lends memory to an array. When the last view of that is gone, in whatever thread, the memory
    goes back."""

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


def even(count: int, most: int) -> int:
    """The size of pieces, all about alike, that hold no more than `most` each; count: above 0."""
    pieces = -(-count // most)
    return -(-count // pieces)


class Pool:
    """Gives out memory for pieces; fresh pages would cost more than what is done with them.

    Any thread may drop what it was given, one thread asks. It has _KEPT pieces, made when they are
    needed; when all of them are lent, others are made that do not come back: what waits behind a
    slow disk has no more memory than it needs.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque()
        self._made = 0

    @property
    def free(self) -> int:
        """Pieces that nobody uses now."""
        return len(self._free)

    def warm(self) -> None:
        """Make what is needed first: fresh memory in the middle of a burst takes too long."""
        for whole in [self.rows(PIECE_BYTES, np.dtype(np.uint8)) for _ in range(_WARM)]:
            whole[:] = 0

    def rows(self, count: int, dtype: np.dtype[Any], place_bytes: int = 0) -> NDArray[Any]:
        """So many rows, with anything in them, contiguous.

        place_bytes: where they will stand in a file. In memory of the pool it is as far from their
        start to the next page as it is there.
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
    """Huge pages, where there are some: what is copied or written in 4 MiB is in few of them."""
    mapped = mmap.mmap(-1, _MEMORY_BYTES + _HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    skip = -int(whole.ctypes.data) % _HUGE_BYTES
    return whole[skip : skip + _MEMORY_BYTES]
