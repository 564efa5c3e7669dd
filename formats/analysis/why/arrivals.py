# SPDX-License-Identifier: Apache-2.0
"""What the last segment of a connection brings, and for how long no data came."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why.grouping import Grouped
from tcpkmon.formats.analysis.why.intervals import advance
from tcpkmon.formats.base.tcp import ARRIVED, State

Of = Callable[..., Array]
"""Of a name, the array with a row for each connection so far."""
_RECEIVES = (State.ESTABLISHED, State.FIN_WAIT1, State.FIN_WAIT2)
"""States in which data is taken."""
QUIET_NS = 200_000_000


def add_last(of: Of, piece: Grouped) -> None:
    """What the segment of each last record brings: a record is made before that counts."""
    if "seg_seq" not in piece.columns:
        return
    at = piece.lasts
    seq, expected = piece["seg_seq"][at], piece["rcv_nxt"][at]
    end = (seq + piece["seg_len"][at]).astype(np.uint32)
    told = np.isin(piece["location"][at], ARRIVED) & np.isin(piece["state"][at], _RECEIVES)
    told &= (piece["seg_len"][at] > 0) & (advance(seq, expected) == 0)
    of("arriving")[piece.places] = np.where(told, advance(end, expected), 0)


def add_quiet(of: Of, piece: Grouped, data: Array) -> None:
    """Long times without data. data: the rows with a segment that brings some."""
    place, times = piece.of_row[data], piece.times[data]
    came = of("data_ns")
    before = np.where(came[place] > 0, came[place], of("start_ns")[place])
    goes_on = place[1:] == place[:-1]
    before[1:][goes_on] = times[:-1][goes_on]
    spans = times - before
    is_quiet = spans > np.maximum(QUIET_NS, 4000 * piece["srtt_us"][data].astype(np.int64))
    np.add.at(of("quiet_ns"), place[is_quiet], spans[is_quiet])
    came[place] = times
