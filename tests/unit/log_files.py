# SPDX-License-Identifier: Apache-2.0
"""Builds Klogger logs for tests: event by event, with a right ledger, and those of MAGNeT."""

from __future__ import annotations

import ipaddress
import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tcpkmon
from tcpkmon.formats.export.magnet import write
from tcpkmon.formats.klogger.describe import SNAPSHOT_NUMBER, describe_event, make_header
from tcpkmon.formats.klogger.encode import (
    Packed,
    encode_preamble,
    finish_dump,
    pack_event,
    pack_records,
)
from tcpkmon.formats.klogger.logs import PREFIX
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import NATIVE, Layout, convert
from tcpkmon.formats.magnet.walk import Piece, Walk
from tcpkmon.formats.schema import Schema, load, parse
from tcpkmon.formats.schema.resolve import merge

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "bpf" / "schemata" / "base.conf"
SAMPLE = """
enum policy { NORMAL, FIFO, RR, BATCH = -3 }
event SCHEDOUT { int pid }
event COUNTED { int pid; ulonglong l2_cache_misses_user }
event EMPTY { }
event EVERY {
    short a; ushort b; int c; uint d; longlong e; ulonglong f; long g; ulong h;
    policy how; string5 text; string4 raw // @raw
    string16 addr // @address
}
"""
CLOCK = (1_000_000_000, 1_732_200_000_000_000_000, 120)
Values = Mapping[str, "int | str | bytes"]


def make_schema(text: str = SAMPLE) -> Schema:
    """base, and the events of `text`."""
    return merge([load([BASE]), parse(text)])


def describe_events(schema: Schema) -> list[dict[str, Any]]:
    """A table of all events of a schema, numbered from 32 on; SNAPSHOT has its own number."""
    return [
        describe_event(schema, event, SNAPSHOT_NUMBER if event.name == "SNAPSHOT" else number)
        for number, event in enumerate(schema.events, 32)
    ]


def sample_header(text: str = SAMPLE, cpu: int = 0, **changes: Any) -> dict[str, Any]:
    schema = make_schema(text)
    header = make_header(
        schema, describe_events(schema), cpu=cpu, cpus=2, host="here", kernel="6.18.0",
        version="0.1.0", buffer_bytes=4 << 20, low_water_percent=10, clock=CLOCK,
        settings={"schema": ["sample"]},
    )  # fmt: skip
    return {**header, **changes}


class LogMaker:
    """Writes a log event by event; serials rise by themselves, a dump ends when asked."""

    def __init__(self, text: str = SAMPLE, cpu: int = 0, **changes: Any) -> None:
        self.header = sample_header(text, cpu, **changes)
        self.format = LogFormat.of(self.header)
        self.serial = 0
        self.time_ns = CLOCK[0]
        self.dumps: list[bytes] = []
        self._parts: list[Packed] = []

    def skip(self, serials: int) -> LogMaker:
        """Lose so many events."""
        self.serial += serials
        return self

    def add(self, name: str, values: Values | None = None, at: int | None = None) -> LogMaker:
        """One event, 1 us after the one before it, or `at` ns after the log's start."""
        self._begin()
        self._parts.append(self._pack(name, values or {}, at))
        return self

    def add_rows(
        self, numbers: NDArray[Any], rows: NDArray[Any], times_ns: NDArray[Any]
    ) -> LogMaker:
        """Many ring records."""
        self._begin()
        serials = np.arange(self.serial + 1, self.serial + 1 + len(rows), dtype=np.uint64)
        sizes = self.format.payload_sizes
        self._parts.append(pack_records(numbers, rows, serials, times_ns, sizes))
        self.serial += len(rows)
        self.time_ns = int(times_ns[-1])
        return self

    def end_dump(self) -> LogMaker:
        self.serial += 1
        self.time_ns += 1000
        index = len(self.dumps)
        sealed = finish_dump(self.format, index, self._parts, self.serial, self.time_ns)
        self.dumps.append(sealed)
        self._parts = []
        return self

    def data(self) -> bytes:
        """The file, a dump that is under way ended."""
        if self._parts:
            self.end_dump()
        return encode_preamble(self.header) + b"".join(self.dumps)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path

    def _begin(self) -> None:
        if not self._parts:
            self._parts.append(self._pack("DUMP_BEGIN", {"index": len(self.dumps)}, None))

    def _pack(self, name: str, values: Values, at: int | None) -> Packed:
        self.serial += 1
        self.time_ns = self.time_ns + 1000 if at is None else CLOCK[0] + at
        return pack_event(self.format, name, values, self.serial, self.time_ns)


