# SPDX-License-Identifier: Apache-2.0
"""The records of the schema tcp in one order, for who looks at those that a log stores by CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ring.points import FIRST_EVENT
from collector.sequencer.ordered_batch import LOCATION_WORD
from collector.sequencer.part import Part
from formats.base.control import EXISTING

_POINT = (np.dtype("=u4"), 4 * LOCATION_WORD)


def tcp_in_order(parts: Sequence[Part]) -> NDArray[Any] | None:
    """Those of a release of all CPUs, by time, as opaque rows of the ring; None: there are none."""
    rows, keys = [], []
    for part in parts:
        points = part.rows.getfield(*_POINT)
        at = np.flatnonzero((points < FIRST_EVENT) | (points == EXISTING))
        if len(at):
            rows.append(part.rows[at])
            keys.append(part.keys_ns[at])
    if not rows:
        return None
    found: NDArray[Any] = np.concatenate(rows)
    return found[np.argsort(np.concatenate(keys), kind="stable")]
