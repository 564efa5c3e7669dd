# SPDX-License-Identifier: Apache-2.0
"""Writes small PSC captures, record by record, with segments; and packets as other programs do."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.packets.blocks import RAW_IP, enhanced, interface, option, section, text_option
from tests.unit.captures import Plain
from tests.unit.why_capture import DEFAULT

REAL_NS = 1_700_000_000_000_000_000
MONO_NS = 5_000_000_000
RECEIVED, RETRANSMIT, STATE_CHANGE, DESTROY, RTO, TRANSMIT = 1, 2, 4, 11, 14, 19
LOCAL, REMOTE = ("10.0.0.1", 5000), ("10.0.0.2", 80)
FURTHER = {"seg_ack": 4, "rcv_wscale": 2, "advmss": 2}
USUAL = {
    "lport": LOCAL[1], "rport": REMOTE[1], "conn_id": 1, "state": 1, "family": 2, "mss": 1000,
    "snd_wnd": 65536, "rcv_wnd": 131072, "snd_wscale": 2, "rcv_wscale": 7, "advmss": 1460,
    "snd_cwnd_segs": 10, "snd_cwnd": 10_000, "snd_ssthresh": (1 << 31) - 1, "srtt_us": 24_000,
    "min_rtt_us": 20_000, "seg_flags": 16, "snd_una": 1000, "snd_max": 5000, "rcv_nxt": 9000,
    "sk_rcvbuf": 200_000, "sb_hiwat": 200_000, "pacing_rate": (1 << 64) - 1, "packets_out": 4,
}  # fmt: skip


def write(
    path: Path, records: Iterable[dict[str, Any]], lose: Iterable[int] = (), leave: str = "",
    transmit: bool = True,
) -> Path:  # fmt: skip
    """Each record has what it does not share with USUAL; ms: its time, by default 1 ms later.

    lose: the numbers of records that are missing, from 0. leave: a column that is left out.
    """
    further = {name: width for name, width in (DEFAULT | FURTHER).items() if name != leave}
    plain = Plain(further)
    locations = {"SEGMENT_RECEIVED": [], "RETRANSMIT": []} | ({"TRANSMIT": []} if transmit else {})
    lost, every = set(lose), list(records)
    rows = (_row(n, one, plain.dtype) for n, one in enumerate(every) if n not in lost)
    return plain.write(path, rows, len(lost), len(every) + 1, host="unit\x1b",
                       clock=(MONO_NS, REAL_NS, 0), settings={"locations": locations})  # fmt: skip


def _row(number: int, record: dict[str, Any], dtype: np.dtype[Any]) -> Any:
    row = np.zeros(1, dtype)
    values = USUAL | record
    after_ns = int(values.pop("ms", number) * 1_000_000)
    for name, address in (("laddr", LOCAL[0]), ("raddr", REMOTE[0])):
        row[name] = np.frombuffer(mapped(values.pop(name, address)), "V16")[0]
    for name, value in values.items():
        if name in (dtype.names or ()):
            row[name] = value
    row["seq"], row["serial"], row["seq_no"] = number + 2, number + 1, number + 2
    row["time_ns"] = MONO_NS + after_ns
    row["tv_sec"], row["tv_usec"] = divmod((REAL_NS + after_ns) // 1000, 1_000_000)
    return row


def mapped(address: str) -> bytes:
    one = ipaddress.ip_address(address)
    return b"\0" * 10 + b"\xff\xff" + one.packed if one.version == 4 else one.packed


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
        time = REAL_NS + int(ms * 1_000_000)
        blocks.append(enhanced(0, time, data, len(data) + length, options))
    return b"".join(blocks)