def write_big_endian(path: Path, header: Mapping[str, Any], name: str, payload: bytes) -> Path:
    """The log of a big-endian machine with one event, serial 2 at 2^40 ns."""
    numbers = {event["name"]: event["number"] for event in header["events"]}
    names = ("DUMP_BEGIN", name, "DUMP_FINISH")
    payloads = (struct.pack(">IIQQ", 0, 0, 0, 0), payload, struct.pack(">Q", 144))
    body = struct.pack(">4H", *(numbers[one] for one in names), 0)
    for serial, (one, data) in enumerate(zip(names, payloads, strict=True), 1):
        body += struct.pack(">IIQQ", numbers[one], 24 + len(data), serial, 1 << 40) + data
    start = struct.pack(">8sIIQQI", b"KLOGDUMP", 0, 3, len(body), 1, zlib.crc32(body))
    dump = start + struct.pack(">IQ", zlib.crc32(start), 0) + body
    text = json.dumps({**header, "byteorder": "big"}).encode()
    text += b" " * (-len(text) % 8)
    preamble = struct.pack(">8sIIQ", b"KERNLOG\x01", len(text), zlib.crc32(text), 0)
    path.write_bytes(preamble + text + dump)
    return path


def ring_rows(payloads: Sequence[bytes], entry_size: int, gap: int = 16) -> NDArray[Any]:
    """Ring records as a drain hands them out: strided, with the payload at byte 24."""
    stride = entry_size + gap
    raw = np.full(len(payloads) * stride, 0xEE, np.uint8)
    kind = np.dtype(
        {
            "names": ["low", "time", "cpu", "location"],
            "formats": ["=u4", "=u8", "=u4", "=u4"],
            "offsets": [0, 4, 12, 16],
            "itemsize": entry_size,
        }
    )
    for place, payload in enumerate(payloads):
        begin = place * stride + 24
        raw[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)
    rows: NDArray[Any] = np.ndarray((len(payloads),), kind, raw.data, 0, (stride,))
    return rows


SCHEMA = """
enum location { A = 1, B = 9, EXISTING = 226 }
event SNAPSHOT { uint location; uint value }
event SCHEDIN { int pid; int cpu_seen }
event SCHEDOUT { int pid; ulonglong misses }
event EVENT_START { int id }
event EVENT_STOP { int id }
"""
KERNEL = ("ring_full", "no_ring", "other")  # these take a serial, and were never written
SILENT = ("table_full", "no_slot")  # these take none
COLLECTOR = ("late", "queue_full", "disk_full", "write_error", "damaged")
ASIDE = ("filtered", "unchanged", "limited", "shed")
FIELDS = (
    "attempts", "filtered", "unchanged", "limited", "shed", "written", "ring_full", "no_ring",
    "other", "table_full", "no_slot", "late", "queue_full", "disk_full", "write_error", "in_file",
)  # fmt: skip
Tamper = Callable[[str, dict[str, Any]], "dict[str, Any] | None"]


