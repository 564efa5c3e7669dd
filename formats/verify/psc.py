# SPDX-License-Identifier: Apache-2.0
"""PSC captures: the tape of a file, and what verify checks besides the ledger."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.base.control import Control
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_CPUS, MOST_FAR, MOST_GROUP, MOST_INTERVALS, MOST_JUMPS
from tcpkmon.formats.base.sequence import unwrap
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.base.whose import Groups
from tcpkmon.formats.psc.columns import CLASSIC, CLASSIC_BYTES
from tcpkmon.formats.psc.header import HEADER_DAMAGED, KIND_SCHEMA, KIND_SETTINGS
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.psc.states import described, find_states
from tcpkmon.formats.psc.values import decode, words
from tcpkmon.formats.verify.clock import NESTING_TOLERANCE_NS, ClockPairs, runs_back
from tcpkmon.formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    IN_FLIGHT,
    KERNEL,
    LATE_STAGE,
    NUMBERED,
    POINTS,
    PROGRAM_COUNTERS,
    TEXTS,
    Ledger,
    Table,
    by_cpu,
)
from tcpkmon.formats.verify.report import (
    I64,
    LISTED_AT_ONCE,
    U64,
    Mask,
    Part,
    Previous,
    Problems,
    Report,
)
from tcpkmon.formats.verify.run import (
    Decoder,
    End,
    Found,
    Item,
    Opening,
    Records,
    Run,
    Told,
    reason_of,
)

# How verify reads a capture: whole columns of a segment at once, control entries as words.

_WORDS_USED = {
    control.Start.location: 6,
    control.Clock.location: 7,
    control.Loss.location: 5,
    control.Checkpoint.location: 6,
    control.End.location: 5,
    control.Ledger.location: 10,
    control.Program.location: 8,
    control.Change.location: 10,
}
_NEEDED = ("seq_no", "callvalue", "location", "lport", "rport")


@dataclass
class ControlRows:
    """The control entries of a segment: n rows, absolute entry numbers, words as u64 (n, 10)."""

    index: I64
    location: I64
    callvalue: I64
    words: U64
    pairs: U64 = field(init=False)
    """The five u64 of each row, (n, 5)."""

    def __post_init__(self) -> None:
        self.pairs = self.words[:, 0::2] | (self.words[:, 1::2] << np.uint64(32))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: npt.NDArray[Any]) -> ControlRows:
        """The rows that a mask or an index array chooses."""
        return ControlRows(
            self.index[which], self.location[which], self.callvalue[which], self.words[which]
        )

    def decode(self, row: int) -> control.Control:
        """One row as its dataclass."""
        words = [int(word) for word in self.words[row]]
        return facts.decode(int(self.callvalue[row]), int(self.location[row]), words)


NO_ROWS = ControlRows(
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros((0, control.WORDS_COUNT), np.uint64),
)


class Segment:
    """The entries start to stop of a capture, read once; columns are taken from them in turn."""

    def __init__(self, capture: Capture, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.rows = capture.rows(start, stop)
        self._capture = capture
        self._fields: Mapping[str, Any] = self.rows.dtype.fields or {}

    def __len__(self) -> int:
        return self.stop - self.start

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A column that holds integers or the time, in native byte order."""
        if name in self._fields and self._fields[name][0].kind == "u":
            values = self.rows[name]
            return values.astype(values.dtype.newbyteorder("="))
        column = self._capture.columns_by_name[name]
        return decode(self.rows, column, self._capture.header.endian)

    def wide(self, name: str) -> I64:
        """An integer column as int64; values of 2^63 and more come out negative."""
        return self.numbers(name).astype(np.uint64).view(np.int64)

    def time_ns(self) -> I64:
        """The column `time`, ns since the epoch."""
        if "tv_sec" not in self._fields:
            return self.numbers("time").astype(np.int64)
        seconds = self.rows["tv_sec"].astype(np.int64)
        return seconds * 1_000_000_000 + self.rows["tv_usec"].astype(np.int64) * 1000

    def stamp_ns(self, entry: int) -> int | None:
        """The time of the entry with this number, monotonic if the file has that."""
        name = "time_ns" if is_number(self._capture, "time_ns") else "time"
        column = self._capture.columns_by_name.get(name)
        if column is None or not (column.is_integer or column.is_time):
            return None
        row = self.rows[entry - self.start :][:1]
        return int(decode(row, column, self._capture.header.endian)[0])

    def strange_tails(self, rows: ControlRows) -> I64:
        """Entry numbers of control entries that are not zero where they must be.

        That is: in the words their kind has no use for, and beyond the classic 64 bytes but for
        `seq` and `time_ns`.
        """
        if not len(rows):
            return rows.index
        used = np.zeros(control.WORDS_COUNT, np.bool_)
        wrong = np.zeros(len(rows), np.bool_)
        for kind, count in _WORDS_USED.items():
            used[:] = np.arange(control.WORDS_COUNT) < count
            wrong |= (rows.location == kind) & np.any(rows.words[:, ~used], axis=1)
        size = self.rows.dtype.itemsize
        unused = np.arange(size) >= CLASSIC_BYTES
        for name in ("seq", "time_ns"):
            column = self._capture.columns_by_name.get(name)
            if column is not None:
                unused[column.offset : column.offset + column.length] = False
        raw = self.rows.view(f"V{size}")[rows.index - self.start].tobytes()
        tail = np.frombuffer(raw, np.uint8).reshape(len(rows), size)[:, unused]
        found: I64 = rows.index[wrong | np.any(tail, axis=1)]
        return found

    def control_rows(self, mask: Mask) -> ControlRows:
        """The entries start + i for which mask[i], taken as control entries."""
        local = np.flatnonzero(mask)
        if not len(local):
            return NO_ROWS
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        chosen = self.rows.view(f"V{self.rows.dtype.itemsize}")[local]
        columns, endian = self._capture.columns_by_name, self._capture.header.endian
        return ControlRows(
            local + self.start,
            decode(chosen, columns["location"], endian).astype(np.int64),
            decode(chosen, columns["callvalue"], endian).astype(np.int64),
            words(chosen, endian).astype(np.uint64),
        )


def is_number(capture: Capture, name: str) -> bool:
    """Whether the file has this column and it holds integers."""
    column = capture.columns_by_name.get(name)
    return column is not None and column.length > 0 and column.is_integer


def has_our_header(capture: Capture) -> bool:
    """Whether the header has kinds that only a capture of tcpkmon has: settings that say that a
    file was anonymised are none."""
    kinds = set(capture.header.extras)
    if KIND_SCHEMA in kinds or KIND_SETTINGS not in kinds:
        return KIND_SCHEMA in kinds
    settings = capture.settings
    return not isinstance(settings, dict) or set(settings) != {"anonymised"}


