# SPDX-License-Identifier: Apache-2.0
"""At which rates data was acknowledged from one loss to the next.

    a policer           7.4  7.5  7.7  7.7  7.8 Mbit/s     it drops what is above its rate
    losses by chance    4.6  6.6  9.3  13   18  Mbit/s     the window has grown far, or has not
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.counts import Counts
from tcpkmon.formats.analysis.why.grouping import Grouped, grown
from tcpkmon.formats.analysis.why.limits import RECOVERY

Array = NDArray[Any]
_CONG_STATE = 5
_LEAST_SEGMENTS = 20
"""Of fewer between two losses the rate is that of a burst."""
_LEAST_RATES = 5
_NONE = np.iinfo(np.int64).max
_MOST = 1 << 62


class LossRates:
    """Adds up the rates of connections whose snapshots come piece by piece."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._ns, self._una = np.zeros(0, np.int64), np.zeros(0, np.uint32)
        self._number = np.zeros(0, np.int64)
        self._least, self._most = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, piece: Grouped, count: int) -> None:
        """The next snapshots. count: of the connections so far."""
        self._grow(count)
        begins = (piece["location"] == _CONG_STATE) & (piece["callvalue"] >= RECOVERY)
        at = np.flatnonzero(begins & (piece["ca_state"] < RECOVERY))
        if not len(at):
            return
        place, now, una = piece.of_row[at], piece.times[at], piece["snd_una"][at]
        first = np.append(True, place[1:] != place[:-1])
        last = np.append(first[1:], True)
        since, then = np.empty_like(now), np.empty_like(una)
        since[1:], then[1:] = now[:-1], una[:-1]
        since[first], then[first] = self._ns[place[first]], self._una[place[first]]
        self._ns[place[last]], self._una[place[last]] = now[last], una[last]
        acked = (una - then).astype(np.uint32).astype(np.int64)
        told = (since > 0) & (now > since) & (acked >= _LEAST_SEGMENTS * piece["mss"][at])
        place = place[told]
        rates = np.clip(acked[told] * 1e9 / (now - since)[told], 1, _MOST).astype(np.int64)
        self._counts.add(place, rates)
        np.add.at(self._number, place, 1)
        np.minimum.at(self._least, place, rates)
        np.maximum.at(self._most, place, rates)

    def spread(self, count: int) -> Array:
        """(count,) float64: the middle half of the rates, from its least to its most, by the middle
        one; NaN with less than five."""
        self._grow(count)
        low, middle, high = (
            self._counts.percentile(share, count, self._least[:count], self._most[:count])
            for share in (0.25, 0.5, 0.75)
        )
        return np.where(self._number[:count] >= _LEAST_RATES, (high - low) / middle, np.nan)

    def _grow(self, count: int) -> None:
        self._ns, self._una = grown(self._ns, count), grown(self._una, count)
        self._number, self._most = grown(self._number, count), grown(self._most, count)
        self._least = grown(self._least, count, _NONE)