class LogBuilder:
    """A log in the making; every method appends what the collector would have written.

    tamper: may change the values of any base event before it is written, or leave it out (None).
    """

    def __init__(
        self, cpu: int = 0, tamper: Tamper = lambda _, values: values, schema: str = SCHEMA,
        **changes: Any,
    ) -> None:  # fmt: skip
        self.maker = LogMaker(schema, cpu, **changes)
        self.numbers = {event.name: event.number for event in self.maker.format.events}
        self.tamper = tamper
        self.gap = 0
        self.counts: dict[int, Counter[str]] = {}
        self.serials = self.read = self.damaged = self.late = 0
        self.programs = {"one": (0, 0)} if cpu == 0 else {}
        self.clock = [CLOCK[0], CLOCK[1]]
        self.first()

    def first(self) -> LogBuilder:
        """What stands at the beginning, and after a pause."""
        self.base("KLOGGER_START", kernel="6.18.0", buffer_bytes=4 << 20, low_water_percent=10)
        self.pair(0)
        for name in sorted({"SCHEDIN", "SCHEDOUT"} & self.numbers.keys()):
            self.base("LOGGING_EVENT", number=self.numbers[name], enabled=1, name=name)
        return self.end_dump()

    def base(self, name: str, /, **values: Any) -> LogBuilder:
        changed = self.tamper(name, values)
        if changed is not None:
            self.maker.add(name, changed)
        return self

    def pair(self, step_ns: int, *, passed_ns: int = 1_000, told_ns: int | None = None) -> None:
        self.clock = [self.clock[0] + passed_ns, self.clock[1] + passed_ns + step_ns]
        self.base(
            "CLOCK", mono_ns=self.clock[0], realtime_ns=self.clock[1], uncertainty_ns=40,
            step_ns=step_ns if told_ns is None else told_ns,
        )  # fmt: skip

    def end_dump(self) -> LogBuilder:
        self.maker.end_dump()
        return self

    def count(self, point: int) -> Counter[str]:
        return self.counts.setdefault(point, Counter())

    def point(self, name: str, values: dict[str, Any]) -> int:
        return int(values["location"]) if name == "SNAPSHOT" else self.numbers[name]

    def log(self, name: str, /, at: int | None = None, **values: Any) -> LogBuilder:
        """One record of the kernel, in the dump that is under way."""
        self.maker._begin()
        self.maker.skip(self.gap)
        self.gap = 0
        self.maker.add(name, values, at)
        self.serials += 1
        self.read += 1
        self.count(self.point(name, values)).update(attempts=1, written=1, in_file=1)
        return self

    def lose(self, cause: str, count: int, name: str = "SCHEDOUT", **values: Any) -> LogBuilder:
        """Lose so many records for this reason; the next record comes after the gap."""
        counter = self.count(self.point(name, values))
        counter["attempts"] += count
        if cause in SILENT or cause in ASIDE:
            counter[cause] += count
            return self
        self.gap += count
        self.serials += count
        if cause in KERNEL:
            counter[cause] += count
            return self
        counter["written"] += count
        if cause == "damaged":
            self.damaged += count
            return self
        self.read += count
        self.late += count * (cause == "late")
        counter[cause] += count
        return self

    def ledger(self, final: bool = False, finish: int | None = None) -> LogBuilder:
        """A dump with the ledgers so far; with `finish` the last, with KLOGGER_FINISH."""
        for point, counts in sorted(self.counts.items()):
            told = {key: counts[key] for key in FIELDS}
            self.base("LEDGER", number=point, final=int(final), **told)
        full = sum(counts["ring_full"] for counts in self.counts.values())
        self.base(
            "CPU_LEDGER", serials=self.serials, read=self.read, damaged=self.damaged,
            late=self.late, ring_lost=full, online=1, final=int(final),
        )  # fmt: skip
        for program, (missed, by_kprobe) in self.programs.items():
            told = {"missed": missed, "kprobe_missed": by_kprobe}
            self.base("PROGRAM_LEDGER", program=program, final=int(final), **told)
        if finish is not None:
            self.pair(0)
            self.base("KLOGGER_FINISH", reason=finish)
        return self.end_dump()

    def finish(self, reason: int = 0) -> LogBuilder:
        return self.ledger(final=True, finish=reason)

    def data(self) -> bytes:
        return self.maker.data()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path


def clean_log(cpu: int = 0, tamper: Tamper = lambda _, values: values) -> LogBuilder:
    """Nothing lost; several dumps and ledgers."""
    build = LogBuilder(cpu, tamper).ledger()
    for number in range(3):
        build.log("SCHEDIN", pid=10 + number).log("SCHEDOUT", pid=10 + number, misses=7)
        build.log("SNAPSHOT", location=1, value=5).log("SNAPSHOT", location=9).end_dump()
    build.ledger()
    build.log("EVENT_START", id=1).log("EVENT_STOP", id=1).end_dump()
    return build


def lossy_log(cpu: int = 0, tamper: Tamper = lambda _, values: values) -> LogBuilder:
    """Losses of every cause, one more of each: 1 ring_full, 2 no_ring, ..."""
    build = clean_log(cpu, tamper)
    for number, cause in enumerate((*KERNEL, *SILENT, *COLLECTOR, *ASIDE), 1):
        build.lose(cause, number)
        build.log("SCHEDIN", pid=1).lose(cause, number, "SNAPSHOT", location=9)
        build.log("SCHEDOUT", pid=1).end_dump()
        if number == 4:
            build.ledger()
    return build


LOST_EACH = sum(range(1, 11))
"""What lossy_log() loses of SCHEDOUT, and of location B again."""


