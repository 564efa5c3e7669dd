# SPDX-License-Identifier: Apache-2.0
"""Pairs of events of a Klogger log: intervals, their statistics, the time of threads on CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.event import Event
from tcpkmon.formats.base.changes import Switches
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.klogger.batch import LogBatch, facts_of

CPU = "cpu"
RECORD_CPU = "(cpu)"
"""A key or what is carried: the CPU of the record, whatever fields the event has."""
COMM = "comm"
_PERCENTILES = (50, 90, 99)


@runtime_checkable
class Batched(Protocol):
    """A source of events as arrays: formats.analysis.Log."""

    def batches(self) -> Iterator[LogBatch]:
        """The events in time order, some at a time."""


class Interval(NamedTuple):
    """From one event to another: their common key and their times (CLOCK_MONOTONIC)."""

    key: Any
    start_ns: int
    stop_ns: int

    @property
    def duration_ns(self) -> int:
        """The length of the interval."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True)
class Statistics:
    """Statistics of durations in ns; all are 0 if there is none."""

    count: int
    total_ns: int
    mean_ns: float
    deviation_ns: float
    least_ns: int
    median_ns: float
    p90_ns: float
    p99_ns: float
    most_ns: int

    @classmethod
    def of(cls, durations_ns: Sequence[int] | NDArray[np.int64]) -> Statistics:
        """The statistics of (n,) durations."""
        every = np.asarray(durations_ns, np.int64)
        if not len(every):
            return cls(0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0)
        half, p90, p99 = np.percentile(every, _PERCENTILES).tolist()
        return cls(
            len(every), int(every.sum()), float(every.mean()), float(every.std()),
            int(every.min()), half, p90, p99, int(every.max()),
        )  # fmt: skip


@dataclass(frozen=True)
class Intervals:
    """n pairs of events, ordered by their ends.

    keys: an (n,) array for each name of `key`, `same` and `carry`: int64, or bytes for text.
    starts_ns, stops_ns: (n,) int64, CLOCK_MONOTONIC. unstopped, unstarted: numbers of starts and
    stops without a partner.
    """

    keys: tuple[NDArray[Any], ...]
    starts_ns: NDArray[np.int64]
    stops_ns: NDArray[np.int64]
    unstopped: int = 0
    unstarted: int = 0

    def __len__(self) -> int:
        return len(self.starts_ns)

    def __iter__(self) -> Iterator[Interval]:
        return map(Interval, _keys(self.keys), self.starts_ns.tolist(), self.stops_ns.tolist())

    @property
    def durations_ns(self) -> NDArray[np.int64]:
        """(n,) int64."""
        return self.stops_ns - self.starts_ns

    def statistics(self) -> Statistics:
        """The statistics of all durations."""
        return Statistics.of(self.durations_ns)

    def by_key(self) -> dict[Any, Statistics]:
        """The statistics of the durations of each key."""
        order = np.lexsort(self.keys[::-1])
        sorted_keys = [column[order] for column in self.keys]
        first = np.flatnonzero(~_same(sorted_keys)) if len(self) else np.empty(0, np.int64)
        parts = np.split(self.durations_ns[order], first[1:])
        keys = _keys([column[first] for column in sorted_keys])
        return {key: Statistics.of(part) for key, part in zip(keys, parts, strict=False)}


def match_pairs(
    events: Batched | Iterable[Event],
    start: str | Sequence[str] = "EVENT_START",
    stop: str = "EVENT_STOP",
    key: str | Sequence[str] = "id",
    same: str | Sequence[str] = (),
    carry: str | Sequence[str] = (),
) -> Intervals:
    """Pairs each `stop` with the `start` directly before it with the same key, in time order.

    start: one or several events that begin an interval. key: one or several fields of both events,
    "tid=pid" if they have different names; "cpu" is the CPU if the events have no such field. A
    start directly before another start of its key has no stop, and a stop directly after a stop
    has no start. same: fields that must be equal too, or the two events are no pair. carry: fields
    of the start that the intervals keep. In a Log, keys of enumerated fields are numbers.
    UsageError for an event or a field that the log does not have.

    A Log is read in bounded memory except for the result; of other events all are in memory.
    """
    matcher = Matcher(_names(start), stop, _names(key), _names(same), _names(carry))
    if isinstance(events, Batched):
        for batch in events.batches():
            matcher.feed(batch)
    else:
        matcher.feed_events([one for one in events if one.type in (*_names(start), stop)])
    return matcher.intervals()


