# SPDX-License-Identifier: Apache-2.0
"""Records of Klogger logs as text: Perl hashes, JSON lines or CSV, a whole batch at a time.

A style says for each event of which pieces its text consists: text as it is, and places where a
value stands. Arrow then joins each event's pieces for all its records at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.escape import for_terminal
from formats.klogger.batch import LogBatch
from formats.klogger.clock import format_times
from formats.klogger.table import LogEvent, LogField, LogFormat
from formats.klogger.values import (
    describe_value,
    dictionary,
    import_pyarrow,
    mapped,
    native,
)

SERIAL, TIME, CPU = "serial", "timestamp", "cpu"


@dataclass(frozen=True)
class Head:
    """A place where a value of the record's head stands: SERIAL, TIME or CPU."""

    name: str


Piece = str | Head | LogField
"""Text as it is, or a value of the head or of a field."""


class Style:
    """How a kind of text is written. with_cpu: the CPU stands in each record's head."""

    begin = ""
    end = ""

    def __init__(self, clock: str, with_cpu: bool) -> None:
        self.clock = clock
        self.heads = [SERIAL, TIME, *([CPU] if with_cpu else [])]

    def pieces(self, event: LogEvent) -> list[Piece]:
        """What one record of this event consists of."""
        raise NotImplementedError

    def quote(self, text: str) -> str:
        """A text of the file as a value."""
        raise NotImplementedError


class PerlStyle(Style):
    """An array of hashes, as section 3.1.2 of the Klogger HOWTO has them; `do FILE` returns it."""

    begin = "[\n"
    end = "]\n"

    def pieces(self, event: LogEvent) -> list[Piece]:
        keys = [f'"{perl_text(field.name)}"' for field in event.fields]
        # The arrows of an event stand in one column: that of "timestamp" in the header, or more.
        column = max(24, *(len(key) + 7 for key in keys), 0)
        found: list[Piece] = ["{\n    header => {\n"]
        found.append(_perl_line(12, '"type"', column))
        found.append(f'{perl_text(event.name)}",\n')
        for name in self.heads:
            found += [_perl_line(12, f'"{name}"', column), Head(name), '",\n']
        found.append("    },\n")
        for key, field in zip(keys, event.fields, strict=True):
            found += [_perl_line(4, key, column), field, '",\n']
        return [*found, "},\n"]

    def quote(self, text: str) -> str:
        return perl_text(text)


def _perl_line(indent: int, key: str, column: int) -> str:
    return f'{" " * indent + key:{column}}=> "'


class JsonStyle(Style):
    """One JSON object a line, with the key header as in Perl."""

    def pieces(self, event: LogEvent) -> list[Piece]:
        found: list[Piece] = [f'{{"header":{{"type":{json.dumps(event.name)}']
        for name in self.heads:
            mark = '"' if name == TIME and self.clock == "iso" else ""
            found += [f',"{name}":{mark}', Head(name), mark]
        found.append("}")
        for field in event.fields:
            found += [f",{json.dumps(field.name)}:", field]
        return [*found, "}\n"]

    def quote(self, text: str) -> str:
        return json.dumps(text)


class CsvStyle(Style):
    """A table of all events: the head, then a column for each name of a field.

    Fields of one name share a column. Control characters are written as on a terminal.
    """

    def __init__(self, clock: str, events: Iterable[LogEvent]) -> None:
        super().__init__(clock, with_cpu=True)
        names = dict.fromkeys(field.name for event in events for field in event.fields)
        self._columns = list(names)
        heads = ["type", *self.heads]
        titles = [f"field.{name}" if name in heads else name for name in names]
        self.begin = ",".join([*heads, *map(self.quote, titles)]) + "\n"

    def pieces(self, event: LogEvent) -> list[Piece]:
        found: list[Piece] = [self.quote(event.name)]
        for name in self.heads:
            found += [",", Head(name)]
        for name in self._columns:
            field = event.find_field(name)
            found += [","] if field is None else [",", field]
        return [*found, "\n"]

    def quote(self, text: str) -> str:
        text = for_terminal(text)
        if '"' in text or "," in text:
            return '"' + text.replace('"', '""') + '"'
        return text


def perl_text(text: str) -> str:
    """Text for between the double quotes of a Perl string: Perl evaluates it to the same text."""
    return "".join(
        f"\\{character}"
        if character in '"\\$@'
        else character
        if " " <= character <= "~"
        else f"\\x{{{ord(character):x}}}"
        for character in text
    )


class Lines:
    """Writes the records of one log's format (or of logs that are alike) in a style."""

    def __init__(self, log: LogFormat, style: Style) -> None:
        self._log = log
        self._style = style
        self._pieces: dict[int, list[Piece]] = {}

    def render(self, batch: LogBatch, times_ns: NDArray[np.int64]) -> memoryview:
        """The text of the records, in their order. times_ns: (n,) of LogClock.times()."""
        pyarrow, _ = import_pyarrow()
        if not len(batch):
            return memoryview(b"")
        parts, places = [], []
        for event in batch.events():
            at = batch.where(event)
            parts.append(self._render_event(event, batch, times_ns, at))
            places.append(at)
        lines = parts[0]
        if len(parts) > 1:
            order = np.empty(len(batch), np.int64)
            order[np.concatenate(places)] = np.arange(len(batch))
            lines = pyarrow.concat_arrays(parts).take(pyarrow.array(order))
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
        return memoryview(data)[int(ends[0]) : int(ends[-1])]

    def _render_event(
        self, event: LogEvent, batch: LogBatch, times_ns: NDArray[Any], at: NDArray[Any]
    ) -> Any:
        pyarrow, compute = import_pyarrow()
        pieces = self._pieces.get(event.number)
        if pieces is None:
            pieces = self._pieces[event.number] = _join(self._style.pieces(event))
        rows = batch.rows(event, at)
        heads: dict[str, NDArray[Any]] = {SERIAL: batch.serials, CPU: batch.cpus}
        parts: list[Any] = []
        for piece in pieces:
            if isinstance(piece, str):
                parts.append(pyarrow.scalar(piece))
            elif isinstance(piece, LogField):
                parts.append(self._values(piece, rows[piece.name]))
            elif piece.name == TIME:
                parts.append(format_times(times_ns[at], self._style.clock))
            else:
                values = pyarrow.array(heads[piece.name][at])
                parts.append(compute.cast(values, pyarrow.string()))
        return compute.binary_join_element_wise(*parts, "")

    def _values(self, field: LogField, values: NDArray[Any]) -> Any:
        pyarrow, compute = import_pyarrow()
        text = describe_value(self._log, field)
        if text is None:
            return compute.cast(pyarrow.array(native(values)), pyarrow.string())
        quote = self._style.quote
        known = self._log.enums.get(field.type, {}) if field.kind == "enum" else None

        def write(value: Any) -> str:
            # A number of an enum that has no name stays a number.
            return str(value) if known is not None and value not in known else quote(text(value))

        return mapped(dictionary(field, values), write, pyarrow.string())


def _join(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with texts that follow each other made one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return [piece for piece in found if piece != ""]
