# SPDX-License-Identifier: Apache-2.0
"""Makes the records of a MAGNeT file from those of the rings, in one order of all CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES
from tcpkmon.collector.sequencer.buffer_pool import even
from tcpkmon.collector.sequencer.merge import Share, flows
from tcpkmon.collector.sequencer.ordered_batch import LOCATION_WORD
from tcpkmon.collector.sequencer.part import Part
from tcpkmon.collector.writer.written import Place, Tally
from tcpkmon.formats.base.control import LossCause
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.header import OWN, Kind, data_of
from tcpkmon.formats.magnet.layout import FIELDS, FIRST_EVENT, LOST, MOST_LOST, NATIVE, Layout
from tcpkmon.formats.schema import Event, Schema, place_fields

CONNECTION = "connection"
"""The field that the events of the schema have: the record's sockid."""
PIECE_RECORDS = 1 << 15
_NO_RECORD = -1
_TIME = (np.dtype("=u8"), 4)
_POINT = (np.dtype("=u4"), 4 * LOCATION_WORD)
_PREFIXES = ("tcp_", "ip_")
Sources = tuple[tuple[str, tuple[np.dtype[Any], int]], ...]
"""For each field of a record in the file, its type and offset in a record of the rings."""


@dataclass(frozen=True)
class MagnetBatch:
    """Records for the file, in its order.

    entries: (n,) of the layout. keys: (n,) int32, cpu * NUMBERS + point, less than 0 for LOST.
    lost: how many LOST counts. last: by CPU, the last serial of a record here, or that LOST counts.
    """

    entries: NDArray[Any]
    keys: NDArray[np.int32]
    lost: int
    last: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        return int(self.entries.nbytes)

    def bytes(self, stop: int | None = None) -> memoryview:
        """The first records, as they are in the file."""
        return self.entries[:stop].view(np.uint8).data

    @property
    def records(self) -> int:
        """How many are records of events."""
        return int(np.count_nonzero(self.keys != _NO_RECORD))

    @property
    def span(self) -> int:
        """How many events it stands for."""
        return self.records + self.lost

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[Place]:
        """The records of a range, by (cpu, point)."""
        keys = self.keys[start:stop]
        found = np.bincount(keys[keys != _NO_RECORD])
        return Counter(
            {divmod(key, NUMBERS): int(found[key]) for key in np.flatnonzero(found).tolist()}
        )

    @property
    def first_ns(self) -> int:
        """The time of the first record."""
        return int(self.entries["timestamp"][0])

    def numbers(self, stop: int) -> int:
        """How many records there are up to a place, and how many were lost."""
        return stop + (self.lost - self.lost_from(stop) if self.lost else 0)

    def span_from(self, start: int) -> int:
        """How many events it stands for from a place on."""
        return self.counts(start).total() + self.lost_from(start)

    def tally(self, tally: Tally) -> None:
        tally.count(self.counts())

    def lost_from(self, start: int) -> int:
        """How many the LOST records from a place on count."""
        rest = self.entries[start:]
        return int(rest["size"][self.keys[start:] == _NO_RECORD].astype(np.int64).sum())


