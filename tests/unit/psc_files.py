# SPDX-License-Identifier: Apache-2.0
"""Builds PSC files for tests: entry by entry with a right ledger, in any size, and byte by byte."""

from __future__ import annotations

import ipaddress
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.packets.blocks import RAW_IP, enhanced, interface, option, section, text_option
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


DEFAULT = {
    "seq": 8, "time_ns": 8, "serial": 8, "conn_id": 8, "laddr": 16, "raddr": 16, "pacing_rate": 8,
    "busy_us": 8,
    "snd_una": 4, "rcv_nxt": 4, "snd_wnd": 4, "rcv_wnd": 4, "snd_ssthresh": 4, "snd_cwnd_segs": 4,
    "srtt_us": 4, "min_rtt_us": 4, "packets_out": 4, "retrans_out": 4, "sacked_out": 4,
    "lost_out": 4, "mss": 4, "sk_wmem_bytes": 4, "sk_rcvbuf": 4, "seg_seq": 4, "seg_len": 4,
    "state": 4, "ca_state": 4, "family": 4, "sk_wmem_alloc": 4, "first_tx_us": 4,
    "next_tx_us": 4, "cpu": 2, "seg_flags": 2, "snd_wscale": 2, "sk_tsq_flags": 2,
    "sk_pacing_status": 2, "sk_nospace": 2,
}  # fmt: skip
_ADDRESS = np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", "V16")[0]
_PIECE = 1 << 17
CLOCK = (1_000_000, 1_700_000_000_000_000_000, 0)


