# SPDX-License-Identifier: Apache-2.0
"""The events of a capture as arrays in time order: what an analysis needs of all CPUs' logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.source import Source

_ABSENT = -1


@dataclass(frozen=True)
class EventTable:
    """n events of one type, in time order.

    times_ns: (n,) int64, CLOCK_MONOTONIC. cpus: (n,) uint16. columns: the wanted fields, (n,) each.
    recorded: whether the capture logged this event at all.
    """

    times_ns: NDArray[np.int64]
    cpus: NDArray[np.uint16]
    columns: Mapping[str, Array]
    recorded: bool

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def numbers(self) -> dict[str, NDArray[np.int64]]:
        """The columns and `time_ns`, (n,) int64 each."""
        found = {name: values.astype(np.int64) for name, values in self.columns.items()}
        return {**found, "time_ns": self.times_ns}

    def take(self, at: Array | slice) -> EventTable:
        """The events at these indices or with this mask, in this order."""
        columns = {name: values[at] for name, values in self.columns.items()}
        return EventTable(self.times_ns[at], self.cpus[at], columns, self.recorded)


@dataclass
class Gathered:
    """The wanted events, and what the logs say of the capture as a whole.

    start_ns, stop_ns: CLOCK_MONOTONIC of the first and the last record. buffers: dumps in the logs.
    discarded: those that were left out because more events than allowed were missing from them,
    with the `discarded_events` that they held. lost: events known to be missing.
    """

    tables: dict[str, EventTable]
    start_ns: int = 0
    stop_ns: int = 0
    events: int = 0
    buffers: int = 0
    discarded: int = 0
    discarded_events: int = 0
    lost: int = 0

    def __getitem__(self, name: str) -> EventTable:
        return self.tables[name]

    @property
    def elapsed_ns(self) -> int:
        """From the header to the trailer: at least 1."""
        return max(self.stop_ns - self.start_ns, 1)


_Pieces = list[tuple[Array, Array, dict[str, Array]]]
"""Of one event: times, CPUs and columns."""


def gather(
    log: Log, wanted: Mapping[str, Sequence[str]], discard_lossy: int | None = None
) -> Gathered:
    """The wanted fields of the wanted events, by the event's name.

    An event that the log does not describe has an empty table, a field that it lacks is all 0.
    discard_lossy: leave out each dump (buffer) from which more events than that are missing.
    """
    pieces: dict[str, _Pieces] = defaultdict(list)
    found = Gathered({})
    firsts: list[int] = []
    lasts: list[int] = []
    for reader in log.readers:
        for dump, missing in dumps(reader):
            count = sum(len(batch) for batch in dump)
            found.buffers += 1
            firsts.append(int(dump[0].times_ns[0]))
            lasts.append(int(dump[-1].times_ns[-1]))
            if discard_lossy is not None and missing > discard_lossy:
                found.discarded += 1
                found.discarded_events += count
                continue
            found.events += count
            for batch in dump:
                _add(pieces, batch, wanted)
        found.lost += reader.losses.lost  # some have no serial, or come after the last record
    if firsts:
        found.start_ns, found.stop_ns = min(firsts), max(lasts)
    for name, fields in wanted.items():
        found.tables[name] = _join(log, name, pieces[name], fields)
    return found


def dumps(reader: Source) -> Iterator[tuple[list[LogBatch], int]]:
    """The batches of each dump of a log, and how many events are missing before its records."""
    held: list[LogBatch] = []
    last, missing = 0, 0
    for batch in reader.batches():
        if not len(batch):
            continue
        if held and batch.dump != held[0].dump:
            yield held, missing
            held, missing = [], 0
        missing += int(batch.serials[-1]) - last - len(batch)
        last = int(batch.serials[-1])
        held.append(batch)
    if held:
        yield held, missing


def _add(pieces: dict[str, _Pieces], batch: LogBatch, wanted: Mapping[str, Sequence[str]]) -> None:
    for event in batch.events():
        if event.name not in wanted:
            continue
        at = batch.where(event)
        rows = batch.rows(event, at)
        known = {field.name for field in event.fields if field.kind in ("int", "enum")}
        columns = {name: _native(rows[name]) for name in wanted[event.name] if name in known}
        pieces[event.name].append((batch.times_ns[at].astype(np.int64), batch.cpus[at], columns))


def _native(values: Array) -> Array:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def _join(log: Log, name: str, pieces: _Pieces, fields: Sequence[str]) -> EventTable:
    if not pieces:
        empty = {one: np.empty(0, np.int64) for one in fields}
        recorded = _is_recorded(log, name)
        return EventTable(np.empty(0, np.int64), np.empty(0, np.uint16), empty, recorded)
    times, cpus = (np.concatenate([piece[n] for piece in pieces]) for n in (0, 1))
    order = np.argsort(times, kind="stable")
    columns = {}
    for one in fields:
        parts = [rows.get(one, np.zeros(len(some), np.int64)) for some, _, rows in pieces]
        columns[one] = np.concatenate(parts)[order]
    return EventTable(times[order], cpus[order], columns, True)


def _is_recorded(log: Log, name: str) -> bool:
    """Whether the capture logged an event of which it has no record."""
    if log.format.find_event(name) is None:
        return False
    states = log.choose("LOGGING_EVENT")
    return all(one.get("enabled") != _ABSENT for one in states if one.get("name") == name)
