# SPDX-License-Identifier: Apache-2.0
"""Anonymises a file, a folder of logs, or that of a chain; verify says what it proves then."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.anonymise.rows import ADDRESS_TEXT, KEEP, PORT_PAIR, Place, Rows, kind_of_value
from tcpkmon.formats.anonymise.settings import (
    LeftOut,
    header_of,
    host_of,
    only,
    plain,
    schema_text,
    segment_name,
    settings_of,
)
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.errors import DamagedError, FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.files import create_file, open_plain
from tcpkmon.formats.base.reconciled import Reconciled, What, is_difference
from tcpkmon.formats.base.segments import INDEX, find_segments, hidden, read_index
from tcpkmon.formats.base.whose import GroupPart
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.encode import (
    DUMP_HEAD,
    DUMP_HEAD_BYTES,
    DUMP_MAGIC,
    HEAD_CRC_AT,
    MAGIC,
    PREAMBLE,
    encode_preamble,
)
from tcpkmon.formats.klogger.logs import find_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import LogEvent, LogField
from tcpkmon.formats.klogger.walk import DumpHead, list_bytes
from tcpkmon.formats.psc.columns import CLASSIC, TIME, Column
from tcpkmon.formats.psc.header import (
    KIND_CLOCK,
    KIND_HOST,
    KIND_KERNEL,
    KIND_SCHEMA,
    KIND_SETTINGS,
    Header,
    encode_header,
    text_data,
)
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import SEGMENTS, format_of, kind_of
from tcpkmon.formats.verify import DOES_NOT_ADD_UP, Report, is_ours

# A PSC file without what could name somebody: as many entries, in the same places.

_ROWS = 1 << 15
_LAST_KNOWN = DropPlace.location
"""What is in a later control entry was not looked at."""
_CONTROL = ("seq", "seq_no", "time_ns", TIME)
"""Columns that control entries have, besides their words."""


def anonymise_file(path: Path, to: IO[bytes], who: Who, left_out: LeftOut) -> None:
    """Write the new file. The old one is sound; an entry that is cut short is left out."""
    with open_capture(path) as capture:
        if capture.is_cut:
            left_out.repaired.append(f"{path.name}: the last entry, which is cut short")
        writer = _Writer(capture, who)
        to.write(encode_header(_header(capture, who, left_out)))
        for piece in capture.chunks(_ROWS):
            to.write(writer.rows(piece.start, piece.stop))


def check_version(path: Path) -> None:
    """DamagedError for a file of a newer tcpkmon: nobody knows what is in it."""
    with open_capture(path) as capture:
        for _, entry in capture.controls(0, 1) if capture.controls_fit else ():
            if isinstance(entry, control.Start) and entry.version > control.FORMAT_VERSION:
                raise DamagedError(
                    f"{path} is of version {entry.version}, and this tcpkmon knows "
                    f"{control.FORMAT_VERSION}", "a newer tcpkmon knows what is in it",
                )  # fmt: skip


def _header(capture: Capture, who: Who, left_out: LeftOut) -> Header:
    old = capture.header
    extras: dict[int, list[bytes]] = {}
    for kind in old.extras:
        text = old.text(kind) or ""
        if kind == KIND_HOST:
            extras[kind] = text_data(host_of(who, text))
        elif kind == KIND_KERNEL:
            extras[kind] = text_data(who.text("kernel", text))
        elif kind == KIND_SCHEMA:
            extras[kind] = text_data(schema_text(who, text))
        elif kind == KIND_CLOCK and old.clock() is not None:
            extras[kind] = [b"".join(old.extras[kind])]
        elif kind != KIND_SETTINGS:
            left_out.key(f"{kind:#x}")
    settings = settings_of(capture.settings, who, left_out)
    extras[KIND_SETTINGS] = text_data(json.dumps(settings, ensure_ascii=False))
    return Header(old.mods, old.version, old.entry_size, old.columns, old.endian, old.mclsize,
                  extras, old.has_checksum)  # fmt: skip


class _Writer:
    def __init__(self, capture: Capture, who: Who) -> None:
        self._capture = capture
        self._is_ours = is_ours(capture)
        self._who = who
        self._size = capture.entry_dtype.itemsize
        self._order = ">" if capture.header.endian == Endian.BIG else "<"
        columns = [one for one in capture.header.columns if one.length]
        self._snapshots = Rows(self._size, [self._place(one) for one in columns], who)
        self._heads = np.zeros(self._size, np.uint8)
        for one in columns:
            if one.name in _CONTROL:
                self._heads[one.offset : one.offset + one.length] = 0xFF
        start, length = CLASSIC["callvalue"]
        self._heads[start : start + length + CLASSIC["location"][1]] = 0xFF

    def _place(self, column: Column) -> Place:
        order = ">" if column.is_network else self._order
        if column.is_time or column.is_integer:
            kind = KEEP if column.is_time else kind_of_value("SNAPSHOT", column.name, "int",
                                                       column.length)  # fmt: skip
            return Place(column.offset, column.length, kind, order)
        kind = kind_of_value("SNAPSHOT", column.name, "string", column.length)
        if kind == ADDRESS_TEXT and column.length in (4, 16):
            return Place(column.offset, column.length, "addresses", "")
        return Place(column.offset, column.length, kind, "")

    def rows(self, start: int, stop: int) -> bytes:
        """The entries from one to another, as they are in the new file."""
        found = self._capture.rows(start, stop)
        octets = found.view(np.uint8).reshape(len(found), self._size)
        is_control = np.zeros(len(found), np.bool_)
        if self._is_ours:
            is_control = self._capture.control_of(found)
        made: NDArray[np.uint8] = np.zeros_like(octets)
        made[~is_control] = self._snapshots(octets[~is_control])
        if not is_control.any():
            return made.tobytes()
        made[is_control] = octets[is_control] & self._heads
        typed = made.view(found.dtype)[:, 0]
        at = np.flatnonzero(is_control)
        words = control.words_view(typed, self._order)
        entries = zip(
            at.tolist(), found["callvalue"][at].tolist(), found["location"][at].tolist(),
            control.words_view(found, self._order)[at].tolist(), strict=True,
        )  # fmt: skip
        for row, callvalue, location, values in entries:
            entry = self._entry(facts.decode(callvalue, location, values))
            if entry is None:  # it names somebody, or nobody knows what it is
                words[row] = 0
                continue
            typed["callvalue"][row], words[row] = entry.callvalue(), entry.words()
        return made.tobytes()

    def _entry(self, entry: control.Control) -> control.Control | None:
        if not control.FIRST_CONTROL <= control.location_of(entry) <= _LAST_KNOWN:
            return None
        if isinstance(entry, GroupPart):
            return None
        if isinstance(entry, control.Mark):
            data = self._who.octets("notes", entry.text.encode(), control.WORDS_BYTES)
            return control.Mark(entry.number, data.decode("utf-8", "replace"))
        if isinstance(entry, Reconciled) and entry.what != What.SUMMARY:
            return Reconciled(entry.when, entry.what, entry.connection, entry.record, entry.kernel,
                              self._who.ports(entry.ports))  # fmt: skip
        return entry


# A Klogger log without what could name somebody: as many dumps, of the same size.

_HEADER = (
    "format", "byteorder", "cpu", "cpus", "host", "kernel", "tcpkmon", "buffer_bytes",
    "low_water_percent", "clock", "schema", "settings", "events",
)  # fmt: skip
_EVENT = ("number", "name", "size", "fields")
_FIELD = ("name", "kind", "signed", "offset", "length", "type", "network", "none")


def anonymise_log(path: Path, to: IO[bytes], who: Who, left_out: LeftOut) -> None:
    """Write the new log. The old one is sound, or ends within a dump, which is left out."""
    with LogReader(path) as reader, open_plain(path) as plain:
        header = header_of(reader.header, _HEADER, _EVENT, who, left_out)
        for event in header["events"]:
            event["fields"] = [only(one, _FIELD) for one in event["fields"]]
        preamble = encode_preamble(header)
        order = reader.format.order
        crc = zlib.crc32(preamble[PREAMBLE.size :])
        size = len(preamble) - PREAMBLE.size
        to.write(struct.pack(order + PREAMBLE.format[1:], MAGIC, size, crc, 0))
        to.write(preamble[PREAMBLE.size :])
        dumps = _Dumps(order, to)
        events = {event.number: _Rows(event, order, who) for event in reader.format.events}
        for batch in reader.batches():
            if batch.dump != dumps.index:
                head = reader.walked.found[-1]
                plain.seek(head.body)
                dumps.begin(head, plain.read(2 * head.count))
            dumps.add(_replaced(batch, events))
        dumps.finish()
        if reader.walked.end < reader.walked.size:
            left_out.repaired.append(f"{path.name}: the end, which is no whole dump")


class _Rows(Rows):
    """The payloads of an event."""

    def __init__(self, event: LogEvent, order: str, who: Who) -> None:
        self.event = event
        super().__init__(event.size, [_place(event, one, order) for one in event.fields], who)


def _place(event: LogEvent, field: LogField, order: str) -> Place:
    kind = kind_of_value(event.name, field.name, field.kind, field.length)
    if event.name == "RECONCILED" and kind == PORT_PAIR:
        kind = KEEP  # of a summary it is a count: see _replaced()
    if field.kind in ("string", "address"):
        return Place(field.offset, field.length, kind, "")
    if kind == ADDRESS_TEXT:
        kind = "texts"
    return Place(field.offset, field.length, kind, ">" if field.network else order)


def _replaced(batch: LogBatch, events: Mapping[int, _Rows]) -> bytes:
    words = batch.words.copy()
    for number in np.unique(batch.numbers).tolist():
        rows = events[number]
        width = rows.event.size // 8
        if not width:
            continue
        places = batch.starts[batch.numbers == number][:, None] + np.arange(width)
        octets = words[places].view(np.uint8).reshape(len(places), -1)
        made = rows(octets)
        if rows.event.name == "RECONCILED" and "ports" in rows.who.replaced:
            _reconciled(rows, made)
        words[places] = made.view(np.uint64)
    data: bytes = words.tobytes()
    return data


def _reconciled(rows: _Rows, octets: Any) -> None:
    """The ports of differences."""
    typed = octets.view(rows.event.dtype)[:, 0]
    if {"what", "ports"} <= set(typed.dtype.names or ()):
        for row in np.flatnonzero(typed["what"] != 0).tolist():
            typed["ports"][row] = rows.who.ports(int(typed["ports"][row]))


class _Dumps:
    """Writes dumps of the same records, whose checksum is known when all of them are there."""

    def __init__(self, order: str, to: IO[bytes]) -> None:
        self.index = -1
        self._order = order
        self._to = to
        self._head: DumpHead | None = None
        self._at = self._crc = self._size = 0

    def begin(self, head: DumpHead, numbers: bytes) -> None:
        """The next dump, after the one before."""
        self.finish()
        self._head, self.index, self._at = head, head.index, self._to.tell()
        self._crc = self._size = 0
        self._to.write(bytes(DUMP_HEAD_BYTES))
        self.add(numbers.ljust(list_bytes(head.count), b"\0"))

    def add(self, data: bytes) -> None:
        """More of the body."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._to.write(data)

    def finish(self) -> None:
        """The head of the last dump."""
        head = self._head
        if head is None:
            return
        if self._size != head.body_bytes:
            raise DamagedError(f"dump {head.index} is damaged", "tcpkmon repair")
        data = struct.pack(self._order + DUMP_HEAD.format[1:], DUMP_MAGIC, head.index, head.count,
                           head.body_bytes, head.first_serial, self._crc, 0, 0)  # fmt: skip
        seal = struct.pack(f"{self._order}I", zlib.crc32(data[:HEAD_CRC_AT]))
        end = self._to.tell()
        self._to.seek(self._at)
        self._to.write(data[:HEAD_CRC_AT] + seal + data[HEAD_CRC_AT + 4 :])
        self._to.seek(end)
        self._head = None


