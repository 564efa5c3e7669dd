# SPDX-License-Identifier: Apache-2.0
"""What lies between two events of a Klogger log: pairs, their statistics, time spent on CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from formats.analysis.event import Event
from formats.base.errors import UsageError
from formats.base.text import text_of
from formats.klogger.batch import LogBatch

CPU = "cpu"
COMM = "comm"
_PERCENTILES = (50, 90, 99)


@runtime_checkable
class Batched(Protocol):
    """What gives its events as arrays: formats.analysis.Log."""

    def batches(self) -> Iterator[LogBatch]:
        """Some events at a time, in time order."""


class Interval(NamedTuple):
    """From one event to another: what they have in common, and when they were (CLOCK_MONOTONIC)."""

    key: Any
    start_ns: int
    stop_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True)
class Statistics:
    """Of n durations, all in ns; of none all are 0."""

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
        """(n,) durations."""
        every = np.asarray(durations_ns, np.int64)
        if not len(every):
            return cls(0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0)
        half, p90, p99 = np.percentile(every, _PERCENTILES).tolist()
        return cls(
            len(every),
            int(every.sum()),
            float(every.mean()),
            float(every.std()),
            int(every.min()),
            half,
            p90,
            p99,
            int(every.max()),
        )


@dataclass(frozen=True)
class Intervals:
    """n pairs of events in the order of their ends.

    keys: an (n,) array for each name of `key`, then of `same`: int64, or bytes for text. starts_ns,
    stops_ns: (n,) int64, CLOCK_MONOTONIC. unstopped, unstarted: events that found no partner.
    """

    keys: tuple[NDArray[Any], ...]
    starts_ns: NDArray[np.int64]
    stops_ns: NDArray[np.int64]
    unstopped: int = 0
    unstarted: int = 0

    def __len__(self) -> int:
        return len(self.starts_ns)

    def __iter__(self) -> Iterator[Interval]:
        columns = [_plain(column) for column in self.keys]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        starts, stops = self.starts_ns.tolist(), self.stops_ns.tolist()
        return map(Interval, keys, starts, stops)

    @property
    def durations_ns(self) -> NDArray[np.int64]:
        """(n,) how long each took."""
        return self.stops_ns - self.starts_ns

    def statistics(self) -> Statistics:
        """Of all durations."""
        return Statistics.of(self.durations_ns)

    def by_key(self) -> dict[Any, Statistics]:
        """Of the durations of each key."""
        order = np.lexsort(self.keys[::-1])
        sorted_keys = [column[order] for column in self.keys]
        first = np.flatnonzero(~_same(sorted_keys)) if len(self) else np.empty(0, np.int64)
        parts = np.split(self.durations_ns[order], first[1:])
        columns = [_plain(column[first]) for column in sorted_keys]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return {key: Statistics.of(part) for key, part in zip(keys, parts, strict=False)}


def match_pairs(
    events: Batched | Iterable[Event],
    start: str = "EVENT_START",
    stop: str = "EVENT_STOP",
    key: str | Sequence[str] = "id",
    same: str | Sequence[str] = (),
) -> Intervals:
    """Pairs each `stop` with the `start` directly before it of the same key, in time order.

    key: the field, or fields, that both events have; "cpu" is the CPU where they have no such
    field. A start that another start of its key follows has no stop, and a stop after a stop no
    start. same: fields in which the two must agree as well, or they are no pair. Of enumerated
    fields it takes the numbers. UsageError for an event or field that the log does not have.

    A Log is taken in arrays, in bounded memory but for the result; anything else event by event.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    agree = (same,) if isinstance(same, str) else tuple(same)
    if not isinstance(events, Batched):
        return _match_events(events, start, stop, keys, agree)
    matcher = Matcher(start, stop, keys, agree)
    for batch in events.batches():
        matcher.feed(batch)
    return matcher.intervals()