def is_ours(capture: Capture) -> bool:
    """Whether tcpkmon wrote this file: by its own header kinds, or by its first control entries.

    False for a file without the columns that control entries need, even if its header is ours.
    """
    at = {
        column.name: (column.offset, column.length)
        for column in capture.header.columns
        if column.is_integer
    }
    fits = all(at.get(name) == CLASSIC[name] for name in _NEEDED)
    if not fits or capture.header.entry_size < CLASSIC_BYTES or capture.header.endian == Endian.PDP:
        return False
    if has_our_header(capture):
        return True
    first = min(len(capture), 4096)
    location = capture.column("location", 0, first)
    known = (location == control.Start.location) | (location == control.Checkpoint.location)
    return bool(np.any(known & capture.control(0, first)))


# Sequence numbers of a capture run on but for gaps that a LOSS entry counts.

class SequenceReader:
    """Sequence numbers as u64, from `seq` or from the 32 bits of seq_no, across segments."""

    def __init__(self, capture: Capture, problems: Problems) -> None:
        self._problems = problems
        self._wide = is_number(capture, "seq") and is_number(capture, "seq_no")
        self._previous: U64 | None = None

    def read(self, segment: Segment) -> U64:
        """Sequence numbers of a segment that is not empty, in order of the file."""
        start = segment.start
        low = segment.numbers("seq_no").astype(np.uint32)
        if self._wide:
            seq = segment.numbers("seq").astype(np.uint64)
            differ = np.flatnonzero(seq.astype(np.uint32) != low)
            self._problems.add_each(
                differ,
                start,
                lambda at: f"seq_no {low[at]} is not the low half of {seq[at]}",
                rest=True,
            )
            return seq
        before = None if self._previous is None else self._previous.view(np.int64)
        found: U64 = unwrap(low, before).view(np.uint64)
        self._previous = found[-1:]
        return found


class SequenceCheck:
    """Follows the sequence through the file; `lost` and `gaps` are what is missing so far.

    before: the last number of the capture's earlier files.
    """

    def __init__(self, problems: Problems, ledger: bool, before: int = 0) -> None:
        self._problems = problems
        self._ledger = ledger
        self._previous: int | None = before if ledger else None
        self.lost = 0
        self.gaps = 0

    @property
    def last(self) -> int:
        """The last number so far."""
        return self._previous or 0

    def feed(self, start: int, seq: U64, rows: ControlRows) -> U64:
        """Check one segment; returns, for each entry, how many numbers are missing before it."""
        if self._previous is None:
            self._previous = int(seq[0]) - 1
        before = np.concatenate((np.array([self._previous & 2**64 - 1], np.uint64), seq[:-1]))
        self._previous = int(seq[-1])
        step = (seq - before).view(np.int64)
        back = np.flatnonzero(step <= 0)
        self._problems.add_each(
            back,
            start,
            lambda at: f"sequence number {seq[at]} comes after {before[at]}: not in order",
            rest=True,
        )
        gap = np.maximum(step - 1, 0).astype(np.uint64)
        self.gaps += int(np.count_nonzero(gap))
        if self._ledger:
            self._match(start, gap, rows)
        else:
            self.lost += int(gap.sum())
        return gap

    def _match(self, start: int, gap: U64, rows: ControlRows) -> None:
        """Each gap ends at a LOSS entry of the same count, and each LOSS entry ends one."""
        losses = rows.take(rows.location == control.Loss.location)
        count = losses.pairs[:, 1]
        here = gap[losses.index - start]
        cause = losses.words[:, 4]
        right = (count == here) & (count > 0)
        add_each = self._problems.add_each
        add_each(
            np.flatnonzero(~right),
            losses.index,
            lambda at: (
                f"LOSS entry counts {count[at]}, but {here[at]} sequence numbers are missing"
            ),
            rest=True,
        )
        unknown = np.flatnonzero(cause > max(control.LossCause))
        add_each(unknown, losses.index, lambda at: f"LOSS entry has unknown cause {cause[at]}")
        late_stage = is_late_stage(losses)
        nameless = (losses.callvalue == control.ANY_CPU) & (losses.pairs[:, 0] == 0)
        odd = ~nameless & (late_stage | (losses.callvalue == control.ANY_CPU))
        add_each(
            np.flatnonzero(odd),
            losses.index,
            lambda at: f"LOSS entry of cause {cause[at]} may not name this CPU and serial",
        )
        self.lost += int(here[right].sum())
        silent = gap > 0
        silent[losses.index - start] = False
        add_each(
            np.flatnonzero(silent),
            start,
            lambda at: f"{gap[at]} sequence number(s) missing without a LOSS entry",
            rest=True,
        )


def is_late_stage(rows: ControlRows) -> Mask:
    """Which rows are LOSS entries of the causes 2 to 4, which know of no CPU."""
    cause = rows.words[:, 4]
    causes = (cause >= control.LossCause.QUEUE_FULL) & (cause <= control.LossCause.WRITE_ERROR)
    mask: Mask = causes & (rows.location == control.Loss.location)
    return mask


def is_unsure(rows: ControlRows) -> Mask:
    """Which rows are LOSS entries that cannot say of which CPU or kind the lost entries were."""
    nameless = (rows.callvalue == control.ANY_CPU) & (rows.location == control.Loss.location)
    mask: Mask = is_late_stage(rows) | nameless
    return mask


# Each CPU's serials are continuous but for counted losses, and times in the order of serials.
#
# The serial is taken in the kernel before the output, so a record that is missing leaves a hole.
# Programs nest, so records of one CPU may be in its ring a little out of the order of their
# serials; the sequencer sorts them, so in the file serials rise. LOSS entries come later, so the
# serials of a CPU are kept as a set of intervals, whatever the order.

FIRST_SERIAL = 1
LAST_SERIAL = 2**63


