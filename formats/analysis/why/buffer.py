# SPDX-License-Identifier: Apache-2.0
"""Whether a writer waits for room in the send buffer, from what its snapshots show.

    used / limit    0.5   1.0   0.9   0.7   0.6   0.8
    full            no    yes   yes   yes   no    no

A writer that found the buffer full sleeps until a third of it is free. One that is filled to two
thirds only, and was not full since, holds back nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.grouping import Grouped, grown
from tcpkmon.formats.analysis.why.limits import has_room, is_full


class Full:
    """Tells it of snapshots that come piece by piece."""

    def __init__(self) -> None:
        self._full = np.zeros(0, np.bool_)

    def add(self, piece: Grouped, count: int) -> NDArray[np.bool_]:
        """(n,) whether the buffer was full since a third of it was last free.

        count: of the connections so far.
        """
        self._full = grown(self._full, count)
        fills, frees = is_full(piece.columns), has_room(piece.columns)
        filled, freed = (_last(mask) for mask in (fills, frees))
        first = np.repeat(piece.firsts, piece.lasts - piece.firsts + 1)
        before = self._full[piece.of_row] & (freed < first)
        found: NDArray[np.bool_] = np.where(filled >= first, filled > freed, before)
        self._full[piece.places] = found[piece.lasts]
        return found


def _last(mask: NDArray[np.bool_]) -> NDArray[Any]:
    """(n,) the last row up to each one where it holds, -1: none."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
