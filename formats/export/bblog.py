# SPDX-License-Identifier: Apache-2.0
"""Snapshots as FreeBSD's Black Box Log has them, in the blocks of pcapng that Netflix registered.

Wireshark reads them. Everything in them is little-endian, whatever the file's byte order.

    event   block 0xbad | length | 10949 | u32 1 | options | length
    skip    block 0xbad | length | 10949 | u32 2 | u32 records | options | length
    option  2989 | length | 10949 | u32 kind | value
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.beside import Rows
from tcpkmon.formats.base.tcp import CaState, Location
from tcpkmon.formats.packets.blocks import CUSTOM, block, option, text_option

VENDOR = 10949
_EVENT, _SKIP = 1, 2
_OPTION = 2989
_VERSION, _TCPINFO, _DUMPINFO, _STACK = 1, 2, 4, 6
_DUMPINFO_BYTES = 208
_LOG_VERSION = 9
_COMMENT, _END = 1, bytes(4)
_MOST = (1 << 32) - 1

TCPINFO = np.dtype(
    [
        ("tv_sec", "<u8"), ("tv_usec", "<u8"), ("ticks", "<u4"), ("sn", "<u4"), ("stackid", "u1"),
        ("eventid", "u1"), ("eventflags", "<u2"), ("errno", "<i4"), ("rxbuf_acc", "<u4"),
        ("rxbuf_ccc", "<u4"), ("rxbuf_spare", "<u4"), ("txbuf_acc", "<u4"), ("txbuf_ccc", "<u4"),
        ("txbuf_spare", "<u4"), ("state", "<i4"), ("starttime", "<u4"), ("iss", "<u4"),
        ("flags", "<u4"), ("snd_una", "<u4"), ("snd_max", "<u4"), ("snd_cwnd", "<u4"),
        ("snd_nxt", "<u4"), ("snd_recover", "<u4"), ("snd_wnd", "<u4"), ("snd_ssthresh", "<u4"),
        ("srtt", "<u4"), ("rttvar", "<u4"), ("rcv_up", "<u4"), ("rcv_adv", "<u4"),
        ("flags2", "<u4"), ("rcv_nxt", "<u4"), ("rcv_wnd", "<u4"), ("dupacks", "<u4"),
        ("segqlen", "<i4"), ("snd_numholes", "<i4"), ("flex1", "<u4"), ("flex2", "<u4"),
        ("fbyte_in", "<u4"), ("fbyte_out", "<u4"), ("scales", "u1"), ("pad", "V3"),
        ("stackinfo", "V104"), ("len", "<u4"),
    ]
)  # fmt: skip
"""A record of the log: 268 bytes. scales: snd_scale in the lower four bits, rcv_scale above."""
_RXBUF, _TXBUF, _HEADER = 1, 2, 4
_SCALES = 0x20 | 0x40
_RECOVERY, _CONGESTION = 0x00100000, 0x20000000
_INFINITE = 65535 << 14
"""FreeBSD's threshold where there is none yet."""
_LARGE = (1 << 31) - 1
_EVENTS = {
    Location.SEGMENT_RECEIVED: 1, Location.SEGMENT_CLOSING: 1, Location.RETRANSMIT: 2,
    Location.TRANSMIT: 2, Location.RTO: 3, Location.CWND_UNDO: 5, Location.SEND_CALL: 31,
    Location.DESTROY: 54,
}  # fmt: skip
"""FreeBSD's events by location: a packet in or out, timeout, bad retransmission, a call that
sends, the end. Others are 0. flex1 has the location in any case, flex2 its callvalue."""
_STATES = np.array([0, 4, 2, 3, 6, 9, 10, 0, 5, 8, 1, 7, 3, 0], np.int32)
"""FreeBSD's states by Linux's."""