@dataclass
class CpuSerials:
    """The serials of one CPU that the file accounts for, as disjoint intervals [start, end)."""

    before: int = 0
    """The last serial of the capture's earlier files."""
    starts: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    ends: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    forgotten: int = 0
    """Serials in holes that were merged away to bound memory."""
    marked: int = 0
    """End of the highest interval when the last checkpoint was met."""
    in_file: int = 0
    """The serial of the last record so far, in the order of the file."""
    last_serial: int = 0
    last_time_ns: int = 0

    @property
    def missing(self) -> int:
        """Serials below the highest one that the file does not account for."""
        if not len(self.starts):
            return 0
        front = int(self.starts[0]) - self.first
        return self.forgotten + front + int((self.starts[1:] - self.ends[:-1]).sum())

    @property
    def missing_marked(self) -> int:
        """Those of `missing` whose hole begins before the last checkpoint."""
        if not len(self.starts):
            return 0
        before = np.concatenate((np.array([self.first], np.uint64), self.ends[:-1]))
        holes = self.starts - before
        return self.forgotten + int(holes[before < np.uint64(self.marked)].sum())

    @property
    def first(self) -> int:
        """The first serial that is due."""
        return self.before + 1

    @property
    def highest(self) -> int:
        """The highest serial that the file mentions, or that of the files before it."""
        return int(self.ends[-1]) - 1 if len(self.ends) else self.before

    def add(self, starts: U64, ends: U64) -> U64:
        """Add intervals in any order; returns the first serial of each that overlaps another."""
        starts = np.concatenate((self.starts, starts))
        ends = np.concatenate((self.ends, ends))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        reach = np.maximum.accumulate(ends)
        twice: U64 = starts[1:][starts[1:] < reach[:-1]]
        first = np.concatenate((np.ones(1, np.bool_), starts[1:] > reach[:-1]))
        begins = np.flatnonzero(first)
        self.starts = starts[begins]
        self.ends = reach[np.concatenate((begins[1:] - 1, np.array([len(starts) - 1])))]
        if len(self.starts) > MOST_INTERVALS:
            self._forget(len(self.starts) // 2)
        return twice

    def _forget(self, number: int) -> None:
        holes = self.starts[1:number] - self.ends[: number - 1]
        self.forgotten += int(holes.sum())
        self.starts = np.concatenate((self.starts[:1], self.starts[number:]))
        self.ends = self.ends[number - 1 :]


def runs(serials: U64) -> tuple[U64, U64]:
    """Sorted serials, not empty, as intervals [start, end) of consecutive ones."""
    breaks = np.flatnonzero(serials[1:] != serials[:-1] + np.uint64(1)) + 1
    zero = np.zeros(1, np.int64)
    starts = serials[np.concatenate((zero, breaks))]
    ends = serials[np.concatenate((breaks - 1, zero - 1))] + np.uint64(1)
    return starts, ends


class SerialCheck:
    """All CPUs' serials; `cpus` by number. Fed with segments of the file in order.

    before: by CPU, the last serial of the capture's earlier files.
    """

    def __init__(self, problems: Problems, before: Mapping[int, int] | None = None) -> None:
        self._problems = problems
        self.cpus = {cpu: CpuSerials(serial) for cpu, serial in (before or {}).items()}

    def mark(self) -> None:
        """A checkpoint is here."""
        for one in self.cpus.values():
            one.marked = one.highest + 1

    def feed(
        self,
        index: I64,
        cpu: I64,
        serial: U64,
        time_ns: I64 | None,
        rows: ControlRows,
    ) -> None:
        """Snapshots of a segment: entry numbers, CPUs, serials, monotonic times; control rows."""
        wrong = (serial < FIRST_SERIAL) | (serial > LAST_SERIAL)
        if np.any(wrong):
            here, number = cpu, serial
            self._problems.add_each(
                np.flatnonzero(wrong),
                index,
                lambda at: f"CPU {here[at]} gave no serial {number[at]}",
            )
            index, cpu, serial = index[~wrong], cpu[~wrong], serial[~wrong]
            time_ns = None if time_ns is None else time_ns[~wrong]
        order = np.argsort(cpu, kind="stable")
        edges = np.flatnonzero(np.diff(cpu[order])) + 1
        for part in np.split(order, edges):
            if len(part):
                time = None if time_ns is None else time_ns[part]
                self._feed_cpu(int(cpu[part[0]]), index[part], serial[part], time)
        self._feed_losses(rows)

    def _cpu(self, cpu: int) -> CpuSerials:
        return self.cpus.setdefault(cpu, CpuSerials())

    def _feed_cpu(self, cpu: int, index: I64, serial: U64, time_ns: I64 | None) -> None:
        state = self._cpu(cpu)
        self._in_order(state, cpu, index, serial)
        if np.any(serial[1:] < serial[:-1]):
            order = np.argsort(serial, kind="stable")
            index, serial = index[order], serial[order]
            time_ns = None if time_ns is None else time_ns[order]
        early = serial <= np.uint64(state.before)
        if early.any():
            what = f"serials of CPU {cpu} up to {state.before} are in an earlier file"
            self._problems.add(int(index[np.argmax(early)]), what)
            return
        twice = state.add(*runs(serial))
        if len(twice):
            self._twice(cpu, twice, int(index[np.searchsorted(serial, twice[0]) % len(index)]))
        if time_ns is not None:
            self._order(state, cpu, index, serial, time_ns)

    def _in_order(self, state: CpuSerials, cpu: int, index: I64, serial: U64) -> None:
        """The sequencer sorts a CPU's records by serial, so the file has them in that order."""
        before = np.append(np.uint64(state.in_file), serial[:-1])
        state.in_file = int(serial[-1])
        what = f"serial {{}} of CPU {cpu} follows serial {{}}: the records are not in order"
        self._problems.add_each(
            np.flatnonzero(serial < before),
            index,
            lambda at: what.format(serial[at], before[at]),
            rest=True,
        )

    def _twice(self, cpu: int, serials: U64, entry: int) -> None:
        self._problems.add(entry, f"serial {serials[0]} of CPU {cpu} is there twice")
        self._problems.count(len(serials) - 1)

    def _order(self, state: CpuSerials, cpu: int, index: I64, serial: U64, time_ns: I64) -> None:
        newer = serial > np.uint64(state.last_serial)
        if not np.any(newer):
            return
        time, entry = time_ns[newer], index[newer]
        places, by_ns = runs_back(time, state.last_time_ns if state.last_serial else None)
        self._problems.add_each(
            np.arange(len(places)),
            entry[places],
            lambda at: f"time of CPU {cpu} runs back by {by_ns[at]} ns",
            rest=True,
        )
        state.last_serial = int(serial[-1])
        state.last_time_ns = int(time[-1])

    def _feed_losses(self, rows: ControlRows) -> None:
        """LOSS entries that name a CPU and a first serial fill the hole that they count."""
        known = (rows.location == control.Loss.location) & (rows.callvalue != control.ANY_CPU)
        losses = rows.take(known & (rows.pairs[:, 0] > 0) & (rows.pairs[:, 1] > 0))
        starts = losses.pairs[:, 0]
        ends = starts + losses.pairs[:, 1]
        whole = (ends > starts) & (ends <= LAST_SERIAL)
        beyond = np.flatnonzero(~whole)
        what = "LOSS entry counts beyond the last serial"
        self._problems.add_each(beyond, losses.index, lambda _: what)
        for cpu in np.unique(losses.callvalue[whole]):
            mine = np.flatnonzero(whole & (losses.callvalue == cpu))
            before = self._cpu(int(cpu)).before
            if int(starts[mine].min()) <= before:
                what = f"serials of CPU {cpu} up to {before} are in an earlier file"
                self._problems.add(int(losses.index[mine[0]]), what)
                continue
            twice = self._cpu(int(cpu)).add(starts[mine], ends[mine])
            if len(twice):
                at = int(mine[np.searchsorted(starts[mine], twice[0]) % len(mine)])
                self._twice(int(cpu), twice, int(losses.index[at]))


# A capture's LOSS entries against its ledger, and its serials against both.
#
# A LOSS entry that names no CPU ("unsure": causes 2 to 4, and what `tcpkmon repair` writes) may
# stand for any entries, LOSS and ledger entries too; what it counts bounds what may be missing.

@dataclass
class LossSums:
    """Sequence numbers that LOSS entries count: by CPU where they know it."""

    by_cpu: dict[int, int] = field(default_factory=dict)
    """The causes that know the CPU together: what comes late was first missed in the kernel."""
    killed: int = 0
    """What a process had read that was killed before it wrote it; by_cpu has it too."""
    collector: int = 0
    """Causes 2 to 4, of any CPU."""
    repaired: int = 0
    """What `tcpkmon repair` left out or found missing."""
    before: Previous = field(default_factory=Previous)
    """What was lost until a segment began."""

    def feed(self, rows: ControlRows) -> None:
        """Control rows of a segment."""
        losses = rows.take(rows.location == control.Loss.location)
        if not len(losses):
            return
        count, cause = losses.pairs[:, 1], losses.words[:, 4]
        unsure = is_unsure(losses)
        self.killed += int(count[cause == control.LossCause.KILLED].sum())
        own = unsure & (cause == control.LossCause.DAMAGED)
        self.repaired += int(count[own].sum())
        self.collector += int(count[unsure & ~own].sum())
        for cpu in np.unique(losses.callvalue[~unsure]):
            here = int(count[~unsure & (losses.callvalue == cpu)].sum())
            self.by_cpu[int(cpu)] = self.by_cpu.get(int(cpu), 0) + here

    @property
    def unsure(self) -> int:
        """All that no CPU is known of."""
        return self.collector + self.repaired


def check_losses(problems: Problems, shot: Ledger, sums: LossSums) -> None:
    """The final checkpoint's losses are those that the LOSS entries count."""
    unsure = sums.unsure + sums.before.skipped
    cpus, lost = by_cpu(shot.points.keys, shot.points.sum(*NUMBERED, "late"))
    rows = shot.cpu_rows
    told = dict(zip(rows.keys.tolist(), rows["damaged"].tolist(), strict=True))
    for cpu, count in zip(cpus, lost, strict=True):
        told[int(cpu)] = told.get(int(cpu), 0) + int(count)
    for cpu in sorted(told.keys() | sums.by_cpu.keys() | sums.before.lost.keys()):
        entries = sums.by_cpu.get(cpu, 0) + sums.before.lost.get(cpu, 0)
        ledger = told.get(cpu, 0)
        if entries > ledger or (entries < ledger and not unsure):
            problems.add(
                shot.cpu_entry(cpu),
                f"CPU {cpu}: the final ledger counts {ledger} records lost, late or damaged, "
                f"the LOSS entries {entries}",
            )
    late_stage = int(shot.points.sum(*LATE_STAGE).sum())
    if late_stage > unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {late_stage} lost by queue, disk or write error, "
            f"the LOSS entries {unsure}",
        )
    everything = sum(told.values()) + late_stage
    if everything > sum(sums.by_cpu.values()) + sum(sums.before.lost.values()) + unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {everything} lost, more than the sequence numbers missing",
        )


