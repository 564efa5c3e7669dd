# SPDX-License-Identifier: Apache-2.0
"""How long a server thinks: from the last byte of a request until its answer is written.

    what it receives (TCP_RECV)    | |        |
    what it sends (SOCK_SEND)          |   |        |
                                     ^^        ^^^^^

It is no part of a byte's way: it lies between the bytes of both directions. Who receives first on
a connection is the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Mask, is_one_of, runs, shifted
from tcpkmon.formats.analysis.latency.records import Events
from tcpkmon.formats.analysis.latency.stages import Stage
from tcpkmon.formats.analysis.latency.survey import Survey

Array = NDArray[np.int64]
SHARES = (50, 95, 99)


@dataclass(frozen=True)
class Thought:
    """Answers of one connection: how many, percentiles of SHARES and the longest [ns]."""

    count: int
    percentiles_ns: tuple[float, ...]
    most_ns: int


def think(events: Events, survey: Survey) -> dict[int, Thought]:
    """Of the connections of these events, which are in time order, those that answered: by the
    index of the connection in the survey."""
    events = events.take(is_one_of(events.stage, (Stage.SOCK_SEND, Stage.TCP_RECV)))
    sends, flow = events.stage == Stage.SOCK_SEND, events.flow
    connection = np.where(sends, survey.sender[flow], survey.receiver[flow])
    order = np.lexsort((events.time, connection))
    order = order[connection[order] >= 0]
    order = order[_is_new(connection[order], sends[order], events.hi[order])]
    connection, sends, times = connection[order], sends[order], events.time[order]
    first, _ = runs(connection)
    serves = np.repeat(~sends[first], np.diff(first, append=len(order)))
    answers = sends & ~shifted(sends, first, True) & serves
    spent = np.maximum(times - shifted(times, first, 0), 0)[answers]
    connection, found = connection[answers], {}
    for low, high in zip(*runs(connection), strict=True):
        some = spent[low : high + 1]
        shares = tuple(np.percentile(some, SHARES).tolist())
        found[int(connection[low])] = Thought(len(some), shares, int(some.max()))
    return found


def _is_new(connection: Array, sends: Mask, number: Array) -> Array:
    """The rows but those at which TCP had not come further."""
    at = np.flatnonzero(~sends)
    keep = np.ones(len(sends), np.bool_)
    low = number[at] & 0xFFFFFFFF
    keep[at] = low != shifted(low, runs(connection[at])[0], -1)
    return np.flatnonzero(keep)
