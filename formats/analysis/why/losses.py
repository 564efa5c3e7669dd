# SPDX-License-Identifier: Apache-2.0
"""At which rates data was acknowledged from one loss to the next.

    a policer           7.4  7.5  7.7  7.7  7.8 Mbit/s     it drops what is above its rate
    losses by chance    4.6  6.6  9.3  13   18  Mbit/s     the window has grown far, or has not
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, runs, shifted
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.counts import percentiles
from tcpkmon.formats.base.tcp import CaState, Location

_LEAST_SEGMENTS = 20
"""Of fewer between two losses the rate is that of a burst."""
_LEAST_RATES = 5
_MOST = 1 << 62


def loss_rate_spread(block: Block) -> Array:
    """(m,) float64: the middle half of the rates, from its least to its most, by the middle one;
    NaN with less than five."""
    begins = block["location"] == Location.CONG_STATE
    begins &= block["callvalue"] >= CaState.RECOVERY
    at = np.flatnonzero(begins & (block["ca_state"] < CaState.RECOVERY))
    count = len(block.groups)
    if not len(at):
        return np.full(count, np.nan)
    place, now, una = block.of_row[at], block.times_ns[at], block["snd_una"][at]
    firsts, _ = runs(place)
    since, then = shifted(now, firsts, 0), shifted(una, firsts, 0)
    acked = (una - then).astype(np.uint32).astype(np.int64)
    told = (since > 0) & (now > since) & (acked >= _LEAST_SEGMENTS * block["mss"][at])
    place = place[told]
    rates = np.clip(acked[told] * 1e9 / (now - since)[told], 1, _MOST).astype(np.int64)
    low, middle, high = percentiles(place, rates, count, (25, 50, 75))
    enough = np.bincount(place, minlength=count) >= _LEAST_RATES
    return np.where(enough, (high - low) / middle, np.nan)
