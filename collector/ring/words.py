# SPDX-License-Identifier: Apache-2.0
"""The words that the kernel and this process share of a ring, loaded and stored in order.

words.c does it. Where that is not compiled only x86-64 can read rings, which keeps the order of
numpy's loads and stores; loader/prepare.py refuses to start on other machines.
"""

from __future__ import annotations

import functools
import mmap
from ctypes import CDLL, PyDLL, byref, c_int, c_uint64
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.compiled import find_compiled

_VERSION = 1
_SIGNATURES: dict[str, tuple[Any, str]] = {
    "ring_version": (c_int, ""),
    "ring_load": (c_uint64, "p"),
    "ring_store": (None, "p8"),
    "ring_advance": (c_int, "pp88p"),
}
_BUSY = 1 << 31
"""BPF_RINGBUF_BUSY_BIT of linux/bpf.h."""


@functools.cache
def find_library() -> CDLL | None:
    """The compiled words.c; None if there is none."""
    return find_compiled(Path(__file__).with_name("_words"), _VERSION, _SIGNATURES, PyDLL)


class Word:
    """A shared word: an array of one u64."""

    def __init__(self, word: NDArray[np.uint64]) -> None:
        self._word = word
        self.address = word.ctypes.data

    def peek(self) -> int:
        """Its value, which says nothing of other memory."""
        return int(self._word[0])

    def load(self) -> int:
        """Its value: what others stored before it is visible afterwards."""
        library = find_library()
        return self.peek() if library is None else int(library.ring_load(self.address))

    def store(self, value: int) -> None:
        """Store it after all that was read before, and before all that is read afterwards."""
        library = find_library()
        if library is None:
            self._word[0] = value
        else:
            library.ring_store(self.address, value)


class Producer(Word):
    """The kernel's position in a BPF ring, at the beginning of the memory, and the ring's rows.

    The rows are behind a page, twice, one after the other. row: bytes; positions are bytes that
    only grow.
    """

    def __init__(self, memory: mmap.mmap, size_bytes: int, row: int) -> None:
        super().__init__(np.frombuffer(memory, np.uint64, 1))
        self._memory = memory
        self._size_bytes = size_bytes
        self._row = row

    def place(self, position: int) -> int:
        """Where in the memory the row at this position begins."""
        return mmap.PAGESIZE + (position & (self._size_bytes - 1))

    def is_busy(self, position: int, count: int = 1) -> NDArray[np.bool_]:
        """Whether each of the rows from this position on is being built."""
        lengths: NDArray[np.uint32] = np.ndarray(
            (count,), np.uint32, self._memory, self.place(position), (self._row,)
        )
        return lengths >= _BUSY

    def advance(self, position: int) -> tuple[int, bool]:
        """The position behind the committed records, which are visible afterwards, and whether
        there is one that is being built."""
        if (library := find_library()) is None:
            busy = self.is_busy(position, (self.load() - position) // self._row)
            done = int(np.argmax(busy)) if busy.any() else len(busy)
            return position + done * self._row, done < len(busy)
        end = c_uint64(position)
        held_up = library.ring_advance(
            self.address, self.address + mmap.PAGESIZE, self._size_bytes, self._row, byref(end)
        )
        return end.value, bool(held_up)
