# SPDX-License-Identifier: Apache-2.0
"""Memory for what is released to the spool: pieces that stay in a core's cache, used again."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 1 << 20
"""About a core's second-level cache: what was just put together is still there when it is stamped.
Half of it is no quicker: each piece has its price, whatever its size."""
_KEPT = 6


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

    Any thread may drop what it was given. Up to _KEPT pieces are kept for the next that asks.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT)

    @property
    def free(self) -> int:
        """Pieces that nobody uses now."""
        return len(self._free)

    def rows(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """So many rows, with anything in them, contiguous."""
        nbytes = count * dtype.itemsize
        # A small batch may wait long behind a slow disk: it must not hold a whole piece.
        if not PIECE_BYTES // 2 <= nbytes <= PIECE_BYTES:
            return np.empty(count, dtype)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(PIECE_BYTES, np.uint8)
        whole: NDArray[Any] = np.asarray(_Lender(memory, self._free))[:nbytes].view(dtype)
        return whole
