# SPDX-License-Identifier: Apache-2.0
"""Round-trip times that are those of a handshake of which something was lost.

    SYN-ACK lost, sent again after 1 s      srtt   1000  875  766  670 ...  3.1  2.9  3.0 ms
    the kernel takes the second for long           not of the path     | from here on

It measures from the first SYN or SYN-ACK, so the mean begins with the wait for the second one, and
falls by an eighth with each round trip. It is that of the path when it rises for the first time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.grouping import Grouped, grown

_EXISTING = 226
_LOST_US = 900_000
"""A SYN and a SYN-ACK are sent again after a second."""


class Settling:
    """Tells it of snapshots that come piece by piece."""

    def __init__(self) -> None:
        self._before = np.zeros(0, np.uint32)
        self._settled = np.zeros(0, np.bool_)

    def add(self, piece: Grouped, count: int) -> NDArray[np.bool_]:
        """(n,) whether srtt_us is of the path. count: of the connections so far."""
        self._before, self._settled = grown(self._before, count), grown(self._settled, count)
        srtt, places = piece["srtt_us"], piece.places
        if self._settled[places].all():
            return np.ones(len(piece), np.bool_)
        before: NDArray[Any] = np.empty_like(srtt)
        before[1:] = srtt[:-1]
        before[piece.firsts] = self._before[places]
        is_new = (before == 0) & (srtt > 0)
        settles = np.where(is_new, srtt < _LOST_US, (srtt > before) & (before > 0))
        settles |= piece["location"] == _EXISTING
        rank = np.where(settles, np.arange(len(piece)), -1)
        first = np.repeat(piece.firsts, piece.lasts - piece.firsts + 1)
        found: NDArray[np.bool_] = self._settled[piece.of_row] | (
            np.maximum.accumulate(rank) >= first
        )
        self._before[places], self._settled[places] = srtt[piece.lasts], found[piece.lasts]
        return found
