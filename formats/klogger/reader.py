# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a Klogger log in bounded memory, and checks everything in it."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.files import InputFile
from tcpkmon.formats.base.limits import MOST_LOG_HEADER_BYTES
from tcpkmon.formats.base.segments import has_earlier
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.encode import (
    DUMP_FINISH,
    MAGIC,
    PREAMBLE,
)
from tcpkmon.formats.klogger.losses import Losses
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import RECORD_HEAD_BYTES, LogFormat
from tcpkmon.formats.klogger.walk import DumpHead, DumpWalk, list_bytes

DUMP_BEGIN = "DUMP_BEGIN"
BATCH_RECORDS = 1 << 16
BATCH_BYTES = 2 << 20
_READ_BYTES = 1 << 20
Data = bytes | memoryview


class LogReader(InputFile, Source):
    """An open log. Raises FileError, or DamagedError for its header.

    cpu: the CPU whose records it holds. batches() updates `walked` too: where the dumps are.
    missing: what it says of logs that are not there.
    """

    def __init__(self, path: str | os.PathLike[str], missing: str = "") -> None:
        super().__init__(path)
        self.missing = missing
        with self.reading_header():
            self._read_header()
        self._forget()
        self.losses = Losses(self.format, self._follows)
        self.walked = self.walk()

    @property
    def _follows(self) -> bool:
        """Whether it is a segment after others."""
        return has_earlier(self.header.get("settings"))

    def _read_header(self) -> None:
        preamble = self._read(0, PREAMBLE.size)
        if preamble[: len(MAGIC)] != MAGIC:
            raise DamagedError(
                "not a Klogger log", "one is kernlog.dump.cpuN, or their folder: --format klogger"
            )
        # The byte order is in the header, but its size, in the preamble, has that order already.
        for order in "<>":
            _, size, crc, self._spare = struct.unpack(order + PREAMBLE.format[1:], preamble)
            if size % 8 or not 0 < size <= min(MOST_LOG_HEADER_BYTES, self._size - PREAMBLE.size):
                continue
            data = self._read(PREAMBLE.size, size)
            if zlib.crc32(data) == crc:
                self._data_offset = PREAMBLE.size + size
                break
        else:
            raise DamagedError("the header is damaged, cut short or too large")
        try:
            header = json.loads(data.decode("utf-8"))
            json.dumps(header, ensure_ascii=False).encode()  # an escape may be half a character
        except (ValueError, RecursionError) as error:
            raise DamagedError("the header is no JSON") from error
        if not isinstance(header, dict):
            raise DamagedError("the header is no JSON object")
        self.header: dict[str, Any] = header
        self.format = LogFormat.of(header)
        self.cpu = self.format.cpu
        if self.format.order != order:
            raise DamagedError("the header's byteorder is not that of its size")

    def present(self) -> frozenset[int]:
        """As Source has it, from the dumps' lists of numbers."""
        found = np.zeros(1 << 16, np.bool_)
        for head in self.walk():
            try:
                found[self._numbers(head, self._read)] = True
            except DamagedError:
                continue
        return frozenset(np.flatnonzero(found).tolist())

    def walk(self) -> DumpWalk:
        """A new walk over the heads of the dumps."""
        return DumpWalk(self._read, self._data_offset, self._size, self.format.order)

    def batches(
        self, records: int = BATCH_RECORDS, most_bytes: int = BATCH_BYTES
    ) -> Iterator[LogBatch]:
        """All valid records in file order; a batch has at most `records` of one dump.

        Their encoded size is at most most_bytes, unless a single record is larger.
        """
        self._forget()
        self.losses = Losses(self.format, self._follows)
        self._last_serial = 0
        self.walked = self.walk()
        if self._spare:
            self._note(DamagedError("the unused word of the preamble is not zero", offset=16))
        try:
            for head in self.walked:
                try:
                    read = self._open_body(head, most_bytes)
                    for batch in self._records(head, read, records, most_bytes):
                        self.losses.add(batch)
                        yield batch
                except DamagedError as error:
                    what = f"dump {head.index}: {error.message}"
                    self._note(DamagedError(what, offset=head.body))
        except DamagedError as error:  # the file became shorter
            self._note(error)
        for found in self.walked.damage:
            self._note(found)

    def _open_body(self, head: DumpHead, most_bytes: int) -> Callable[[int, int], Data]:
        """Check a dump's checksum; returns read(offset in the file, size). Buffers a small dump."""
        crc, at, end = 0, head.body, head.end
        if head.body_bytes <= most_bytes:
            body = memoryview(self._read(at, head.body_bytes))
            crc = zlib.crc32(body)
        else:
            while at < end:
                piece = self._read(at, min(_READ_BYTES, end - at))
                crc = zlib.crc32(piece, crc)
                at += len(piece)
        if crc != head.crc:
            raise DamagedError("the checksum is wrong; what was in it is unknown")
        if head.body_bytes > most_bytes:
            return self._read
        return lambda at, size: body[at - head.body : at - head.body + size]

    def _numbers(self, head: DumpHead, read: Callable[[int, int], Data]) -> NDArray[Any]:
        return np.frombuffer(read(head.body, 2 * head.count), f"{self.format.order}u2")

    def _records(
        self, head: DumpHead, read: Callable[[int, int], Data], records: int, most_bytes: int
    ) -> Iterator[LogBatch]:
        """The records of a dump, after its checksum was verified."""
        numbers = self._numbers(head, read)
        sizes = self.format.payload_sizes
        counts = np.bincount(numbers, minlength=len(sizes))
        if len(counts) > len(sizes) or counts[sizes < 0].any():
            raise DamagedError("it lists an event that the header does not describe")
        lengths = (sizes + RECORD_HEAD_BYTES).astype(np.int64)
        if int(lengths @ counts) + list_bytes(head.count) != head.body_bytes:
            raise DamagedError("its records do not fill it")
        for name, number in ((DUMP_BEGIN, numbers[0]), (DUMP_FINISH, numbers[-1])):
            event = self.format.find_event(name)
            if event is not None and event.number != number:
                raise DamagedError(f"it has no {name} where it should be")
        at, done = head.body + list_bytes(head.count), 0
        while done < head.count:
            some = numbers[done : done + records]
            ends = np.cumsum(lengths[some])
            fit = max(int(np.searchsorted(ends, most_bytes, "right")), 1)
            some, ends = some[:fit], ends[:fit]
            size = int(ends[-1])
            words = np.frombuffer(read(at, size), np.uint64)
            yield self._parse(head, some, ends - lengths[some], words, first=not done)
            done += len(some)
            at += size

    def _parse(
        self, head: DumpHead, numbers: NDArray[Any], offsets: NDArray[Any], words: NDArray[Any],
        first: bool,
    ) -> LogBatch:  # fmt: skip
        order = self.format.order
        starts = offsets // 8
        heads = words.take(starts).view(f"{order}u4").reshape(-1, 2)
        serials, times = (
            words.take(starts + place).view(f"{order}u8").astype(np.uint64, copy=False)
            for place in (1, 2)
        )
        sizes = self.format.payload_sizes[numbers] + RECORD_HEAD_BYTES
        if (heads[:, 0] != numbers).any() or (heads[:, 1] != sizes).any():
            raise DamagedError("a record is not what the dump lists")
        if first and serials[0] != head.first_serial:
            raise DamagedError("its first serial is not that of its head")
        if int(serials[0]) <= self._last_serial or (serials[1:] <= serials[:-1]).any():
            raise DamagedError("its serials do not rise")
        self._last_serial = int(serials[-1])
        return LogBatch(
            self.format,
            numbers.astype(np.uint16),
            serials,
            times,
            np.full(len(starts), self.cpu, np.uint16),
            starts + RECORD_HEAD_BYTES // 8,
            words,
            head.index,
        )

    def _read(self, at: int, size: int) -> bytes:
        """Exactly `size` bytes. DamagedError if the file has become shorter."""
        data = self.read_at(at, size)
        if len(data) < size:
            raise DamagedError(f"the file ends at offset {at + len(data)}")
        return data
