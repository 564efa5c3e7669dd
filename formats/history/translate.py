# SPDX-License-Identifier: Apache-2.0
"""A log as decimal words, a record a line: what translate of HP-UX's measurement system printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tcpkmon.formats.analysis import Log
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.history.names_1988 import NAMES
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.clock import LogClock
from tcpkmon.formats.klogger.table import LogEvent

_PACKED = {
    "SLEEP": ("tid", "priority"),
    "SCHEDOUT": ("pid", "prio"),
    "ADD_TO_RUNQ": ("pid", "prio"),
    "REMOVE_FROM_RUNQ": ("pid", "prio"),
    "TRAP": ("pid", "prio"),
    "EXEC": ("pid",),
}
"""Events whose thread and priority, where they have it, share a word, which is the first."""
_EXEC = "EXEC"
_EXEC_PARTS = (("pid", "tgid", "old_pid"), ("pid", "comm"), ("pid", "filename"))
"""The fields of the three records of EXEC: that it happened (and what else is known), the name, the
file."""
_LISTS = {("DISK_QUEUE", "positions"): "count"}
"""Fields that are lists of signed numbers of 64 bits, and the field that says how many are used."""
_WORD_BYTES = 4
_NUMBER_BYTES = 8


class Translator:
    """The lines of a log. names: print names in place of ids, which are the log's event numbers."""

    def __init__(self, log: Log, names: bool = False) -> None:
        self._log = log
        self._names = names

    def legend(self) -> Iterator[str]:
        """A line for each event of the log: id, name, the words of a record."""
        for event in self._log.format.events:
            for words in words_of(event):
                name = NAMES.get(event.name, event.name)
                yield for_terminal(f"{event.number} {name}: {' '.join(words)}")

    def lines(self) -> Iterator[str]:
        """The records in time order. Raises DamagedError, FileError, and UsageError for a log
        without a clock pair."""
        clock = LogClock(self._log.format, "epoch")
        for batch in self._log.batches():
            times = clock.times(batch)
            seconds, rest = np.divmod(times, 1_000_000_000)
            stamps = [
                f"{second} {micro}"
                for second, micro in zip(seconds.tolist(), (rest // 1000).tolist(), strict=True)
            ]
            words = {event.number: _words(batch, event) for event in batch.events()}
            for number, stamp in zip(batch.numbers.tolist(), stamps, strict=True):
                name, rows = words[number]
                for text in next(rows):
                    what = name if self._names else number
                    yield f"{what} {stamp} {text}" if text else f"{what} {stamp}"


def words_of(event: LogEvent) -> Iterator[list[str]]:
    """The words of each record that an event makes, behind its id: text has the number of them."""
    for fields in _records(event):
        pair = _pair_of(event)
        first = ("pid<<16", "priority<<8")[: len(pair)]
        words = ["seconds", "microseconds", *(["|".join(first)] if pair else [])]
        for field in fields:
            if field not in pair:
                count = _used_of(event, field) or _word_count(event, field)
                words.append(field if count == 1 else f"{field}[{count}]")
        yield words


def _records(event: LogEvent) -> list[tuple[str, ...]]:
    """The fields of each record that an event makes."""
    names = tuple(field.name for field in event.fields)
    if event.name == _EXEC and set().union(*_EXEC_PARTS) <= set(names):
        known = set().union(*_EXEC_PARTS)
        first, *others = _EXEC_PARTS
        return [(*first, *(name for name in names if name not in known)), *others]
    return [names]


def _pair_of(event: LogEvent) -> tuple[str, ...]:
    """The fields that share the first word."""
    names = _PACKED.get(event.name, ())
    fields = [event.find_field(name) for name in names]
    return names if all(field is not None and field.kind == "int" for field in fields) else ()


def _used_of(event: LogEvent, name: str) -> str:
    """The field that says how many numbers of the list `name` are used; '': it is no list."""
    used = _LISTS.get((event.name, name), "")
    field, count = event.find_field(name), event.find_field(used)
    is_list = field is not None and field.kind == "bytes" and field.length % _NUMBER_BYTES == 0
    return used if is_list and count is not None and count.kind == "int" else ""


def _word_count(event: LogEvent, name: str) -> int:
    field = event.find_field(name)
    if field is None or field.kind in ("int", "enum"):
        return 1
    return -(-field.length // _WORD_BYTES)


def _words(batch: LogBatch, event: LogEvent) -> tuple[str, Iterator[list[str]]]:
    """The event's name, and for each of its records in the batch the words of its lines."""
    rows = batch.rows(event)
    columns = {field.name: _column(event, rows, field.name) for field in event.fields}
    lines = []
    for fields in _records(event):
        parts = []
        pair = _pair_of(event)
        if pair:
            word = rows[pair[0]].astype(np.int64) << 16
            for name in pair[1:]:
                word |= (rows[name].astype(np.int64) & 0xFF) << 8
            parts.append(list(map(str, word.tolist())))
        parts += [columns[name] for name in fields if name not in pair]
        lines.append(
            [" ".join(filter(None, row)) for row in zip(*parts, strict=True)] or [""] * len(rows)
        )
    name = for_terminal(NAMES.get(event.name, event.name))
    return name, iter([list(record) for record in zip(*lines, strict=True)])


def _column(event: LogEvent, rows: Any, name: str) -> list[str]:
    """Each value of a field as its words."""
    field = event.find_field(name)
    assert field is not None
    if field.kind in ("int", "enum"):
        return list(map(str, rows[name].tolist()))
    if used := _used_of(event, name):
        numbers = np.frombuffer(rows[name].tobytes(), f"{event.order}i{_NUMBER_BYTES}")
        listed = numbers.reshape(len(rows), field.length // _NUMBER_BYTES).tolist()
        return [
            " ".join(map(str, row[: max(most, 0)]))
            for row, most in zip(listed, rows[used].tolist(), strict=True)
        ]
    count = _word_count(event, name)
    raw = np.zeros((len(rows), count * _WORD_BYTES), np.uint8)
    values = np.frombuffer(rows[name].tobytes(), np.uint8)
    raw[:, : field.length] = values.reshape(len(rows), field.length)
    return [" ".join(map(str, row)) for row in raw.view(">u4").tolist()]
