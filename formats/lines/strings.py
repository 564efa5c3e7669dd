# SPDX-License-Identifier: Apache-2.0
"""Converts a column of values to text by lines.c, as the buffers of an Arrow string array."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.lines.native import DONE, FULL, MISSING, find_library

_TEXT_BYTES = 16
"""Room for a text at first; more if the texts are longer."""
_KNOWN_MAX = 1 << 16
_ROOM_MAX = (1 << 31) - 1


class StringWriter:
    """Converts values to text; for one thread at a time. Known texts are kept from call to call.

    text: returns the text of a value: of an int, or of all bytes of a raw value.
    """

    def __init__(self, text: Callable[[Any], str]) -> None:
        self._text = text
        self._handle = 0
        self._known = 0

    def write(
        self, values: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """The offsets of the texts, (n + 1,), and their UTF-8.

        values: (n,) of one dtype in all calls, contiguous. Raises TcpkmonError if the texts do not
        fit 2 GiB, or without lines.c.
        """
        library = find_library()
        values = np.ascontiguousarray(values)
        width = values.dtype.itemsize
        if not self._handle:
            self._handle = library.lines_new()
            if not self._handle or library.lines_table(self._handle, width):
                raise MemoryError
            self._finalizer = weakref.finalize(self, library.lines_free, self._handle)
        offsets = np.zeros(len(values) + 1, np.int32)
        out = np.empty(4096 + _TEXT_BYTES * len(values), np.uint8)
        done = np.zeros(2, np.uint64)
        while True:
            code = library.lines_column(
                self._handle, 0, values.ctypes.data, len(values), offsets[1:].ctypes.data,
                out.ctypes.data, len(out), done.ctypes.data,
            )  # fmt: skip
            row, written = done.tolist()
            if code == DONE:
                return offsets, out[:written]
            if code == MISSING:
                self._add(values[row : row + 1])
            elif code == FULL and len(out) < _ROOM_MAX:
                more = np.empty(min(2 * len(out), _ROOM_MAX), np.uint8)
                more[:written] = out[:written]
                out = more
            else:
                raise TcpkmonError("the texts of a column are too long")

    def _add(self, value: npt.NDArray[Any]) -> None:
        """Add the text of a value, given as an array of one item."""
        library = find_library()
        if self._known == _KNOWN_MAX:
            library.lines_forget(self._handle, 0)
            self._known = 0
        data = value.tobytes()
        text = self._text(int(value[0]) if value.dtype.kind in "iu" else data)
        encoded = text.encode("utf-8", "backslashreplace")
        if library.lines_text(self._handle, 0, data, encoded, len(encoded)):
            raise MemoryError
        self._known += 1
