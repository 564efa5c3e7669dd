# SPDX-License-Identifier: Apache-2.0
"""Puts the names of the functions that drop packets into the file.

A program cannot look up names, so it numbers the addresses (bpf/include/tcp_dropped.h). Few
functions drop packets, so the names are looked up when there is a new number.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.kallsyms import KALLSYMS, Kallsyms
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.drops import MOST_PLACES, SETTING, DropPlace
from tcpkmon.formats.base.text import text_of

_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_MAP = "drop_places"


class DropPlaces(Closing):
    """The functions of a capture that records DROPPED. Make it while addresses are readable."""

    def __init__(self, prepared: Prepared, kernel: Kernel, stream: Stream) -> None:
        self._stream = stream
        self._map = kernel.loaded.maps.get(_MAP) if "DROPPED" in prepared.enabled else None
        self._seen = 0
        self._named: dict[str, str] = {}
        self._listing: int | None = None
        if self._map is not None:
            with suppress(OSError):
                # What it shows depends on the rights of who opened it.
                self._listing = os.open(KALLSYMS, os.O_RDONLY | os.O_CLOEXEC)

    def step(self) -> None:
        """Write the names of the new ones. Call it once a second, and at the end."""
        if self._map is None or self._listing is None or (count := self._read(0)) <= self._seen:
            return
        numbers = range(self._seen + 1, min(count + 1, MOST_PLACES))
        # A number is given out before its address is stored: look at those without one again.
        addresses = {number: self._read(number) for number in numbers}
        self._seen = next((n - 1 for n, at in addresses.items() if not at), count)
        symbols = Kallsyms(self._listing)  # of this step alone: the listing is large
        # A call returns behind itself, which can be the next function.
        names = {number: symbols.name(at - 1) for number, at in addresses.items() if at}
        new = [DropPlace(number, name) for number, name in names.items() if name]
        if new:
            self._named |= {str(one.number): text_of(one.function) for one in new}
            self._stream.tell(new)
            self._stream.describe({SETTING: dict(self._named)})

    def _read(self, number: int) -> int:
        assert self._map is not None
        raw = bpf.map_lookup(self._map, _U32.pack(number), _U64.size)
        return int(_U64.unpack(raw)[0]) if raw else 0

    def close(self) -> None:
        """Close the listing of the kernel's functions."""
        if self._listing is not None:
            os.close(self._listing)
            self._listing = None