def check_serials(
    problems: Problems,
    shot: Ledger | None,
    serials: SerialCheck,
    sums: LossSums,
    last: int,
    rotated: bool = False,
) -> None:
    """Every serial up to the last one taken is in the file or counted as lost.

    rotated: the file ends at a point of the stream, so nothing before its end is under way.
    """
    where = shot.index if shot else last
    excess = 0
    for cpu, one in sorted(serials.cpus.items()):
        if shot is None or not shot.final:
            hole = one.missing if rotated else one.missing_marked
            if hole > sums.unsure + (0 if rotated else IN_FLIGHT):
                problems.add(where, f"CPU {cpu}: {hole} serial(s) missing without a LOSS entry")
            continue
        taken = int(shot.cpu_rows.at(np.array([cpu]))["serials"][0])
        if one.highest > taken:
            problems.add(
                shot.cpu_entry(cpu),
                f"CPU {cpu}: serial {one.highest} in the file, but only {taken} were reserved",
            )
            continue
        missing = taken - one.highest + one.missing
        if missing and not sums.unsure:
            problems.add(
                shot.cpu_entry(cpu), f"CPU {cpu}: {missing} serial(s) missing, not counted"
            )
        excess += missing
    if shot is not None and excess > sums.unsure > 0:
        problems.add(
            where, f"{excess} serials missing, more than the {sums.unsure} lost with CPU unknown"
        )
    if shot is None or not shot.final:
        return
    for cpu, taken in zip(shot.cpu_rows.keys, shot.cpu_rows["serials"], strict=True):
        if taken and int(cpu) not in serials.cpus and not sums.unsure:
            problems.add(where, f"CPU {cpu}: {taken} serials reserved, none in the file")


# Gathers a capture's checkpoints, makes a Ledger of each, and checks the form of its rows.

_LEDGER, _LOSSES, _CPU, _PROGRAM, _COLLECTOR = GROUP_KINDS = tuple(
    kind.location
    for kind in (
        control.Ledger,
        control.Losses,
        control.Cpu,
        control.Program,
        control.Collector,
    )
)
_COUNTERS: dict[int, tuple[str, ...]] = {
    _LEDGER: ("attempts", "filtered", "unchanged", "written", "shed"),
    _LOSSES: KERNEL,
    _CPU: CPU_COUNTERS,
    _PROGRAM: (*PROGRAM_COUNTERS, "runs", "run_ns", "unused"),
    _COLLECTOR: (*COLLECTED, "in_file"),
}
"""What the five u64 of each kind of row count."""
Name = Callable[[int], str]
_KIND_OF = {name: kind for kind in (_LEDGER, _LOSSES, _COLLECTOR) for name in _COUNTERS[kind]}


class Checkpoint(Ledger):
    """One whole checkpoint; `tables` are its rows by their location."""

    texts = MappingProxyType(
        TEXTS
        | {
            "in file": "{where}: {found} entries in the file before checkpoint {number}, "
            "which counts {told}",
            "attempts": "{where}: {told} attempts, "
            "but {found} filtered, unchanged, shed, written and lost",
            "serials": "CPU {cpu}: {told} serials reserved, but its locations add up to {found}",
            "came out": "{where}: {told} written by the kernel, "
            "but {found} in the file or lost in the collector",
            "damaged": "CPU {cpu}: {told} damaged (written, not lost and not in the file), "
            "but its locations add up to {found}",
            "read": "CPU {cpu}: {told} records read (written, not damaged), "
            "but its locations add up to {found}",
            "late": "CPU {cpu}: {told} late, but its locations add up to {found}",
            "fell": "{what} counts {now}, less than the {then} before",
        }
    )

    def __init__(
        self, index: int, head: control.Checkpoint, rows: dict[int, Table], online: U64, name: Name
    ) -> None:
        keys = np.unique(np.concatenate([rows[k].keys for k in (_LEDGER, _LOSSES, _COLLECTOR)]))
        points = Table(COUNTERS, keys, np.zeros((len(keys), len(COUNTERS)), np.uint64))
        for kind in (_LEDGER, _LOSSES, _COLLECTOR):
            table = rows[kind].at(keys)
            for counter in set(table.names) & set(COUNTERS):
                points[counter][:] = table[counter]
        stop, final = index + 1 + head.group, head.final == 1
        super().__init__(index, stop, head.number, final, points, rows[_CPU], rows[_PROGRAM])
        self.tables = rows
        self._online = online
        self._name = name

    def where(self, key: int, has_cpu: bool = True) -> str:
        return f"CPU {key >> 16}, location {key & 0xFFFF}" if has_cpu else f"location {key}"

    def entry(self, counter: str, key: int) -> int:
        return self.tables[_KIND_OF[counter]].entry(key, self.index)

    def program(self, key: int) -> tuple[int, str]:
        return key, self._name(key)

    def check_rows(self, problems: Problems, cpu_limit: int) -> None:
        """No row is of a CPU or location that there cannot be, and none lacks its LEDGER row."""
        for kind, table in self.tables.items():
            name = facts.NAMES[kind]
            if kind == _PROGRAM:
                for at in np.flatnonzero(table.keys >= POINTS)[:LISTED_AT_ONCE]:
                    problems.add(table.index[at], f"no location {table.keys[at]} has a program")
                continue
            cpu = table.keys if kind == _CPU else table.keys >> 16
            for at in np.flatnonzero(cpu >= cpu_limit)[:LISTED_AT_ONCE]:
                problems.add(table.index[at], f"{name} row of CPU {cpu[at]}, not possible here")
        for kind in (_LOSSES, _COLLECTOR):
            table, name = self.tables[kind], facts.NAMES[kind]
            alone = ~np.isin(table.keys, self.tables[_LEDGER].keys)
            for at in np.flatnonzero(alone)[:LISTED_AT_ONCE]:
                where = self.where(int(table.keys[at]))
                problems.add(table.index[at], f"{name} row of {where} without a LEDGER row")
        strange, rows = np.flatnonzero(self._online > 1), self.tables[_CPU].index
        problems.add_each(strange, rows, lambda _: "CPU row is not on or off")


