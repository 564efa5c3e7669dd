# SPDX-License-Identifier: Apache-2.0
"""PSC files for pmgraph's tests, put together with struct alone, so that nothing is shared."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

EPOCH_S = 1_700_000_000
BOOT_NS = 5_000_000_000

CLASSIC = (
    ("seq_no", 0, 4, 0), ("time", 4, 8, 2), ("callvalue", 12, 4, 0), ("location", 16, 4, 0),
    ("lport", 20, 2, 1), ("rport", 22, 2, 1), ("snd_cwnd", 24, 4, 0), ("snd_max", 28, 4, 0),
    ("snd_fack", 32, 4, 0), ("sb_hiwat", 36, 4, 0), ("snd_sb_cc", 40, 4, 0),
    ("rcv_sb_cc", 44, 4, 0), ("sb_target_hiwat", 48, 4, 0), ("sb_net_target", 52, 4, 0),
    ("hiwat_fair_share", 56, 4, 0), ("m_clused", 60, 4, 0),
)  # fmt: skip
FURTHER = (
    ("time_ns", 64, 8, 0), ("conn_id", 72, 8, 0), ("laddr", 80, 16, 2), ("raddr", 96, 16, 2),
    ("srtt_us", 112, 4, 0), ("min_rtt_us", 116, 4, 0), ("family", 120, 4, 0), ("state", 124, 4, 0),
    ("ca_name", 128, 16, 2),
)  # fmt: skip
NAMES = tuple(name for name, *_ in CLASSIC)

SCHEMA = """
enum location { SEGMENT_RECEIVED = 1, RETRANSMIT = 2, STATE_CHANGE = 4, CONG_STATE = 5, RTO = 14,
    LOSS_PROBE = 15, START = 224, LOSS = 227, END = 230, }
enum tcp_state { TCP_NONE = 0, TCP_ESTABLISHED = 1, TCP_SYN_SENT, }
event SNAPSHOT {
    uint location   // where
    uint snd_cwnd   // congestion window [bytes]
    uint srtt_us    // smoothed round-trip time [us]
    uint min_rtt_us // minimum; 2^32-1: none yet [us]
    tcp_state state // state
}
"""

RECEIVED, RETRANSMIT, STATE_CHANGE, CONG_STATE, RTO, LOSS_PROBE = 1, 2, 4, 5, 14, 15
START, LOSS, END = 224, 227, 230


@dataclass
class Builder:
    """Collects entries; `tcpkmon` adds the further columns, the schema and the control entries."""

    order: str = "<"
    tcpkmon: bool = False
    mclsize: int = 2048
    columns: tuple[tuple[str, int, int, int], ...] = CLASSIC
    rows: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0
    mods: int = 2
    masks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tcpkmon:
            self.columns = CLASSIC + FURTHER
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
        self._control(END, at_s, 0, b"")

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
