# SPDX-License-Identifier: Apache-2.0
"""Builds PSC captures with a right ledger for tests, one event at a time, without a kernel."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.psc.columns import CLASSIC, FLAG_INT_NET, Column, entry_dtype
from tcpkmon.formats.psc.header import Header, encode_header, writer_header

FURTHER = {"seq": 8, "time_ns": 8, "serial": 8, "conn_id": 8, "srtt_us": 4, "cpu": 2}
MONO_NS = 5_000_000_000_000
REALTIME_NS = 1_700_000_000_000_000_000
KERNEL_CAUSES = ("ring_full", "no_ring", "other")  # these take a serial
SILENT_CAUSES = ("table_full", "no_slot")  # these do not
WRITER_CAUSES = {"queue_full": 2, "disk_full": 3, "write_error": 4}


def columns_for(further: dict[str, int]) -> tuple[tuple[Column, ...], int]:
    """The classic columns, then `further` (name: width in bytes), and the entry's size."""
    columns = [
        Column(name, offset, length, flags=FLAG_INT_NET if name in ("lport", "rport") else 0)
        for name, (offset, length) in CLASSIC.items()
    ]
    offset = 64
    for name, width in further.items():
        columns.append(Column(name, offset, width))
        offset += width
    return tuple(columns), -(-offset // 8) * 8


class Plain:
    """A PSC file of START, rows and END alone: without a ledger, in any size."""

    def __init__(self, further: dict[str, int]) -> None:
        made, self.entry_size = columns_for(further)
        raw = ("laddr", "raddr", "ca_name")
        self.columns = tuple(
            Column(one.name, one.offset, one.length, flags=0 if one.name in raw else one.flags)
            for one in made
        )
        self.dtype = entry_dtype(self.columns, self.entry_size, "<")

    def write(
        self, path: Path, pieces: Iterable[npt.NDArray[Any]], lost: int, last_seq: int,
        last_ns: int = 0, host: str = "unit", **header: Any,
    ) -> Path:  # fmt: skip
        """last_seq, last_ns: of the last row, which may be missing."""
        made = writer_header(self.columns, self.entry_size, mods=3, version="tcpkmon",
                             mclsize=4096, host=host, kernel="6.1.0 test", **header)  # fmt: skip
        with path.open("wb") as out:
            start = control.encode_many([control.Start(0, 0, 1, 1, 2)], self.dtype)
            start["seq"] = 1
            out.write(encode_header(made) + start.tobytes())
            for rows in pieces:
                out.write(rows.tobytes())
            end = control.encode_many([control.End(0, int(last_seq) - 1, lost, 0)], self.dtype)
            end["seq"], end["time_ns"] = last_seq + 1, last_ns
            out.write(end.tobytes())
        return path


@dataclass
class CaptureBuilder:
    """A capture in the making; every method appends what the collector would have written.

    `further` are the columns after the classic ones; `rows` is the file's entries once built.
    """

    cpus: int = 2
    locations: tuple[int, ...] = (1, 2, 9)
    further: dict[str, int] = field(default_factory=lambda: dict(FURTHER))
    big_endian: bool = False
    with_header_kinds: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns, self.entry_size = columns_for(self.further)
        self.dtype = entry_dtype(self.columns, self.entry_size, ">" if self.big_endian else "<")
        self.seq = 0
        self.lost = 0
        self.mono_ns = MONO_NS
        self.step_ns = 0
        self.offset_ns = REALTIME_NS - MONO_NS
        self.checkpoints = 0
        self.serials: Counter[int] = Counter()
        self.damaged_on: Counter[int] = Counter()
        self.counts: dict[tuple[int, int], Counter[str]] = {}
        self.missed: dict[int, tuple[int, int]] = {}
        self.rows: list[npt.NDArray[Any]] = []
        cpus, locations = self.cpus, len(self.locations)
        version = 2 if self.with_header_kinds else 1
        realtime_ns = self.mono_ns + self.offset_ns
        self.put(control.Start(self.mono_ns, realtime_ns, cpus, locations, version))

    # Entries.

    def put(self, entry: control.Control) -> None:
        """Append a control entry."""
        self._append(control.encode_many([entry], self.dtype))

    def _append(self, row: npt.NDArray[Any], mono_ns: int | None = None) -> None:
        self.seq += 1
        self.mono_ns += 1000
        mono_ns = self.mono_ns if mono_ns is None else mono_ns
        row["seq_no"] = self.seq & 0xFFFFFFFF
        time_us = (mono_ns + self.offset_ns) // 1000
        row["tv_sec"], row["tv_usec"] = divmod(time_us, 1_000_000)
        for name, value in (("seq", self.seq), ("time_ns", mono_ns)):
            if name in self.further:
                row[name] = value
        self.rows.append(row)

    def _of(self, cpu: int, location: int) -> Counter[str]:
        return self.counts.setdefault((cpu, location), Counter())

    def _snapshot(self, cpu: int, location: int, serial: int, mono_ns: int | None) -> None:
        row = np.zeros(1, self.dtype)
        row["location"] = location
        row["lport"], row["rport"] = 5001, 40000 + serial % 1000
        row["snd_cwnd"] = 14480
        for name, value in (("cpu", cpu), ("serial", serial)):
            if name in self.further:
                row[name] = value
        self._append(row, mono_ns)

    def snapshots(self, cpu: int = 0, location: int = 1, count: int = 1) -> None:
        """Events that come through."""
        for _ in range(count):
            self.serials[cpu] += 1
            self._of(cpu, location).update(attempts=1, written=1, in_file=1)
            self._snapshot(cpu, location, self.serials[cpu], None)

    def nested(self, cpu: int = 0, location: int = 1, ns: int = 500_000) -> None:
        """Two events of which the second interrupted the first after it took its serial: in the
        file they are in the order of serials, as the sequencer sorts them."""
        serial = self.serials[cpu]
        self.serials[cpu] += 2
        self._of(cpu, location).update(attempts=2, written=2, in_file=2)
        self.mono_ns += ns
        self._snapshot(cpu, location, serial + 1, self.mono_ns)
        self._snapshot(cpu, location, serial + 2, self.mono_ns - ns)

    def existing(self, count: int = 1) -> None:
        """Connections that were open before: through the rings like all others."""
        self.snapshots(0, control.EXISTING, count)

    # What does not come through.

    def withheld(
        self, cpu: int = 0, location: int = 1, filtered: int = 0, unchanged: int = 0, shed: int = 0,
    ) -> None:  # fmt: skip
        """Events that were filtered, unchanged or shed."""
        self._of(cpu, location).update(
            attempts=filtered + unchanged + shed, filtered=filtered, unchanged=unchanged, shed=shed
        )

    def lose(
        self, cause: str, cpu: int = 0, location: int = 1, count: int = 1, entry: bool = True
    ) -> None:
        """Events lost in the kernel, late or damaged; `entry`: write the LOSS entry as well."""
        counts = self._of(cpu, location)
        counts["attempts"] += count
        if cause in SILENT_CAUSES:
            counts[cause] += count
            return
        first = self.serials[cpu] + 1
        self.serials[cpu] += count
        number = {"late": 1, "damaged": 5}.get(cause, 0)
        if number == 5:
            self.damaged_on[cpu] += count
        else:
            counts[cause] += count
        if number:
            counts["written"] += count
        self.seq += count
        self.lost += count
        if entry:
            self.put(control.Loss(cpu, first, count, number))

    def lose_writing(
        self, cause: str, cpu: int = 0, location: int = 1, count: int = 1, control_entries: int = 0
    ) -> None:
        """Entries that the queue or the disk had no room for, control entries among them."""
        self.serials[cpu] += count
        self._of(cpu, location).update({"attempts": count, "written": count, cause: count})
        self.seq += count + control_entries
        self.lost += count + control_entries
        self.put(control.Loss(control.ANY_CPU, 0, count + control_entries, WRITER_CAUSES[cause]))

    # Landmarks.

    def clock(self, step_ns: int = 0) -> None:
        """A clock pair; the real-time clock made a step since the last."""
        self.offset_ns += step_ns
        mono_ns = self.mono_ns + 100
        self.put(control.Clock(mono_ns, mono_ns + self.offset_ns, 150, step_ns))

    def mark(self, text: str = "here") -> None:
        """A user's mark."""
        self.put(control.Mark(1, text))

    def switch(self, location: int, on: bool, others: bool = False) -> None:
        """A location is switched; it takes a millisecond."""
        before_ns = self.mono_ns
        self.mono_ns += 1_000_000
        values = int(not on), int(on), int(others)
        self.put(control.Change(0, location, before_ns, self.mono_ns, *values))

    def group(self) -> list[control.Control]:
        """The ledger as it stands."""
        entries: list[control.Control] = []
        for (cpu, point), n in sorted(self.counts.items()):
            entries += [
                control.Ledger(
                    cpu, point, n["attempts"], n["filtered"], n["unchanged"], n["written"],
                    n["shed"],
                ),
                control.Losses(
                    cpu, point, n["ring_full"], n["no_ring"], n["other"], n["table_full"],
                    n["no_slot"],
                ),
                control.Collector(
                    cpu, point, n["late"], n["queue_full"], n["disk_full"], n["write_error"],
                    n["in_file"],
                ),
            ]
        for cpu in range(self.cpus):
            of_cpu = [n for (number, _), n in self.counts.items() if number == cpu]
            written = sum(n["written"] for n in of_cpu)
            late = sum(n["late"] for n in of_cpu)
            damaged, full = self.damaged_on[cpu], sum(n["ring_full"] for n in of_cpu)
            entries.append(
                control.Cpu(cpu, self.serials[cpu], written - damaged, damaged, late, 1, full)
            )
        for point in self.locations:
            missed = self.missed.get(point, (0, 0))
            entries.append(control.Program(point, *missed, 0, 0))
        return entries

    def checkpoint(self, final: bool = False) -> None:
        """A checkpoint and its ledger."""
        group = self.group()
        self.put(
            control.Checkpoint(self.checkpoints, len(self.rows), self.lost, len(group), int(final))
        )
        self.checkpoints += 1
        for entry in group:
            self.put(entry)

    def end(self, reason: int = 0) -> None:
        """The final checkpoint and END."""
        self.checkpoint(final=True)
        self.put(control.End(reason, len(self.rows), self.lost, self.checkpoints))

    # The file.

    def header(self) -> Header:
        """The header that goes before the entries."""
        made = writer_header(
            self.columns, self.entry_size, mods=3, version="tcpkmon", mclsize=4096, host="unit",
            kernel="6.1.0 test", settings={"locations": list(self.locations), **self.settings},
        )  # fmt: skip
        endian = Endian.BIG if self.big_endian else Endian.LITTLE
        extras = made.extras if self.with_header_kinds else {}
        return Header(
            made.mods, made.version, made.entry_size, made.columns, endian, made.mclsize, extras,
            self.with_header_kinds,
        )  # fmt: skip

    def array(self) -> npt.NDArray[Any]:
        """All entries as one array, which a test may then break."""
        raw = b"".join(row.tobytes() for row in self.rows)
        return np.frombuffer(bytearray(raw), self.dtype)

    def write(self, path: Path, array: npt.NDArray[Any] | None = None) -> Path:
        """Write the file; `array` instead of the entries as built."""
        entries = self.array() if array is None else array
        path.write_bytes(encode_header(self.header()) + entries.tobytes())
        return path


def find(array: npt.NDArray[Any], kind: type[control.Control], number: int = 0) -> int:
    """Index of the number-th entry of a kind."""
    return int(np.flatnonzero(array["location"] == kind.location)[number])


def replace(array: npt.NDArray[Any], at: int, entry: control.Control) -> None:
    """Put another payload into the control entry at this index."""
    row = control.encode_many([entry], array.dtype)
    for name in list(CLASSIC)[6:]:
        array[name][at] = row[name][0]
    array["callvalue"][at] = row["callvalue"][0]


def decoded(array: npt.NDArray[Any], at: int) -> control.Control:
    """The control entry at this index."""
    row = array[at : at + 1]
    words = [int(row[name][0]) for name in list(CLASSIC)[6:]]
    return facts.decode(int(row["callvalue"][0]), int(row["location"][0]), words)


def full_capture(**options: Any) -> CaptureBuilder:
    """A capture with everything in it but losses of the writer."""
    build = CaptureBuilder(**options)
    build.clock()
    build.existing(2)
    build.checkpoint()
    for cpu in range(build.cpus):
        for location in build.locations:
            build.snapshots(cpu, location, 5 + cpu)
            build.withheld(cpu, location, filtered=3, unchanged=4)
    build.nested(1, build.locations[0])
    build.mark()
    build.switch(build.locations[1], False)
    build.switch(build.locations[1], True)
    for number, cause in enumerate((*KERNEL_CAUSES, *SILENT_CAUSES, "late", "damaged")):
        build.lose(cause, number % build.cpus, build.locations[0], number + 1)
        build.snapshots(0, build.locations[1], 2)
    build.clock(-2_000)
    build.checkpoint()
    build.snapshots(1, build.locations[2], 4)
    build.lose("ring_full", 1, build.locations[2], 3)
    build.clock(500)
    build.end()
    return build


def clean_capture(**options: Any) -> CaptureBuilder:
    """A capture that lost nothing."""
    build = CaptureBuilder(**options)
    build.clock()
    build.snapshots(0, 1, 20)
    build.checkpoint()
    build.snapshots(1, 2, 10)
    build.withheld(1, 2, unchanged=7)
    build.clock(300)
    build.end()
    return build


def classic_2000(rows: int, gaps: dict[int, int] | None = None, **options: Any) -> CaptureBuilder:
    """A file as of 2000: no control entries; `gaps`: row to how many numbers are missing."""
    build = CaptureBuilder(further={}, with_header_kinds=False, **options)
    build.rows, build.seq = [], 0
    for number in range(rows):
        build.seq += (gaps or {}).get(number, 0)
        build.snapshots(0, 1)
    return build


if sys.byteorder != "little":  # pragma: no cover
    raise RuntimeError("the test captures are made little-endian unless told otherwise")
