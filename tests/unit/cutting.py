# SPDX-License-Identifier: Apache-2.0
"""Files of each format out of which a run of entries is cut, so that the rest is numbered as if
nothing had been there: sequence numbers, serials, checkpoints, the counts of END, checksums.

Each function yields (what was cut, the bytes of a file) for each pair of places at which control
entries begin or end; `what` counts records of events among them. Counters of ledgers stay.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.control import Checkpoint, End
from tcpkmon.formats.klogger.encode import Packed, finish_dump, pack_event
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import RECORD_HEAD_BYTES
from tcpkmon.formats.klogger.walk import list_bytes
from tcpkmon.formats.psc.reader import open_capture

_HEAD = np.dtype([("number", "=u4"), ("size", "=u4"), ("serial", "=u8"), ("time", "=u8")])


@dataclass(frozen=True)
class Cut:
    """Entries `start` to `stop` of a file are cut out; `records` of them are of events."""

    start: int
    stop: int
    records: int


def cut_psc(path: Path) -> Iterator[tuple[Cut, bytes]]:
    """Of a PSC file with the columns of the ledger."""
    with open_capture(path) as capture:
        rows = np.array(capture.array)
        order = rows.dtype["callvalue"].str[0]
        head = path.read_bytes()[: capture.array.offset]  # type: ignore[attr-defined]
        mask, seqs = capture.control(), capture.seq().astype(np.int64)
        numbered = [name for name in ("seq", "seq_no") if name in (rows.dtype.names or ())]
    marks = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    ledgers = np.flatnonzero(rows["location"] == Checkpoint.location)
    groups = [int(at) + 1 + _decode(rows, at, order).group for at in ledgers]
    places = sorted({1, *marks.tolist(), *ledgers.tolist(), *groups, len(rows) - 1})
    earlier = _decode(rows, ledgers[0], order).entries - int(ledgers[0])
    for start, stop in itertools.combinations(places, 2):
        rest = np.delete(rows, slice(start, stop))
        shift = int(seqs[stop] - seqs[start])
        left = np.delete(seqs, slice(start, stop))
        left[start:] -= shift
        for name in numbered:
            rest[name] = left.astype(np.uint64).astype(rest[name].dtype)
        gone = int((rows["location"][start:stop] == Checkpoint.location).sum())
        for at in range(start, len(rest)):
            if rest["location"][at] not in (Checkpoint.location, End.location):
                continue
            entry = _decode(rest, at, order)
            entries = earlier + at
            lost = int(left[at]) - 1 - entries
            if isinstance(entry, Checkpoint):
                entry = dataclasses.replace(
                    entry, number=entry.number - gone, entries=entries, lost=lost
                )
            else:
                entry = dataclasses.replace(
                    entry, entries=entries, lost=lost, checkpoints=entry.checkpoints - gone
                )
            rest["callvalue"][at] = entry.callvalue()
            control.words_view(rest, order)[at] = entry.words()
        yield Cut(start, stop, int((~mask[start:stop]).sum())), head + rest.tobytes()


def _decode(rows, at, order):  # type: ignore[no-untyped-def]
    words = control.words_view(rows, order)[at].tolist()
    return facts.decode(int(rows["callvalue"][at]), int(rows["location"][at]), words)


def cut_log(path: Path) -> Iterator[tuple[Cut, bytes]]:
    """Of a Klogger log: places are between its dumps, and in a dump between its events."""
    with LogReader(path) as reader:
        log, data = reader.format, path.read_bytes()
        list(reader.batches())
        dumps, begin = reader.walked.found, reader.walked.begin
        own = {log.event(name).number for name in ("DUMP_BEGIN", "DUMP_FINISH")}
        base = {event.number for event in log.events if event.name != "PING"}
    records: list[tuple[int, int, bytes]] = []  # dump, event, its bytes
    for dump in dumps:
        at = dump.body + list_bytes(dump.count)
        for _ in range(dump.count):
            head = np.frombuffer(data, _HEAD, 1, at)[0]
            size = RECORD_HEAD_BYTES + int(log.payload_sizes[int(head["number"])])
            if int(head["number"]) not in own:
                records.append((dump.index, int(head["number"]), data[at : at + size]))
            at += size
    heads = [record[:2] for record in records]
    places = [at for at in range(1, len(heads)) if heads[at] != heads[at - 1]]
    for start, stop in itertools.combinations([*places, len(heads)], 2):
        rest = records[:start] + records[stop:]
        if start and stop < len(records):  # what is cut within dumps joins them
            joined = records[start][0] != records[start - 1][0]
            if not joined:
                to, of = records[start - 1][0], records[stop][0]
                rest = [(to if dump == of else dump, *more) for dump, *more in rest]  # type: ignore
        events = sum(1 for _, number, _ in records[start:stop] if number not in base)
        yield Cut(start, stop, events), _pack_log(log, data[:begin], rest)


def _pack_log(log, head, records) -> bytes:  # type: ignore[no-untyped-def]
    out, serial = [head], 0
    for index, (_, found) in enumerate(itertools.groupby(records, lambda one: one[0])):
        group = list(found)
        time = int(np.frombuffer(group[-1][2], _HEAD, 1)[0]["time"])
        parts = [pack_event(log, "DUMP_BEGIN", {"index": index}, serial + 1, time)]
        body = bytearray()
        first = serial + 2
        serial += 1
        for _, _, raw in group:
            serial += 1
            one = np.frombuffer(raw, _HEAD, 1).copy()
            one["serial"] = serial
            body += one.tobytes() + raw[_HEAD.itemsize :]
        numbers = np.array([number for _, number, _ in group], np.uint16)
        parts.append(Packed(numbers, np.frombuffer(bytes(body), np.uint8), first))
        serial += 1
        out.append(finish_dump(log, index, parts, serial, time))
    return b"".join(out)
