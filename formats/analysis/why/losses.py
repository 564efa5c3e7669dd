# SPDX-License-Identifier: Apache-2.0
"""At which rates data was acknowledged from one loss to the next.

    a policer           7.4  7.5  7.7  7.7  7.8 Mbit/s     it drops what is above its rate
    losses by chance    4.6  6.6  9.3  13   18  Mbit/s     the window has grown far, or has not
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, runs, shifted
from tcpkmon.formats.analysis.why.counts import Counts
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept, Places
from tcpkmon.formats.base.tcp import CaState, Location

_LEAST_SEGMENTS = 20
"""Of fewer between two losses the rate is that of a burst."""
_LEAST_RATES = 5
_NONE = np.iinfo(np.int64).max
_MOST = 1 << 62


class LossRates:
    """Adds up the rates of connections whose snapshots come piece by piece."""

    def __init__(self, places: Places) -> None:
        self._counts, self._kept = Counts(), Kept(places)

    def add(self, piece: Grouped) -> None:
        """The next snapshots."""
        begins = piece["location"] == Location.CONG_STATE
        begins &= piece["callvalue"] >= CaState.RECOVERY
        at = np.flatnonzero(begins & (piece["ca_state"] < CaState.RECOVERY))
        if not len(at):
            return
        of = self._kept.of
        place, now, una = piece.of_row[at], piece.times[at], piece["snd_una"][at]
        since, then = (_before(place, values, of(name, kind)) for name, values, kind in (
            ("time", now, np.int64), ("una", una, np.uint32)))  # fmt: skip
        acked = (una - then).astype(np.uint32).astype(np.int64)
        told = (since > 0) & (now > since) & (acked >= _LEAST_SEGMENTS * piece["mss"][at])
        place = place[told]
        rates = np.clip(acked[told] * 1e9 / (now - since)[told], 1, _MOST).astype(np.int64)
        self._counts.add(place, rates)
        np.add.at(of("number"), place, 1)
        np.minimum.at(of("least", np.int64, _NONE), place, rates)
        np.maximum.at(of("most"), place, rates)

    def spread(self, count: int) -> Array:
        """(count,) float64: the middle half of the rates, from its least to its most, by the middle
        one; NaN with less than five."""
        of = self._kept.of
        number, least, most = (
            values[:count] for values in (of("number"), of("least", np.int64, _NONE), of("most"))
        )
        low, middle, high = (
            self._counts.percentile(share, count, least, most) for share in (0.25, 0.5, 0.75)
        )
        return np.where(number >= _LEAST_RATES, (high - low) / middle, np.nan)


def _before(place: Array, values: Array, kept: Array) -> Array:
    """(n,) the value of the connection's row before each one, else what was kept; the last are
    kept."""
    firsts, lasts = runs(place)
    found = shifted(values, firsts, kept[place[firsts]])
    kept[place[lasts]] = values[lasts]
    return found
