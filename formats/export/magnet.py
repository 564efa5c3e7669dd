# SPDX-License-Identifier: Apache-2.0
"""Makes a MAGNeT file of a Klogger log: the records of all CPUs in one order, LOST where some lack.

A record has its place by the highest time of its CPU so far, as the CPU's serials give the order.
The header has what verify says of the log. Memory is bounded by a batch of each CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import EndReason, LossCause
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.files import already_there, create_file, file_or_stdout
from tcpkmon.formats.base.limits import MOST_MISSING
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.logs import Logs, find_logs
from tcpkmon.formats.klogger.overlap import base_numbers
from tcpkmon.formats.klogger.reader import BATCH_RECORDS, LogReader
from tcpkmon.formats.klogger.table import NUMBERS, LogEvent, LogFormat
from tcpkmon.formats.magnet.control import CHECK, END, Block, encode, encode_header
from tcpkmon.formats.magnet.header import OWN, Kind, data_of, magnet_name, make_header
from tcpkmon.formats.magnet.layout import (
    CLOCK,
    FIELDS,
    FIRST_EVENT,
    LOST,
    MARK,
    MOST_LOST,
    NATIVE,
    Layout,
)
from tcpkmon.formats.verify import Report, proof_of, verify_folder, verify_log

CHECK_RECORDS = 1 << 14
"""So many records get a control entry."""
MODE = 0o640
CONNECTION = "connection"
"""The field that each event must have: the record's sockid."""
_PREFIXES = ("tcp_", "ip_")
_LEFT_OUT = ("logs", "segment", "recorder")
"""Settings of the log that are not those of the file."""
_PRIVATE = ("command", "filters")
"""Settings with addresses and ports."""
_OWN = {
    "MARK": (MARK, {"sockid": "number", "size": "pid"}),
    "CLOCK": (CLOCK, {"sockid": "realtime_ns", "timestamp": "mono_ns", "size": "uncertainty_ns"}),
}
"""Base events that have a record, and where its fields come from."""


def write(reader: Reader, output: Path | None, force: bool) -> None:
    """Write the file of a log, or to stdout. UsageError for another capture, FileError."""
    if output is None:
        if sys.stdout.isatty():
            raise UsageError("a MAGNeT file is no text", "name a file with -o, or pipe it")
        with file_or_stdout(None) as out:
            convert(reader, out)
        return
    if output.exists() and not force:
        raise already_there(output)
    with create_file(output, force=True, mode=MODE) as out:  # under a hidden name until it is whole
        convert(reader, out)


def convert(reader: Reader, out: BinaryIO) -> None:
    """Write the MAGNeT file of a log. UsageError for another capture, DamagedError, OSError."""
    logs = [one for one in getattr(reader, "readers", ()) if isinstance(one, LogReader)]
    if not isinstance(reader, Logs) or len(logs) < len(reader.readers) or not logs:
        raise UsageError(
            f"a MAGNeT file is made of one Klogger log, and {reader.path} is none",
            "of a capture in many files, export each one",
        )
    packing = Packing(logs[0].format)
    *each, whole = _verify([log.path for log in logs])
    each = each or [whole]
    file = _Writer(out, packing.layout)
    out.write(encode_header(_header(logs[0], packing, whole), packing.layout))
    streams = [
        _records(log, packing, report.seq_lost) for log, report in zip(logs, each, strict=True)
    ]
    with LogReader(logs[0].path) as first:  # MARK is in the lowest CPU's log, CLOCK in each
        for rows in merged([*streams, _own(first, packing.layout)]):
            file.add(rows)
    file.end(_reason(whole))


def _reason(whole: Report) -> EndReason | None:
    """Why the capture ended; None where its end is not proven."""
    reasons = {one.name.lower().replace("_", " "): one for one in EndReason}
    return reasons.get(whole.end_reason or "") if whole.proven_end else None


def _verify(paths: Sequence[Path]) -> list[Report]:
    """The reports of logs, and that of all of them, which is the only one of a log alone."""
    with suppress(FileError):
        if find_logs(paths[0].parent) == [*paths]:
            return verify_folder(paths[0].parent)
    if len(paths) > 1:
        raise UsageError("these logs are not all that are in one folder", "name the folder")
    return [verify_log(paths[0])]


def _header(log: LogReader, packing: Packing, whole: Report) -> dict[str, Any]:
    header, layout = log.header, packing.layout
    left_out = _LEFT_OUT if layout.data else (*_LEFT_OUT, *_PRIVATE)
    told = header.get("settings")
    settings = told if isinstance(told, dict) else {}
    return make_header(
        layout,
        packing.kinds,
        log.format.need_clock(),
        **{name: header.get(name) for name in ("host", "kernel", "tcpkmon", "cpus")},
        settings={name: value for name, value in settings.items() if name not in left_out},
        schema=header.get("schema"),
        proof=proof_of(whole),
    )


