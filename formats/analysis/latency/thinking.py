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

from tcpkmon.formats.analysis.arrays import runs, shifted
from tcpkmon.formats.analysis.latency.missing import NEVER
from tcpkmon.formats.analysis.latency.records import Events, join_events
from tcpkmon.formats.analysis.latency.stages import Stage
from tcpkmon.formats.analysis.latency.survey import LONG_CALL_NS, Survey

Array = NDArray[np.int64]
SHARES = (50, 95, 99)
_NOTHING, _RECEIVED, _SENT = 0, 1, 2


@dataclass(frozen=True)
class Thought:
    """Answers of one connection: how many, percentiles of SHARES and the longest [ns]."""

    count: int
    percentiles_ns: tuple[float, ...]
    most_ns: int


class Thinking:
    """Reads all events of a log, piece by piece; memory is that of the answers."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        count = len(survey.ids)
        self._kind = np.full(count, _NOTHING, np.int8)
        self._time = np.zeros(count, np.int64)
        self._number = np.full(count, -1, np.int64)
        self._serves = np.zeros(count, np.bool_)
        self._found: list[tuple[Array, Array]] = []
        self._late: list[Events] = []

    def add(self, events: Events, limit_ns: int) -> None:
        """Events of which all before limit_ns are there, but for calls that are still under way."""
        turns = events.take(np.isin(events.stage, (Stage.SOCK_SEND, Stage.TCP_RECV)))
        all_ = join_events([*self._late, turns])
        until = limit_ns if limit_ns == NEVER else limit_ns - LONG_CALL_NS
        early = np.ones(len(all_), np.bool_) if limit_ns == NEVER else all_.time < until
        self._late = [all_.take(~early)]
        self._turn(all_.take(early))

    def finish(self) -> None:
        """No more will come."""
        late, self._late = self._late, []
        if late:
            self._turn(join_events(late))

    def _turn(self, events: Events) -> None:
        sends = events.stage == Stage.SOCK_SEND
        flow = events.flow
        connection = np.where(sends, self._survey.sender[flow], self._survey.receiver[flow])
        order = np.lexsort((events.time, connection))
        order = order[connection[order] >= 0]
        order = order[self._is_new(connection[order], sends[order], events.hi[order])]
        if not len(order):
            return
        connection, sends, times = connection[order], sends[order], events.time[order]
        kind = np.where(sends, _SENT, _RECEIVED).astype(np.int8)
        first, last = runs(connection)
        mine = connection[first]
        opens = self._kind[mine] == _NOTHING
        self._serves[mine[opens]] = ~sends[first[opens]]
        before = shifted(kind, first, self._kind[mine])
        since = shifted(times, first, self._time[mine])
        answers = sends & (before == _RECEIVED) & self._serves[connection]
        self._found.append((connection[answers], np.maximum(times - since, 0)[answers]))
        self._kind[mine], self._time[mine] = kind[last], times[last]

    def _is_new(self, connection: Array, sends: NDArray[np.bool_], number: Array) -> Array:
        """The rows but those at which TCP had not come further."""
        at = np.flatnonzero(~sends)
        keep = np.ones(len(sends), np.bool_)
        if len(at):
            first, last = runs(connection[at])
            mine, low = connection[at][first], number[at] & 0xFFFFFFFF
            keep[at] = low != shifted(low, first, self._number[mine])
            self._number[mine] = low[last]
        return np.flatnonzero(keep)

    def of_connections(self) -> dict[int, Thought]:
        """By the index of the connection in the survey."""
        if not self._found:
            return {}
        connection, spent = (np.concatenate(one) for one in zip(*self._found, strict=True))
        order = np.argsort(connection, kind="stable")
        connection, spent = connection[order], spent[order]
        found = {}
        for low, high in zip(*runs(connection), strict=True):
            some = spent[low : high + 1]
            shares = tuple(np.percentile(some, SHARES).tolist())
            found[int(connection[low])] = Thought(len(some), shares, int(some.max()))
        return found
