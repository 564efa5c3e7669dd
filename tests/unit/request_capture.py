# SPDX-License-Identifier: Apache-2.0
"""Sockets in the making, whose snapshots show requests and answers; as pieces or as a PSC file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why import Block, Losses, Snapshots
from tests.unit.psc_files import DEFAULT, Plain

MS = 1_000_000
MASK = (1 << 32) - 1
_LOCAL = np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", "V16")[0]
CALLS = {name: "btf" for name in ("SEGMENT_RECEIVED", "SEND_CALL", "RECEIVE_CALL", "RETRANSMIT")}


class Socket:
    """One end. iss, irs: the first numbers of both streams, those of the SYNs. Times in ms; each
    method appends a snapshot, with values of its own as keywords."""

    def __init__(self, conn_id: int = 1, iss: int = 1000, irs: int = 5000, lport: int = 40000,
                 rport: int = 80) -> None:  # fmt: skip
        self.rows: list[dict[str, Any]] = []
        self.conn_id, self.lport, self.rport = conn_id, lport, rport
        self.written = self.sent = self.acked = (iss + 1) & MASK
        self.arrived = self.read = (irs + 1) & MASK
        self.state, self.srtt_us, self.lost = 1, 200, 0

    def put(self, ms: float, location: int, **values: Any) -> None:
        """A snapshot as the socket is now."""
        self.rows.append({
            "time_ns": round(ms * MS), "location": location, "conn_id": self.conn_id,
            "lport": self.lport, "rport": self.rport, "state": self.state, "lost": self.lost,
            "snd_una": self.acked, "snd_max": self.sent,
            "snd_sb_cc": (self.written - self.acked) & MASK, "rcv_nxt": self.arrived,
            "rcv_sb_cc": (self.arrived - self.read) & MASK, "srtt_us": self.srtt_us,
            "min_rtt_us": 100, "sk_wmem_bytes": 0, "sb_hiwat": 1 << 20, "mss": 1448,
            "snd_wnd": 65536, "snd_cwnd_segs": 10, "pacing_rate": (1 << 64) - 1, **values,
        })  # fmt: skip

    def open(self, ms: float, active: bool, **values: Any) -> Socket:
        """The handshake ends."""
        self.put(ms, 4, state=2 if active else 3, callvalue=1, **values)
        return self

    def write(self, nbytes: int) -> None:
        """A call's bytes, all sent; without a snapshot."""
        self.written = self.sent = (self.written + nbytes) & MASK

    def send(self, ms: float, nbytes: int, **values: Any) -> None:
        """A call that ends now."""
        self.write(nbytes)
        self.put(ms, 9, callvalue=nbytes, **values)

    def receive(self, ms: float, nbytes: int) -> None:
        """A call that returns this many bytes now."""
        self.read = (self.read + nbytes) & MASK
        self.put(ms, 10, callvalue=nbytes)

    def segment(self, ms: float, nbytes: int = 0, ack: int | None = None, ahead: int = 0,
                srtt_us: int = 0, **values: Any) -> None:  # fmt: skip
        """One arrives: nbytes in order (ahead: from so far beyond), and acknowledges all that was
        written, or `ack` bytes less."""
        self.put(ms, 1, seg_seq=(self.arrived + ahead) & MASK, seg_len=nbytes,
                 seg_ack=(self.written - (ack or 0)) & MASK, **values)  # fmt: skip
        if not ahead:
            self.arrived = (self.arrived + nbytes) & MASK
        self.acked = (self.written - (ack or 0)) & MASK
        self.srtt_us = srtt_us or self.srtt_us

    def close(self, ms: float) -> None:
        """Sends a FIN, which is acknowledged, and gets one; then the socket goes."""
        self.put(ms, 4, callvalue=4)
        self.state = 4
        self.written = self.sent = (self.written + 1) & MASK
        self.put(ms + 1, 21, seg_seq=self.arrived, seg_len=0)
        self.acked = self.written
        self.put(ms + 1, 4, callvalue=5)
        self.state = 5
        self.put(ms + 2, 21, seg_seq=self.arrived, seg_len=0)
        self.arrived = (self.arrived + 1) & MASK
        self.put(ms + 2, 4, callvalue=7)
        self.state = 7
        self.put(ms + 3, 11)


