# SPDX-License-Identifier: Apache-2.0
"""Reads one Klogger log, or the logs of all CPUs of a capture: all records, or chosen ones.

tcpkmon.open() and `tcpkmon decode` use Logs; analysis scripts use formats.analysis.Log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.analysed import Analysed
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.base.segments import Ordered, find_capture, find_segments, order, place_of
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.text import some_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.chain import Chain
from tcpkmon.formats.klogger.choose import ALL, Choice
from tcpkmon.formats.klogger.clock import LogClock
from tcpkmon.formats.klogger.lines import (
    CsvStyle,
    JsonStyle,
    Lines,
    PerlStyle,
    SpreadsheetStyle,
    Style,
)
from tcpkmon.formats.klogger.merge import check_alike, merge_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import LogEvent, LogFormat
from tcpkmon.formats.klogger.tables import make_tables
from tcpkmon.formats.lines import write_pages

PREFIX = "kernlog.dump.cpu"
SEGMENT = ".klog"
LOG_NAME = re.compile(r"kernlog\.dump\.cpu(\d{1,5})\Z")
"""The file name of a CPU's log in a capture's folder."""

Stamped = tuple[LogBatch, NDArray[np.int64]]
"""Records, and their times in ns of the wanted clock."""


def find_logs(folder: str | os.PathLike[str]) -> list[Path]:
    """The logs in a folder, sorted by CPU. Raises FileError if there is none."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror}") from error
    found = sorted((int(match[1]), name) for name in names if (match := LOG_NAME.match(name)))
    if not found:
        raise FileError(f"no Klogger log in {folder}", "its files are kernlog.dump.cpuN")
    return [Path(folder, name) for _, name in found]


def open_logs(*paths: str | os.PathLike[str]) -> Logs:
    """Open a log, or all logs in a folder, or folders of one capture, merged in time order.

    Raises FileError, DamagedError for a header, UsageError for logs of different captures.
    """
    with ExitStack() as stack:
        sources = [stack.enter_context(one) for one in open_sources(*paths)]
        logs = Logs(sources, merge=len(sources) > 1)
        stack.pop_all()
        return logs


def open_sources(*paths: str | os.PathLike[str]) -> list[Source]:
    """The readers of logs: of files, of those in a folder, of each CPU's in a capture's segments.

    Segments of one capture, or the folder that they are in, are read as one log for each CPU.
    Raises FileError, or DamagedError for a header.
    """
    files: list[tuple[Path, str]] = []
    segments: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append((path, ""))
        elif find_segments(path):
            segments += find_capture(path, SEGMENT, place_at)
        elif len(paths) > 1 and place_at(path)[0]:
            segments.append(path)
        else:
            logs = find_logs(path)
            told = _missing(one.name for one in _begun(path) if one not in logs)
            files += [(one, told if one == logs[0] else "") for one in logs]
    with ExitStack() as stack:
        found: list[Source] = [
            stack.enter_context(LogReader(path, missing)) for path, missing in files
        ]
        if segments:
            folder = paths[0] if len(paths) == 1 else None
            found += _chains(order(segments, place_at, folder))
        stack.pop_all()
        return found


def _chains(found: Ordered) -> Iterator[Chain]:
    """A chain for each CPU. Logs that should be there and are not are damage of it."""
    of_cpu: dict[str, list[tuple[int, Path]]] = {}
    for number, folder in zip(found.numbers, found.paths, strict=True):
        for path in dict.fromkeys([*find_logs(folder), *_begun(folder)]):
            of_cpu.setdefault(path.name, []).append((number, path))
    names = sorted(of_cpu, key=lambda name: int(name.removeprefix(PREFIX)))
    there = [name for name in names if any(path.exists() for _, path in of_cpu[name])]
    absent = _missing(name for name in names if name not in there)
    missing = "; ".join(text for text in (found.describe(), absent) if text)
    for name in there:
        numbers, paths = zip(*of_cpu[name], strict=True)
        unread = [folder / name for folder in found.unread]
        yield Chain(found.paths[0].parent / name, [*unread, *paths], numbers, LogReader, missing)
        missing = ""


def place_at(folder: Path) -> tuple[str, int]:
    """Capture and number of the segment in a folder; ("", 0) for a log that is none, and for what
    cannot be read."""
    return place_of(_settings(folder))


def _begun(folder: Path) -> list[Path]:
    """The logs that were begun together in a folder, as the header of one of them says."""
    cpus = setting(_settings(folder), "logs")
    return [
        folder / f"{PREFIX}{cpu}"
        for cpu in (cpus if isinstance(cpus, list) else ())
        if type(cpu) is int and 0 <= cpu <= MOST_CPUS
    ]


def _missing(names: Iterable[str]) -> str:
    listed = list(names)
    return f"{some_of(listed, 8)} is missing" if listed else ""


def _settings(folder: Path) -> object:
    """The settings in the first header of a folder's logs that can be read; None if none can."""
    with suppress(TcpkmonError):
        for path in find_logs(folder):
            with suppress(TcpkmonError), LogReader(path) as reader:
                return reader.header.get("settings")
    return None


