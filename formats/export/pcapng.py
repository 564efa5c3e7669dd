# SPDX-License-Identifier: Apache-2.0
"""Writes snapshots as pcapng for Wireshark: packets rebuilt from them, and their state beside.

A packet has the headers that its snapshot tells, and the length that it had; its data was never
recorded. What no packet tells (timers, states, calls) is an event of the Black Box Log.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.beside import LOCATIONS, Rows, read, words
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import file_or_stdout
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.tcp import ARRIVED, Location
from tcpkmon.formats.base.text import address_of, endpoint
from tcpkmon.formats.export import bblog
from tcpkmon.formats.packets.blocks import (
    IN,
    OUT,
    RAW_IP,
    enhanced,
    interface,
    option,
    section,
    text_option,
)

_DIRECTIONS = {
    **dict.fromkeys(ARRIVED, IN), Location.RETRANSMIT: OUT, Location.TRANSMIT: OUT,
}  # fmt: skip
"""Locations whose snapshots have a segment."""
_COMMENT, _FLAGS, _END = 1, 2, bytes(4)
_MOST_WINDOW = (1 << 16) - 1
_SYN, _PUSH, _ACK = 2, 8, 16
_MSS_AND_SCALE = 8
"""Bytes of these two options, the second with one of padding."""


def write(reader: Reader, output: Path | None, force: bool) -> None:
    """Write a capture of the schema tcp to a file, or to stdout. UsageError, FileError."""
    with Source(reader) as source:
        blocks = _blocks(source)
        first = next(blocks)  # what cannot be exported creates no file
        if output is None and sys.stdout.isatty():
            raise UsageError("pcapng is not for a terminal", "name a file with -o, or pipe it")
        with file_or_stdout(output, force) as out:
            for piece in itertools.chain([first], blocks):
                out.write(piece)


def _blocks(source: Source) -> Iterator[bytes]:
    rows = read(source)
    has_transmit = source.locations() is not None and source.records("TRANSMIT")
    about = source.about()
    comments = "\n".join(_limits(source, has_transmit))
    head = section("tcpkmon", for_terminal(str(about.get("host", ""))), [comments], bblog.HEAD)
    # All at the beginning: before the first one, Wireshark 4.0 shows no event.
    of_packets = [
        where for where in _DIRECTIONS if not (where == Location.RETRANSMIT and has_transmit)
        and source.records(LOCATIONS[where])
    ]  # fmt: skip
    interfaces = {where: number for number, where in enumerate(of_packets)}
    yield head + b"".join(map(_interface, of_packets))
    lost = 0
    if "seg_ack" not in source.known:
        say("tcpkmon export: the capture has no column seg_ack (collect --columns full): packets "
            "that arrived have no ACK")  # fmt: skip
    for piece in rows:
        yield b"".join(_piece(piece, interfaces, lost, has_transmit))
        lost = int(piece.lost[-1])
    if source.placed > lost:
        yield bblog.skip(source.placed - lost)


def _interface(where: int) -> bytes:
    name = LOCATIONS[where]
    return interface(RAW_IP, name, f"tcpkmon: records of the location {name}")


def _limits(source: Source, has_transmit: bool) -> Iterator[str]:
    """What the file cannot hold, for people."""
    yield ("Packets rebuilt by tcpkmon from snapshots of TCP: headers and lengths as recorded, no "
           "data, no checksum of TCP, no TCP options but those of a SYN; TTL 64 and the IP "
           "identification are made up.")  # fmt: skip
    if not has_transmit:
        yield ("Sent segments: only retransmissions. The capture does not record TRANSMIT "
               "(collect --locations default,TRANSMIT): only received segments are complete, so "
               "one direction.")  # fmt: skip
    else:
        yield "Retransmissions are packets of TRANSMIT; RETRANSMIT tells which, as an event."
    if "seg_ack" not in source.known:
        yield ("Received segments lack ACK: the capture has no column seg_ack (collect --columns "
               "full). ")  # fmt: skip
    if "rcv_wscale" not in source.known:
        yield ("The window of sent segments is 0xffff where it is larger: the capture has no "
               "column rcv_wscale (collect --columns all). SYN segments have no "
               "options.")  # fmt: skip
    yield ("Windows of received segments are those before the segment. Segments of handshakes that "
           "arrive, SYN-ACK, TIME-WAIT and resets have no snapshot with a segment. ECN bits of "
           "sent segments are not known.")  # fmt: skip
    yield "Skip blocks stand where records were lost; their number is exact, their content unknown."


def _piece(
    rows: Rows, interfaces: dict[int, int], lost: int, has_transmit: bool
) -> Iterator[bytes]:
    location = rows["location"]
    direction = _directions(location, has_transmit)
    is_packet = (direction > 0) & (rows["rport"] > 0)
    packets, lengths = _packets(rows, direction)
    info = bblog.tcpinfo(rows, is_packet)
    size = bblog.TCPINFO.itemsize
    gaps = np.diff(rows.lost, prepend=lost)
    texts = words(rows)
    flags = {one: option(_FLAGS, bytes([one, 0, 0, 0])) for one in (IN, OUT)}
    listed = zip(
        location.tolist(), direction.tolist(), is_packet.tolist(), rows.real_ns.tolist(),
        gaps.tolist(), lengths.tolist(), texts, packets, strict=True,
    )  # fmt: skip
    for at, (where, way, sent, time, gap, length, text, packet) in enumerate(listed):
        if gap > 0:
            yield bblog.skip(gap)
        record = info[at * size : (at + 1) * size]
        if not sent:
            ends = _ends(bytes(rows["laddr"][at]), int(rows["lport"][at]),
                         bytes(rows["raddr"][at]), int(rows["rport"][at]))  # fmt: skip
            yield bblog.event(record, f"{ends} {text}")
            continue
        if where not in interfaces:
            interfaces[where] = len(interfaces)
            yield _interface(where)
        options = b"".join(
            (text_option(_COMMENT, text), flags[way], bblog.INFO_HEAD, record, _END)
        )  # fmt: skip
        yield enhanced(interfaces[where], time & _TIME, packet, length, options)


_TIME = (1 << 64) - 1


def _directions(location: NDArray[Any], has_transmit: bool) -> NDArray[Any]:
    """(n,) IN, OUT, or 0: no packet."""
    found = np.zeros(len(location), np.int8)
    for where, way in _DIRECTIONS.items():
        if not (where == Location.RETRANSMIT and has_transmit):
            found[location == where] = way
    return found


@functools.lru_cache(1 << 16)
def _ends(laddr: bytes, lport: int, raddr: bytes, rport: int) -> str:
    local, remote = (address_of(one.ljust(16, b"\0")) for one in (laddr, raddr))
    return f"{endpoint(local, lport)} -> {endpoint(remote, rport)}"


def _packets(rows: Rows, direction: NDArray[Any]) -> tuple[list[bytes], NDArray[np.int64]]:
    """The headers of each segment, and its length with its data; of no segment something else."""
    count = len(rows)
    is_out = direction == OUT
    local, remote = (
        np.frombuffer(np.ascontiguousarray(rows[name]).tobytes(), np.uint8).reshape(count, 16)
        for name in ("laddr", "raddr")
    )
    source = np.where(is_out[:, None], local, remote)
    target = np.where(is_out[:, None], remote, local)
    tcp, size = _tcp(rows, is_out)
    payload = rows["seg_len"].astype(np.int64)
    is_ip4 = (local[:, :12] == _MAPPED).all(axis=1) & (remote[:, :12] == _MAPPED).all(axis=1)
    first = np.where(is_ip4, 20, 40)
    lengths = np.minimum(first + size + payload, (1 << 32) - 1)
    four = np.concatenate([_ip4(source, target, size + payload), tcp], axis=1)
    six = np.concatenate([_ip6(source, target, size + payload), tcp], axis=1)
    data4, data6, wide4, wide6 = four.tobytes(), six.tobytes(), four.shape[1], six.shape[1]
    packets = [
        data4[at * wide4 : at * wide4 + 20 + bytes_of] if is_4
        else data6[at * wide6 : at * wide6 + 40 + bytes_of]
        for at, (is_4, bytes_of) in enumerate(zip(is_ip4.tolist(), size.tolist(), strict=True))
    ]  # fmt: skip
    return packets, lengths


_MAPPED = np.frombuffer(b"\0" * 10 + b"\xff\xff", np.uint8)


def _be(values: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """(n, size) the bytes of numbers in network order."""
    raw = np.ascontiguousarray(values.astype(f">u{size}")).view(np.uint8)
    return raw.reshape(len(values), size)


def _tcp(rows: Rows, is_out: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(n, 28) TCP headers, and how many bytes of each count."""
    count = len(rows)
    flags = rows["seg_flags"].astype(np.int64) & 0xFF
    ack = np.where(is_out, rows["rcv_nxt"], 0).astype(np.uint32)
    if "seg_ack" in rows.columns:
        ack = np.where(is_out, ack, rows["seg_ack"]).astype(np.uint32)
    else:
        flags = np.where(is_out, flags, flags & ~_ACK)
    ack[flags & _ACK == 0] = 0
    is_syn = flags & _SYN > 0
    # The kernel sets PSH in what the device is to cut, after the record.
    cut = is_out & ~is_syn & (rows["seg_len"] > rows["mss"])
    flags[cut] |= _PUSH
    has_options = is_out & is_syn & ("rcv_wscale" in rows.columns)
    size = np.where(has_options, 20 + _MSS_AND_SCALE, 20)
    scales = []
    for name in ("rcv_wscale", "snd_wscale"):
        known = rows.columns.get(name, np.zeros(count, np.uint16))
        scales.append(np.where(is_syn, 0, np.minimum(known, 15)).astype(np.int64))
    window = np.where(is_out, rows["rcv_wnd"] >> scales[0], rows["snd_wnd"] >> scales[1])
    lport, rport = rows["lport"], rows["rport"]
    mss, scale = (
        rows.columns.get(name, np.zeros(count, np.uint16)) for name in ("advmss", "rcv_wscale")
    )
    fixed = np.zeros((count, 1), np.uint8)
    parts = [
        _be(np.where(is_out, lport, rport), 2), _be(np.where(is_out, rport, lport), 2),
        _be(rows["seg_seq"], 4), _be(ack, 4), _be(size // 4 << 4, 1), _be(flags, 1),
        _be(np.minimum(window, _MOST_WINDOW), 2), _be(np.zeros(count), 4),
        fixed + np.uint8(2), fixed + np.uint8(4), _be(mss, 2),
        fixed + np.uint8(1), fixed + np.uint8(3), fixed + np.uint8(3),
        _be(np.minimum(scale, 14), 1),
    ]  # fmt: skip
    return np.concatenate(parts, axis=1), size.astype(np.int64)


def _ip4(source: NDArray[Any], target: NDArray[Any], payload: NDArray[Any]) -> NDArray[np.uint8]:
    """(n, 20) headers. A length that does not fit is 0, as of packets that a device cuts."""
    count = len(payload)
    total = np.where(payload + 20 <= 0xFFFF, payload + 20, 0)
    head = np.zeros((count, 20), np.uint8)
    head[:, 0], head[:, 6], head[:, 8], head[:, 9] = 0x45, 0x40, 64, 6
    head[:, 2:4] = _be(total, 2)
    head[:, 12:16], head[:, 16:20] = source[:, 12:], target[:, 12:]
    total = head.view(">u2").astype(np.int64).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head[:, 10:12] = _be(~total & 0xFFFF, 2)
    return head


def _ip6(source: NDArray[Any], target: NDArray[Any], payload: NDArray[Any]) -> NDArray[np.uint8]:
    """(n, 40) headers; see _ip4()."""
    head = np.zeros((len(payload), 40), np.uint8)
    head[:, 0], head[:, 6], head[:, 7] = 0x60, 6, 64
    head[:, 4:6] = _be(np.where(payload <= 0xFFFF, payload, 0), 2)
    head[:, 8:24], head[:, 24:40] = source, target
    return head
