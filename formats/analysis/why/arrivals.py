# SPDX-License-Identifier: Apache-2.0
"""What the last segment of a connection brings, and for how long no data came."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.intervals import advance
from tcpkmon.formats.base.tcp import ARRIVED, State

_RECEIVES = (State.ESTABLISHED, State.FIN_WAIT1, State.FIN_WAIT2)
"""States in which data is taken."""
QUIET_NS = 200_000_000


def arriving(block: Block) -> Array:
    """(m,) what the segment of each last record brings: a record is made before that counts."""
    at = block.lasts
    if "seg_seq" not in block.rows:
        return np.zeros(len(at), np.int64)
    seq, expected = block["seg_seq"][at], block["rcv_nxt"][at]
    end = (seq + block["seg_len"][at]).astype(np.uint32)
    told = is_one_of(block["location"][at], ARRIVED) & is_one_of(block["state"][at], _RECEIVES)
    told &= (block["seg_len"][at] > 0) & (advance(seq, expected) == 0)
    return np.where(told, advance(end, expected), 0)


def quiet(block: Block, opened_ns: Array, data: Array) -> dict[str, Array]:
    """(m,) each: data_ns, when data came last, 0 for never; quiet_ns, long times without data.

    opened_ns: (m,) since when some could come. data: the rows with a segment that brings some.
    """
    place, times = block.of_row[data], block.times_ns[data]
    came = np.zeros(len(block.groups), np.int64)
    came[place] = times
    before = opened_ns[place]
    goes_on = place[1:] == place[:-1]
    before[1:][goes_on] = times[:-1][goes_on]
    spans = times - before
    is_quiet = spans > np.maximum(QUIET_NS, 4000 * block["srtt_us"][data].astype(np.int64))
    found = np.zeros(len(block.groups), np.int64)
    np.add.at(found, place[is_quiet], spans[is_quiet])
    return {"data_ns": came, "quiet_ns": found}
