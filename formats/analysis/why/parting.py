# SPDX-License-Identifier: Apache-2.0
"""Steps in which the limit changes: they are cut, and each part has its own.

    snapshots      s0 ................................................ s1
    the step       | nothing to send  | corked          | in flight   |
    cuts             idle             ^ nagle           ^ the limit of s1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, join


@dataclass(frozen=True)
class Cuts:
    """(k,) each: the rows of steps, where they are cut [ns], and the limit from the start, or from
    the cut before, to there. sent, acked: the shares of the step's bytes in that part; what is
    acknowledged and what arrives have one share."""

    rows: Array
    at_ns: Array
    limit: NDArray[np.int8]
    sent: Array
    acked: Array

    @staticmethod
    def make(rows: Array, at_ns: Array, limit: Any, sent: Any = 0.0, acked: Any = 0.0) -> Cuts:
        """As above, of arrays or of one value for all."""
        limits, sents, ackeds = (
            np.broadcast_to(np.asarray(one), rows.shape) for one in (limit, sent, acked)
        )
        return Cuts(rows, at_ns, limits.astype(np.int8), sents, ackeds)

    @staticmethod
    def join(*cuts: Cuts) -> Cuts:
        """All of them: by row, those of a row in time order."""
        found = join([vars(one) for one in cuts])
        order = np.lexsort((found["at_ns"], found["rows"]))
        return Cuts(**{name: values[order] for name, values in found.items()})


def part(cuts: Cuts, steps: dict[str, Array]) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """of: (m,) the row of each part; and the columns of the parts: limit, start_ns, end_ns, sent,
    acked, received and lost, of n steps. Records are missing in the first part."""
    rows, of = cuts.rows, np.arange(len(steps["limit"]))
    if not len(rows):
        return of, steps
    parts = {name: np.insert(values, rows, values[rows]) for name, values in steps.items()}
    at = rows + np.arange(len(rows))
    last = rows + np.searchsorted(rows, rows, "right")
    parts["limit"][at] = cuts.limit
    parts["end_ns"][at] = parts["start_ns"][at + 1] = cuts.at_ns
    for name, share in (("sent", cuts.sent), ("acked", cuts.acked), ("received", cuts.acked)):
        mine = (share * steps[name][rows]).astype(np.int64)
        parts[name][at] = mine
        np.subtract.at(parts[name], last, mine)
    parts["lost"][last] = 0
    return np.insert(of, rows, rows), parts
