# SPDX-License-Identifier: Apache-2.0
"""The reader of MAGNeT files: a formats.klogger.source.Source, so all that reads logs reads them.

A record is an event, and its payload the whole record, as NATIVE has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.segments import find_capture, has_earlier, order, place_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.chain import Chain
from tcpkmon.formats.klogger.source import Missing, Source
from tcpkmon.formats.klogger.table import NUMBERS, LogEvent, LogField, LogFormat
from tcpkmon.formats.magnet.control import END, LEDGER, POINT_COUNTERS, points_of
from tcpkmon.formats.magnet.header import Kind, MagnetFile
from tcpkmon.formats.magnet.layout import CLOCK, FIELDS, LOST, MARK, NATIVE, Layout, convert
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk

SEGMENT = ".magnet"
_NAMES = {
    LOST: {"sockid": "cause", "size": "count"},
    MARK: {"sockid": "number", "size": "pid"},
    CLOCK: {"sockid": "realtime_ns", "timestamp": "mono_ns", "size": "uncertainty_ns"},
}
"""What the fields of the collector's own records are."""
_LOSSES = slice(2 + POINT_COUNTERS.index("written") + 1, 2 + POINT_COUNTERS.index("in_file"))


@dataclass
class Losses(Missing):
    """What is missing: by_records: what LOST records count, in `gaps` places.

    ledger, missed: of the proof in the header, or of the last LEDGER of a file of before, in all
    and what programs never saw. follows: it is a segment after others, whose losses the first
    LEDGER counts.
    """

    records: int = 0
    by_records: int = 0
    gaps: int = 0
    ledger: int = 0
    missed: int = 0
    complete: bool = False
    goes_on: bool = False
    follows: bool = False
    _before: tuple[int, int] | None = None

    @property
    def counted(self) -> tuple[int, int]:
        return self.by_records, self.ledger

    def describe(self) -> str:
        if not self.lost:
            return ""
        text = f"{self.lost} events lost; {self.by_records} missing in {self.gaps} places"
        return f"{text}, {self.missed} missed by programs" if self.missed else text

    def prove(self, proof: object) -> None:
        """The proof in the header, if there is one."""
        if not isinstance(proof, dict):
            return
        with suppress(AttributeError, KeyError, TypeError):  # verify says so
            lost = sum(sum(one["lost"].values()) for one in proof["events"].values())
            missed = sum(one["recursion"] + one["kprobe"] for one in proof["missed"])
            self.ledger, self.missed = max(int(lost), 0), max(int(missed), 0)

    def add(self, values: dict[str, Any]) -> None:
        """A LEDGER."""
        try:
            self.ledger = int(points_of(values)[:, _LOSSES].sum())
            programs = values.get("programs")
            rows = programs.values() if isinstance(programs, dict) else ()
            self.missed = max(sum(sum(row) for row in rows), 0)
            if self.follows and self._before is None:
                self._before = self.ledger, self.missed
            if self._before is not None:
                self.ledger -= self._before[0]
                self.missed -= self._before[1]
        except (DamagedError, TypeError):  # verify tells
            return