class CheckpointReader:
    """Gathers each checkpoint's group of entries, across segments; name: of a location."""

    def __init__(self, problems: Problems, name: Name) -> None:
        self._problems = problems
        self._name = name
        self._open: tuple[int, control.Checkpoint] | None = None
        self._rows: list[ControlRows] = []
        self._gathered = 0
        self._hidden = False
        self.broken = 0
        """Checkpoints whose group is not whole because a LOSS took part of it."""

    def open(self, index: int, checkpoint: control.Checkpoint) -> None:
        """A CHECKPOINT is this entry."""
        self._rows, self._gathered, self._hidden = [], 0, False
        if checkpoint.group > MOST_GROUP:
            self._problems.add(index, f"checkpoint announces {checkpoint.group} entries")
            self._open = None
        else:
            self._open = index, checkpoint

    @property
    def until(self) -> int | None:
        """Entry number after the open checkpoint's group; None if none is open."""
        return None if self._open is None else self._open[0] + 1 + self._open[1].group

    def gather(self, rows: ControlRows, hidden: bool) -> None:
        """Rows of the open group; `hidden`: an unsure LOSS is among them."""
        self._rows.append(rows)
        self._gathered += len(rows)
        self._hidden |= hidden

    def close(self, at_end: bool = False) -> Checkpoint | None:
        """The open checkpoint with its group, or None if the group is not whole."""
        if self._open is None:
            return None
        index, head = self._open
        self._open = None
        if self._gathered == head.group:
            return Checkpoint(index, head, *self._tables(), self._name)
        if self._hidden:
            self.broken += 1
        elif not at_end:
            self._problems.add(
                index,
                f"checkpoint {head.number} announces {head.group} entries, "
                f"{self._gathered} follow it",
            )
        return None

    def _tables(self) -> tuple[dict[int, Table], U64]:
        """The rows by kind, and what CPU rows say of being online."""
        tables = {kind: Table(_COUNTERS[kind]) for kind in GROUP_KINDS}
        online = np.zeros(0, np.uint64)
        if not self._gathered:
            return tables, online
        location = np.concatenate([rows.location for rows in self._rows])
        keys = np.concatenate([rows.callvalue for rows in self._rows])
        values = np.concatenate([rows.pairs for rows in self._rows])
        index = np.concatenate([rows.index for rows in self._rows])
        for kind in GROUP_KINDS:
            mine = np.flatnonzero(location == kind)
            if not len(mine):
                continue
            mine = mine[np.argsort(keys[mine], kind="stable")]
            table = tables[kind] = Table(_COUNTERS[kind], keys[mine], values[mine], index[mine])
            if kind == _CPU:  # the last pair is (online, ring_lost)
                online = table["ring_lost"] & np.uint64(0xFFFFFFFF)
                table["ring_lost"][:] >>= np.uint64(32)
            twice = np.flatnonzero(np.diff(table.keys) == 0) + 1
            for at in twice[:LISTED_AT_ONCE]:
                self._problems.add(table.index[at], f"{facts.NAMES[kind]} row is there twice")
        return tables, online


# Follows checkpoints and END through a file, with the snapshots between them.

