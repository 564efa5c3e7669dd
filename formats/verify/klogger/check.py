# SPDX-License-Identifier: Apache-2.0
"""Reads one Klogger log from start to end, a batch at a time, and runs all of its checks."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import DamagedError
from formats.klogger import (
    NUMBERS,
    RECORD_HEAD_BYTES,
    SNAPSHOT,
    LogBatch,
    LogFormat,
    LogReader,
)
from formats.verify.log_books import I64, Group, build_rows, check_group, integers, missed, quiet
from formats.verify.log_clock import CLOCK, ClockPairs
from formats.verify.log_pauses import FINISH, START, Pauses
from formats.verify.log_structure import Dumps, find_dumps, place_of
from formats.verify.report import Problems, Report
from formats.verify.serials import NESTING_TOLERANCE_NS

BEGIN, DUMP_FINISH = "DUMP_BEGIN", "DUMP_FINISH"
LEDGERS = ("LEDGER", "CPU_LEDGER", "PROGRAM_LEDGER")
BASE = frozenset(
    {START, FINISH, BEGIN, DUMP_FINISH, CLOCK, *LEDGERS}
    | {"PROCESS_EXISTS", "LOGGING_EVENT", "MARK", "SOCKET_EXISTS"}
)
"""Events that the collector makes (bpf/schemata/base.conf); all others are the kernel's."""
TEXTS = frozenset({"kernel", "comm", "cmdline", "name", "saddr", "daddr", "program"})
"""Fields of these that are text."""
LOCATION = "location"
EXISTING = 226