LEAN = """
    ulonglong connection // id
    ulonglong entered // when the call began
    uint seq_lo // first byte
    uint seq_hi // number behind the last
    uint ack // acknowledged
    int size // bytes, or the negative errno
    uint device // ifindex
    ushort flags // of the segment
    ushort gso_segs // segments
"""
LAYERS = (
    "SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND", "DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV",
)  # fmt: skip
DRIVER = ("QDISC_ENQUEUE", "QDISC_DEQUEUE", "DRIVER_START", "DRIVER_RESULT")
MAGNET_SCHEMA = (
    "".join(f"event {name} {{{LEAN}}}\n" for name in (*LAYERS, *DRIVER))
    + """
event MAGNET_CONNECTION {
    ulonglong connection; string16 laddr // @address
    string16 raddr // @address
    ulonglong netns; int pid; string16 comm; int protocol; ushort lport; ushort rport
    uint snd_una; uint snd_nxt; uint rcv_nxt; uint copied_seq
}
"""
)
ACK, RETRANSMISSION, UDP = 16, 256, 512
LOW = (1 << 32) - 1


def packed(address: str) -> bytes:
    """16 bytes; IPv4 is mapped."""
    found = ipaddress.ip_address(address)
    return found.packed if found.version == 6 else bytes(10) + b"\xff\xff" + found.packed


class MagnetLog(LogBuilder):
    """A CPU's log. Times are ns since the capture began; sequence numbers may have any width."""

    def __init__(self, cpu: int = 0, off: tuple[str, ...] = (), **changes: Any) -> None:
        self.off = off
        schema = merge([load([BASE]), parse(MAGNET_SCHEMA)])
        super().__init__(cpu, schema=MAGNET_SCHEMA, events=describe_events(schema), **changes)

    def first(self) -> MagnetLog:
        self.base("KLOGGER_START", kernel="6.18.0", buffer_bytes=4 << 20, low_water_percent=10)
        self.pair(0)
        for name in (*LAYERS, *DRIVER, "MAGNET_CONNECTION"):
            enabled = -1 if name in self.off else 1
            self.base("LOGGING_EVENT", number=self.numbers[name], enabled=enabled, name=name)
        self.end_dump()
        return self

    def connect(
        self, number: int, local: tuple[str, int], remote: tuple[str, int], at: int = 0,
        **more: Any,
    ) -> MagnetLog:  # fmt: skip
        """A connection's record."""
        self.log(
            "MAGNET_CONNECTION", at, connection=number, laddr=packed(local[0]), lport=local[1],
            raddr=packed(remote[0]), rport=remote[1], protocol=6, comm="test", **more,
        )  # fmt: skip
        return self

    def put(
        self, event: str, at: int, connection: int, lo: int = 0, hi: int = 0, *,
        entered: int = -1, flags: int = ACK, ack: int = 0, size: int | None = None,
    ) -> MagnetLog:  # fmt: skip
        """A record of bytes. entered: of calls, as `at`."""
        self.log(
            event, at, connection=connection, seq_lo=lo & LOW, seq_hi=hi & LOW, ack=ack & LOW,
            entered=CLOCK[0] + entered if entered >= 0 else 0, flags=flags,
            size=hi - lo if size is None else size,
        )  # fmt: skip
        return self


