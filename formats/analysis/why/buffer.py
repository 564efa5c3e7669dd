# SPDX-License-Identifier: Apache-2.0
"""Whether a writer waits for room in the send buffer, from what its snapshots show.

    used / limit    0.5   1.0   0.9   0.7   0.6   0.8
    full            no    yes   yes   yes   no    no

A writer that found the buffer full sleeps until a third of it is free. One that is filled to two
thirds only, and was not full since, holds back nobody.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Mask
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept
from tcpkmon.formats.analysis.why.limits import has_room, is_full


def was_full(piece: Grouped, kept: Kept) -> Mask:
    """(n,) whether the buffer was full since a third of it was last free."""
    fills = is_full(piece.columns)
    return piece.held(fills | has_room(piece.columns), fills, kept.of("full", np.bool_))