class Landmarks:
    """What is between the snapshots: fed with segments in order, then finished.

    checkpoint_at: the entry of the last CHECKPOINT; number: the number due next; end: the entry
    number of END and its content, end_ns its time. previous: of a segment, where the one before it
    ended. name: of a location.
    """

    def __init__(
        self, problems: Problems, sums: LossSums, previous: Previous | None, name: Name
    ) -> None:
        self._before = previous or Previous()
        self._is_first = previous is not None  # whose checkpoint is the base
        self._base_at = 1
        self._problems = problems
        self._sums = sums
        self._groups = CheckpointReader(problems, name)
        self.number = self._before.checkpoints
        self.cpu_limit = MOST_CPUS
        """CPUs that there can be, as START says."""
        self.checkpoint_at = -1
        self._checkpoint_ns: int | None = None
        self.end_ns: int | None = None
        self.end: tuple[int, control.End] | None = None

    @property
    def broken(self) -> int:
        """Checkpoints that a loss took part of."""
        return self._groups.broken

    def finish(self) -> Iterator[Item]:
        """The whole file was fed."""
        return self._settle(self._groups.close(at_end=self.end is None))

    def feed(
        self, segment: Segment, rows: ControlRows, seq: U64, index: I64, keys: I64, unsure_at: I64
    ) -> Iterator[Item]:
        """Checkpoints with their groups, in order, and the snapshots between them.

        index, keys: entry numbers of the snapshots, and cpu * POINTS + location of each.
        """
        if not segment.start and (rows.location[rows.index == 1] == Unseen.location).any():
            self._base_at = 2
        in_group = np.isin(rows.location, GROUP_KINDS)
        claimed = np.zeros(len(rows), np.bool_)
        done = 0
        yield from self._gather(segment, rows, in_group, claimed, unsure_at)
        marks = (rows.location == control.Checkpoint.location) | (
            rows.location == control.End.location
        )
        for at in np.flatnonzero(marks):
            entry = int(rows.index[at])
            upto = int(np.searchsorted(index, entry))
            yield Records(keys[done:upto])
            done = upto
            found = rows.decode(int(at))
            before = self._before.entries + entry
            missing = int(seq[entry - segment.start]) - 1 - before
            if isinstance(found, control.Checkpoint):
                yield from self._settle(self._groups.close())
                yield Opening()
                self._checkpoint_ns = segment.stamp_ns(entry)
                self._checkpoint(entry, found, missing)
                yield from self._gather(segment, rows, in_group, claimed, unsure_at)
            elif isinstance(found, control.End):
                self.end_ns = segment.stamp_ns(entry)
                self._ends(entry, found, missing)
        yield Records(keys[done:])
        for at in np.flatnonzero(in_group & ~claimed)[:8]:
            self._stray(int(rows.index[at]))

    def _stray(self, entry: int) -> None:
        """An entry of a ledger that no checkpoint announces."""
        # The checkpoint itself, or a neighbour in its group, may have been lost.
        if not self._sums.unsure:
            self._problems.add(entry, "a ledger entry that belongs to no checkpoint")

    def _gather(
        self, segment: Segment, rows: ControlRows, in_group: Mask, claimed: Mask, unsure_at: I64
    ) -> Iterator[Item]:
        """Take from this segment what belongs to the open checkpoint; settle it when whole."""
        until = self._groups.until
        if until is None:
            return
        low = int(np.searchsorted(rows.index, self.checkpoint_at + 1))
        high = int(np.searchsorted(rows.index, until))
        hidden = bool(np.any((unsure_at > self.checkpoint_at) & (unsure_at < until)))
        chosen = low + np.flatnonzero(in_group[low:high])
        claimed[chosen] = True
        self._groups.gather(rows.take(chosen), hidden)
        if until <= segment.stop:
            yield from self._settle(self._groups.close())

    def _checkpoint(self, entry: int, found: control.Checkpoint, missing: int) -> None:
        number = found.number
        if number != self.number and not (self._sums.unsure and number > self.number):
            self._problems.add(entry, f"checkpoint {number} where {self.number} is due")
        self.number = number + 1
        self._totals(entry, f"checkpoint {number}", found.entries, found.lost, missing)
        if found.final > 1:
            self._problems.add(entry, f"checkpoint {number} has final {found.final}")
        self.checkpoint_at = entry
        self._groups.open(entry, found)

    def _totals(self, entry: int, what: str, entries: int, lost: int, missing: int) -> None:
        before = self._before.entries + entry
        if entries != before:
            self._problems.add(entry, f"{what} counts {entries} entries before it, not {before}")
        if lost != missing:
            self._problems.add(entry, f"{what} counts {lost} lost, its place says {missing}")

    def _ends(self, entry: int, found: control.End, missing: int) -> None:
        if self.end is not None:
            self._problems.add(entry, "a second END entry")
        self.end = entry, found
        self._totals(entry, "END", found.entries, found.lost, missing)
        if found.reason not in tuple(control.EndReason):
            self._problems.add(entry, f"END has unknown reason {found.reason}")
        if found.checkpoints != self.number and not self._sums.unsure:
            self._problems.add(
                entry, f"END counts {found.checkpoints} checkpoints, not {self.number}"
            )

    def _settle(self, shot: Checkpoint | None) -> Iterator[Item]:
        """A checkpoint's group is whole."""
        if shot is None:
            return
        shot.check_rows(self._problems, self.cpu_limit)
        shot.is_base = self._is_first and shot.index == self._base_at
        self._is_first = False
        shot.stamp_ns = self._checkpoint_ns
        shot.repaired = self._sums.repaired
        yield shot


# A capture's clock pairs follow from one another, and entries' times from the pairs.

TIME_TOLERANCE_NS = 10_000_000
"""Between `time` less `time_ns` and the clock pairs: the clock's slewing between two pairs, the
pairs' uncertainty, and the microsecond."""


class ClockCheck:
    """Follows START and CLOCK entries through the file; judges entries' times at its end."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._at = -1
        self._least: int | None = None
        self._most: int | None = None
        self._back_ns = 0
        self._last_ns: int | None = None
        self._far: list[tuple[int, int]] = []  # (time - time_ns, entry)
        self._jumps: list[tuple[int, int]] = []  # (ns, entry)
        self._last_time: int | None = None
        self.pairs = ClockPairs()

    def feed(self, rows: ControlRows, unsure_at: I64) -> None:
        """Control rows of a segment; `unsure_at`: entries of LOSSes that may hide a pair."""
        is_start = rows.location == control.Start.location
        pairs = rows.take(is_start | (rows.location == control.Clock.location))
        if not len(pairs):
            return
        step = (pairs.words[:, 5] | (pairs.words[:, 6] << np.uint64(32))).view(np.int64)
        before_at = np.concatenate((np.array([self._at]), pairs.index[:-1]))
        hidden = np.searchsorted(unsure_at, pairs.index) > np.searchsorted(unsure_at, before_at)
        clock = pairs.location == control.Clock.location
        room = pairs.words[:, 4].astype(np.int64)
        mono, real = pairs.pairs[:, 0], pairs.pairs[:, 1]
        found = self.pairs.feed(mono, real, step, room, clock, ~hidden)
        least, most = int(found.offset.min()), int(found.offset.max())
        self._least = least if self._least is None else min(least, self._least)
        self._most = most if self._most is None else max(most, self._most)
        self._back_ns -= int(step[clock & (step < 0)].sum())
        self._at = int(pairs.index[-1])
        add_each = self._problems.add_each
        add_each(
            np.flatnonzero(found.off),
            pairs.index,
            lambda at: (
                f"clock pair says a step of {step[at]} ns, its values one of {found.found[at]} ns"
            ),
            rest=True,
        )
        strange = np.flatnonzero(clock & (pairs.callvalue != 0))
        add_each(strange, pairs.index, lambda _: "the callvalue of a clock pair should be zero")
        what = "the monotonic clock of this pair runs back"
        add_each(np.flatnonzero(found.back), pairs.index, lambda _: what)

    def feed_both(self, index: I64, time: I64, time_ns: I64) -> None:
        """Entries that have both times: the difference must lie within what the pairs say.

        Those that lie beyond all pairs so far are judged again at the end.
        """
        offset = time - time_ns
        if self._least is None or self._most is None:
            far = np.arange(len(offset))
        else:
            low, high = self._least - TIME_TOLERANCE_NS, self._most + TIME_TOLERANCE_NS
            far = np.flatnonzero((offset < low) | (offset > high))
        room = MOST_FAR - len(self._far)
        if room > 0 and len(far):
            far = far[:room]
            self._far.extend(zip(offset[far].tolist(), index[far].tolist(), strict=True))

    def feed_merged(self, index: I64, time_ns: I64) -> None:
        """Records of all CPUs: the file has them in the order of time, but for interrupts."""
        if not len(index):
            return
        places, by_ns = runs_back(time_ns, self._last_ns)
        self._last_ns = int(time_ns[-1])
        self._problems.add_each(
            np.arange(len(places)),
            index[places],
            lambda at: f"time_ns runs back by {by_ns[at]} ns: the records are not in order",
            rest=True,
        )

    def feed_time(self, index: I64, time: I64) -> None:
        """Snapshots without time_ns, in order of the file: `time` runs on but for clock steps."""
        if not len(index):
            return
        places, by_ns = runs_back(time, self._last_time)
        room = MOST_JUMPS - len(self._jumps)
        jumps = zip(by_ns.tolist(), index[places].tolist(), strict=True)
        self._jumps.extend(islice(jumps, max(room, 0)))
        self._last_time = int(time[-1])

    def finish(self) -> None:
        """The whole file was fed: judge the times against all the clock pairs in it."""
        for jump_ns, entry in self._jumps:
            if jump_ns > self._back_ns + NESTING_TOLERANCE_NS:
                self._problems.add(entry, f"time runs back by {jump_ns} ns without a clock step")
        if self._least is None or self._most is None:
            return
        for offset, entry in self._far:
            beyond = max(self._least - offset, offset - self._most)
            if beyond > TIME_TOLERANCE_NS:
                self._problems.add(
                    entry, f"time and time_ns are {beyond} ns further apart than any clock pair"
                )


# What a capture's header says of the records that tcpkmon cut left out of it.

_WORDS = ("since", "until", "connections", "where")


def cuts_in(settings: object) -> list[dict[str, Any]]:
    """A dictionary for each cut, the first one first."""
    found = setting(settings, "cut")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def tell_cuts(settings: object, report: Report, problems: Problems) -> None:
    """Say what was cut; the ledger must count as many records as filtered, at least."""
    cuts = cuts_in(settings)
    numbers = [one.get("records") for one in cuts]
    counts = [number for number in numbers if isinstance(number, int) and number >= 0]
    for one, count in zip(cuts, counts, strict=False):
        asked = ", ".join(f"{name} {one[name]}" for name in _WORDS if name in one)
        report.notes.append(
            f"{count:,} records were cut out afterwards ({asked}); they count as filtered"
        )
    if len(counts) < len(cuts):
        problems.add_header("the header's description of a cut cannot be read")
    elif report.proven_end and sum(counts) > sum(row.filtered for row in report.rows):
        problems.add_header("the header tells of more records cut than the ledger has filtered")


# Counts the records of control groups of which a capture does not say whose they are.

_MOST_IDS = 1 << 16


class Unnamed:
    """settings: of the header. Feed the ids of all records, and the control entries."""

    def __init__(self, settings: Any) -> None:
        self._groups = Groups(settings)
        self._records: Counter[int] = Counter()

    def feed(self, ids: NDArray[Any]) -> None:
        """(n,) of records; 0: the record has no group."""
        found, counts = np.unique(ids[ids != 0], return_counts=True)
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        if len(self._records) < _MOST_IDS:
            self._records.update(dict(pairs))

    def tell(self, entry: Control) -> None:
        """A control entry."""
        self._groups.feed(entry)

    def notes(self) -> list[str]:
        """Lines for a person. A capture that tells of no group says nothing."""
        if not len(self._groups):
            return []
        told = []
        unnamed = {one: n for one, n in self._records.items() if self._groups.get(one) is None}
        if unnamed:
            told.append(
                f"{len(unnamed)} control group(s) without a name, of {sum(unnamed.values())} "
                "record(s)"
            )
        if self._groups.unknown:
            told.append(f"{self._groups.unknown} control group(s) came and went unseen")
        return told


SEGMENT_ROWS = 1 << 16


def verify_file(path: str | os.PathLike[str]) -> Report:
    """Check the capture at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with open_capture(path) as capture:
            return verify_capture(capture)
    except DamagedError as error:
        return Report(str(path), error=error.message.removeprefix(f"{path}: "))