class Packing:
    """What of a log's record goes where. kinds: the header's events.

    UsageError for a log with an event that a MAGNeT file cannot hold.
    """

    def __init__(self, log: LogFormat) -> None:
        is_base = base_numbers(log)
        self.kinds = OWN
        self.is_record = np.zeros(NUMBERS, np.bool_)
        self._codes = np.zeros(NUMBERS, np.uint32)
        self._events: dict[int, tuple[LogEvent, dict[str, str]]] = {}
        chosen = [event for event in log.events if not is_base[event.number]]
        for event in chosen:
            field = event.find_field(CONNECTION)
            if field is None or field.kind != "int":
                raise UsageError(
                    f"the event {event.name} of the log has no field {CONNECTION}, which each "
                    "record of a MAGNeT file has", "tcpkmon export has other forms",
                )  # fmt: skip
        if not chosen:
            raise UsageError("the log has no events for a MAGNeT file", "collect --schema magnet")
        names = {field.name for event in chosen for field in event.fields}
        self.layout = NATIVE[any(name.startswith(_PREFIXES) for name in names)]
        for code, event in enumerate(chosen, FIRST_EVENT):
            data = data_of(event.name)
            self.kinds += (Kind(code, magnet_name(event.name), data),)
            self.is_record[event.number], self._codes[event.number] = True, code
            self._events[event.number] = event, _sources(event, data, self.layout)

    def fill(self, rows: NDArray[Any], places: NDArray[Any], batch: LogBatch, at: Any) -> None:
        """Put the records of a batch at the indices `at` to their places in the file's rows."""
        numbers = batch.numbers[at]
        rows["event"][places] = self._codes[numbers]
        rows["timestamp"][places] = batch.times_ns[at]
        for number in np.unique(numbers).tolist():
            event, sources = self._events[number]
            mine = np.flatnonzero(numbers == number)
            found, to = batch.rows(event, at[mine]), places[mine]
            for name, source in sources.items():
                is_known = found[source] != 0 if name == "timestamp" else slice(None)
                rows[name][to[is_known]] = found[source][is_known]
        if self.layout.data:
            rows["flags"] &= 0xFF  # those of the segment


def _sources(event: LogEvent, data: str, layout: Layout) -> dict[str, str]:
    """By field of a record in the file, that of the event which it comes from."""
    names = {"sockid": CONNECTION, "size": "size"}
    if event.name == "SOCK_SEND":
        names["timestamp"] = "entered"
    if layout.data and data:
        names |= {name: f"{data}_{name}" for name in FIELDS[data]}
    if layout.data and data == "tcp":
        names["flags"] = "flags"
    found = {name: event.find_field(source) for name, source in names.items()}
    return {name: f.name for name, f in found.items() if f is not None and f.kind == "int"}


@dataclass(frozen=True)
class Keyed:
    """Records for the file, each with the time that gives its place: these never fall."""

    keys: NDArray[np.uint64]
    rows: NDArray[Any]

    def cut(self, stop: int) -> tuple[Keyed, Keyed]:
        """The first records, and the others."""
        return Keyed(self.keys[:stop], self.rows[:stop]), Keyed(self.keys[stop:], self.rows[stop:])


def merged(streams: Iterable[Iterator[Keyed]]) -> Iterator[NDArray[Any]]:
    """The records of all streams by their keys; at the same key, in the order of the streams.

    The stream whose batch ends first gives all of it, so that one batch of each is in memory.
    """
    sources = list(streams)
    waiting = {n: one for n, source in enumerate(sources) if (one := _next(source)) is not None}
    while waiting:
        limit, first = min((one.keys[-1], n) for n, one in waiting.items())
        parts = []
        for n in sorted(waiting):
            stop = waiting[n].keys.searchsorted(limit, "right" if n <= first else "left")
            part, waiting[n] = waiting[n].cut(int(stop))
            parts.append(part)
        if (more := _next(sources[first])) is not None:
            waiting[first] = more
        else:
            del waiting[first]
        order = np.concatenate([part.keys for part in parts]).argsort(kind="stable")
        yield _in_order([part.rows for part in parts], order)


def _next(source: Iterator[Keyed]) -> Keyed | None:
    return next((one for one in source if len(one.keys)), None)


def _in_order(rows: Sequence[NDArray[Any]], order: NDArray[Any]) -> NDArray[Any]:
    # As bytes: numpy joins structured rows without what belongs to no field.
    kind = rows[0].dtype
    joined = np.frombuffer(b"".join(one.tobytes() for one in rows), f"V{kind.itemsize}")
    found: NDArray[Any] = joined[order].view(kind)
    return found


