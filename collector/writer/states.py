# SPDX-License-Identifier: Apache-2.0
"""The last record of each open connection, with which a file begins that others come before.

    file 1   ... 7 ... 9 ... 7 | 12 closed | END
    file 2   START ledger | 9 7 as EXISTING | records
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.ordered import Ordered, opaque
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.tcp import Location, State

MOST = 1 << 14
"""Of so many connections the last record is kept, unless told otherwise: conn_id modulo that. Where
two share a place, the later has it."""
_CLOSED = (State.CLOSE, State.TIME_WAIT)


class States:
    """The table. dtype: of an entry; without the column conn_id nothing is kept. most: places,
    which take memory once they were used."""

    def __init__(self, dtype: np.dtype[Any], most: int = MOST) -> None:
        self._most = most
        self._opaque = opaque(dtype)
        has_id = "conn_id" in (dtype.names or ())
        self._rows: NDArray[Any] | None = np.zeros(most, dtype) if has_id else None

    def add(self, ordered: Ordered) -> None:
        """Take the next records."""
        if self._rows is None or not ordered.records:
            return
        ids = ordered.entries["conn_id"]
        # The last of each row of records of one connection.
        last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True) & (ids > 0))
        places = (ids[last] % self._most).astype(np.int64)
        # Of several records for one place numpy keeps the last.
        self._rows.view(self._opaque)[places] = ordered.entries.view(self._opaque)[last]

    def repeat(
        self, cpu: int, mono_ns: int, most: int | None = None
    ) -> tuple[Ordered | None, int]:
        """The last records of connections that are open, as EXISTING, the latest `most` of them;
        and how many connections there are in all.

        cpu: a number of no CPU; mono_ns: the beginning of the file. callvalue is how much earlier
        the record was [ms].
        """
        if self._rows is None:
            return None, 0
        rows = self._rows
        location = rows["location"]
        changed = location == Location.STATE_CHANGE
        open_now = (rows["conn_id"] > 0) & (location != Location.DESTROY)
        open_now &= ~(changed & np.isin(rows["callvalue"], _CLOSED))
        chosen = np.flatnonzero(open_now)
        count = len(chosen)
        names = rows.dtype.names or ()
        if "time_ns" in names:
            chosen = chosen[np.argsort(rows["time_ns"][chosen], kind="stable")]
        chosen = chosen if most is None else chosen[max(0, count - most) :]
        if not len(chosen):
            return None, count
        found = rows.view(self._opaque)[chosen].view(rows.dtype)
        changed = found["location"] == Location.STATE_CHANGE
        if "state" in names:  # the column has the state before the change
            found["state"][changed] = found["callvalue"][changed]
        found["callvalue"] = 0
        if "time_ns" in names:
            earlier_ns = np.maximum(mono_ns - found["time_ns"].astype(np.int64), 0)
            found["callvalue"] = np.minimum(earlier_ns // 1_000_000, 0xFFFFFFFF)
        for name in {"seg_seq", "seg_ack", "seg_len", "seg_flags"} & set(names):
            found[name] = 0
        for name, value in (("cpu", cpu), ("serial", np.arange(1, len(found) + 1))):
            if name in names:
                found[name] = value
        found["location"] = EXISTING
        number = len(found)
        cpus, places = np.full(number, cpu, np.uint16), np.array([[cpu, EXISTING, number]])
        return Ordered(found, cpus, places, 1, number, mono_ns, number), count
