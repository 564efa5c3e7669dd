# SPDX-License-Identifier: Apache-2.0
"""Records of Klogger logs as text: Perl hashes, JSON lines or CSV, a whole batch at a time.

A style lists the pieces of an event's text: fixed text, values of the record's head, and fields.
_plan() makes a Plan of them for each event, by which formats.lines writes the records.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import quote_csv, quote_spreadsheet
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import NUMBERS, LogEvent, LogField, LogFormat
from tcpkmon.formats.lines import Cell, Kind, Plan, Rows, Source, Texts, Writer

SERIAL, TIME, CPU = HEADS = "serial", "timestamp", "cpu"
_PAGE_BYTES = 4 << 20
_TIMES = {"mono": Kind.NUMBER, "rel": Kind.SECONDS, "epoch": Kind.SECONDS, "iso": Kind.UTC}
_KEYS = ("conn_id", "lport", "rport")
"""Fields that identify a connection: records of one connection have much text in common."""


@dataclass(frozen=True)
class Head:
    """A value of the record's head: SERIAL, TIME or CPU."""

    name: str


Piece = str | Head | LogField
"""Fixed text, a value of the head, or a field."""


class Style(ABC):
    """A form of text. with_cpu: the head of each record includes the CPU."""

    begin = ""
    end = ""
    null = ""

    def __init__(self, clock: str, with_cpu: bool) -> None:
        self.clock = clock
        self.heads = [SERIAL, TIME, *([CPU] if with_cpu else [])]

    @abstractmethod
    def pieces(self, event: LogEvent) -> list[Piece]:
        """The text of one record of this event, in pieces."""

    @abstractmethod
    def quote(self, text: str) -> str:
        """A text of the file, quoted and escaped as a value (not for hex digits)."""

    def quote_or_null(self, text: str | None) -> str:
        """The same of a field that can be null."""
        return self.null if text is None else self.quote(text)


class PerlStyle(Style):
    """An array of hashes as in section 3.1.2 of the Klogger HOWTO; `do FILE` returns it."""

    begin = "[\n"
    end = "]\n"
    null = "undef"

    def pieces(self, event: LogEvent) -> list[Piece]:
        keys = [f'"{perl_text(field.name)}"' for field in event.fields]
        # All arrows of an event are in one column, at least that of "timestamp" in the header.
        column = max(24, *(len(key) + 7 for key in keys), 0)
        found: list[Piece] = ["{\n    header => {\n"]
        found.append(_perl_line(12, '"type"', column))
        found.append(f'"{perl_text(event.name)}",\n')
        for name in self.heads:
            found += [_perl_line(12, f'"{name}"', column) + '"', Head(name), '",\n']
        found.append("    },\n")
        for key, field in zip(keys, event.fields, strict=True):
            mark = '"' if field.none is None else ""  # undef has none
            found += [_perl_line(4, key, column) + mark, field, f"{mark},\n"]
        return [*found, "},\n"]

    def quote(self, text: str) -> str:
        return perl_text(text)

    def quote_or_null(self, text: str | None) -> str:
        return self.null if text is None else f'"{perl_text(text)}"'


def _perl_line(indent: int, key: str, column: int) -> str:
    return f'{" " * indent + key:{column}}=> '


class JsonStyle(Style):
    """One JSON object per line, with the key header as in Perl."""

    null = "null"

    def pieces(self, event: LogEvent) -> list[Piece]:
        found: list[Piece] = [f'{{"header":{{"type":{json.dumps(event.name)}']
        for name in self.heads:
            mark = '"' if name == TIME and self.clock == "iso" else ""
            found += [f',"{name}":{mark}', Head(name), mark]
        found.append("}")
        for field in event.fields:
            mark = '"' if field.kind == "bytes" else ""
            found += [f",{json.dumps(field.name)}:{mark}", field, mark]
        return [*found, "}\n"]

    def quote(self, text: str) -> str:
        return json.dumps(text)


