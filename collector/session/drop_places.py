# SPDX-License-Identifier: Apache-2.0
"""Puts the names of the functions that drop packets into the file.

A program numbers them and asks the kernel for their names (bpf/include/tcp_dropped.h).
"""

from __future__ import annotations

import struct

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.drops import MOST_PLACES, SETTING, DropPlace
from tcpkmon.formats.base.text import text_of

_U32, _PLACE = struct.Struct("=I"), struct.Struct("=Q56s")
_MAP = "drop_places"


class DropPlaces:
    """The functions of a capture that records DROPPED."""

    def __init__(self, prepared: Prepared, kernel: Kernel, stream: Stream) -> None:
        self._stream = stream
        self._map = kernel.loaded.maps.get(_MAP) if "DROPPED" in prepared.enabled else None
        self._seen = 0
        self._named: dict[str, str] = {}

    def step(self) -> None:
        """Write the names of the new ones. Call it once a second, and at the end."""
        if self._map is None or (count := self._read(0)[0]) <= self._seen:
            return
        numbers = range(self._seen + 1, min(count + 1, MOST_PLACES))
        # A number is given out before its name is stored: look at those without one again.
        places = {number: self._read(number) for number in numbers}
        self._seen = next((n - 1 for n, (named, _) in places.items() if not named), count)
        # "NAME [MODULE]", and a bare address where the kernel knows no name.
        names = {n: raw.rstrip(b"\0").split(b" ")[0] for n, (named, raw) in places.items() if named}
        new = [DropPlace(n, name) for n, name in names.items() if not name.startswith(b"0x")]
        if new:
            self._named |= {str(one.number): text_of(one.function) for one in new}
            self._stream.tell(new)
            self._stream.describe({SETTING: dict(self._named)})

    def _read(self, number: int) -> tuple[int, bytes]:
        assert self._map is not None
        raw = bpf.map_lookup(self._map, _U32.pack(number), _PLACE.size)
        return _PLACE.unpack(raw or bytes(_PLACE.size))
