# SPDX-License-Identifier: Apache-2.0
"""The records of the schema tcp in one order, for who looks at those that a log stores by CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.points import FIRST_EVENT
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.formats.base.control import EXISTING


def tcp_in_order(batches: Sequence[LogBatch]) -> tuple[NDArray[Any] | None, NDArray[np.int64]]:
    """Those of a release of all CPUs, by time, as opaque rows of the ring; None: there are none.

    And (n + 1,) how many records, of any event, are missing before each, and behind the last one.
    """
    rows, keys, lost, behind = [], [], [], 0
    for batch in batches:
        points = batch.points
        at = np.flatnonzero((points < FIRST_EVENT) | (points == EXISTING))
        behind += batch.missing
        if len(at):
            rows.append(batch.rows[at])
            keys.append(batch.keys_ns[at])
            lost.append(np.diff(np.cumsum(batch.gaps)[at], prepend=0))
            behind -= int(lost[-1].sum())
    if not rows:
        return None, np.array([behind])
    order = np.argsort(np.concatenate(keys), kind="stable")
    found: NDArray[Any] = np.concatenate(rows)
    return found[order], np.append(np.concatenate(lost)[order], behind)
