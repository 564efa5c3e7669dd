# SPDX-License-Identifier: Apache-2.0
"""Round-trip times that are those of a handshake of which something was lost.

    SYN-ACK lost, sent again after 1 s      srtt   1000  875  766  670 ...  3.1  2.9  3.0 ms
    the kernel takes the second for long           not of the path     | from here on

It measures from the first SYN or SYN-ACK, so the mean begins with the wait for the second one, and
falls by an eighth with each round trip. It is that of the path when it rises for the first time.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Mask
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept
from tcpkmon.formats.base.tcp import Location

_LOST_US = 900_000
"""A SYN and a SYN-ACK are sent again after a second."""


def is_settled(piece: Grouped, kept: Kept) -> Mask:
    """(n,) whether srtt_us is of the path."""
    known = kept.of("settled", np.bool_)
    srtt, last = piece["srtt_us"], kept.of("srtt_last", np.uint32)
    if known[piece.places].all():
        return np.ones(len(piece), np.bool_)
    before = piece.before(srtt, last)
    is_new = (before == 0) & (srtt > 0)
    settles = np.where(is_new, srtt < _LOST_US, (srtt > before) & (before > 0))
    settles |= piece["location"] == Location.EXISTING
    return piece.held(settles, settles, known)