_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
_WRITERS: dict[str, Callable[[Path, IO[bytes], Who, LeftOut], None]] = {
    "psc": anonymise_file, "klogger": anonymise_log,
}  # fmt: skip
_LINE = ("time", "what", "name", "capture", "first", "number", "records", "lost", "bytes", "why")
"""What is kept of a line of an index."""


@dataclass
class Done:
    """What was made: what verify says of it, and what is not in it."""

    reports: list[Report] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def exit_code(self) -> int:
        """The worst of the reports."""
        return max((report.exit_code for report in self.reports), default=0)


def anonymise(path: Path, out: Path, who: Who) -> Done:
    """Write the capture at `path` anew to `out`, which is not there yet. What verify finds damaged
    is left out before, as repair does it, and counts as lost.

    Raises FileError, DamagedError; UsageError for what cannot be anonymised.
    """
    done = Done()
    if out.exists():
        raise FileError(f"{out} is there already", "name a new output file")
    found = format_of(path)
    if kind_of(path) == "magnet":
        what = f"{path} is a MAGNeT file, which is made of a log"
        raise UsageError(what, "anonymise the log, then export it: export --format magnet")
    if found is SEGMENTS:
        with _new_folder(out) as target:
            _chain(path, target, who, done.left_out)
    elif path.is_dir():
        with _new_folder(out) as target:
            _one(path, target, who, done.left_out)
    else:
        with _sound(path, out.parent, done.left_out) as sound:
            _file(found.name, sound, out, who, done.left_out)
    done.reports = list(format_of(out).verify(out))
    if done.exit_code == DOES_NOT_ADD_UP and done.exit_code > _judged(path):
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        raise TcpkmonError(f"{path} cannot be anonymised: the new one would not add up")
    return done