def write_capture(
    path: Path, records: int, flows: int, lose: Set[int] = frozenset(), mean: int = 40,
    receiver: bool = False, settings: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """So many records of connections in turn; a limit lasts for `mean` of its records.

    lose: the records that are missing. receiver: with what tells a receiver's waits.
    """
    plain = Plain(DEFAULT | ({"rcv_rtt_us": 4} if receiver else {}))

    def pieces() -> Iterator[NDArray[Any]]:
        for low in range(0, records, _PIECE):
            rows = _rows(np.arange(low, min(low + _PIECE, records)), flows, mean, plain.dtype)
            if receiver:
                rows["rcv_rtt_us"], rows["seg_seq"] = 1000, rows["rcv_nxt"]
            yield rows[[n not in lose for n in range(low, low + len(rows))]] if lose else rows

    return plain.write(path, pieces(), len(lose), records + 1, records * 1000, clock=CLOCK,
                       settings={"locations": [1], **(settings or {})})  # fmt: skip


def _rows(at: NDArray[Any], flows: int, mean: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    rows = np.zeros(len(at), dtype)
    flow, step = at % flows, at // flows
    rows["location"] = 1
    rows["location"][step % 97 == 96] = 2
    rows["seq"], rows["serial"], rows["time_ns"] = at + 2, at + 1, at * 1000
    rows["seq_no"] = at + 2
    rows["conn_id"], rows["lport"], rows["rport"] = flow + 1, 5001 + flow % 60_000, 80
    rows["laddr"] = rows["raddr"] = _ADDRESS
    rows["state"], rows["family"], rows["mss"] = 1, 2, 1448
    rows["snd_una"] = rows["rcv_nxt"] = step * 1448
    rows["snd_max"] = (step + 10) * 1448
    rows["snd_cwnd_segs"], rows["snd_ssthresh"], rows["packets_out"] = 10, 5, 10
    rows["snd_sb_cc"] = np.where(step // mean % 2, 1 << 20, 10 * 1448)
    rows["sb_hiwat"], rows["snd_wnd"], rows["rcv_wnd"] = 1 << 22, 1 << 20, 65536
    rows["sk_wmem_bytes"], rows["sk_rcvbuf"] = 1 << 20, 131072
    rows["pacing_rate"] = (1 << 64) - 1
    rows["srtt_us"], rows["min_rtt_us"] = 1000 + at * 7919 % 500, 400
    rows["seg_len"] = 1448
    rows["busy_us"], rows["snd_wscale"] = at, 7
    rows["first_tx_us"] = rows["next_tx_us"] = np.maximum(at - 1000, 0)
    return rows


MSS, RECORDS = 1448, 12
_A, _B = (np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0" + end, "V16")[0] for end in (b"\1", b"\2"))


def write_runs(
    path: Path, connections: Sequence[tuple[float, float]], settings: dict[str, Any] | None = None,
    both_ends: bool = False, lose: bool = False, missed: int = 0,
) -> Path:  # fmt: skip
    """connections: bytes a second and round-trip time [us] of each. both_ends: the receivers too.

    lose: the ring was full once. missed: so many events the program never saw.
    """
    build = CaptureBuilder(cpus=1, locations=(1,), further=DEFAULT, settings=settings or {})
    build.clock()
    for number, (rate, rtt) in enumerate(connections):
        for step in range(RECORDS):
            build.mono_ns += int(10 * MSS / rate * 1e9)
            for receives in range(1 + both_ends):
                build.snapshots()
                row = build.rows[-1]
                row["conn_id"] = 1 + number + receives * len(connections)
                ends = [(_A, 5001 + number), (_B, 80)]
                row["laddr"], row["lport"] = ends[receives]
                row["raddr"], row["rport"] = ends[1 - receives]
                row["state"], row["family"], row["mss"] = 1, 2, MSS
                done = 10 * MSS * step
                row["rcv_nxt" if receives else "snd_una"] = done
                row["snd_max"] = 0 if receives else done + 10 * MSS
                row["snd_cwnd_segs"], row["snd_ssthresh"] = 10, 5
                row["packets_out"] = 10
                row["snd_sb_cc"], row["sb_hiwat"] = 1 << 20, 1 << 22
                row["snd_wnd"], row["rcv_wnd"] = 1 << 20, 65536
                row["sk_wmem_bytes"], row["sk_rcvbuf"] = 1 << 20, 131072
                row["pacing_rate"] = (1 << 64) - 1
                row["srtt_us"], row["min_rtt_us"] = int(rtt), 400
    build.missed[1] = (missed, 0)
    if lose:
        build.lose("ring_full")
    build.end()
    return build.write(path)


SEGMENT_NS = 5_000_000_000
LOCAL, REMOTE = ("10.0.0.1", 5000), ("10.0.0.2", 80)
SEGMENT_COLUMNS = {"seg_ack": 4, "rcv_wscale": 2, "advmss": 2}
USUAL = {
    "lport": LOCAL[1], "rport": REMOTE[1], "conn_id": 1, "state": 1, "family": 2, "mss": 1000,
    "snd_wnd": 65536, "rcv_wnd": 131072, "snd_wscale": 2, "rcv_wscale": 7, "advmss": 1460,
    "snd_cwnd_segs": 10, "snd_cwnd": 10_000, "snd_ssthresh": (1 << 31) - 1, "srtt_us": 24_000,
    "min_rtt_us": 20_000, "seg_flags": 16, "snd_una": 1000, "snd_max": 5000, "rcv_nxt": 9000,
    "sk_rcvbuf": 200_000, "sb_hiwat": 200_000, "pacing_rate": (1 << 64) - 1, "packets_out": 4,
}  # fmt: skip


def write_segments(
    path: Path, records: Iterable[dict[str, Any]], lose: Iterable[int] = (), leave: str = "",
    transmit: bool = True,
) -> Path:  # fmt: skip
    """Each record has what it does not share with USUAL; ms: its time, by default 1 ms later.

    lose: the numbers of records that are missing, from 0. leave: a column that is left out.
    """
    further = {name: width for name, width in (DEFAULT | SEGMENT_COLUMNS).items() if name != leave}
    plain = Plain(further)
    locations = {"SEGMENT_RECEIVED": [], "RETRANSMIT": []} | ({"TRANSMIT": []} if transmit else {})
    lost, every = set(lose), list(records)
    rows = (_segment_row(n, one, plain.dtype) for n, one in enumerate(every) if n not in lost)
    settings, clock = {"locations": locations}, (SEGMENT_NS, REALTIME_NS, 0)
    return plain.write(path, rows, len(lost), len(every) + 1, host="unit\x1b", clock=clock,
                       settings=settings)  # fmt: skip


def _segment_row(number: int, record: dict[str, Any], dtype: np.dtype[Any]) -> Any:
    row = np.zeros(1, dtype)
    values = USUAL | record
    after_ns = int(values.pop("ms", number) * 1_000_000)
    for name, address in (("laddr", LOCAL[0]), ("raddr", REMOTE[0])):
        row[name] = np.frombuffer(mapped(values.pop(name, address)), "V16")[0]
    for name, value in values.items():
        if name in (dtype.names or ()):
            row[name] = value
    row["seq"], row["serial"], row["seq_no"] = number + 2, number + 1, number + 2
    row["time_ns"] = SEGMENT_NS + after_ns
    row["tv_sec"], row["tv_usec"] = divmod((REALTIME_NS + after_ns) // 1000, 1_000_000)
    return row


def packet(
    source: tuple[str, int], target: tuple[str, int], seq: int, ack: int = 0, length: int = 0,
    flags: int = 16, tso: bool = False, options: int = 0,
) -> bytes:  # fmt: skip
    """The headers of a segment, from IP on. tso: without a length. options: bytes, in TCP."""
    ends = ipaddress.ip_address(source[0]).packed, ipaddress.ip_address(target[0]).packed
    tcp = struct.pack("!HHIIBBHHH", source[1], target[1], seq & 0xFFFFFFFF, ack & 0xFFFFFFFF,
                      (20 + options) // 4 << 4, flags, 1000, 0, 0) + b"\1" * options  # fmt: skip
    size = 0 if tso else len(tcp) + length
    if len(ends[0]) == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, size and size + 20, 0, 0x4000, 64, 6, 0)
        return head + b"".join(ends) + tcp
    return struct.pack("!IHBB", 0x60000000, size, 6, 64) + b"".join(ends) + tcp


def pcapng(*packets: tuple[float, bytes, int], link: int = RAW_IP) -> bytes:
    """A file of packets: milliseconds, headers and length of the data."""
    blocks = [section("test"), interface(link, "eth0")]
    for ms, data, length in packets:
        options = text_option(1, "theirs") + option(2, b"\1\0\0\0") + bytes(4)
        time = REALTIME_NS + int(ms * 1_000_000)
        blocks.append(enhanced(0, time, data, len(data) + length, options))
    return b"".join(blocks)


EPOCH_S = 1_700_000_000
BOOT_NS = 5_000_000_000

REPORT_COLUMNS = (
    ("seq_no", 0, 4, 0), ("time", 4, 8, 2), ("callvalue", 12, 4, 0), ("location", 16, 4, 0),
    ("lport", 20, 2, 1), ("rport", 22, 2, 1), ("snd_cwnd", 24, 4, 0), ("snd_max", 28, 4, 0),
    ("snd_fack", 32, 4, 0), ("sb_hiwat", 36, 4, 0), ("snd_sb_cc", 40, 4, 0),
    ("rcv_sb_cc", 44, 4, 0), ("sb_target_hiwat", 48, 4, 0), ("sb_net_target", 52, 4, 0),
    ("hiwat_fair_share", 56, 4, 0), ("m_clused", 60, 4, 0),
)  # fmt: skip
DRAWN_COLUMNS = (
    ("time_ns", 64, 8, 0), ("conn_id", 72, 8, 0), ("laddr", 80, 16, 2), ("raddr", 96, 16, 2),
    ("srtt_us", 112, 4, 0), ("min_rtt_us", 116, 4, 0), ("family", 120, 4, 0), ("state", 124, 4, 0),
    ("ca_name", 128, 16, 2),
)  # fmt: skip
NAMES = tuple(name for name, *_ in REPORT_COLUMNS)

SCHEMA = """
enum location { SEGMENT_RECEIVED = 1, RETRANSMIT = 2, STATE_CHANGE = 4, CONG_STATE = 5, RTO = 14,
    LOSS_PROBE = 15, START = 224, LOSS = 227, END_AT = 230, }
enum tcp_state { TCP_NONE = 0, TCP_ESTABLISHED = 1, TCP_SYN_SENT, }
event SNAPSHOT {
    uint location   // where
    uint snd_cwnd   // congestion window [bytes]
    uint srtt_us    // smoothed round-trip time [us]
    uint min_rtt_us // minimum; 2^32-1: none yet [us]
    tcp_state state // state
}
"""

RECEIVED, RETRANSMIT, STATE_CHANGE, CONG_STATE, DESTROY = 1, 2, 4, 5, 11
RTO, LOSS_PROBE, TRANSMIT = 14, 15, 19
START, LOSS, END_AT = 224, 227, 230


@dataclass
class Builder:
    """Collects entries; `tcpkmon` adds the further columns, the schema and the control entries."""

    order: str = "<"
    tcpkmon: bool = False
    mclsize: int = 2048
    columns: tuple[tuple[str, int, int, int], ...] = REPORT_COLUMNS
    rows: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0
    mods: int = 2
    masks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tcpkmon:
            self.columns = REPORT_COLUMNS + DRAWN_COLUMNS
            self._control(START, 0.0, 1, b"")

    @property
    def entry_size(self) -> int:
        return -(-max(offset + length for _, offset, length, _ in self.columns) // 8) * 8

    def add(self, at_s: float, lport: int = 1055, rport: int = 5050, **values: Any) -> None:
        self.seq += 1
        self.rows.append({"seq_no": self.seq, "at": at_s, "lport": lport, "rport": rport,
                          "location": RECEIVED, **values})  # fmt: skip

    def lose(self, count: int, at_s: float) -> None:
        """Leave a gap; a tpcpkmon file gets its LOSS entry."""
        self.seq += count
        if self.tcpkmon:
            self._control(LOSS, at_s, 0, struct.pack(self.order + "QQI", 1, count, 0))

    def end(self, at_s: float) -> None:
        self._control(END_AT, at_s, 0, b"")

    def _control(self, location: int, at_s: float, callvalue: int, payload: bytes) -> None:
        self.add(at_s, 0, 0, location=location, callvalue=callvalue, payload=payload)

    def write(self, path: Path, cut: int = 0) -> Path:
        data = self.header() + b"".join(self.entry(row) for row in self.rows)
        path.write_bytes(data[: len(data) - cut])
        return path

    def header(self) -> bytes:
        endian = {"<": 0, ">": 1}[self.order]
        records = [(2, b"1.0".ljust(8, b"\0")), (1, struct.pack(">HH", self.mods, 0)),
                   (5, struct.pack(">I", endian))]  # fmt: skip
        if self.mclsize:
            records.append((6, struct.pack(">I", self.mclsize)))
        records.append((3, struct.pack(">HH", self.entry_size, 0)))
        for name, offset, length, flags in self.columns:
            text = name.encode() if isinstance(name, str) else name
            records.append((4, struct.pack(">24sHBBHH", text, offset, length, 2,
                                             self.masks.get(name, 0), flags)))  # fmt: skip
        if self.tcpkmon:
            records.append((0x103, SCHEMA.encode()))
        records.append((0, b""))
        return b"".join(struct.pack(">HH", kind, 4 + len(data)) + data for kind, data in records)

    def entry(self, row: dict[str, Any]) -> bytes:
        data = bytearray(self.entry_size)
        micros = round(row["at"] * 1e6)
        for name, offset, length, flags in self.columns:
            if name == "time":
                stamp = EPOCH_S + micros // 10**6, micros % 10**6
                struct.pack_into(self.order + "II", data, offset, *stamp)
            elif name == "time_ns":
                struct.pack_into(self.order + "Q", data, offset, BOOT_NS + micros * 1000)
            elif name in row and flags == 2:
                data[offset : offset + length] = row[name].ljust(length, b"\0")
            elif name in row:
                order = ">" if flags == 1 else self.order
                code = {1: "B", 2: "H", 4: "I", 8: "Q"}[length]
                struct.pack_into(order + code, data, offset, row[name])
        payload = row.get("payload", b"")
        data[24 : 24 + len(payload)] = payload
        return bytes(data)


def mapped(text: str) -> bytes:
    """An address as the columns laddr and raddr hold it."""
    address = ip_address(text)
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def sawtooth(
    builder: Builder, lport: int, rport: int, conn_id: int, start_s: float = 0.1,
    rounds: int = 400, scale: int = 1, **more: Any,
) -> None:  # fmt: skip
    """Add one connection: slow start, sawtooth, a loss at each tooth, an RTO now and then."""
    cwnd, mss, sent = 10.0, 1448, 1_000_000 + conn_id * 77
    threshold = 60.0 * scale
    base = {"lport": lport, "rport": rport, "conn_id": conn_id, "family": 2, "state": 1,
            "ca_name": b"reno", "m_clused": 40, "sb_target_hiwat": 4 << 20,
            "hiwat_fair_share": 900 << 20, **more}  # fmt: skip
    base.setdefault("laddr", mapped("10.0.0.1"))
    base.setdefault("raddr", mapped("10.0.0.2"))
    builder.add(start_s, **{**base, "location": STATE_CHANGE, "callvalue": 1})
    for step in range(rounds):
        at = start_s + 0.02 * (step + 1)
        values = {**base, "snd_cwnd": int(cwnd) * mss, "snd_max": (sent + int(cwnd) * mss) % 2**32,
                  "snd_fack": sent % 2**32, "sb_hiwat": min(int(cwnd) * mss * 2, 4 << 20),
                  "snd_sb_cc": int(cwnd * 1.5) * mss, "srtt_us": 20000 + int(cwnd) * 30,
                  "sb_net_target": int(cwnd) * mss * 2, "min_rtt_us": 20000,
                  "m_clused": 40 + int(cwnd), "callvalue": mss}  # fmt: skip
        builder.add(at, **values)
        if cwnd > 90 * scale:
            builder.add(at + 0.001, **{**values, "location": RETRANSMIT, "callvalue": sent % 2**32})
            builder.add(at + 0.002, **{**values, "location": CONG_STATE, "callvalue": 3})
            cwnd = threshold = cwnd / 2
        elif step == 250:
            builder.add(at + 0.001, **{**values, "location": LOSS_PROBE})
            builder.add(at + 0.002, **{**values, "location": RTO})
            threshold, cwnd = cwnd / 2, 1.0
        cwnd = cwnd * 1.5 if cwnd < threshold else cwnd + 1.0
        sent += int(cwnd) * mss


def merge(builder: Builder) -> None:
    """Put the snapshots in order of time and number them again; for files without gaps."""
    builder.rows.sort(key=lambda row: row["at"])
    for number, row in enumerate(builder.rows, 1):
        row["seq_no"] = number


def from_hex(text: str) -> bytes:
    """Bytes from lines of hex; what follows a # is a comment."""
    return bytes.fromhex(" ".join(line.split("#", 1)[0] for line in text.splitlines()))


LITTLE, BIG, PDP = (
    from_hex(part.partition("\n")[2])
    for part in Path(__file__).with_name("psc_samples.hex").read_text().split("== ")[1:]
)
LITTLE_DATA, LITTLE_ENTRY = 319, 24


def record(kind: int, data: bytes) -> bytes:
    """A header record."""
    return struct.pack(">HH", kind, 4 + len(data)) + data


def describe(name: str | bytes, offset: int, length: int, flags: int = 0) -> bytes:
    """A KIND_DATA_DEFINITION record."""
    raw = name.encode() if isinstance(name, str) else name
    return record(4, struct.pack(">24sHBBHH", raw, offset, length, 2, 0, flags))


def entry_size(size: int) -> bytes:
    """A KIND_TABLE_ENTRY_SIZE record."""
    return record(3, struct.pack(">HH", size, 0))


END = record(0, b"")


def save(folder: Path, data: bytes, name: str = "sample.pm") -> Path:
    """Write a file into a test's own folder."""
    path = folder / name
    path.write_bytes(data)
    return path