def write_folder(folder: Path, *logs: MagnetLog) -> Path:
    """The logs of a capture that ended in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        log.end_dump() if log.maker._parts else None
        log.finish().write(folder / f"kernlog.dump.cpu{log.maker.format.cpu}")
    return folder


_ROW = np.dtype(
    [
        ("low", "<u4"), ("time", "<u8"), ("cpu", "<u4"), ("point", "<u4"), ("rest", "<u4"),
        ("connection", "<u8"), ("entered", "<u8"), ("seq_lo", "<u4"), ("seq_hi", "<u4"),
        ("ack", "<u4"), ("size", "<i4"), ("device", "<u4"), ("flags", "<u2"), ("gso_segs", "<u2"),
    ]
)  # fmt: skip
SEGMENT, SEGMENTS = 1448, 3
_BULK = (  # event, at the receiver, segment (-1: all), ns since the write, a pure ACK
    ("TCP_SEND", 0, -1, 500, 0), ("IP_SEND", 0, -1, 2_000, 0), ("DEV_SEND", 0, -1, 2_500, 0),
    ("DRIVER_START", 0, -1, 3_000, 0), ("SOCK_SEND", 0, -1, 4_000, 0),
    ("DEV_RECV", 1, 0, 10_000, 0), ("IP_RECV", 1, 0, 10_500, 0), ("TCP_RECV", 1, 0, 11_000, 0),
    ("DEV_RECV", 1, 1, 12_000, 0), ("IP_RECV", 1, 1, 12_500, 0), ("TCP_RECV", 1, 1, 13_000, 0),
    ("DEV_RECV", 1, 2, 14_000, 0), ("IP_RECV", 1, 2, 14_500, 0), ("TCP_RECV", 1, 2, 15_000, 0),
    ("IP_SEND", 1, -1, 15_500, 1), ("DEV_SEND", 1, -1, 15_600, 1),
    ("DRIVER_START", 1, -1, 15_700, 1), ("SOCK_RECV", 1, -1, 17_000, 0),
    ("DEV_RECV", 0, -1, 18_000, 1), ("IP_RECV", 0, -1, 18_500, 1),
)  # fmt: skip
BULK_RECORDS = len(_BULK)


def write_bulk(folder: Path, writes: int, connections: int = 10, every_ns: int = 20_000) -> Path:
    """Connections that write in turn: a write is three segments and BULK_RECORDS records.

    Senders log on CPU 0, receivers on CPU 1. Sequence numbers wrap.
    """
    logs = MagnetLog(0), MagnetLog(1)
    begin = LOW - 10 * SEGMENT
    for one in range(connections):
        ends = ("10.0.0.1", 1000 + one), ("10.0.0.2", 80)
        logs[0].connect(2 * one + 2, *ends, at=one, snd_nxt=begin, rcv_nxt=7)
        logs[1].connect(2 * one + 3, *ends[::-1], at=one, snd_nxt=7, rcv_nxt=begin)
    step = 1 << 15
    for first in range(0, writes, step):
        number = np.arange(first, min(first + step, writes))
        for cpu, log in enumerate(logs):
            log.end_dump() if log.maker._parts else None
            rows = _bulk_rows(log, cpu, number, connections, begin, every_ns)
            log.maker._begin()
            log.maker.add_rows(rows["point"].astype(np.uint16), rows, rows["time"])
            counts = np.bincount(rows["point"])
            for point in np.flatnonzero(counts).tolist():
                count = int(counts[point])
                log.count(point).update(attempts=count, written=count, in_file=count)
            log.serials += len(rows)
            log.read += len(rows)
            log.end_dump()
    return write_folder(folder, *logs)


def _bulk_rows(
    log: MagnetLog, cpu: int, number: Any, connections: int, begin: int, every_ns: int
) -> Any:
    kinds = [kind for kind in _BULK if kind[1] == cpu]
    rows = np.zeros((len(number), len(kinds)), _ROW)
    sender = 2 + 2 * (number % connections)
    whole = SEGMENT * SEGMENTS
    lo = begin + number // connections * whole
    start = CLOCK[0] + 1_000_000 + number * every_ns
    for at, (name, side, segment, delay, is_ack) in enumerate(kinds):
        row = rows[:, at]
        row["point"], row["time"] = log.numbers[name], start + delay
        row["connection"], row["flags"] = sender + side, ACK
        row["entered"] = start if name == "SOCK_SEND" else 0
        from_, to = (lo, lo + whole) if segment < 0 else (lo + segment * SEGMENT,) * 2
        if segment >= 0:
            to = to + SEGMENT
        row["seq_lo"], row["seq_hi"] = (7, 7) if is_ack else (from_ & LOW, to & LOW)
        row["ack"] = lo + whole & LOW if is_ack else 7
        row["size"] = 0 if is_ack else to - from_
    flat = rows.reshape(-1)
    return flat[np.argsort(flat["time"], kind="stable")]


DATA = """
    ulong tcp_snd_wnd // a
    ulong tcp_srtt // a
    ulong tcp_rto // a
    ulong tcp_packets_out // a
    ulong tcp_retrans_out // a
    ulong tcp_snd_ssthresh // a
    ulong tcp_snd_cwnd // a
    ulong tcp_rcv_wnd // a
    ulong tcp_write_seq // a
    ulong tcp_copied_seq // a
    ushort tcp_source // a
    ushort tcp_dest // a
    ushort ip_version // a
    ushort ip_tos // a
    ushort ip_id // a
    ushort ip_frag_off // a
    ushort ip_ttl // a
    ushort ip_protocol // a