def verify_capture(capture: Capture) -> Report:
    """Check an open capture."""
    size_bytes = os.stat(capture.path).st_size
    count, entry_size = len(capture), capture.header.entry_size
    problems = Problems(capture.data_offset, entry_size)
    report = Report(str(capture.path), count, size_bytes, is_ours(capture))
    if report.ledger:
        Run(_Decoder(capture, problems, report)).run()
    elif has_our_header(capture):
        report.error = "the header describes no ledger, although tcpkmon wrote it: it is damaged"
    elif capture.seq_column is None:
        report.error = "the file has no sequence numbers: nothing can be checked"
    else:
        sequence = SequenceCheck(problems, ledger=False)
        for piece in capture.chunks(SEGMENT_ROWS):
            sequence.feed(piece.start, capture.seq(piece.start, piece.stop), NO_ROWS)
        report.seq_lost, report.seq_gaps = sequence.lost, sequence.gaps
    for what in capture.find_unreadable():
        problems.add_header(what)
    # A last entry cut short is damage, but for a capture that was killed: part of its tail.
    if capture.is_cut and not (report.ledger and report.end_reason is None):
        problems.add(count, "the file is cut short within an entry")
    if not capture.header.is_intact:
        problems.add_header(HEADER_DAMAGED)
    report.unchecked += _unchecked(capture, report.ledger)
    report.settle(problems)
    report.notes.extend(text for text in capture.warnings if text != HEADER_DAMAGED)
    return report


def _unchecked(capture: Capture, has_ledger: bool) -> Iterator[str]:
    """What this file does not let verify check."""
    if not capture.header.has_checksum:
        yield "the header (it has no checksum)"
    if not has_ledger:
        return
    lacking = [name for name in ("cpu", "serial", "time_ns") if not is_number(capture, name)]
    without = {"cpu": "each CPU's counts", "serial": "serials", "time_ns": "times to the ns"}
    for name in lacking:
        yield f"{without[name]} (no column {name})"