class Matcher:
    """match_pairs() by batches; intervals() returns the result."""

    def __init__(
        self,
        starts: Sequence[str],
        stop: str,
        keys: Sequence[str],
        same: Sequence[str] = (),
        carry: Sequence[str] = (),
    ) -> None:
        if not keys:
            raise UsageError("pairs need a key", 'key="cpu" takes the next stop on the CPU')
        self._starts, self._stop = tuple(starts), stop
        self._keys, self._same, self._carry = tuple(keys), tuple(same), tuple(carry)
        self._open: list[NDArray[Any]] | None = None  # the columns of starts without a stop yet
        self._found: list[list[NDArray[Any]]] = []
        self._unstopped = self._unstarted = 0
        self._points: set[int] = set()
        self._switches = Switches()

    def feed(self, batch: LogBatch) -> None:
        """Add the next batch, in time order."""
        events = [batch.format.event(name) for name in (*self._starts, self._stop)]
        self._points = {event.number for event in events}
        for _, change in facts_of(batch, Change):
            self._switches.feed(change)
        at = [batch.where(event) for event in events]
        place = np.concatenate(at)
        order = np.argsort(place, kind="stable")
        starts = order < len(place) - len(at[-1])
        columns = []
        for name in (*self._keys, *self._same, *self._carry):
            parts = [
                _column(batch, event.name, name.partition("=")[0], rows)
                for event, rows in zip(events[:-1], at[:-1], strict=True)
            ]
            if name in self._carry:
                parts.append(np.zeros(len(at[-1]), parts[0].dtype))
            else:
                parts.append(_column(batch, self._stop, name.rpartition("=")[2], at[-1]))
            columns.append(np.concatenate(parts)[order])
        columns.append(batch.times_ns[place[order]].astype(np.int64))
        if self._open is not None:
            starts = np.concatenate((np.ones(len(self._open[0]), np.bool_), starts))
            columns = [np.concatenate(pair) for pair in zip(self._open, columns, strict=True)]
        self._match(starts, columns)

    def feed_events(self, events: Sequence[Event]) -> None:
        """Add events of these types, in time order."""
        starts = [event.type in self._starts for event in events]
        columns = []
        for name in (*self._keys, *self._same):
            first, _, second = name.partition("=")
            fields = [first if is_start else second or first for is_start in starts]
            pairs = zip(events, fields, strict=True)
            columns.append(_array(e.get(f, e.cpu) if f == CPU else e[f] for e, f in pairs))
        for name in self._carry:
            of_starts = _array(event[name] for event in events if event.type in self._starts)
            columns.append(np.zeros(len(events), of_starts.dtype))
            columns[-1][np.array(starts, bool)] = of_starts
        columns.append(np.array([event.timestamp for event in events], np.int64))
        self._match(np.array(starts, bool), columns)

    def _match(self, starts: NDArray[np.bool_], columns: list[NDArray[Any]]) -> None:
        count = len(self._keys)
        order = np.lexsort(columns[:count][::-1])
        keys = [column[order] for column in columns[:count]]
        follows = _same(keys)[1:] if len(order) else np.empty(0, np.bool_)
        sorted_starts = starts[order]
        pair = np.flatnonzero(sorted_starts[:-1] & ~sorted_starts[1:] & follows)
        last = sorted_starts & np.append(~follows, True)[: len(order)]
        first, second = order[pair], order[pair + 1]
        for column in columns[count : count + len(self._same)]:
            good = column[first] == column[second]
            first, second = first[good], second[good]
        by_end = np.argsort(second, kind="stable")
        first, second = first[by_end], second[by_end]
        times = columns[-1]
        if len(first):
            found = [column[first] for column in columns[:-1]]
            self._found.append([*found, times[first], times[second]])
        still = np.sort(order[last])
        self._open = [column[still] for column in columns]
        self._unstarted += int((~starts).sum()) - len(second)
        self._unstopped += int(starts.sum()) - len(first) - len(still)

    def take(self) -> Intervals:
        """The pairs since the last take(), which are forgotten; unstopped counts what is open."""
        found = self.intervals()
        self._found, self._unstopped, self._unstarted = [], 0, 0
        return found

    def intervals(self) -> Intervals:
        """All pairs, but for those across a span in which one of the events was switched off."""
        count = len(self._keys) + len(self._same) + len(self._carry) + 2
        columns: list[NDArray[Any]] = [np.empty(0, np.int64)] * count
        if self._found:
            columns = [np.concatenate(parts) for parts in zip(*self._found, strict=True)]
        across = np.zeros(len(columns[0]), np.bool_)
        for off in self._switches.all():
            if off.point in self._points:
                last_ns = np.iinfo(np.int64).max if off.end_ns is None else off.end_ns
                across |= (columns[-2] <= last_ns) & (columns[-1] >= off.begin_ns)
        *keys, starts, stops = (column[~across] for column in columns)
        unstopped = self._unstopped + (0 if self._open is None else len(self._open[0]))
        cut = int(across.sum())
        return Intervals(tuple(keys), starts, stops, unstopped + cut, self._unstarted + cut)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _column(batch: LogBatch, event: str, name: str, at: NDArray[np.int64]) -> NDArray[Any]:
    """A field of the records of an event as int64 or bytes; "cpu" without such a field: the CPU."""
    field = batch.format.event(event).find_field(name)
    if name == RECORD_CPU or (field is None and name == CPU):
        return batch.cpus[at].astype(np.int64)
    if field is None:
        raise UsageError(f"event {event} has no field '{name}'")
    values = batch.rows(event, at)[name]
    if field.kind in ("int", "enum"):
        return values.astype(np.int64)
    return values if field.kind == "string" else values.view(f"S{field.length}")


