# SPDX-License-Identifier: Apache-2.0
"""What the snapshot before each one had, of connections whose snapshots come piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.grouping import Grouped, grown

Array = NDArray[Any]


class Carried:
    """Keeps the last values of each connection. kinds: their types, by name."""

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self._last: dict[str, Array] = {name: np.zeros(0, kind) for name, kind in kinds.items()}
        self._known = np.zeros(0, np.bool_)

    def before(
        self, piece: Grouped, now: Mapping[str, Array], count: int
    ) -> tuple[dict[str, Array], Array]:
        """The values (n,) of the snapshot before each one, and the rows without one, which have
        their own. count: of the connections so far."""
        places, firsts = piece.places, piece.firsts
        self._known = grown(self._known, count)
        known = self._known[places]
        before = {}
        for name, values in now.items():
            self._last[name] = grown(self._last[name], count)
            shifted = np.empty_like(values)
            shifted[1:] = values[:-1]
            shifted[firsts] = np.where(known, self._last[name][places], values[firsts])
            self._last[name][places] = values[piece.lasts]
            before[name] = shifted
        self._known[places] = True
        return before, firsts[~known]