"""
NAMES = (*LAYERS, "QDISC_ENQUEUE")
MONO_NS, REAL_NS = CLOCK[0], CLOCK[1] - CLOCK[0]


def schema_of(data: bool = False) -> str:
    """A schema like magnet: the layers, MAGNET_CONNECTION."""
    events = "\n".join(f"event {name} {{{LEAN}{DATA if data else ''}}}" for name in NAMES)
    connection = "event MAGNET_CONNECTION {\n ulonglong connection // id\n uint lport // port\n}"
    return f"{events}\n{connection}\n"


class MagnetBuilder:
    """A capture of two CPUs. log() adds records in the order of time; write() makes the file."""

    def __init__(self, path: Path, data: bool = False, **settings: Any) -> None:
        self.path, self.now = path, 0
        told = {"command": ["--addr", "192.0.2.1"], "filters": {"ports": [5001]}, "hz": 250}
        told |= {"logs": [0, 1]} | settings
        self.logs = [LogBuilder(n, schema=schema_of(data), settings=told) for n in range(2)]

    def log(self, name: str, cpu: int = 0, count: int = 1, **values: Any) -> MagnetBuilder:
        """Records of an event."""
        log = self.logs[cpu]
        event = log.maker.format.event(name)
        told = {"connection": 7, "size": 100} | values
        told = {key: value for key, value in told.items() if event.find_field(key)}
        for _ in range(count):
            self.now += 1
            log.log(name, self.now, **told)
        return self

    def lose(self, name: str, cpu: int = 0, count: int = 1) -> MagnetBuilder:
        """Records that found no room in the ring."""
        self.logs[cpu].lose("ring_full", count, name)
        return self

    def release(self) -> MagnetBuilder:
        """End the dumps that are under way."""
        for log in self.logs:
            if log.maker._parts:
                log.end_dump()
        return self

    def checkpoint(self) -> MagnetBuilder:
        self.release()
        for log in self.logs:
            log.ledger()
        return self

    def mark(self, number: int, pid: int) -> MagnetBuilder:
        self.release().logs[0].base("MARK", number=number, pid=pid)
        return self.release()

    def write_log(self, reason: int | None = 0) -> Path:
        """The log. reason: of its end; None: it has none."""
        folder = self.path.with_name(f"{self.path.name}.klog")
        folder.mkdir()
        self.release()
        for cpu, log in enumerate(self.logs):
            (log if reason is None else log.finish(reason)).write(folder / f"{PREFIX}{cpu}")
        return folder

    def write(self, reason: int | None = 0) -> Path:
        """The file of the log."""
        with tcpkmon.open(self.write_log(reason)) as log:
            write(log, self.path, force=False)
        return self.path


def clean_file(path: Path, data: bool = False, count: int = 20) -> MagnetBuilder:
    """A capture without losses, not ended."""
    made = MagnetBuilder(path, data)
    more = {"tcp_snd_cwnd": 10, "tcp_source": 5001, "tcp_dest": 40000, "flags": 18 | 256}
    more |= {"tcp_copied_seq": 4_000_000_000, "tcp_srtt": 800, "ip_version": 4, "ip_ttl": 64}
    more |= {"ip_tos": 8, "ip_id": 0x1234, "ip_frag_off": 0x4000, "ip_protocol": 6}
    made.log("MAGNET_CONNECTION")
    for number in range(count):
        for cpu, name in enumerate((*NAMES[:4], *NAMES[4:])):
            entered = MONO_NS - 5 if name == "SOCK_SEND" else 0
            made.log(name, cpu % 2, connection=number % 3 + 1, entered=entered, **more)
        if number == count // 2:
            made.checkpoint().mark(5, 99)
    made.log("SOCK_RECV", size=-11)
    return made


def lossy_file(path: Path, count: int = 20) -> MagnetBuilder:
    """A capture with losses in the rings, at the end too."""
    made = clean_file(path, count=count)
    made.lose("IP_SEND", 0, 3).log("IP_SEND", 0).lose("DEV_SEND", 1, 2).log("DEV_SEND", 1)
    return made.lose("SOCK_RECV", 1, 4)


def in_layout(path: Path, to: Path, order: str = "<", bits: int = 64, header: bool = True) -> Path:
    """The same file in another layout; header: False: the records alone, as of another program."""
    with MagnetFile(path) as file:
        target = Layout(order, bits, file.layout.data)
        kinds, block = file.data_kinds(), Block(target.size)
        told = {"byteorder": target.byteorder, "bits": target.bits}
        out = encode_header(file.header | told, target) if header else b""
        for found in Walk(file):
            if isinstance(found, Piece):
                codes = found.rows["event"]
                data = convert(found.rows, NATIVE[target.data], target, kinds[codes]).tobytes()
                block.add(data)
                out += data
            elif header:
                out += encode(found.values | block.values(), target)
                block = Block(target.size)
    to.write_bytes(out)
    return to
