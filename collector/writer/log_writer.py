# SPDX-License-Identifier: Apache-2.0
"""The writer of Klogger logs, in the spool's thread: a file per CPU, written in whole dumps.

Serials number the records and base events of a file. The serial of a record is the kernel's, plus
the number of base events before it in the file. So the serial of a lost record is missing:

                     dump 0  | dump 1    | dump 2
    kernel's serial          |    1  2   |     3     5       record 4 was lost
    serial in file   1 ... 5 | 6  7  8  9| 10 11    13 14    12 is missing
                             | ^        ^| ^           ^     base events: DUMP_BEGIN, DUMP_FINISH
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ring.journal import Journal
from collector.ring.points import EVENT_HEAD_BYTES, FIRST_EVENT
from collector.sequencer.cpu_queue import Part
from collector.sequencer.ordered_batch import count_places
from collector.writer.base_events import EVERY_CPU, FIRST_CPU, Note
from collector.writer.file_sink import HEADER_BYTES, FileSink, cause_of
from collector.writer.function_names import FunctionNames
from collector.writer.log_batch import LogBatch, points_of
from collector.writer.log_file import LogFile, make_dump
from collector.writer.log_noting import LogNoting
from collector.writer.segment_folder import Segments
from collector.writer.turn import Turn
from collector.writer.written import END_TRIES, RETRY_NS, Place, Written
from formats.base.control import EXISTING, LossCause
from formats.base.errors import FileError, TcpkmonError
from formats.klogger.describe import SNAPSHOT_NUMBER
from formats.klogger.encode import Packed, finish_dump, pack_event, pack_records
from formats.klogger.table import LogFormat

DUMP_ROWS = 1 << 15
_U64 = np.uint64


class LogWriter:
    """Writes dumps. open_file: makes the file of a CPU that has none yet; OSError, TcpkmonError.

    mixed: the schema tcp and others share the rings, so payloads begin at different offsets.
    names: fills in names of functions. segments: without them it cannot rotate. journal: has notes
    of all files, for who goes on with them. written: what is in the files already.
    """

    def __init__(
        self,
        log: LogFormat,
        open_file: Callable[[int], LogFile],
        mixed: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
        names: FunctionNames | None = None,
        segments: Segments | None = None,
        journal: Journal | None = None,
        written: Written | None = None,
    ) -> None:
        self._segments = segments
        self._noting = LogNoting(journal)
        self._closed_bytes = 0
        self._names = names
        self.written = Written() if written is None else written
        self._log = log
        self._open_file = open_file
        self._mixed = mixed
        self._now_ns = now_ns
        self._files: dict[int, LogFile] = {}
        self._failed: OSError | None = None
        self._retry_ns = 0
        self._cached = False

    def begin(self, cpu: int, file: LogFile) -> None:
        """Add a file that has its first dump."""
        self._files[cpu] = file
        self._noting.file(cpu, file, self.written.segment)

    def begun(self) -> None:
        """All files of the first segment have their beginnings."""
        name = self._segments.name if self._segments is not None else ""
        self._noting.segment(self.written.segment, name, self.written)

    def write(self, *batches: LogBatch, cached: bool = False) -> None:
        """Write batches in dumps. When a dump fails, its records count as dropped.

        cached: see collector/writer/file_sink.py.
        """
        self._cached = cached
        for part in (part for batch in batches for part in batch.parts):
            points = points_of(part.rows)
            for start in range(0, len(points), DUMP_ROWS):
                chosen = slice(start, start + DUMP_ROWS)
                counts = count_places(part.cpu, points[chosen])
                error = self._records(part, chosen, points[chosen])
                if error is None:
                    self.written.in_file.update(counts)
                    self.written.entries += len(points[chosen])
                    self._noting.count("in_file", counts)
                else:
                    self._drop(cause_of(error), counts)
                if (file := self._files.get(part.cpu)) is not None:
                    file.serial = int(part.serials[chosen][-1])
                    self._noting.file(part.cpu, file, self.written.segment, records=True)

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        """Count records that were dropped before they came here."""
        self._drop(cause, counts)

    def control(
        self, build: Callable[[Written], Iterable[Note]], mono_ns: int, *, reserved: bool = False
    ) -> bool:
        """Write base events, one dump in each file; False when a write failed."""
        notes = list(build(self.written))
        for cpu in {note.cpu for note in notes} - self._files.keys() - {EVERY_CPU, FIRST_CPU}:
            self._file(cpu)
        good = True
        for cpu in sorted(self._files):
            owed = self._files[cpu].owed
            own = [*owed, *(note for note in notes if self.is_for(note, cpu))]
            for _ in range(END_TRIES if reserved else 1):
                error = self._notes(cpu, own, mono_ns, reserved) if own else None
                if error is None:
                    break
            owed[:] = [note for note in own if note.name == "CHANGE"] if error is not None else []
            if error is not None:
                good = False
                self.written.refused += len(own)
            elif not reserved:  # who goes on leaves out an end
                self._noting.file(cpu, self._files[cpu], self.written.segment)
        return good

    def is_for(self, note: Note, cpu: int) -> bool:
        """Whether this CPU's file gets the base event."""
        if note.cpu == FIRST_CPU:
            return cpu == min(self._files, default=cpu)
        return note.cpu in {EVERY_CPU, cpu}

    def sync(self) -> None:
        """Sync the files."""
        for file in self._files.values():
            self.written.sync_error = file.sink.sync() or self.written.sync_error

    def rotate(self, turn: Turn) -> None:
        """End all files and begin those of the next segment, or go on with these: see turn.py.

        turn.first makes a function of CPU and sink, which returns a file with its head.
        """
        assert self._segments is not None
        try:
            os.close(self._segments.open(self.written.segment + 1, turn.realtime_ns))
        except (OSError, FileError) as error:
            self.written.rotation_error = error
            return
        sinks, failed = self._next_sinks()
        if failed is not None:
            self.written.rotation_error = failed
            for sink in sinks.values():
                sink.close()
            self._segments.drop()
            return
        # Each file has room for its end. Where that cannot be written, its tail is unknown.
        self.control(turn.last, turn.mono_ns, reserved=True)
        if turn.last_seq is not None:
            self.written.last_seq = turn.last_seq
        make, ended = turn.first(self.written), self._files
        self._files = {cpu: make(cpu, sink) for cpu, sink in sinks.items()}
        for cpu, file in self._files.items():
            file.owed, file.serial = ended[cpu].owed, ended[cpu].serial
            self._put_head(file)
            self._noting.file(cpu, file, self.written.segment + 1)
        # A sealed segment is always followed by one that can be gone on with.
        self._noting.segment(self.written.segment + 1, self._segments.next, self.written)
        self._seal(ended, turn.why)
        self.written.segment += 1
        self._segments.begin()

    def _next_sinks(self) -> tuple[dict[int, FileSink], Exception | None]:
        """The next segment's files, with room for their beginnings and ends; the error if any."""
        assert self._segments is not None
        sinks: dict[int, FileSink] = {}
        try:
            for cpu, file in self._files.items():
                sinks[cpu] = file.sink.another(self._segments.open_file(cpu, is_next=True))
                if (failed := sinks[cpu].prepare(file.head_bytes + HEADER_BYTES)) is not None:
                    return sinks, failed
        except (OSError, FileError) as error:
            return sinks, error
        return sinks, None

    @property
    def cpus(self) -> Collection[int]:
        """Those that have a file."""
        return self._files.keys()

    def close(self) -> None:
        """Sync and close the files; a segment gets its name."""
        self.seal("the end")
        self._files = {}

    def discard(self) -> None:
        """Close the files of a segment that is not begun."""
        for file in self._files.values():
            file.sink.close()

    def seal(self, why: str) -> None:
        """Sync and close the files; a segment gets its name. why: for the index."""
        self._seal(self._files, why)

    def _seal(self, files: Mapping[int, LogFile], why: str) -> None:
        size_bytes = sum(file.sink.end_bytes for file in files.values())
        self._closed_bytes += size_bytes
        for file in files.values():
            self.written.sync_error = file.sink.close() or self.written.sync_error
        if self._segments is not None:
            self._segments.seal(self.written, size_bytes, why)

    def segment_bytes(self) -> int:
        """Bytes in all files that are written now."""
        return sum(file.sink.end_bytes for file in list(self._files.values()))

    def bytes_written(self) -> int:
        """Bytes in all files."""
        return self._closed_bytes + self.segment_bytes()

    def _drop(self, cause: LossCause, counts: Counter[Place]) -> None:
        self.written.dropped(cause).update(counts)
        self._noting.count(cause.name.lower(), counts)

    def _file(self, cpu: int) -> LogFile | OSError:
        if cpu not in self._files:
            try:
                self._files[cpu] = self._open_file(cpu)
            except OSError as error:
                return error
            except TcpkmonError as error:
                cause = error.__cause__
                return cause if isinstance(cause, OSError) else OSError(5, error.message)
        return self._files[cpu]

    def _records(self, part: Part, chosen: slice, points: NDArray[Any]) -> OSError | None:
        if self._failed is not None and self._now_ns() < self._retry_ns:
            return self._failed
        file = self._file(part.cpu)
        if isinstance(file, OSError):
            self.written.error = file
            return file
        numbers, rows, start = self._payloads(points, part.rows[chosen])
        if self._names is not None:
            self._names.fill(numbers, rows, start)
        begin, now_ns = self._begin(file), self._now_ns()
        offset = file.inserted + 1 - file.before
        serials = (part.serials[chosen] + offset).astype(_U64)
        packed = pack_records(
            numbers, rows, serials, part.times_ns[chosen].astype(_U64),
            self._log.payload_sizes, start,
        )  # fmt: skip
        last = int(serials[-1]) + 1
        data = finish_dump(self._log, file.dumps, [begin, packed], last, now_ns)
        return self._put(file, data, last, 2, reserved=False)

    def _notes(
        self, cpu: int, notes: Sequence[Note], mono_ns: int, reserved: bool
    ) -> OSError | None:
        file = self._files[cpu]
        data, last = make_dump(self._log, file.last, file.dumps, notes, mono_ns)
        return self._put(file, data, last, len(notes) + 2, reserved)

    def _begin(self, file: LogFile) -> Packed:
        return pack_event(
            self._log, "DUMP_BEGIN", {"index": file.dumps}, file.last + 1, self._now_ns()
        )

    def _put(
        self, file: LogFile, data: bytes, last: int, inserted: int, reserved: bool
    ) -> OSError | None:
        """Write a whole dump or nothing. Serials advance only when it is in the file."""
        if file.head and (error := self._put_head(file)) is not None:
            return error
        outcome = file.sink.write(data, whole=True, reserved=reserved, cached=self._cached)
        self.written.error = self._failed = outcome.error
        if outcome.error is not None:
            self._retry_ns = self._now_ns() + RETRY_NS
            return outcome.error
        file.last = last
        file.inserted += inserted
        file.dumps += 1
        return None

    def _put_head(self, file: LogFile) -> OSError | None:
        """Write the beginning of a file, if it is not there yet."""
        outcome = file.sink.write(file.head, whole=True, reserved=True)
        self.written.error = self._failed = outcome.error
        if outcome.error is not None:
            self._retry_ns = self._now_ns() + RETRY_NS
            return outcome.error
        file.head = b""
        return None

    def _payloads(
        self, points: NDArray[Any], rows: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Event numbers, rows, and the offset of the payload in a row."""
        snapshots = (points < FIRST_EVENT) | (points == EXISTING)
        if not snapshots.any():
            return points, rows, EVENT_HEAD_BYTES
        numbers = np.where(snapshots, SNAPSHOT_NUMBER, points)
        if not self._mixed:
            return numbers, rows, 0
        size = rows.dtype.itemsize
        moved = np.zeros((len(rows), EVENT_HEAD_BYTES + size), np.uint8)
        table = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), size)
        moved[snapshots, EVENT_HEAD_BYTES:] = table[snapshots]
        moved[~snapshots, :size] = table[~snapshots]
        return numbers, moved.view(f"V{EVENT_HEAD_BYTES + size}")[:, 0], EVENT_HEAD_BYTES
