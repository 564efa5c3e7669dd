# SPDX-License-Identifier: Apache-2.0
"""Klogger logs for analysis scripts: one log or those of all CPUs, event by event in time order.

What was the log analysis half of Klogger's Perl module; docs/analysis.md has a worked example. Many
events are faster as arrays: see Log.batches() and formats/analysis/intervals.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from formats.analysis.intervals import (
    Interval,
    Intervals,
    ProcessTime,
    Statistics,
    cpu_times,
    match_pairs,
)
from formats.base.errors import FileError
from formats.klogger.batch import LogBatch
from formats.klogger.choose import ALL, Choice, parse_condition
from formats.klogger.clock import LogClock, Moment, parse_time
from formats.klogger.merge import merge_logs
from formats.klogger.reader import LogReader
from formats.klogger.table import LogEvent, LogField, LogFormat
from formats.klogger.values import address_of, text_of

__all__ = [
    "Event",
    "Interval",
    "Intervals",
    "Log",
    "ProcessTime",
    "Statistics",
    "cpu_times",
    "match_pairs",
    "open_log",
]
FILE_PREFIX = "kernlog.dump.cpu"


@dataclass(slots=True)
class Event:
    """One event: its type's name, serial in its CPU's log, time and fields; event["pid"] is one.

    timestamp: CLOCK_MONOTONIC, ns. Fields are ints, names for enumerated values (the int where the
    enum has no name for it), and text.
    """

    type: str
    serial: int
    timestamp: int
    cpu: int
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where the event has none of that name."""
        return self.fields.get(name, default)


class Log:
    """Logs of one capture that are open; see open_log(). Iterating gives its events in time order.

    It can be iterated again and again, each time from the start. Close it, or use `with`.
    """

    def __init__(
        self, readers: Sequence[LogReader], choice: Choice = ALL, stack: ExitStack | None = None
    ) -> None:
        self._readers = tuple(readers)
        self._choice = choice
        self._stack = stack or ExitStack()

    @property
    def format(self) -> LogFormat:
        """The events that the log may hold, and its header."""
        return self._readers[0].format

    def choose(
        self,
        *events: str,
        since: int | str | None = None,
        until: int | str | None = None,
        where: Sequence[str] = (),
    ) -> Log:
        """The same log with fewer events: those that fulfil everything. UsageError.

        events: names, of which it must be one. since, until: CLOCK_MONOTONIC in ns, or a time of
        day as "2026-01-31T12:00:00" (UTC). where: conditions as "pid=12" or "state!=RUNNING".
        """
        choice = Choice(
            events or None, _moment(since), _moment(until), tuple(map(parse_condition, where))
        )
        choice.check([self.format])
        return Log(self._readers, choice, self._stack)

    def batches(self) -> Iterator[LogBatch]:
        """The events as arrays, some ten thousand at a time, in time order.

        DamagedError and FileError as in iterating; what can be read is given out before that.
        """
        clock = LogClock(self.format, "mono")
        for batch in merge_logs(self._readers):
            at = self._choice.places(batch, clock)
            if at is None:
                yield batch
            elif len(at):
                yield batch.take(at)

    def __iter__(self) -> Iterator[Event]:
        for batch in self.batches():
            yield from _events(batch)

    @property
    def lost(self) -> int:
        """Events known to be missing from what was iterated; `tcpkmon verify` tells them apart."""
        return sum(reader.losses.lost for reader in self._readers)

    @property
    def problems(self) -> list[str]:
        """What is damaged, or has no known end, in the logs that were iterated to their ends."""
        found = []
        for reader in self._readers:
            texts = [*reader.problems, *([reader.tail] if reader.tail else [])]
            found += [f"{reader.path}: {text}" for text in texts]
        return found

    def close(self) -> None:
        """Close the files, also for what choose() made of it."""
        self._stack.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_log(*paths: str | os.PathLike[str]) -> Log:
    """Opens logs of one capture: files (kernlog.dump.cpuN), or the folder that holds them.

    Raises FileError or DamagedError for what is no log, UsageError for logs of several captures.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files += _in_folder(path) if path.is_dir() else [path]
    if not files:
        raise FileError("no log was named", "name kernlog.dump.cpuN files, or their folder")
    with ExitStack() as stack:
        readers = [stack.enter_context(LogReader(path)) for path in files]
        return Log(readers, stack=stack.pop_all())


def _in_folder(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.name.startswith(FILE_PREFIX)]
    numbered = [path for path in found if path.name.removeprefix(FILE_PREFIX).isdecimal()]
    if not numbered:
        raise FileError(f"no Klogger log in {folder}", f"its files are {FILE_PREFIX}N")
    return sorted(numbered, key=lambda path: int(path.name.removeprefix(FILE_PREFIX)))


def _moment(time: int | str | None) -> Moment | None:
    if time is None:
        return None
    return Moment(time, False) if isinstance(time, int) else parse_time(time, "iso")


def _events(batch: LogBatch) -> Iterator[Event]:
    """The records of a batch one by one."""
    fields = {event.number: (event.name, _fields(batch, event)) for event in batch.events()}
    for number, serial, time_ns, cpu in zip(
        batch.numbers.tolist(),
        batch.serials.tolist(),
        batch.times_ns.tolist(),
        batch.cpus.tolist(),
        strict=True,
    ):
        name, rows = fields[number]
        yield Event(name, serial, time_ns, cpu, next(rows))


def _fields(batch: LogBatch, event: LogEvent) -> Iterator[dict[str, Any]]:
    """Each record's fields, of one event."""
    at = batch.where(event)
    if not event.fields:
        return iter([{} for _ in range(len(at))])
    rows = batch.rows(event, at)
    names = [field.name for field in event.fields]
    columns = []
    for field in event.fields:
        values = rows[field.name].tolist()
        convert = _conversion(batch.format, field)
        columns.append(values if convert is None else map(convert, values))
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _conversion(log: LogFormat, field: LogField) -> Callable[[Any], Any] | None:
    if field.kind == "enum":
        names = log.enums.get(field.type, {})
        return lambda value: names.get(value, value)
    return {"string": text_of, "address": address_of}.get(field.kind)