def verify_log(path: str | os.PathLike[str]) -> Report:
    """Check the log at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with LogReader(path) as reader:
            _check_table(reader.format)
            return _Run(reader).run()
    except DamagedError as error:
        message = error.message.removeprefix(f"{path}: ")
        return Report(str(path), error=message, is_log=True)


def _check_table(log: LogFormat) -> None:
    """Raise DamagedError where the header has what verify counts with as something else."""
    for event in log.events:
        if event.name not in BASE:
            continue
        for field in event.fields:
            if field.kind not in ("int", "enum") and field.name not in TEXTS:
                raise DamagedError(f"the header has {event.name}.{field.name} as {field.kind}")


class _Run:
    """One pass over a log."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._log = log = reader.format
        self._dumps: Dumps = find_dumps(reader.path, log.order)
        self._offsets = self._dumps.offsets
        self._problems = Problems(self._dumps.end, 0)
        self._report = Report(
            str(reader.path),
            size_bytes=self._dumps.size_bytes,
            ledger=log.find_event("LEDGER") is not None,
            is_log=True,
        )
        self._base = np.zeros(NUMBERS, np.bool_)
        for event in log.events:
            self._base[event.number] = event.name in BASE
        snapshot = log.find_event(SNAPSHOT)
        self._snapshot = -1 if snapshot is None else snapshot.number
        self._events = {event.number: event.name for event in log.events}
        self._locations = log.enums.get(LOCATION, {}) if snapshot is not None else {}
        self._clock = ClockPairs()
        self._pauses = Pauses(log)
        self._counts: I64 = np.zeros(NUMBERS, np.int64)
        self._records = 0
        self._bases = 0
        self._last_serial = 0
        self._highest = 0
        self._last_ns = 0
        self._group: Group | None = None
        self._before: Group | None = None
        self._dump = self._first = -1
        self._dump_bytes = self._dump_records = self._dump_kernel = 0
        self._told_bytes: list[int] = []
        self._broken = False

    def run(self) -> Report:
        for batch in self._reader.batches():
            if batch.dump != self._dump:
                self._end_dump()
                self._begin_dump(batch)
            self._feed(batch)
        self._end_dump()
        self._finish()
        return self._report

    def name(self, point: int) -> str | None:
        """Of an event, or of a location of SNAPSHOT."""
        if point != self._snapshot and point in self._events:
            return self._events[point]
        if self._snapshot < 0 or self._locations:
            return self._locations.get(point)
        return f"location {point}"  # the schema cannot be read

    # Dumps.

    def _begin_dump(self, batch: LogBatch) -> None:
        self._broken = self._broken or batch.dump != self._dump + 1
        self._dump = batch.dump
        self._problems.data_offset = self._offsets.get(batch.dump, self._dumps.end)
        self._dump_bytes = self._dump_records = self._dump_kernel = 0
        self._told_bytes = []
        self._first = self._report.entries
        if self._events.get(int(batch.numbers[0])) == BEGIN:
            index = int(integers(batch, BEGIN, ("index",))[0, 0])
            if index != batch.dump:
                self._add(self._first, f"DUMP_BEGIN {index} begins dump {batch.dump}")

    def _end_dump(self) -> None:
        if self._dump < 0:
            return
        body = self._dump_bytes + -(-2 * self._dump_records // 8) * 8
        if self._told_bytes != [body]:
            told = ", ".join(str(number) for number in self._told_bytes[:8])
            self._add(self._report.entries - 1, f"DUMP_FINISH tells {told} bytes, not {body}")
        group, self._group = self._group, None
        if group is None:
            return
        group.sort()
        if self._dump_kernel:
            self._add(group.entry, "a dump that holds ledgers holds records of the kernel too")
        self._report.checkpoints += 1
        check_group(self._problems, group, self._before, self.name, exact=not self._broken)
        self._before = group

    # Records.

    def _feed(self, batch: LogBatch) -> None:
        first = self._report.entries
        is_base = self._base[batch.numbers]
        at = np.flatnonzero(~is_base)
        self._serials(batch, is_base, at, first)
        self._times(batch, at, first)
        for event in batch.events():
            if event.name in LEDGERS:
                self._ledger(batch, event.name)
            elif event.name == CLOCK:
                self._clock.feed(batch, first)
            elif event.name == DUMP_FINISH:
                self._told_bytes += integers(batch, DUMP_FINISH, ("bytes",))[:, 0].tolist()
        self._pauses.feed(batch, at, first)
        self._count(batch, at, first)
        self._dump_bytes += int(batch.format.payload_sizes[batch.numbers].sum())
        self._dump_bytes += RECORD_HEAD_BYTES * len(batch)
        self._dump_records += len(batch)
        self._dump_kernel += len(at)
        self._records += len(at)
        self._report.entries += len(batch)

    def _serials(
        self, batch: LogBatch, is_base: NDArray[np.bool_], at: NDArray[np.int64], first: int
    ) -> None:
        """Gaps stand before the kernel's records alone; base events are numbered without any."""
        steps = np.diff(batch.serials, prepend=np.uint64(self._last_serial)).astype(np.int64)
        gap = steps != 1
        self._report.seq_gaps += int(gap.sum())
        self._report.seq_lost += int(steps.sum()) - len(batch)
        wrong = np.flatnonzero(gap & is_base)
        if self._broken and len(wrong) and wrong[0] == 0:
            wrong = wrong[1:]
        for place in wrong[:8].tolist():
            self._add(first + place, f"{steps[place] - 1} serial(s) missing before a base event")
        self._problems.count(max(0, len(wrong) - 8))
        if len(at):
            bases = self._bases + int(np.count_nonzero(is_base[: at[-1]]))
            self._highest = int(batch.serials[at[-1]]) - bases
        self._bases += int(np.count_nonzero(is_base))
        self._last_serial = int(batch.serials[-1])

    def _times(self, batch: LogBatch, at: NDArray[np.int64], first: int) -> None:
        if not len(at):
            return
        times = batch.times_ns[at].astype(np.int64)
        step = np.diff(times, prepend=self._last_ns or times[0])
        wrong = np.flatnonzero(step < -NESTING_TOLERANCE_NS)
        for place in wrong[:8].tolist():
            self._add(first + int(at[place]), f"time runs back by {-int(step[place])} ns")
        self._problems.count(max(0, len(wrong) - 8))
        self._last_ns = int(times[-1])

    def _count(self, batch: LogBatch, at: NDArray[np.int64], first: int) -> None:
        numbers = batch.numbers[at]
        snapshots = at[numbers == self._snapshot]
        event = self._log.find_event(SNAPSHOT)
        if len(snapshots) and event is not None and event.find_field(LOCATION) is not None:
            numbers = numbers[numbers != self._snapshot]
            points = integers(batch, SNAPSHOT, (LOCATION,))[:, 0]
            strange = (points < 0) | (points >= NUMBERS)
            for place in np.flatnonzero(strange)[:8].tolist():
                self._add(first + int(snapshots[place]), f"no location {points[place]}")
            self._counts += np.bincount(points[~strange], minlength=NUMBERS)
        self._counts += np.bincount(numbers, minlength=NUMBERS)

    def _ledger(self, batch: LogBatch, name: str) -> None:
        if self._group is None:
            counts = self._counts.copy()
            self._group = Group(self._report.entries, counts, self._records, self._highest)
        self._group.take(batch, name)

    def _add(self, entry: int, what: str) -> None:
        self._problems.add(entry, what)

    # The end.

    def _finish(self) -> None:
        report, last, pauses = self._report, self._before, self._pauses
        self._problems.data_offset = self._dumps.end
        report.end_reason = pauses.end_reason
        known = quiet(last) or (last is not None and last.final)
        if pauses.end_reason is not None:
            if pauses.end_at != report.entries - 2:
                self._add(pauses.end_at, "records follow KLOGGER_FINISH")
            elif known and not quiet(last) and last is not None and last.entry < self._first:
                self._add(pauses.end_at, "the final ledger is not in the last dump")
            elif not known and not pauses.failed:
                self._add(pauses.end_at, "KLOGGER_FINISH without a final ledger before it")
            report.proven_end = known and pauses.end_at == report.entries - 2
        if report.entries and not pauses.begun:
            self._add(0, "the log does not begin with KLOGGER_START")
        self._damage()
        report.clock_pairs, report.clock_steps = self._clock.pairs, self._clock.steps
        if last is not None:
            report.rows = build_rows(self._reader.cpu, last, self.name)
            report.missed = missed(last)
            report.ring_lost = last.cpu["ring_lost"]
            report.seq_lost = max(report.seq_lost, last.cpu["serials"] - last.records)
        report.after_checkpoint = self._records - (last.records if last else 0)
        if self._snapshot >= 0:
            report.existing = int(self._counts[EXISTING])
        self._aside(last)
        report.notes += pauses.notes()
        report.problems, report.problems_total = self._problems.listed, self._problems.total

    def _aside(self, last: Group | None) -> None:
        """What is wrong, but for what a full disk or queue may have kept out of the file."""
        refused = last is not None and bool(last.table[:, -4:-1].any())
        for entry, what in (*self._clock.wrong, *self._pauses.wrong):
            if refused:
                self._report.notes.append(f"{what}; events of the collector may be missing")
            else:
                self._add(entry, what)

    def _damage(self) -> None:
        """What the reader found; a cut end is none where the capture did not end in order."""
        dumps, report = self._dumps, self._report
        cut = dumps.is_cut and report.end_reason is None
        for text in self._reader.problems:
            offset = place_of(text)
            if cut and offset is not None and offset >= dumps.end:
                continue
            self._problems.data_offset = dumps.end if offset is None else offset
            self._add(report.entries, text if offset is None else text.partition(": ")[2])
        if cut:
            report.notes.append(f"the last dump is cut off: {dumps.size_bytes - dumps.end} bytes")
        if not dumps.found:
            report.notes.append("no dump is whole")