class _Decoder(Decoder):
    """The tape of a file that has control entries."""

    def __init__(self, capture: Capture, problems: Problems, report: Report) -> None:
        super().__init__(report, problems, capture.settings)
        self._capture = capture
        self.has_cpu = is_number(capture, "cpu")
        self._unnamed = Unnamed(capture.settings)
        self._has_group = is_number(capture, "cgroup")
        self._has_serial = self.has_cpu and is_number(capture, "serial")
        self._has_mono = is_number(capture, "time_ns")
        time = capture.columns_by_name.get("time")
        self._has_time = time is not None and time.is_time
        self._reader = SequenceReader(capture, problems)
        self._sequence = SequenceCheck(problems, ledger=True, before=self.before.last_seq)
        self._serials = SerialCheck(problems, self.before.serials)
        self._clock = ClockCheck(problems)
        self._sums = LossSums(before=self.before)
        self._marks = Landmarks(problems, self._sums, self.previous, self.name)
        self._unsure_at = -1
        self._locations: int | None = None

    def name(self, point: int) -> str:
        return self._capture.location_name(point)

    def tape(self) -> Iterator[Item]:
        for piece in self._capture.chunks(SEGMENT_ROWS):
            yield from self._segment(Segment(self._capture, piece.start, piece.stop))
        yield from self._marks.finish()
        self._clock.finish()
        # A capture that went on where it was killed counts as damaged what was lost by that.
        if self._sums.killed or self._capture.settings.get("went_on") is True:
            self.damaged = KILLED
        if self._marks.end is None:
            return
        entry, end = self._marks.end
        is_last = entry == self.report.entries - 1
        if not is_last:
            self.problems.add(entry, "entries follow END")
        end_ns = self._marks.end_ns
        mono_ns = end_ns if self._has_mono else None
        yield End(entry, reason_of(end.reason), is_last, end_ns, mono_ns)

    def _segment(self, segment: Segment) -> Iterator[Item]:
        location = segment.wide("location")
        mask = self._control_mask(segment, location)
        rows = segment.control_rows(mask)
        what = "a control entry with bytes that should be zero"
        self.problems.add_each(segment.strange_tails(rows), 0, lambda _: what)
        seq = self._reader.read(segment)
        self._sequence.feed(segment.start, seq, rows)
        self._sums.feed(rows)
        loss = rows.take(rows.location == control.Loss.location)
        unsure_at = np.concatenate(
            (np.array([self._unsure_at]), loss.index[is_unsure(loss)])
        ).astype(np.int64)
        self._starts(segment, rows)
        self._clock.feed(rows, unsure_at)
        yield from self._told(rows)
        plain = np.flatnonzero((location > 0) & (location < POINTS) & ~mask)
        cpu = self._cpus(segment, plain)
        self._times(segment, location, plain)
        if self._has_group:
            self._unnamed.feed(segment.numbers("cgroup")[plain])
        index, keys = plain + segment.start, cpu * POINTS + location[plain]
        yield from self._marks.feed(segment, rows, seq, index, keys, unsure_at)
        if self._has_serial:
            self._feed_serials(segment, rows, plain, cpu)
        self._unsure_at = int(unsure_at[-1])

    def _told(self, rows: ControlRows) -> Iterator[Told]:
        for at in np.flatnonzero(rows.location >= control.Change.location).tolist():
            entry = rows.decode(at)
            self._unnamed.tell(entry)
            yield Told(int(rows.index[at]), entry)

    def _control_mask(self, segment: Segment, location: I64) -> Mask:
        """Control entries; complains of locations that cannot be."""
        mask = control.is_control(location)
        high = np.flatnonzero(mask)
        ports = segment.rows["lport"][high] | segment.rows["rport"][high]
        strange = (ports != 0) | (location[high] > max(facts.NAMES))
        self.problems.add_each(
            high[strange],
            segment.start,
            lambda at: f"no control entry has location {location[at]} and these ports",
        )
        self.problems.add_each(
            np.flatnonzero(location <= 0),
            segment.start,
            lambda at: f"no entry has location {location[at]}",
        )
        mask[high[strange]] = False
        return mask

    def _starts(self, segment: Segment, rows: ControlRows) -> None:
        starts = np.flatnonzero(rows.location == control.Start.location)
        for at in starts[:LISTED_AT_ONCE]:
            if rows.index[at]:
                self.problems.add(rows.index[at], "a second START entry")
        if segment.start:
            return
        if len(starts) and rows.index[starts[0]] == 0:
            start = rows.decode(int(starts[0]))
            assert isinstance(start, control.Start)
            self._marks.cpu_limit = min(start.cpus, 0xFFFF) or MOST_CPUS
            self._locations = start.locations
            self.ahead_ns = start.realtime_ns - start.mono_ns
            if start.version == 2 and not self._capture.header.has_checksum:
                self.problems.add_header("the header has lost its checksum")
            if start.version not in (1, control.FORMAT_VERSION):
                self.problems.add(0, f"format version {start.version} is not known")
        elif not (rows.index[:1].tolist() == [0] and is_unsure(rows)[0]):
            self.problems.add(0, "the file does not begin with a START entry")

    def _cpus(self, segment: Segment, plain: I64) -> I64:
        if not self.has_cpu:
            return np.zeros(len(plain), np.int64)
        cpu = segment.wide("cpu")[plain]
        beyond = np.flatnonzero((cpu < 0) | (cpu >= self._marks.cpu_limit))
        entries = segment.start + plain
        what = "CPU {} is not possible here"
        self.problems.add_each(beyond, entries, lambda at: what.format(cpu[at]), rest=True)
        cpu[beyond] = 0
        return cpu

    def _times(self, segment: Segment, location: I64, plain: I64) -> None:
        if not self._has_time:
            return
        time = segment.time_ns()
        if self._has_mono:
            mono = segment.wide("time_ns")
            there = np.flatnonzero(mono)
            self._clock.feed_both(there + segment.start, time[there], mono[there])
            # What a file repeats of its connections, and what it lists, has times of its own.
            merged = plain[location[plain] != control.EXISTING]
            self._clock.feed_merged(merged + segment.start, mono[merged])
        else:
            self._clock.feed_time(plain + segment.start, time[plain])

    def _feed_serials(self, segment: Segment, rows: ControlRows, plain: I64, cpu: I64) -> None:
        serial = segment.numbers("serial").astype(np.uint64)[plain]
        mono = segment.wide("time_ns")[plain] if self._has_mono else None
        index = plain + segment.start
        cut, row_cut = 0, 0
        if self._marks.checkpoint_at >= segment.start:
            cut = int(np.searchsorted(index, self._marks.checkpoint_at))
            row_cut = int(np.searchsorted(rows.index, self._marks.checkpoint_at))
        at = np.arange(len(rows))
        for part, here in (
            (slice(0, cut), rows.take(at[:row_cut])),
            (slice(cut, None), rows.take(at[row_cut:])),
        ):
            time = None if mono is None else mono[part]
            self._serials.feed(index[part], cpu[part], serial[part], time, here)
            if part.start == 0 and row_cut:
                self._serials.mark()

    @property
    def needs_no_ledger(self) -> bool:
        return self._sums.unsure > 0

    def conclude(self, found: Found) -> None:
        report, problems, marks, last = self.report, self.problems, self._marks, found.last
        if self._has_serial:
            entries = max(report.entries - 1, 0)
            check_serials(problems, last, self._serials, self._sums, entries, found.is_early)
        report.seq_lost, report.seq_gaps = self._sequence.lost, self._sequence.gaps
        report.notes += self._unnamed.notes()
        report.checkpoints = marks.number - self.before.checkpoints
        if marks.end is not None:
            report.claimed = marks.end[1].checkpoints - self.before.checkpoints
        pairs = self._clock.pairs
        report.clock_pairs, report.clock_steps = pairs.pairs, pairs.steps
        _tell_states(self._capture, report)
        if last is not None and last.final:
            check_losses(problems, last, self._sums)
        points = {row.location for row in report.rows if row.location != control.EXISTING}
        if last is not None and self._locations is not None and len(points) > self._locations:
            what = f"{len(points)} locations where START enabled {self._locations}"
            problems.add(last.index, what)
        tell_cuts(self._capture.settings, report, problems)
        if marks.broken:
            report.notes.append(f"{marks.broken} checkpoint(s) lost in part")

    def describe(self, part: Part, found: Found) -> None:
        part.last_seq = self._sequence.last
        part.entries = self.before.entries + self.report.entries
        part.unsure = self._sums.unsure > 0 or not self._has_serial
        part.serials = {cpu: one.highest for cpu, one in self._serials.cpus.items()}


def _tell_states(capture: Capture, report: Report) -> None:
    """What a later segment repeats is no connection that was open before the capture."""
    if report.part is None or not capture.controls_fit:
        return
    _, count = find_states(capture.header, len(capture), partial(capture.column, "location"))
    if count:
        known = described(capture.header).get("known")
        of = f" of {known}" if isinstance(known, int) and known > count else ""
        report.existing -= count
        what = f"the last record before it of {count}{of} connections that were open"
        report.window.append(f"it repeats {what}")
