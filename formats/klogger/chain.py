# SPDX-License-Identifier: Apache-2.0
"""The files of one capture that follow one another, read as one file.

The events with which a segment ends and the next one begins are left out, so that nobody takes a
rotation for a pause:

    segment 1                              segment 2
    KLOGGER_START 1 2 3 KLOGGER_FINISH     KLOGGER_START 4 5 KLOGGER_FINISH
                        rotated: left out  left out          reason: asked
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.segments import place_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.losses import FINISH, START
from tcpkmon.formats.klogger.merge import check_alike
from tcpkmon.formats.klogger.overlap import Overlap
from tcpkmon.formats.klogger.reader import BATCH_RECORDS
from tcpkmon.formats.klogger.source import Missing, Source

Open = Callable[[Path], Source]


@dataclass
class Losses(Missing):
    """What is missing from all files that were read. A loss shortly before a rotation is in the
    ledger of one file and a gap of the next."""

    records: int = 0
    counted: tuple[int, int] = (0, 0)
    missed: int = 0
    complete: bool = False
    goes_on: bool = False
    files: int = 0
    """How many have losses."""

    def describe(self) -> str:
        return f"{self.lost} events lost, in {self.files} segment(s)" if self.lost else ""


class Chain(Source):
    """Several files, each of which is open only while it is read.

    path: what it is called for people. paths: in order, at least one; numbers: of these segments.
    opener: opens one; a file that it cannot open is damage. missing: what it says of files that are
    not there.
    """

    def __init__(
        self,
        path: Path,
        paths: Sequence[Path],
        numbers: Sequence[int],
        opener: Open,
        missing: str = "",
    ) -> None:
        self.path = path
        self._paths = paths
        self._numbers = frozenset(numbers)
        self._open = opener
        self.missing = missing
        self._forget()
        self.losses: Losses = Losses()
        self._tail = ""
        with self._first() as first:
            self.format, self.header = first.format, first.header

    def _first(self) -> Source:
        """The first file that can be opened, else the error of the first. batches() tells of the
        others."""
        for path in self._paths:
            with suppress(TcpkmonError):
                return self._open(path)
        return self._open(self._paths[0])

    def close(self) -> None:
        """Nothing is open."""

    def _end(self) -> str:
        return self._tail

    def present(self) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for path in self._paths:
            with suppress(TcpkmonError), self._open(path) as reader:
                found |= reader.present()
        return found

    def batches(self, records: int = BATCH_RECORDS) -> Iterator[LogBatch]:
        """All records in order, with serials that go on over the files."""
        self._forget()
        self.losses, self._tail = Losses(), ""
        serial = dump = 0
        overlap = Overlap()
        before: int | None = None  # the segment before this one, if it was read to its end
        for path in self._paths:
            try:
                reader = self._open(path)
            except TcpkmonError as error:
                self._note(DamagedError(f"{_name(path)}: left out: {error.message}"))
                continue
            with reader:
                try:
                    check_alike(self, reader)
                except UsageError:
                    self._note(DamagedError(f"{_name(path)}: left out: it is of another capture"))
                    continue
                _, own = place_of(reader.header.get("settings"))
                follows, goes_on = own - 1 == before, own + 1 in self._numbers
                overlap.begin(reader.format, reader.header)
                dumps, removed, last = 0, 0, serial
                for batch in reader.batches(records):
                    dumps = max(dumps, batch.dump + 1)
                    widths = overlap.widths(batch)
                    seam = self._seam(batch, follows, goes_on) | overlap.repeated(batch, widths)
                    kept = np.flatnonzero(~seam)
                    shift = np.cumsum(widths * seam)[kept] + removed
                    removed += int(widths[seam].sum())
                    self.losses.records += len(kept)
                    if not len(kept):
                        continue
                    serials = batch.serials[kept] + np.uint64(serial) - shift.astype(np.uint64)
                    last = int(serials[-1])
                    at = batch.dump + dump if batch.dump >= 0 else -1
                    yield replace(
                        batch.take(kept), format=self.format, serials=serials, dump=at
                    )
                serial, dump = last, dump + dumps
                self._conclude(path, reader, overlap.again)
                before = own if reader.losses.complete else None

    def _seam(self, batch: LogBatch, follows: bool, goes_on: bool) -> Any:
        """(n,) which records are there because of a rotation alone."""
        found = np.zeros(len(batch), np.bool_)
        start, finish = batch.format.find_event(START), batch.format.find_event(FINISH)
        if follows and start is not None and batch.dump == 0:
            found[batch.where(start)[:1]] = True
        if goes_on and finish is not None and (told := finish.find_field("reason")) is not None:
            at = batch.where(finish)
            if len(at) and told.kind in ("int", "enum"):
                found[at[batch.rows(finish, at)["reason"] == EndReason.ROTATED]] = True
        return found

    def _conclude(self, path: Path, reader: Source, again: int) -> None:
        """A file was read to its end. again: lost events of it that an earlier one counts."""
        losses = self.losses
        self._more += max(0, len(reader.problems) - 1)
        for problem in reader.problems[:1]:
            self._note(DamagedError(f"{_name(path)}: {problem}"))
        gaps, told = (max(0, count - again) for count in reader.losses.counted)
        losses.counted = losses.counted[0] + gaps, losses.counted[1] + told
        losses.missed += reader.losses.missed
        losses.complete = reader.losses.complete
        losses.files += max(gaps, told) + reader.losses.missed > 0
        is_last = path == self._paths[-1]
        if reader.tail:
            self._tail = f"{_name(path)}: {reader.tail}"
        elif is_last and reader.losses.goes_on:
            self._tail = f"tail unknown: another file follows {_name(path)}; it is not here"
            losses.complete, losses.goes_on = False, True


def _name(path: Path) -> str:
    """Of a file for people: in a folder of segments, with that of its own folder."""
    return os.path.join(path.parent.name, path.name) if path.name.startswith("kern") else path.name