def _judged(path: Path) -> int:
    return max((report.exit_code for report in format_of(path).verify(path)), default=0)


def _one(path: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    """A file, or a folder of logs; `out` is a folder that is there for these."""
    with _sound(path, out.parent, left_out) as sound:
        if not sound.is_dir():
            _file(format_of(sound).name, sound, out, who, left_out)
            return
        for log in find_logs(sound):
            _file("klogger", log, out / log.name, who, left_out)


def _file(kind: str, path: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    with create_file(out, mode=_FILE_MODE, hint="name a new output file") as target:
        _WRITERS[kind](path, target, who, left_out)


@contextmanager
def _sound(path: Path, folder: Path, left_out: LeftOut) -> Iterator[Path]:
    """The capture, or a repaired copy of it."""
    found = format_of(path)
    if found.name == "psc":
        check_version(path)
    if not any(map(_is_damaged, found.verify(path))):
        yield path
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".anonymise-") as scratch:
        copy = Path(scratch, "repaired")
        summary, _ = found.repair(path, copy)
        left_out.repaired.append(f"{path.name}: {summary}")
        yield copy


def _is_damaged(report: Report) -> bool:
    """Not where only the kernel's sockets differ from the records."""
    told = [problem.what for problem in report.problems]
    is_sound = len(told) == report.problems_total and all(map(is_difference, told))
    return report.exit_code == DOES_NOT_ADD_UP and not (told and is_sound)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that gets its name when all is in it."""
    part = out.with_name(f".{out.name}.new")
    try:
        part.mkdir(mode=_FOLDER_MODE)
    except OSError as error:
        raise FileError(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield part
        part.rename(out)
    except OSError as error:
        raise FileError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _chain(folder: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    """All segments of a folder, under names without the host, and an index of them."""
    sizes: dict[str, int] = {}
    for segment in find_segments(folder):
        name = segment_name(who, segment.original)
        target = out / (name if segment.sealed else hidden(name))
        if target.exists():
            raise UsageError(f"{folder} has {segment.original} twice", "remove one of them")
        path = segment.path(folder)
        if path.is_dir():
            target.mkdir(mode=_FOLDER_MODE)
        _one(path, target, who, left_out)
        files = list(target.iterdir()) if target.is_dir() else [target]
        sizes[name] = sum(os.stat(one).st_size for one in files)
    lines, has_all = read_index(folder)
    if not has_all:
        left_out.key(INDEX)
    with open(out / INDEX, "w", encoding="utf-8") as index:
        for line in lines:
            if (made := _line(line, sizes, who)) is not None:
                index.write(json.dumps(made) + "\n")


def _line(line: dict[str, Any], sizes: dict[str, int], who: Who) -> dict[str, Any] | None:
    """A line of the new index; None for one of an archive, which is none any more."""
    name = line.get("name")
    if not isinstance(name, str) or line.get("what") not in ("sealed", "deleted", "repaired"):
        return None
    name = name.removesuffix(".zst")
    made = {key: plain(who, line[key]) for key in _LINE if key in line}
    made["name"] = segment_name(who, name)
    made["time"] = line.get("time") if isinstance(line.get("time"), str) else None
    if made["name"] in sizes:
        made["bytes"] = sizes[made["name"]]
    return made if made["name"] else None
