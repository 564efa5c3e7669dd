# SPDX-License-Identifier: Apache-2.0
"""An open MAGNeT file: its layout and its header; or one of another program, without a header."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.files import InputFile
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES, MOST_NAME_CHARACTERS
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.control import MAGIC, decode, number, text_records
from tcpkmon.formats.magnet.layout import CLOCK, EVERY, FIELDS, HEADER, LOST, MARK, TEXT, Layout

FORMAT = 1
_NAME = re.compile(r"\w+\Z", re.ASCII)
"""Of an event: it may become that of a file."""


@dataclass(frozen=True)
class Kind:
    """An event: its code, its name, and what the data of its records is, of layout.FIELDS."""

    code: int
    name: str
    data: str = ""


OWN: tuple[Kind, ...] = (Kind(LOST, "MAGNET_LOST"), Kind(MARK, "MARK"), Kind(CLOCK, "CLOCK"))
"""What the collector makes."""

_DATA = {"SOCK": "tcp", "TCP": "tcp", "IP": "ip", "DEV": "ip", "QDISC": "ip", "DRIVER": "ip"}


def magnet_name(name: str) -> str:
    """What an event of a log is called in the file."""
    return name if name.startswith("MAGNET_") else f"MAGNET_{name}"


def data_of(name: str) -> str:
    """What the data of an event's records is, from its name: that of the layer which logs it."""
    return _DATA.get(name.removeprefix("MAGNET_").split("_")[0], "")


class MagnetFile(InputFile):
    """An open file, an array of `count` records of a layout, `first` is the one after the header.

    layout: of a file of another program; None for one with a header. kinds: its events, those of
    such a file that are known. Raises FileError, or DamagedError for the header.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout | None = None,
        kinds: tuple[Kind, ...] = (),
    ) -> None:
        super().__init__(path)
        self.header: dict[str, Any] = {}
        self.first = 0
        self.kinds = kinds
        self.has_header = layout is None
        with self.reading_header():
            self.layout = layout or self._find_layout()
            if layout is None:
                self._read_header()
        self._known = np.zeros(NUMBERS, np.bool_)
        self._known[[kind.code for kind in self.kinds]] = True
        self.size = self._size
        self.count, self.cut_bytes = divmod(self._size, self.layout.size)

    def is_known(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        """(n,) which of these codes are of its events."""
        found: NDArray[np.bool_] = (codes < NUMBERS) & self._known[np.minimum(codes, NUMBERS - 1)]
        return found

    def data_kinds(self) -> NDArray[Any]:
        """(NUMBERS,) what the data is, by code."""
        found = np.zeros(NUMBERS, "U3")
        for kind in self.kinds:
            found[kind.code] = kind.data
        return found

    def read(self, start: int, count: int) -> NDArray[Any]:
        """So many records from a place on. DamagedError if the file became shorter."""
        data = self.read_at(start * self.layout.size, count * self.layout.size)
        if len(data) < count * self.layout.size:
            raise DamagedError("the file became shorter while it was read")
        return self.layout.rows(data)

    def _find_layout(self) -> Layout:
        head = self.read_at(0, 2 * max(layout.size for layout in EVERY))
        if not head.startswith(MAGIC):
            raise DamagedError("not a MAGNeT file of tcpkmon", "see tcpkmon magnet-parse --help")
        for layout in EVERY:
            rows = layout.rows(head)[:2]
            if rows["event"].tolist() == [HEADER, TEXT]:
                return layout
        raise DamagedError("the header is damaged or cut short")

    def _read_header(self) -> None:
        layout = self.layout
        length = int(self.layout.rows(self.read_at(0, layout.size))["size"][0])
        if not 0 < length <= MOST_CONTROL_BYTES:
            raise DamagedError("the header is damaged or too large")
        self.first = 1 + text_records(length, layout)
        rows = self.layout.rows(self.read_at(0, self.first * layout.size))
        try:
            header = decode(rows, layout)
            json.dumps(header, ensure_ascii=False).encode()  # an escape may be half a character
        except (DamagedError, UnicodeEncodeError) as error:
            raise DamagedError("the header is damaged or cut short") from error
        told = (header.get("byteorder"), header.get("bits"), header.get("data"))
        if header.get("format") != FORMAT:
            raise DamagedError(f"the file is of format {header.get('format')!r:.40}, not {FORMAT}")
        if told != (layout.byteorder, layout.bits, layout.data):
            raise DamagedError("the header tells another layout than its own")
        self.header = header
        self.kinds = _read_kinds(header)


def make_header(
    layout: Layout, kinds: tuple[Kind, ...], clock: tuple[int, int, int], **more: Any
) -> dict[str, Any]:
    """The header of a file. clock: CLOCK_MONOTONIC, the time of day, their uncertainty, in ns."""
    names = ("mono_ns", "realtime_ns", "uncertainty_ns")
    return {
        "format": FORMAT,
        "byteorder": layout.byteorder,
        "bits": layout.bits,
        "data": layout.data,
        "tick_ns": 1,
        "clock": dict(zip(names, clock, strict=True)),
        "events": [{"code": one.code, "name": one.name, "data": one.data} for one in kinds],
        **more,
    }


def _read_kinds(header: Mapping[str, Any]) -> tuple[Kind, ...]:
    listed = header.get("events")
    if not isinstance(listed, list) or not len(OWN) <= len(listed) <= NUMBERS:
        raise DamagedError("the header has no table of events")
    kinds = []
    for item in listed:
        code = number(item, "code", NUMBERS - 1) if isinstance(item, dict) else None
        name, data = (item.get("name"), item.get("data")) if code is not None else (None, None)
        is_named = isinstance(name, str) and len(name) <= MOST_NAME_CHARACTERS and _NAME.match(name)
        if code is None or not is_named or not isinstance(data, str) or data not in FIELDS:
            raise DamagedError("an event in the header is not as it should be")
        kinds.append(Kind(code, str(name), data))
    is_unique = all(len({getattr(k, x) for k in kinds}) == len(kinds) for x in ("code", "name"))
    if not is_unique or tuple(kinds[: len(OWN)]) != OWN:
        raise DamagedError("the header's table of events is not as it should be")
    return tuple(kinds)