def _records(log: LogReader, packing: Packing, lost: int) -> Iterator[Keyed]:
    """A CPU's records, with LOST where serials are missing. lost: how many there are in all, so
    that the rest are missing at the end."""
    serial, key, owed, last_ns = np.uint64(0), np.uint64(0), 0, np.uint64(0)
    for batch in log.batches(BATCH_RECORDS):
        before = np.diff(batch.serials, prepend=serial) - np.uint64(1)
        serial, last_ns = batch.serials[-1], batch.times_ns[-1]
        if max(before.max(), lost_here := int(before.sum())) > MOST_MISSING:
            raise DamagedError(f"{log.path} lacks more than {MOST_MISSING} serials")
        at = np.flatnonzero(packing.is_record[batch.numbers])
        lost -= lost_here
        if not len(at):
            owed += lost_here
            continue
        gaps = np.diff(np.cumsum(before.astype(np.int64))[at], prepend=0)
        gaps[0] += owed
        owed = lost_here + owed - int(gaps.sum())
        keys = np.maximum(np.maximum.accumulate(batch.times_ns[at]), key)
        key = keys[-1]
        yield _with_lost(batch, at, gaps, keys, packing)
    if (tail := min(max(lost, 0) + owed, MOST_MISSING)) > 0:
        _, sizes = _lost_sizes(np.array([tail]))
        rows = np.zeros(len(sizes), packing.layout.dtype)
        rows["size"], rows["timestamp"] = sizes, last_ns
        yield Keyed(np.full(len(rows), max(key, last_ns)), rows)


def _with_lost(
    batch: LogBatch, at: Any, gaps: Any, keys: NDArray[np.uint64], packing: Packing
) -> Keyed:
    """Records of a batch, with LOST before each that has a gap before it:

        serials      7   8           11  12       9 and 10 are missing
        gaps         0   0            2   0
        places       0   1            3   4
        LOST                 2                    its size is 2
    """
    numbers, sizes = _lost_sizes(gaps)
    places = np.arange(len(at)) + np.cumsum(numbers)
    rows = np.zeros(len(at) + len(sizes), packing.layout.dtype)
    if len(sizes):
        is_lost = np.ones(len(rows), np.bool_)
        is_lost[places] = False
        rows["event"], rows["sockid"][is_lost] = LOST, LossCause.KERNEL
        rows["size"][is_lost] = sizes
        rows["timestamp"][is_lost] = np.repeat(batch.times_ns[at], numbers)
        every = np.zeros(len(rows), np.uint64)
        every[is_lost], every[places] = np.repeat(keys, numbers), keys
        keys = every
    packing.fill(rows, places, batch, at)
    return Keyed(keys, rows)


def _lost_sizes(gaps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many LOST records each gap needs, and the sizes of all."""
    numbers = -(-gaps // MOST_LOST)
    sizes = np.full(int(numbers.sum()), MOST_LOST, np.int64)
    with_any = gaps > 0
    sizes[np.cumsum(numbers[with_any]) - 1] = gaps[with_any] - (numbers[with_any] - 1) * MOST_LOST
    return numbers, sizes


def _own(log: LogReader, layout: Layout) -> Iterator[Keyed]:
    """Marks, and the clock pairs but those with which logging begins: by their own time."""
    key = np.uint64(0)
    start = log.format.find_event("KLOGGER_START")
    for batch in log.batches(BATCH_RECORDS):
        for name, (code, sources) in _OWN.items():
            event = log.format.find_event(name)
            if event is None or not len(at := batch.where(event)):
                continue
            if name == "CLOCK" and start is not None:
                at = at[(at == 0) | (batch.numbers[at - 1] != start.number)]
            found = batch.rows(event, at)
            rows = np.zeros(len(at), layout.dtype)
            rows["event"], rows["timestamp"] = code, batch.times_ns[at]
            for field, source in sources.items():
                told = event.find_field(source)
                if told is not None and told.kind == "int":
                    rows[field] = found[source]
            if len(rows):
                keys = np.maximum(np.maximum.accumulate(rows["timestamp"]), key)
                key = keys[-1]
                yield Keyed(keys, rows)


class _Writer:
    """Writes records, and the control entries that prove them."""

    def __init__(self, out: BinaryIO, layout: Layout) -> None:
        self._out, self._layout = out, layout
        self._block = Block(layout.size)
        self._number = self._records = self._time_ns = 0

    def add(self, rows: NDArray[Any]) -> None:
        """The next records."""
        while len(rows):
            some, rows = np.split(rows, [CHECK_RECORDS - self._block.count])
            data = some.tobytes()
            self._block.add(data)
            self._out.write(data)
            self._records += len(some)
            self._time_ns = int(some["timestamp"][-1])
            if self._block.count == CHECK_RECORDS:
                self._control({"kind": CHECK})

    def end(self, reason: EndReason | None) -> None:
        """The end. reason: of the capture's; None: it is not known."""
        if reason is not None:
            self._control({"kind": END, "reason": int(reason)})
        elif self._block.count:
            self._control({"kind": CHECK})

    def _control(self, values: dict[str, Any]) -> None:
        told = {"time_ns": self._time_ns, "number": self._number, "records": self._records}
        self._out.write(encode({**values, **told, **self._block.values()}, self._layout))
        self._block, self._number = Block(self._layout.size), self._number + 1