class Packing:
    """What of a ring's record goes where. kinds: the header's events. code_of: by point, the code.

    events: those of the capture, each with its point.
    """

    def __init__(self, schema: Schema, events: Iterable[tuple[int, Event]]) -> None:
        chosen = [(point, e) for point, e in events if any(f.name == CONNECTION for f in e.fields)]
        names = {field.name for _, event in chosen for field in event.fields}
        self.layout = NATIVE[any(name.startswith(_PREFIXES) for name in names)]
        self.kinds = OWN
        self.code_of = np.zeros(NUMBERS, np.uint32)
        self._group = np.zeros(NUMBERS, np.uint8)
        groups: dict[Sources, int] = {}
        for code, (point, event) in enumerate(chosen, FIRST_EVENT):
            data = data_of(event.name)
            name = event.name if event.name.startswith("MAGNET_") else f"MAGNET_{event.name}"
            self.kinds += (Kind(code, name, data),)
            self.code_of[point] = code
            sources = _sources(schema, event, data, self.layout)
            self._group[point] = groups.setdefault(sources, len(groups))
        self._groups = list(groups)

    def pack(self, parts: Sequence[Part]) -> Iterator[MagnetBatch]:
        """The records of all CPUs by time, with LOST where serials are missing."""
        total = sum(map(len, parts))
        if not total:
            return
        merged, step = flows(parts), even(total, max(PIECE_RECORDS, 128 * len(parts)))
        for start in range(0, total, step):
            stop = min(start + step, total)
            yield self._piece([flow.next(start, stop) for flow in merged], stop - start)

    def missing(
        self, counts: Iterable[int], cause: int, mono_ns: int, last: Mapping[int, int] | None = None
    ) -> MagnetBatch:
        """LOST records for events that are missing, of one moment."""
        gaps = np.array([count for count in counts if count], np.int64)
        numbers, sizes = _lost_sizes(gaps)
        entries = np.zeros(int(numbers.sum()), self.layout.dtype)
        entries["event"], entries["size"] = LOST, sizes
        entries["sockid"], entries["timestamp"] = cause, mono_ns
        keys = np.full(len(entries), _NO_RECORD, np.int32)
        return MagnetBatch(entries, keys, int(gaps.sum()), last or {})

    def _piece(self, shares: Sequence[Share], count: int) -> MagnetBatch:
        """A piece of a merge:

        serials of a CPU     7   8           11  12       9 and 10 are missing
        gaps                 0   0            2   0       missing before each record
        place                0   1            3   4       of each record in the piece
        LOST                         2                    its size is 2
        """
        place, total, lost = np.arange(count), count, 0
        if any(share.gaps is not None for share in shares):
            gaps, times = np.zeros((2, count), np.int64)
            for share in shares:
                times[share.where] = share.times_ns
                if share.gaps is not None:
                    gaps[share.where] = share.gaps
            numbers, sizes = _lost_sizes(gaps)
            place += np.cumsum(numbers)
            total, lost = count + len(sizes), int(gaps.sum())
        entries = np.zeros(total, self.layout.dtype)
        keys = np.full(total, _NO_RECORD, np.int32)
        if total > count:
            at = np.ones(total, np.bool_)
            at[place] = False
            entries["size"][at] = sizes
            entries["timestamp"][at] = np.repeat(times, numbers)
            entries["sockid"][at] = LossCause.KERNEL
        for share in shares:
            done = 0
            for rows in share.rows:
                self._fill(entries, keys, place[share.where[done : done + len(rows)]], share, rows)
                done += len(rows)
        if self.layout.data:
            entries["flags"] &= 0xFF  # those of the segment
        last = {share.cpu: int(share.serials[-1]) for share in shares if len(share.serials)}
        return MagnetBatch(entries, keys, lost, last)

    def _fill(
        self, entries: NDArray[Any], keys: Any, where: NDArray[Any], share: Share, rows: Any
    ) -> None:
        """Put some records of a CPU to their places."""
        points = np.minimum(rows.getfield(*_POINT), NUMBERS - 1)
        keys[where] = share.cpu * NUMBERS + points.astype(np.int32)
        entries["event"][where] = self.code_of[points]
        group = self._group[points]
        for number in np.unique(group).tolist():
            at: Any = np.flatnonzero(group == number)
            at = slice(None) if len(at) == len(rows) else at
            to = where[at]
            for name, source in self._groups[number]:
                entries[name][to] = rows.getfield(*source)[at]
            unknown = np.flatnonzero(entries["timestamp"][to] == 0)
            entries["timestamp"][to[unknown]] = rows.getfield(*_TIME)[at][unknown]


def _sources(schema: Schema, event: Event, data: str, layout: Layout) -> Sources:
    """Where the fields of a record in the file come from."""
    names = {CONNECTION: "sockid", "size": "size"}
    if event.name == "SOCK_SEND":
        names["entered"] = "timestamp"
    if layout.data and data:
        names |= {f"{data}_{name}": name for name in FIELDS[data]}
    if layout.data and data == "tcp":
        names["flags"] = "flags"
    found = {
        names[place.field.name]: (
            np.dtype(f"={'i' if place.type.signed else 'u'}{place.type.width}"),
            EVENT_HEAD_BYTES + place.offset,
        )
        for place in place_fields(schema, event)[0]
        if place.field.name in names and not place.is_raw
    }
    return tuple(sorted(({"timestamp": _TIME} | found).items()))


def _lost_sizes(gaps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many LOST records each gap needs, and the sizes of all."""
    numbers = -(-gaps // MOST_LOST)
    sizes = np.full(int(numbers.sum()), MOST_LOST, np.int64)
    with_any = gaps[gaps > 0]
    sizes[np.cumsum(numbers[gaps > 0]) - 1] = with_any - (numbers[gaps > 0] - 1) * MOST_LOST
    return numbers, sizes
