# SPDX-License-Identifier: Apache-2.0
"""Logs of schema magnet for tests, built without a kernel: connections, and records of bytes."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.schema import load, parse
from tcpkmon.formats.schema.resolve import merge
from tests.unit.klogger_samples import BASE, CLOCK, describe_events
from tests.unit.log_builder import LogBuilder

_FIELDS = """ {
    ulonglong connection; ulonglong entered; uint seq_lo; uint seq_hi; uint ack; int size;
    uint device; ushort flags; ushort gso_segs
}
"""
LAYERS = (
    "SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND", "DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV",
)  # fmt: skip
DRIVER = ("QDISC_ENQUEUE", "QDISC_DEQUEUE", "DRIVER_START", "DRIVER_RESULT")
SCHEMA = (
    "".join(f"event {name}{_FIELDS}" for name in (*LAYERS, *DRIVER))
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
        schema = merge([load([BASE]), parse(SCHEMA)])
        super().__init__(cpu, schema=SCHEMA, events=describe_events(schema), **changes)

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
