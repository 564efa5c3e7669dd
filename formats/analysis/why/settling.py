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
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.base.tcp import Location

_LOST_US = 900_000
"""A SYN and a SYN-ACK are sent again after a second."""


def is_settled(block: Block) -> Mask:
    """(n,) whether srtt_us is of the path."""
    srtt = block["srtt_us"]
    before = block.before(srtt, 0)
    is_new = (before == 0) & (srtt > 0)
    settles = np.where(is_new, srtt < _LOST_US, (srtt > before) & (before > 0))
    settles |= block["location"] == Location.EXISTING
    return block.last(settles) >= 0