class MagnetReader(Source):
    """An open MAGNeT file. Closing it closes the file."""

    finish = "END"

    def __init__(self, file: MagnetFile) -> None:
        self.file = file
        self.path, self.header = file.path, file.header
        self.format = make_format(file)
        self.losses: Losses = Losses()
        self._forget()

    def close(self) -> None:
        self.file.close()

    def check_size(self) -> None:
        """UsageError unless the file is an array of records: for one without a header."""
        if self.file.cut_bytes or not self.file.count:
            size = self.file.layout.size
            raise UsageError(
                f"{self.path} is no array of records of {size} bytes",
                "give its layout: --bits, --data",
            )

    def _end(self) -> str:
        return super()._end() if self.file.has_header else ""

    def present(self) -> frozenset[int]:
        found = np.zeros(NUMBERS, np.bool_)
        for piece in Walk(self.file):
            if isinstance(piece, Piece):
                codes = piece.rows["event"]
                found[codes[codes < NUMBERS]] = True
        return frozenset(np.flatnonzero(found).tolist())

    def batches(self, records: int = 1 << 16) -> Iterator[LogBatch]:
        """All records of known events in the order of the file; at most `records` in a batch.

        A serial is the number of a record, of those that LOST counts too.
        """
        file, walk = self.file, Walk(self.file)
        follows = has_earlier(self.header.get("settings"))
        self._forget()
        self.losses = Losses(follows=follows)
        self.losses.prove(self.header.get("proof"))
        kinds, serial = file.data_kinds(), 1
        try:
            for piece in walk:
                if isinstance(piece, Entry):
                    if piece.kind == LEDGER:
                        self.losses.add(piece.values)
                    elif piece.kind == END:
                        self.losses.goes_on = piece.values.get("reason") == EndReason.ROTATED
                    continue
                rows, codes = piece.rows, piece.rows["event"]
                width = np.ones(len(codes), np.uint64)
                if file.has_header:
                    lost = codes == LOST
                    self.losses.gaps += int(np.count_nonzero(lost))
                    width[lost] = np.maximum(rows["size"][lost], 1)
                serials = np.cumsum(width) - width + np.uint64(serial % 2**64)
                serial += int(width.sum())
                good = file.is_known(codes)
                if not good.all():
                    rows, serials = rows[good], serials[good]
                self.losses.records += len(rows)
                self.losses.by_records = walk.lost
                for low in range(0, len(rows), records):
                    some = slice(low, low + records)
                    yield self._batch(rows[some], serials[some], kinds)
        except DamagedError as error:  # the file became shorter
            self._note(error)
        self.losses.complete = walk.ended
        size = file.layout.size
        for at, what in walk.problems:
            self._note(DamagedError(what, offset=at * size))
        self._more += walk.total - len(walk.problems)

    def _batch(self, rows: Any, serials: Any, kinds: Any) -> LogBatch:
        codes, count = rows["event"].astype(np.uint16), len(rows)
        layout = NATIVE[self.file.layout.data]
        plain = np.ascontiguousarray(convert(rows, self.file.layout, layout, kinds[codes]))
        return LogBatch(
            self.format,
            codes,
            serials,
            plain["timestamp"].copy(),
            np.zeros(count, np.uint16),
            np.arange(count, dtype=np.int64) * (layout.size // 8),
            plain.view(np.uint64),
        )


def open_reader(
    path: str | os.PathLike[str], layout: Layout | None = None, kinds: tuple[Kind, ...] = ()
) -> MagnetReader:
    """The reader of a file; see MagnetFile."""
    return MagnetReader(MagnetFile(path, layout, kinds))


def open_segments(*paths: Path) -> Source:
    """The reader of a folder of segments, or of some of them, as one file. FileError, DamagedError;
    UsageError for files of several captures."""
    files: list[Path] = []
    for path in paths:
        files += find_capture(path, SEGMENT, place_at) if path.is_dir() else [path]
    is_one = len(paths) == 1
    folder = paths[0] if is_one else paths[0].parent
    found = order(files, place_at, folder if is_one else None)
    every = [*found.unread, *found.paths]
    return Chain(folder, every, found.numbers, open_reader, found.describe())


def open_sources(*paths: Path) -> list[Source]:
    """The readers of files and folders; segments of one capture are read as one."""
    chained = [path for path in paths if path.is_dir() or (len(paths) > 1 and place_at(path)[0])]
    found = [open_segments(*chained)] if chained else []
    return [*found, *(open_reader(path) for path in paths if path not in chained)]


def place_at(path: Path) -> tuple[str, int]:
    """Capture and number of a segment; ("", 0) for a file that is none."""
    try:
        with MagnetFile(path) as file:
            return place_of(file.header.get("settings"))
    except TcpkmonError:
        return "", 0


def make_format(file: MagnetFile) -> LogFormat:
    """The events of a file, with the fields of their records."""
    layout = NATIVE[file.layout.data]
    events = [
        LogEvent(kind.code, kind.name, layout.size, tuple(_fields(kind, layout, file.has_header)))
        for kind in file.kinds
    ]
    header = {key: value for key, value in file.header.items() if key != "events"}
    return LogFormat(header, events, layout.order)


def _fields(kind: Kind, layout: Layout, has_header: bool) -> Iterator[LogField]:
    own = _NAMES.get(kind.code) if has_header else None
    names = own or {"sockid": "sockid", "size": "size"}
    for name in (*names, *(FIELDS[kind.data] if layout.data else ())):
        yield field_of(layout, name, names.get(name, name))


def field_of(layout: Layout, name: str, called: str = "") -> LogField:
    """A field of a record as that of an event."""
    assert layout.dtype.fields is not None
    dtype, offset = layout.dtype.fields[name][:2]
    signed = dtype.kind == "i"
    kind = f"{'' if signed else 'u'}int{8 * dtype.itemsize}"
    return LogField(called or name, "int", signed, offset, dtype.itemsize, kind)
