# SPDX-License-Identifier: Apache-2.0
"""The entries with which a later segment repeats what earlier ones know of open connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.psc.header import Header

MOST = 1 << 14
Locations = Callable[[int, int], NDArray[np.unsignedinteger]]
"""The column location of a file's rows from one to another."""


def find_states(header: Header, rows: int, locations: Locations) -> tuple[int, int]:
    """First row and number of these entries, as far as they were written; rows: of the file."""
    told = described(header)
    row = _number(told.get("row"), rows)
    count = min(_number(told.get("count"), MOST), rows - row)
    if not row or not count:
        return 0, 0
    other = np.flatnonzero(locations(row, row + count) != EXISTING)
    return row, int(other[0]) if len(other) else count


def described(header: Header) -> Mapping[str, object]:
    """What the header says of them: `row`, `count`, and `known`, of how many connections."""
    found = setting(header.settings, "segment", "states")
    return found if isinstance(found, dict) else {}


def _number(value: object, most: int) -> int:
    inside = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
    return int(value) if inside else 0  # type: ignore[call-overload]
