# SPDX-License-Identifier: Apache-2.0
"""The words that the kernel and this process share of a ring, loaded and stored in order.

words.c does it. Where that is not compiled only x86-64 can read rings, which keeps the order of
numpy's loads and stores; loader/prepare.py refuses to start on other machines.
"""

from __future__ import annotations

import functools
from ctypes import CDLL, PyDLL, c_int, c_uint64
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