def tcpinfo(rows: Rows, is_packet: NDArray[np.bool_]) -> bytes:
    """The records of the log, one after another. is_packet: (n,) those that belong to packets."""
    found = np.zeros(len(rows), TCPINFO)
    found["tv_sec"], rest = np.divmod(rows.real_ns, 1_000_000_000)
    found["tv_usec"] = rest // 1000
    found["ticks"] = (rows.mono_ns // 1_000_000) & _MOST
    found["sn"] = rows.seq & _MOST
    location = rows["location"]
    events = np.zeros(int(location.max()) + 1 if len(location) else 1, np.uint8)
    for where, event in _EVENTS.items():
        events[where : where + 1] = event
    found["eventid"] = events[location]
    found["eventflags"] = np.where(is_packet, _HEADER, 0) | _RXBUF | _TXBUF
    found["rxbuf_acc"] = found["rxbuf_ccc"] = rows["rcv_sb_cc"]
    found["txbuf_acc"] = found["txbuf_ccc"] = rows["snd_sb_cc"]
    found["state"] = _STATES[np.minimum(rows["state"], len(_STATES) - 1)]
    ca_state = rows["ca_state"]
    flags = np.where(ca_state >= CaState.RECOVERY, _RECOVERY | _CONGESTION, 0)
    flags |= np.where(ca_state == CaState.CWR, _CONGESTION, 0)
    if "snd_wscale" in rows.columns and "rcv_wscale" in rows.columns:
        send, receive = (
            np.minimum(rows[name], 15).astype(np.uint8) for name in ("snd_wscale", "rcv_wscale")
        )
        found["scales"] = send | receive << 4
        flags |= np.where((send > 0) | (receive > 0), _SCALES, 0)
    found["flags"] = flags
    found["snd_max"] = found["snd_nxt"] = rows["snd_max"]
    for name in ("snd_una", "snd_wnd", "rcv_nxt", "rcv_wnd"):
        found[name] = rows[name]
    mss = rows["mss"].astype(np.int64)
    found["snd_cwnd"] = np.minimum(rows["snd_cwnd_segs"] * mss, _MOST)
    threshold = rows["snd_ssthresh"].astype(np.int64)
    bounded = np.minimum(threshold * mss, _MOST)
    found["snd_ssthresh"] = np.where(threshold >= _LARGE, _INFINITE, bounded)
    found["srtt"] = rows["srtt_us"]
    if "rttvar_us" in rows.columns:
        found["rttvar"] = rows["rttvar_us"]
    found["rcv_adv"] = (rows["rcv_nxt"].astype(np.int64) + rows["rcv_wnd"]) & _MOST
    found["flex1"], found["flex2"] = location, rows["callvalue"]
    found["len"] = np.where(is_packet, rows["seg_len"], 0)
    return found.tobytes()


def custom(kind: int, value: bytes) -> bytes:
    """An option of Netflix."""
    return option(_OPTION, struct.pack("<II", VENDOR, kind) + value)


HEAD = (
    custom(_VERSION, struct.pack("<I", _LOG_VERSION))
    + custom(_DUMPINFO, struct.pack("<I", _LOG_VERSION).ljust(_DUMPINFO_BYTES, b"\0"))
    + custom(_STACK, b"\0Linux\0")
)
"""Options of the section: the log's version, what is added to its times (nothing), the number and
the name of the stack."""

INFO_HEAD = custom(_TCPINFO, bytes(TCPINFO.itemsize))[: -TCPINFO.itemsize]
"""What stands before a record in its option, which needs no padding."""


def event(info: bytes, text: str) -> bytes:
    """A record without a packet."""
    options = b"".join((INFO_HEAD, info, text_option(_COMMENT, text), _END))
    return block(CUSTOM, struct.pack("<II", VENDOR, _EVENT) + options)


def skip(count: int) -> bytes:
    """That so many records were lost here; as a comment too, as Wireshark 4.4 no longer shows the
    number, whose field may also be too small."""
    body = struct.pack("<III", VENDOR, _SKIP, min(count, _MOST))
    body += text_option(_COMMENT, f"records lost here: {count}") + _END
    return block(CUSTOM, body)