def client(think: float = 400, count: int = 3, **values: Any) -> Socket:
    """Asks 120 bytes, gets 4000 in two segments after `think` ms, reads them, pauses 10 ms."""
    one, now = Socket(**values).open(1, active=True), 5.0
    for _ in range(count):
        one.send(now, 120)
        one.segment(now + think + 0.1, 1448)
        one.segment(now + think + 0.6, 2552)
        one.receive(now + think + 1.1, 4000)
        now += think + 11.1
    one.close(now)
    return one


def server(think: float = 400, count: int = 3, **values: Any) -> Socket:
    one = Socket(conn_id=2, lport=80, rport=40000, **values).open(1, active=False)
    now = 5.0
    for _ in range(count):
        one.segment(now, 120)
        one.receive(now + 0.1, 120)
        one.send(now + think, 4000)
        one.segment(now + think + 1)
        now += think + 11
    one.segment(now)
    one.put(now, 4, callvalue=8)
    one.arrived += 1
    return one


def snapshots(*sockets: Socket, acks: bool = False) -> Snapshots:
    """All of them as one piece, in time order. acks: with the column seg_ack."""
    rows = sorted((row for one in sockets for row in one.rows), key=lambda row: row["time_ns"])
    names = {name for row in rows for name in row} | {"callvalue", "seg_seq", "seg_len"}
    columns: dict[str, Any] = {}
    for name in names - {"time_ns", "lost"} - ({"seg_ack"} if not acks else set()):
        kind = {"conn_id": np.uint64, "lport": np.uint16, "rport": np.uint16,
                "pacing_rate": np.uint64}.get(name, np.uint32)  # fmt: skip
        columns[name] = np.array([row.get(name, 0) & (1 << 64) - 1 for row in rows], np.uint64)
        columns[name] = columns[name].astype(kind)
    columns["laddr"] = columns["raddr"] = np.full(len(rows), _LOCAL, "V16")
    return Snapshots(columns, np.array([row["time_ns"] for row in rows], np.int64),
                     np.array([row["lost"] for row in rows], np.int64))  # fmt: skip


def block_of(*sockets: Socket, acks: bool = False) -> Block:
    """The same as a block."""
    piece = snapshots(*sockets, acks=acks)
    at = np.argsort(piece["conn_id"], kind="stable")
    one = piece.take(at)
    return Block(one.columns, one["conn_id"], one.times_ns, one.lost, None, at, Losses.join([]))


def entries_of(*sockets: Socket) -> tuple[Any, Plain]:
    """Entries of the default columns, and the file that they are for."""
    piece, plain = snapshots(*sockets), Plain(DEFAULT)
    rows = np.zeros(len(piece), plain.dtype)
    for name in rows.dtype.names or ():
        if name in piece.columns:
            rows[name] = piece[name]
    rows["seq"] = rows["seq_no"] = np.arange(len(rows)) + 2 + piece.lost
    rows["time_ns"] = piece.times_ns
    return rows, plain


def write_requests(path: Path, *sockets: Socket, locations: Any = None,
                   clock: tuple[int, int, int] | None = None) -> Path:  # fmt: skip
    """A PSC file of them. locations: as its header has them; CALLS. clock: of its header."""
    rows, plain = entries_of(*sockets)
    last = int(rows["seq"][-1])
    return plain.write(path, [rows], last - len(rows) - 1, last, rows["time_ns"][-1] + 1,
                       clock=clock, settings={"locations": locations or CALLS})  # fmt: skip