class CsvStyle(Style):
    """A table of all events: the head, then one column for each field name.

    Fields of the same name share a column. Control characters are escaped as on a terminal.
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
        return quote_csv(for_terminal(text))


class SpreadsheetStyle(CsvStyle):
    """As CsvStyle, for programs that take some text for formulas."""

    def quote(self, text: str) -> str:
        return quote_spreadsheet(for_terminal(text))


def perl_text(text: str) -> str:
    """The text, escaped for a Perl string in double quotes."""
    return "".join(
        f"\\{character}"
        if character in '"\\$@'
        else character
        if " " <= character <= "~"
        else f"\\x{{{ord(character):x}}}"
        for character in text
    )


class Lines:
    """Writes records of one LogFormat in a style."""

    def __init__(self, log: LogFormat, style: Style) -> None:
        self._plans = [_plan(log, style, event) for event in log.events]
        self._places = np.zeros(NUMBERS, np.uint16)
        for place, event in enumerate(log.events):
            self._places[event.number] = place
        # A page has few records if a header declares long ones, so that its text stays small.
        self._page_rows = max(1, _PAGE_BYTES // max(map(_line_bytes, self._plans)))

    def make_worker(self) -> Callable[[Rows], Texts]:
        """A function that returns the text of a page; only one thread may use it at a time."""
        return Writer(self._plans).write

    def pages(self, records: Iterable[tuple[LogBatch, NDArray[np.int64]]]) -> Iterator[Rows]:
        """The records in order, in pages. records: batches, each with its LogClock.times()."""
        for batch, times_ns in records:
            data = batch.words.view(np.uint8)
            offsets, plans = batch.starts * 8, self._places[batch.numbers]
            heads = [batch.serials, times_ns, batch.cpus.astype(np.int64)]
            for low in range(0, len(batch), self._page_rows):
                page = slice(low, min(low + self._page_rows, len(batch)))
                sides = [head[page] for head in heads]
                yield Rows(data, page.stop - low, offsets[page], plans[page], sides)


def _plan(log: LogFormat, style: Style, event: LogEvent) -> Plan:
    cells: list[Cell] = []
    before = ""
    for piece in style.pieces(event):
        if isinstance(piece, str):
            before += piece
            continue
        if isinstance(piece, Head):
            cells.append(_head(style, piece, before))
        else:
            cells.append(_value(log, style, piece, before))
        before = ""
    keys = [(field.offset, field.length) for field in map(event.find_field, _KEYS) if field]
    return Plan(cells, before, event.size, [key for key in keys if key[1] <= 8])


def _line_bytes(plan: Plan) -> int:
    """An estimate of the largest text of a record, in bytes."""
    return sum(len(cell.before) for cell in plan.cells) + len(plan.after) + 2 * plan.size


def _head(style: Style, head: Head, before: str) -> Cell:
    kind = _TIMES[style.clock] if head.name == TIME else Kind.NUMBER
    return Cell(before, kind, HEADS.index(head.name), source=Source.SIDE, digits=9)


def _value(log: LogFormat, style: Style, field: LogField, before: str) -> Cell:
    place = (field.offset, field.length)
    order = Endian.BIG if field.network or log.order == ">" else Endian.LITTLE
    if field.kind == "int":
        return Cell(
            before, Kind.NUMBER, *place, order, signed=field.signed, none=field.none,
            null=style.null,
        )  # fmt: skip
    if field.kind == "bytes":
        return Cell(before, Kind.HEX, *place)
    return Cell(before, Kind.TEXT, *place, text=_text(log, style, field, order))


def _text(log: LogFormat, style: Style, field: LogField, order: Endian) -> Callable[[bytes], str]:
    """The function that converts a string, an address or an enum value to quoted text."""
    text = log.converter(field)
    assert text is not None
    if field.kind != "enum":
        if field.none is not None:
            return lambda data: style.quote_or_null(text(data))
        return lambda data: style.quote(text(data) or "")
    known = log.enums.get(field.type, {})

    def name(data: bytes) -> str:
        # A value without a name stays a number, without quotes.
        value = int.from_bytes(
            data, "big" if order == Endian.BIG else "little", signed=field.signed
        )
        return style.quote(known[value]) if value in known else str(value)

    return name
