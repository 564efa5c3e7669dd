# SPDX-License-Identifier: Apache-2.0
"""The writer, in the spool's thread: where files begin and end; appender.py writes what is between.

    ... records | END          the next file is made first, with room for its beginning and its end
                 \\ beginning | records ...

Where that fails, or the file cannot be ended, the file goes on, and `Written.rotation_error` has
the reason. So a rotation loses nothing that would not have been lost without it. A dump of the
flight recorder is such a file, without one before it; what comes between two dumps is not written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.writer.appender import Appender
from tcpkmon.collector.writer.codec import Codec, File, Segment
from tcpkmon.collector.writer.file_sink import HEADER_BYTES, FileSink
from tcpkmon.collector.writer.output_file import CHECK, pack_check
from tcpkmon.collector.writer.segment_folder import Segments, is_absent, write_first
from tcpkmon.collector.writer.tape import Beginning, Ending
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.errors import FileError


class Writer(Appender):
    """Writes batches and items to files, without a queue or a thread.

    open_file: makes the file of a CPU with its first bytes, where the output does not rotate.
    segments: without them it cannot. direct: see FileSink. Others: see Appender.
    """

    def __init__(
        self,
        codec: Codec,
        written: Written | None = None,
        open_file: Callable[[int, bytes], int] | None = None,
        segments: Segments | None = None,
        journal: Journal | None = None,
        direct: bool = True,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(codec, written, journal, now_ns)
        self._open_file = open_file
        self._segments = segments
        self._direct = direct
        self._segment: Segment | None = None
        self._closed_bytes = 0
        self.head_bytes = 0
        """Of the files that are written now: what they begin with."""
        self._gone: dict[str, int] = {}

    def open(self, first: Beginning, fd: int = -1) -> None:
        """Make the first files, with their beginnings. fd: of the segment. FileError, OSError."""
        self._segment = self._describe(first, first.cpus, None)
        for cpu in first.cpus:
            self._add(cpu, fd)
        self.head_bytes = self.segment_bytes()
        self._note_segment(self.written.segment)

    def go_on(self, files: Sequence[File], first: Beginning) -> None:
        """Go on with these files. first: what one of a CPU that comes later begins with."""
        self._segment = self._describe(first, first.cpus, None)
        for file in files:
            self.files[file.cpu] = file
        self._noting.commit(files, self.written)

    def sink(self, fd: int) -> FileSink:
        """Of a file of this capture."""
        codec = self._codec
        return FileSink(fd, codec.unit, reserve_bytes=codec.reserve_bytes, direct=self._direct)

    def begin(self, first: Beginning, last: Ending | None = None, why: str = "") -> None:
        """Begin the next segment, and end the one that is written, or go on with it. last: how it
        ends; None where none is written. why: for the index."""
        segments, cpus = self._segments, first.cpus or list(self.files)
        assert segments is not None
        if first.written is not None:
            self._forget(first.written)
        number = self.written.segment + (last is not None)
        try:
            fd = segments.open(number, first.named_ns)
        except (OSError, FileError) as error:
            self.written.rotation_error = error
            return
        sinks, failed = self._next_sinks(fd, cpus)
        if failed is None and last is not None and not self.end(last):
            failed = self.written.error
        if failed is not None:
            self.written.rotation_error = failed
            for sink in sinks.values():
                sink.close()
            segments.drop()
            return
        assert first.account is not None
        again = {self._codec.states_cpu: (self.written.states, 0)} if self.written.states else {}
        before = segments.previous(
            self.written, {**first.account.released, **again}, evicted=last is None
        )
        self._segment = self._describe(first, cpus, before, number)
        ended, self.files = self.files, {}
        self.files = {cpu: self._next_file(cpu, sink, ended) for cpu, sink in sinks.items()}
        # A sealed file is always followed by one with a beginning, though this process be killed.
        for file in self.files.values():
            self._put_head(file)
        self._note_segment(number)
        if ended:
            self._close(ended, why)
        self.written.segment = number
        segments.begin(None if ended else self.written.in_file.total())
        if first.states is not None:
            self._repeat(first.states)
        self.head_bytes = self.segment_bytes()

    def end(self, last: Ending) -> bool:
        """End the files that are written; False where none of them could be ended."""
        failed = self._control(last.items, last.mono_ns, reserved=True)
        if self._codec.per_cpu and self._segments is not None:
            self.written.last_seq = last.serials
        return len(failed) < max(1, len(self.files))

    def seal(self, why: str) -> None:
        """Sync and close the files; a segment gets its name. why: for the index."""
        files, self.files = self.files, {}
        if files:
            self._close(files, why)

    def close(self) -> None:
        """seal(), at the end of the capture."""
        self.seal("the end")
        if self._segments is not None and not self._is_there("", (0, 0)):
            self._gone[""] = 0

    @property
    def gone(self) -> dict[str, int]:
        """By name, files that were removed, moved or replaced while they were written, with their
        records; "": the output itself. Complete after close()."""
        return {**self._gone, **(self._segments.gone if self._segments is not None else {})}

    def kill(self, counts: Mapping[int, int]) -> None:
        """By CPU, records that were killed so far, of which what is written next tells."""
        self._noting.kill(counts)

    def segment_bytes(self) -> int:
        """Bytes in all files that are written now."""
        return sum(file.sink.end_bytes for file in list(self.files.values()))

    def bytes_written(self) -> int:
        """Bytes in all files."""
        return self._closed_bytes + self.segment_bytes()

    def _describe(
        self,
        first: Beginning,
        cpus: Collection[int],
        previous: Mapping[str, Any] | None,
        number: int | None = None,
    ) -> Segment:
        settings = self._codec.settings(first.info.settings, cpus)
        if self._segments is not None:
            number = self.written.segment if number is None else number
            settings = self._segments.describe(settings, number, previous)
        if first.recorder is not None:
            settings["recorder"] = first.recorder
        return Segment(first, settings, self._codec.notes(first.items, self.written, cpus), cpus)

    def _add(self, cpu: int, fd: int = -1) -> File:
        """Make a CPU's file, with its beginning on the disk. OSError, TcpkmonError."""
        assert self._segment is not None
        head = self._codec.head(self._segment, cpu, self.written)
        data = b"".join(head.pieces)
        began_ns = time.monotonic_ns()
        if self._segments is None:
            assert self._open_file is not None
            fd = self._open_file(cpu, data)
        else:
            fd = self._segments.open_file(cpu) if self._codec.per_cpu else fd
            write_first(fd, data)
        file = File(cpu, self.sink(fd), head_bytes=len(data))
        file.sink.wrote_ns = (began_ns, time.monotonic_ns())
        self.files[cpu] = file
        self._took(file, head)
        self._noting.commit((file,), self.written)
        return file

    def _next_sinks(
        self, fd: int, cpus: Collection[int]
    ) -> tuple[dict[int, FileSink], Exception | None]:
        """The next segment's files, with room for their beginnings and ends; the error if any.
        fd: of the segment: a file, or a folder of files."""
        assert self._segments is not None
        sinks: dict[int, FileSink] = {}
        head_bytes = max((file.head_bytes for file in self.files.values()), default=0)
        if self._codec.per_cpu:
            os.close(fd)
        try:
            for cpu in cpus:
                if self._codec.per_cpu:
                    fd = self._segments.open_file(cpu, is_next=True)
                there = self.files.get(cpu)
                sinks[cpu] = there.sink.another(fd) if there is not None else self.sink(fd)
                if (failed := sinks[cpu].prepare(head_bytes + HEADER_BYTES)) is not None:
                    return sinks, failed
        except (OSError, FileError) as error:
            return sinks, error
        return sinks, None

    def _next_file(self, cpu: int, sink: FileSink, ended: Mapping[int, File]) -> File:
        """A file of the segment that begins now; its beginning is not written yet."""
        assert self._segment is not None
        head = self._codec.head(self._segment, cpu, self.written)
        file = File(cpu, sink, head.state, head, head.nbytes)
        if (last := ended.get(cpu)) is not None:
            file.owed = last.owed
        return file

    def _close(self, files: Mapping[int, File], why: str) -> None:
        size_bytes = sum(file.sink.end_bytes for file in files.values())
        self._closed_bytes += size_bytes
        gone = {}
        for cpu, file in files.items():
            name, known = self._name(cpu), file.sink.identity
            if known is not None and not self._is_there(name, known):
                gone[name] = file.records
            self.written.sync_error = file.sink.close() or self.written.sync_error
        if self._segments is None:
            self._gone |= gone
            return
        is_gone = len(gone) == len(files)
        if not is_gone:  # of a log, files of some CPUs
            self._gone |= gone
        self._segments.seal(self.written, size_bytes, why, is_gone)

    def _name(self, cpu: int) -> str:
        """Of a file, in the output."""
        inner = str(cpu) if self._codec.per_cpu else ""
        segment = self._segments.name if self._segments is not None else ""
        return "/".join(filter(None, (segment, inner)))

    def _is_there(self, name: str, known: tuple[int, int]) -> bool:
        """Whether this file is under its name; True where nobody can say."""
        ask = self._segments.ask if self._segments is not None else self._open_file
        try:
            if ask is not None:
                os.close(ask(CHECK, pack_check(name, known)))
        except (OSError, FileError) as error:
            return not is_absent(error)
        return True

    def _note_segment(self, number: int) -> None:
        """All files of this segment have their beginnings."""
        name = self._segments.next if self._segments is not None else ""
        self._noting.segment(number, name, self.files.values(), self.written)

    def _repeat(self, states: Any) -> None:
        """Last records of earlier files, as records of a CPU of their own: its serials go on."""
        if "serial" in (states.entries.dtype.names or ()):
            serials = states.entries["serial"]
            serials += serials.dtype.type(self.written.states)
        self.written.states += len(states)
        self.write(states)
