# SPDX-License-Identifier: Apache-2.0
"""Whole Klogger logs to text or tables, in bounded memory: what `tcpkmon decode` calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import UsageError
from formats.klogger.batch import LogBatch
from formats.klogger.choose import ALL, Choice
from formats.klogger.clock import LogClock
from formats.klogger.lines import CsvStyle, JsonStyle, Lines, PerlStyle, Style
from formats.klogger.merge import check_alike, merge_logs
from formats.klogger.reader import LogReader
from formats.klogger.table import LogEvent, LogFormat
from formats.lines import write_pages

Records = tuple[LogBatch, NDArray[np.int64]]
"""Records, and their times in ns of the clock asked for."""


@dataclass(frozen=True)
class Decoding:
    """Which records of which logs, in what order; clock as in --time."""

    readers: Sequence[LogReader]
    choice: Choice = ALL
    clock: str = "mono"
    merge: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for what cannot be, before anything is written."""
        self.choice.check([reader.format for reader in self.readers])
        for reader in self.readers:
            LogClock(reader.format, self.clock)
            if self.choice.needs_real_time:
                reader.format.need_clock()
            if self.merge:
                check_alike(self.readers[0], reader)

    def streams(self) -> Iterator[tuple[LogFormat, Iterator[Records]]]:
        """The chosen records of each log, one log after the other, or of all as one."""
        if self.merge:
            log = self.readers[0].format
            yield log, self._chosen(log, merge_logs(self.readers))
            return
        for reader in self.readers:
            yield reader.format, self._chosen(reader.format, reader.batches())

    def _chosen(self, log: LogFormat, batches: Iterator[LogBatch]) -> Iterator[Records]:
        clock = LogClock(log, self.clock, self._zero_ns())
        for batch in batches:
            places = self.choice.places(batch, clock)
            times = clock.times(batch)
            if places is None:
                yield batch, times
            elif len(places):
                yield batch.take(places), times[places]

    def _zero_ns(self) -> int:
        pairs = [reader.format.clock for reader in self.readers]
        return min((pair[0] for pair in pairs if pair is not None), default=0)

    def events(self) -> list[LogEvent]:
        """The chosen events that occur, in the order of the tables, each name of each log once."""
        found: dict[tuple[str, Any], LogEvent] = {}
        for reader in self.readers:
            present = reader.present()
            for event in self.choice.events_of(reader.format):
                if event.number in present:
                    found.setdefault((event.name, event.fields), event)
        return list(found.values())


def write_lines(decoding: Decoding, form: str, out: BinaryIO) -> None:
    """Write the records as perl, json or csv."""
    style = make_style(decoding, form)
    out.write(style.begin.encode())
    for log, records in decoding.streams():
        lines = Lines(log, style)
        write_pages(lines.pages(records), lines.make_worker, out)
    out.write(style.end.encode())


def make_style(decoding: Decoding, form: str) -> Style:
    """The style of perl, json or csv for what is decoded."""
    if form == "csv":
        return CsvStyle(decoding.clock, decoding.events())
    # As in 2007, a Perl hash has no CPU: the log is of one. Where several are read, it says which.
    styles: dict[str, Callable[[], Style]] = {
        "perl": lambda: PerlStyle(decoding.clock, with_cpu=len(decoding.readers) > 1),
        "json": lambda: JsonStyle(decoding.clock, with_cpu=True),
    }
    return styles[form]()


def write_parquet(decoding: Decoding, to: Path, force: bool = False) -> None:
    """Write the records as Parquet files into the folder `to`; into the file `to` if its name ends
    with .parquet, which can hold one event only. Raises UsageError, FileError."""
    from formats.export.log_parquet import ParquetFiles

    single = to.suffix == ".parquet"
    if single and len(decoding.choice.events or ()) != 1:
        raise UsageError(
            f"{to} can hold one event only", "choose it by --event NAME, or give a folder to -o"
        )
    with ParquetFiles(to, decoding.clock, single, force) as files:
        for _, records in decoding.streams():
            for batch, times in records:
                files.add(batch, times)
