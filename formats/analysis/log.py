# SPDX-License-Identifier: Apache-2.0
"""Klogger logs for analysis scripts: one log or those of all CPUs, event by event in time order.

It replaces the analysis functions of Klogger's Perl module; docs/analysis.md has an example. Arrays
are faster for many events: see Log.batches() and formats/analysis/intervals.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tcpkmon.formats.analysis.event import Event
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.text import address_of, text_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.choose import ALL, Choice, parse_condition
from tcpkmon.formats.klogger.clock import Moment, parse_time
from tcpkmon.formats.klogger.logs import Logs, open_sources
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import LogEvent, LogField, LogFormat
from tcpkmon.formats.registry import kind_of


class Log(Logs):
    """The open logs of one capture; see open_log(). Iterating yields the events in time order.

    Each iteration begins at the start. Close it, or use `with`; logs from choose() use the same
    files and are closed too.
    """

    def __init__(self, readers: Sequence[Source], choice: Choice = ALL) -> None:
        super().__init__(readers, choice, merge=True)

    def choose(
        self,
        *events: str,
        since: int | str | None = None,
        until: int | str | None = None,
        where: Sequence[str] = (),
    ) -> Log:
        """The same log with only the events that meet all conditions. Raises UsageError.

        Also those of an earlier choose(); a since or until that is given again replaces it.

        events: names of events (none: all). since, until: CLOCK_MONOTONIC in ns, or a time like
        "2026-01-31T12:00:00" (UTC). where: conditions like "pid=12" or "state!=RUNNING".
        """
        before = self.choice
        if events and before.events is not None:
            events = tuple(name for name in events if name in before.events)
            if not events:
                raise UsageError("no event that both choices have")
        choice = Choice(
            events or before.events,
            _moment(since) or before.since,
            _moment(until) or before.until,
            (*before.conditions, *map(parse_condition, where)),
            before.without,
        )
        return Log(self.readers, choice)

    @property
    def collector_pids(self) -> tuple[int, ...]:
        """The processes that recorded the log, the collector itself first; none in logs of earlier
        versions."""
        found = []
        for reader in self.readers:
            settings = reader.format.header.get("settings")
            pids = settings.get("collector_pids") if isinstance(settings, dict) else None
            found += pids if isinstance(pids, list) else []
        return tuple(
            dict.fromkeys(pid for pid in found if isinstance(pid, int) and 0 < pid < 1 << 31)
        )

    def without_collector(self) -> Log:
        """The same log without the events of the collector's own processes: what it read and wrote,
        and when it ran. Kernel threads that write its file back later are not told apart."""
        return Log(self.readers, replace(self.choice, without=self.collector_pids))

    def batches(self) -> Iterator[LogBatch]:
        """The events as arrays in time order, some ten thousand at a time.

        Raises DamagedError and FileError like iterating, after the events that could be read.
        """
        for _, records in self.streams():
            for batch, _ in records:
                yield batch

    def __iter__(self) -> Iterator[Event]:
        for batch in self.batches():
            yield from _events(batch)

    @property
    def problems(self) -> list[str]:
        """Damage and missing ends in the logs; complete after they were read to their ends."""
        found = []
        for reader in self.readers:
            texts = [*reader.problems, *([reader.tail] if reader.tail else [])]
            found += [f"{reader.path}: {text}" for text in texts]
        return found


def open_log(*paths: str | os.PathLike[str]) -> Log:
    """Opens the logs of one capture: files (kernlog.dump.cpuN), their folder, or one of segments.

    Raises FileError or DamagedError for other files, UsageError for PSC files and for logs of
    several captures.
    """
    if not paths:
        raise FileError("no log was named", "name kernlog.dump.cpuN files, or their folder")
    for path in paths:
        if os.access(path, os.R_OK) and kind_of(path) == "psc":
            raise UsageError(f"{path} is a PSC file, not a log of events",
                             "collect --latency or --format klogger records one; tcpkmon why reads "
                             "this")  # fmt: skip
    with ExitStack() as stack:
        log = Log([stack.enter_context(one) for one in open_sources(*paths)])
        stack.pop_all()
        return log


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
    """The fields of each record of one event."""
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