class Matcher:
    """match_pairs() a batch at a time; `intervals()` at the end."""

    def __init__(
        self, start: str, stop: str, keys: Sequence[str], same: Sequence[str] = ()
    ) -> None:
        if not keys:
            raise UsageError("pairs need a key", 'key="cpu" takes the next stop on the CPU')
        self._names = (start, stop)
        self._keys, self._same = tuple(keys), tuple(same)
        self._open: list[NDArray[Any]] | None = None  # the columns of starts without a stop yet
        self._found: list[list[NDArray[Any]]] = []
        self._unstopped = self._unstarted = 0

    def feed(self, batch: LogBatch) -> None:
        """The next batch, in time order."""
        events = [batch.format.event(name) for name in self._names]
        at = [batch.where(event) for event in events]
        place = np.concatenate(at)
        order = np.argsort(place, kind="stable")
        starts = np.repeat([True, False], [len(part) for part in at])[order]
        columns = []
        for name in (*self._keys, *self._same):
            parts = [_column(batch, e.name, name, p) for e, p in zip(events, at, strict=True)]
            columns.append(np.concatenate(parts)[order])
        columns.append(batch.times_ns[place[order]].astype(np.int64))
        if self._open is not None:
            starts = np.concatenate((np.ones(len(self._open[0]), np.bool_), starts))
            columns = [np.concatenate(pair) for pair in zip(self._open, columns, strict=True)]
        self._match(starts, columns)

    def _match(self, starts: NDArray[np.bool_], columns: list[NDArray[Any]]) -> None:
        count = len(self._keys)
        order = np.lexsort(columns[:count][::-1])
        keys = [column[order] for column in columns[:count]]
        follows = _same(keys)[1:] if len(order) else np.empty(0, np.bool_)
        sorted_starts = starts[order]
        pair = np.flatnonzero(sorted_starts[:-1] & ~sorted_starts[1:] & follows)
        last = sorted_starts & np.append(~follows, True)[: len(order)]
        first, second = order[pair], order[pair + 1]
        for column in columns[count:-1]:
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

    def intervals(self) -> Intervals:
        """All that were found."""
        count = len(self._keys) + len(self._same) + 2
        columns: list[NDArray[Any]] = [np.empty(0, np.int64)] * count
        if self._found:
            columns = [np.concatenate(parts) for parts in zip(*self._found, strict=True)]
        *keys, starts, stops = columns
        unstopped = self._unstopped + (0 if self._open is None else len(self._open[0]))
        return Intervals(tuple(keys), starts, stops, unstopped, self._unstarted)


def _column(batch: LogBatch, event: str, name: str, at: NDArray[np.int64]) -> NDArray[Any]:
    """A field of an event's records, as int64 or bytes; "cpu" where it has none: the CPU."""
    field = batch.format.event(event).find_field(name)
    if field is None and name == CPU:
        return batch.cpus[at].astype(np.int64)
    if field is None:
        raise UsageError(f"event {event} has no field '{name}'")
    values = batch.rows(event, at)[name]
    if field.kind in ("int", "enum"):
        return values.astype(np.int64)
    return values if field.kind == "string" else values.view(f"S{field.length}")


def _same(columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """(n,) whether a row is equal to the one before it."""
    found = np.ones(len(columns[0]), np.bool_)
    found[:1] = False
    for column in columns:
        found[1:] &= column[1:] == column[:-1]
    return found


def _plain(column: NDArray[Any]) -> list[Any]:
    return [text_of(v) if isinstance(v, bytes) else v for v in column.tolist()]


def _match_events(
    events: Iterable[Event], start: str, stop: str, keys: Sequence[str], same: Sequence[str]
) -> Intervals:
    waiting: dict[tuple[Any, ...], Event] = {}
    rows: list[tuple[tuple[Any, ...], int, int]] = []
    unstopped = unstarted = 0
    for event in events:
        if event.type not in (start, stop):
            continue
        key = tuple(event.get(n, event.cpu) if n == CPU else event[n] for n in keys)
        before = waiting.pop(key, None)
        if event.type == start:
            unstopped += before is not None
            waiting[key] = event
        elif before is None or any(before[name] != event[name] for name in same):
            unstopped += before is not None
            unstarted += 1
        else:
            agreed = tuple(event[name] for name in same)
            rows.append((key + agreed, before.timestamp, event.timestamp))
    none: list[tuple[Any, ...]] = [()] * (len(keys) + len(same))
    columns = zip(*(key for key, _, _ in rows), strict=True) if rows else none
    return Intervals(
        tuple(_array(column) for column in columns),
        np.array([begin for _, begin, _ in rows], np.int64),
        np.array([end for _, _, end in rows], np.int64),
        unstopped + len(waiting),
        unstarted,
    )


def _array(values: Iterable[Any]) -> NDArray[Any]:
    listed = [v.encode("utf-8", "backslashreplace") if isinstance(v, str) else v for v in values]
    return np.array(listed) if listed else np.empty(0, np.int64)


@dataclass(frozen=True)
class ProcessTime:
    """What a thread had of the CPUs: slices of time from SCHEDIN to SCHEDOUT, and their sum."""

    pid: int
    name: str
    on_cpu_ns: int
    slices: int
    longest_ns: int


def cpu_times(
    log: Batched, start: str = "SCHEDIN", stop: str = "SCHEDOUT", key: str = "pid"
) -> list[ProcessTime]:
    """Time on a CPU of each thread that had a whole slice, most first; pid 0 is idle time.

    On each CPU a SCHEDIN and the SCHEDOUT that comes next are a slice, if they are of the same
    pid; what ran when the log began or ended, and what was lost, has none. Names are the last
    `comm` that any event told of the pid. UsageError for a log without these events.
    """
    matcher = Matcher(start, stop, (CPU,), (key,))
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