class Logs(Closing, Analysed):
    """The chosen records of open logs, or of another Source; a formats.base.reader.Reader.

    clock: as in --time. merge: read all logs in time order, not one log after the other. Raises
    UsageError for an impossible choice, clock or merge. close() closes the readers.
    """

    def __init__(
        self,
        readers: Sequence[Source],
        choice: Choice = ALL,
        clock: str = "mono",
        merge: bool = False,
    ) -> None:
        self.readers = tuple(readers)
        self.choice = choice
        self.clock = clock
        self._merge = merge
        choice.check([reader.format for reader in readers])
        for reader in readers:
            LogClock(reader.format, clock)
            if choice.needs_real_time:
                reader.format.need_clock()
            if merge:
                check_alike(readers[0], reader)

    @property
    def path(self) -> Path:
        """The log, or the folder of several logs."""
        first = self.readers[0].path
        return first if len(self.readers) == 1 else first.parent

    @property
    def format(self) -> LogFormat:
        """The header and the events of the first log."""
        return self.readers[0].format

    @property
    def kinds(self) -> list[str]:
        """The names of the chosen events."""
        found = (event.name for r in self.readers for event in self.choice.events_of(r.format))
        return list(dict.fromkeys(found))

    def close(self) -> None:
        for reader in self.readers:
            reader.close()

    def streams(self) -> Iterator[tuple[LogFormat, Iterator[Stamped]]]:
        """The chosen records: a stream for each log, or one stream if the logs are merged."""
        if self._merge:
            yield self.format, self._chosen(self.format, merge_logs(self.readers))
            return
        for reader in self.readers:
            yield reader.format, self._chosen(reader.format, reader.batches())

    def _chosen(self, log: LogFormat, batches: Iterator[LogBatch]) -> Iterator[Stamped]:
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
        """The chosen events that occur, in the order of the event tables, without repetition."""
        found: dict[tuple[str, Any], LogEvent] = {}
        for reader in self.readers:
            present = reader.present()
            for event in self.choice.events_of(reader.format):
                if event.number in present:
                    found.setdefault((event.name, event.fields), event)
        return list(found.values())

    def table(self, names: str) -> Any:
        """A table of the capture by its name: "connections", "SCHEDIN"; see named_table()."""
        return self.named_table(names)

    def tables(self, reuse: bool = False) -> Iterator[dict[str, Any]]:
        """Tables by event name for each batch. `reuse` has no effect: each has its own memory."""
        import_pyarrow()
        for _, records in self.streams():
            for batch, times_ns in records:
                yield make_tables(batch, times_ns, self.clock)

    def write_text(self, form: str, out: BinaryIO) -> None:
        """Write the records as "perl", "json", "csv" or "spreadsheet"."""
        self.write_style(self._make_style(form), out)

    def write_style(self, style: Style, out: BinaryIO) -> None:
        """Write the records as text of this form."""
        out.write(style.begin.encode())
        for log, records in self.streams():
            lines = Lines(log, style)
            write_pages(lines.pages(records), lines.make_worker, out)
        out.write(style.end.encode())

    def _make_style(self, form: str) -> Style:
        # As in 2007, a Perl hash of a single log has no CPU.
        styles: dict[str, Callable[[], Style]] = {
            "perl": lambda: PerlStyle(self.clock, with_cpu=len(self.readers) > 1),
            "json": lambda: JsonStyle(self.clock, with_cpu=True),
            "csv": lambda: CsvStyle(self.clock, self.events()),
            "spreadsheet": lambda: SpreadsheetStyle(self.clock, self.events()),
        }
        if form not in styles:
            raise UsageError(f"Klogger logs have no form {form}", f"choose {', '.join(styles)}")
        return styles[form]()

    def for_export(
        self, form: str, columns: Sequence[str] | None = None, sort: str | None = None
    ) -> Logs:
        """All records; a log has neither --columns nor --sort."""
        if columns is not None or sort is not None:
            what = "--columns" if columns is not None else "--sort"
            raise UsageError(
                f"{what} is for PSC captures, and {self.path} is none",
                "tcpkmon decode chooses its events",
            )
        return self

    def _read_readers(self) -> tuple[Source, ...]:
        """The readers; reads those from which nothing was read yet.

        Others are not read again, because a caller may iterate over them.
        """
        for reader in self.readers:
            if not reader.losses.records and not reader.problems:
                for _ in reader.batches():
                    pass
        return self.readers

    @property
    def warnings(self) -> list[str]:
        """The damage, and the unknown ends, in the part of the logs that was read."""
        found = []
        for reader in self._read_readers():
            name = "" if len(self.readers) == 1 else f"{reader.path.name}: "
            found += [name + text for text in (reader.damage, reader.tail) if text]
        return found

    @property
    def damaged(self) -> bool:
        """Whether the part of the logs that was read is damaged."""
        return any(reader.problems for reader in self._read_readers())

    @property
    def lost(self) -> int:
        """How many events are missing in what was read; `tcpkmon verify` lists the causes."""
        return sum(reader.losses.lost for reader in self._read_readers())

    @property
    def complete(self) -> bool:
        """Whether all logs ended in order."""
        return not any(reader.tail for reader in self._read_readers())
