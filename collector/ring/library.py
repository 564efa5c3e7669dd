# SPDX-License-Identifier: Apache-2.0
"""The compiled drain.c, and the words of a ring that the kernel shares with this process."""

from __future__ import annotations

import functools
import mmap
from ctypes import CDLL, PyDLL, byref, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.compiled import find_compiled
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.installing import how_to_install

PLACE = Path(__file__).with_name("_drain")
_VERSION = 3
_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "ring_version": (c_int, ""),
    "ring_load": (c_uint64, "p"),
    "ring_store": (None, "p8"),
    "ring_advance": (c_int, "pp88p"),
    "order_new": (c_void_p, "8888"),
    "order_free": (None, "p"),
    "order_add": (c_void_p, "p8"),
    "order_push": (c_int64, "ppp88"),
    "order_settle": (c_int64, "p"),
    "order_up_to": (c_int64, "p88"),
    "order_merge": (c_int64, "pp"),
    "order_copy": (c_int64, "ppp8pp"),
}


@functools.cache
def find_library(kind: type[CDLL] = PyDLL) -> CDLL:
    """Its functions; CDLL: others have Python's lock meanwhile. TcpkmonError if there is no
    library of this version."""
    if (library := find_compiled(PLACE, _VERSION, _FUNCTIONS, kind)) is None:
        raise TcpkmonError(f"{PLACE}*.so is missing, or of another version: rings cannot be read",
                           how_to_install("tcpkmon"))  # fmt: skip
    return library


class Word:
    """A shared word: an array of one u64."""

    def __init__(self, word: NDArray[np.uint64]) -> None:
        self._word = word
        self._library = find_library()
        self.address = word.ctypes.data

    def peek(self) -> int:
        """Its value, which says nothing of other memory."""
        return int(self._word[0])

    def load(self) -> int:
        """Its value: what others stored before it is visible afterwards."""
        return int(self._library.ring_load(self.address))

    def store(self, value: int) -> None:
        """Store it after all that was read before, and before all that is read afterwards."""
        self._library.ring_store(self.address, value)


class Producer(Word):
    """The kernel's position in a BPF ring, at the beginning of the memory, and the ring's rows.

    The rows are behind a page, twice, one after the other. row: bytes; positions are bytes that
    only grow.
    """

    def __init__(self, memory: mmap.mmap, size_bytes: int, row: int) -> None:
        super().__init__(np.frombuffer(memory, np.uint64, 1))
        self._size_bytes = size_bytes
        self._row = row

    def place(self, position: int) -> int:
        """Where in the memory the row at this position begins."""
        return mmap.PAGESIZE + (position & (self._size_bytes - 1))

    def advance(self, position: int) -> tuple[int, bool]:
        """The position behind the committed records, which are visible afterwards, and whether
        there is one that is being built."""
        end = c_uint64(position)
        held_up = self._library.ring_advance(
            self.address, self.address + mmap.PAGESIZE, self._size_bytes, self._row, byref(end)
        )
        return end.value, bool(held_up)