def _same(columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """(n,) whether a row equals the row before it."""
    found = np.ones(len(columns[0]), np.bool_)
    found[:1] = False
    for column in columns:
        found[1:] &= column[1:] == column[:-1]
    return found


def _keys(columns: Sequence[NDArray[Any]]) -> list[Any]:
    """The key of each row: a value, or a tuple if there are several columns."""
    texts = [[text_of(v) if isinstance(v, bytes) else v for v in c.tolist()] for c in columns]
    return texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))


def _array(values: Iterable[Any]) -> NDArray[Any]:
    listed = [v.encode("utf-8", "backslashreplace") if isinstance(v, str) else v for v in values]
    return np.array(listed) if listed else np.empty(0, np.int64)


@dataclass(frozen=True)
class ProcessTime:
    """The time of a thread on CPUs: its slices from SCHEDIN to SCHEDOUT."""

    pid: int
    name: str
    on_cpu_ns: int
    slices: int
    longest_ns: int


def cpu_times(
    log: Batched, start: str = "SCHEDIN", stop: str = "SCHEDOUT", key: str = "pid"
) -> list[ProcessTime]:
    """The time on CPUs of each thread with a whole slice, longest first; pid 0 is idle time.

    A slice is a SCHEDIN and the next SCHEDOUT on the same CPU, if they have the same pid. Slices
    that the log has only in part, or that were lost, are not counted. A thread has the name that
    the last event with its pid and a `comm` has. UsageError for a log without these events.
    """
    matcher = Matcher((start,), stop, (CPU,), (key,))
    names: dict[int, str] = {}
    for batch in log.batches():
        matcher.feed(batch)
        _learn_names(batch, key, names)
    slices = matcher.intervals()
    pids, of = np.unique(slices.keys[1], return_inverse=True)
    total, longest = np.zeros(len(pids), np.int64), np.zeros(len(pids), np.int64)
    np.add.at(total, of, slices.durations_ns)
    np.maximum.at(longest, of, slices.durations_ns)
    counts = np.bincount(of, minlength=len(pids))
    rows = zip(pids.tolist(), total.tolist(), counts.tolist(), longest.tolist(), strict=True)
    found = [ProcessTime(pid, names.get(pid, ""), ns, n, most) for pid, ns, n, most in rows]
    return sorted(found, key=lambda one: (-one.on_cpu_ns, one.pid))


def _learn_names(batch: LogBatch, key: str, names: dict[int, str]) -> None:
    for event in batch.events():
        who, comm = event.find_field(key), event.find_field(COMM)
        if who is None or comm is None or who.kind != "int" or comm.kind != "string":
            continue
        rows = batch.rows(event)[::-1]
        pids, last = np.unique(rows[key], return_index=True)
        texts = map(text_of, rows[COMM][last].tolist())
        names.update(zip(pids.tolist(), texts, strict=True))
