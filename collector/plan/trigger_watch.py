# SPDX-License-Identifier: Apache-2.0
"""Finds when triggers fire, in the ordered records of a capture.

A condition holds from the record that shows it until the next record of its connection that does
not, or until the connection ends. It fires once in that time, when it has held for long enough:

    records      t   t       t        f         t: the mask is true, f: false
    since        |
    fires              | since + for_ns         even if no record comes then: tick()
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.plan.triggers import Trigger
from tcpkmon.collector.writer.dump import Hit
from tcpkmon.formats.base.tcp import Location, State

SLOTS = 1 << 16
"""Of so many connections each trigger keeps a state: conn_id modulo SLOTS. Where two connections
share a slot, the later takes it, and the state of the earlier is lost."""
_NEVER = np.iinfo(np.int64).max
_ENDS = {Location.DESTROY, Location.STATE_CHANGE}

I64 = NDArray[np.int64]


class Watch:
    """All triggers of a capture. Feed it with the records in their order, then tick()."""

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self._triggers = triggers
        self._states = {t.number: _States(t) for t in triggers if t.for_ns is not None}
        self._now_ns = 0

    def feed(
        self, rows: NDArray[Any], first_ns: int, present: Set[int] | None = None
    ) -> list[Hit]:
        """Ordered records of the capture's dtype; first_ns: the time of the first of them.

        present: the locations that they have; None: any.
        """
        hits: list[Hit] = []
        if not len(rows):
            return hits
        names = rows.dtype.names or ()
        times: I64 | None = None
        for trigger in self._triggers:
            states = self._states.get(trigger.number)
            if states is None and present is not None and not present & trigger.locations:
                continue
            mask = trigger.mask(rows)
            if states is None:
                if mask.any():
                    at = int(mask.argmax())
                    conn = int(rows["conn_id"][at]) if "conn_id" in names else 0
                    when = int(rows["time_ns"][at]) if "time_ns" in names else first_ns
                    hits.append(Hit(trigger.number, when, conn, int(np.count_nonzero(mask))))
                continue
            if not states.holding and not mask.any():
                continue
            if times is None:
                times = self._times(rows)
            hits += states.feed(rows, mask, times, present)
        return hits

    def tick(self, now_ns: int) -> list[Hit]:
        """All records up to this time were fed."""
        found = (states.tick(now_ns) for states in self._states.values() if states.holding)
        return [hit for hit in found if hit is not None]

    def _times(self, rows: NDArray[Any]) -> I64:
        """Times that never fall: records of a CPU may be a little out of order."""
        times: I64 = np.maximum.accumulate(rows["time_ns"].astype(np.int64))
        times = np.maximum(times, self._now_ns)
        self._now_ns = int(times[-1])
        return times


class _States:
    """One trigger's state of each connection."""

    def __init__(self, trigger: Trigger) -> None:
        assert trigger.for_ns is not None
        self._trigger = trigger
        self._for_ns = trigger.for_ns
        self._since = np.full(SLOTS, _NEVER, np.int64)
        """_NEVER: the condition does not hold."""
        self._fired = np.zeros(SLOTS, np.bool_)
        self._owner = np.zeros(SLOTS, np.uint64)
        self._seen = np.zeros(SLOTS, np.uint64)
        self._place = np.full(SLOTS, -1, np.int64)
        """For _update(): -1 between two calls."""
        self._least_ns = _NEVER
        """No condition that has not fired holds since an earlier time."""
        self.holding = 0
        """In how many slots the condition holds."""

    def feed(
        self,
        rows: NDArray[Any],
        mask: NDArray[np.bool_],
        times: I64,
        present: Set[int] | None,
    ) -> list[Hit]:
        conn: NDArray[np.uint64] = rows["conn_id"].astype(np.uint64)
        if self._trigger.together:
            conn = np.zeros(len(rows), np.uint64)
        elif present is None or present & _ENDS:
            location = rows["location"]
            ended = np.flatnonzero(np.isin(location, [*_ENDS]))
            if len(ended):
                closed = rows["callvalue"][ended] == State.CLOSE
                mask = mask.copy()
                mask[ended[closed | (location[ended] == Location.DESTROY)]] = False
        if not self._trigger.together:
            mask = mask & (conn > 0)
        slots = (conn & np.uint64(SLOTS - 1)).astype(np.uint16)
        last_ns = int(times[-1])
        if last_ns - int(times[0]) < self._for_ns and not self._is_due(last_ns):
            self._seen[slots] = conn
            if (self._seen[slots] == conn).all():  # else two connections share a slot
                self._update(slots, conn, mask, times)
                return []
        hot = self._since != _NEVER
        before = np.flatnonzero(hot)
        hot[slots[mask]] = True
        here = np.flatnonzero(hot[slots])
        if not len(here):
            return []
        touched = np.zeros(SLOTS, np.bool_)
        touched[slots[here]] = True
        before = before[touched[before]]
        # The states come first, each as the record that began it.
        slot = np.concatenate((before.astype(np.uint16), slots[here]))
        order = np.argsort(slot, kind="stable")
        slot = slot[order]
        ids = np.concatenate((self._owner[before], conn[here]))[order]
        when = np.concatenate((self._since[before], times[here]))[order]
        holds = np.concatenate((np.ones(len(before), np.bool_), mask[here]))[order]
        fired = np.concatenate((self._fired[before], np.zeros(len(here), np.bool_)))[order]
        return self._runs(slot, ids, when, holds, fired)

    def _is_due(self, now_ns: int) -> bool:
        """Whether a condition may have held long enough by then."""
        if now_ns - self._for_ns < self._least_ns:
            return False
        waiting = self._since[~self._fired]
        self._least_ns = int(waiting.min()) if len(waiting) else _NEVER
        return now_ns - self._for_ns >= self._least_ns

    def _update(
        self,
        slots: NDArray[np.uint16],
        conn: NDArray[np.uint64],
        mask: NDArray[np.bool_],
        times: I64,
    ) -> None:
        """Take over records of so short a time that nothing fires in it, without sorting them.

        Of several values for one slot, numpy keeps the last.
        """
        if self._trigger.restarts:
            self._since[slots] = np.where(mask, times, _NEVER)
            self._owner[slots], self._fired[slots] = conn, False
            self._least_ns = min(self._least_ns, int(times[0]))
        else:
            false = np.flatnonzero(~mask)
            self._place[slots[false]] = false
            true = np.flatnonzero(mask)
            true = true[true > self._place[slots[true]]]  # those after the slot's last false one
            at = slots[true]
            goes_on = (self._place[at] < 0) & (self._since[at] != _NEVER)
            begins = true[~(goes_on & (self._owner[at] == conn[true]))][::-1]
            self._place[slots[false]] = -1
            self._since[slots[false]] = _NEVER
            at = slots[begins]
            self._since[at], self._owner[at], self._fired[at] = times[begins], conn[begins], False
            if len(begins):
                self._least_ns = min(self._least_ns, int(times[begins[-1]]))
        self.holding = int(np.count_nonzero(self._since != _NEVER))

    def tick(self, now_ns: int) -> Hit | None:
        if not self._is_due(now_ns):
            return None
        due = np.flatnonzero((self._since <= now_ns - self._for_ns) & ~self._fired)
        if not len(due):
            return None
        self._fired[due] = True
        first = due[self._since[due].argmin()]
        when = int(self._since[first]) + self._for_ns
        return Hit(self._trigger.number, when, int(self._owner[first]), len(due))

    def _runs(
        self,
        slot: NDArray[np.uint16],
        ids: NDArray[np.uint64],
        when: I64,
        holds: NDArray[np.bool_],
        fired: NDArray[np.bool_],
    ) -> list[Hit]:
        """Records grouped by slot, in order of time. A run begins where the condition begins to
        hold, and ends at the connection's next record that does not continue it."""
        same = np.zeros(len(slot), np.bool_)
        same[1:] = (slot[1:] == slot[:-1]) & (ids[1:] == ids[:-1])
        starts = holds.copy()
        if not self._trigger.restarts:
            starts[1:] &= ~(same[1:] & holds[:-1])
        runs = np.flatnonzero(starts)
        breaks = np.append(np.flatnonzero(starts | ~holds | ~same), len(slot))
        end = breaks[np.searchsorted(breaks, runs, "right")]
        inside = np.minimum(end, len(slot) - 1)
        until = np.where((end < len(slot)) & same[inside], when[inside], when[end - 1])
        hit = (until - when[runs] >= self._for_ns) & ~fired[runs]
        self._keep(slot, ids, when, holds, runs, fired[runs] | hit)
        if not hit.any():
            return []
        found = runs[hit]
        first = found[when[found].argmin()]
        at = int(when[first]) + self._for_ns
        return [Hit(self._trigger.number, at, int(ids[first]), len(found))]

    def _keep(
        self,
        slot: NDArray[np.uint16],
        ids: NDArray[np.uint64],
        when: I64,
        holds: NDArray[np.bool_],
        runs: NDArray[np.intp],
        fired: NDArray[np.bool_],
    ) -> None:
        """The last record of each slot says whether its condition still holds."""
        self._since[slot] = _NEVER
        last = np.flatnonzero(np.append(slot[1:] != slot[:-1], True) & holds)
        run = np.searchsorted(runs, last, "right") - 1
        self._since[slot[last]] = when[runs[run]]
        self._fired[slot[last]] = fired[run]
        self._owner[slot[last]] = ids[last]
        if len(last):
            self._least_ns = min(self._least_ns, int(when[runs[run]].min()))
        self.holding = int(np.count_nonzero(self._since != _NEVER))
