# SPDX-License-Identifier: Apache-2.0
"""What sock_diag answers, by byte: struct inet_diag_msg, tcp_info of three ages, the entries."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader import sock_diag
from tcpkmon.collector.loader.sock_diag import TOLD, Connection, list_connections, make_entries
from tcpkmon.collector.loader.tcp_info import FROM_MEMORY, TCP_INFO
from tcpkmon.collector.plan.columns import choose_columns, load_schema, make_layout
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import KernelError
from tcpkmon.formats.base.tcp_info import FROM_INFO

MONO_NS = 0x1_2345_6789_ABCD
V6 = bytes(range(0x20, 0x30))


def layout(columns: str = "all", absent: tuple[str, ...] = ()) -> Any:
    schema = load_schema()
    return make_layout(schema, choose_columns(schema.event("SNAPSHOT"), columns), absent)


def tcp_info(length: int = 280, **members: int) -> bytes:
    """struct tcp_info as a newer kernel has it, longer than the part that is known."""
    row = np.zeros(1, TCP_INFO)
    for name, value in members.items():
        row[name] = value
    return (row.tobytes() + b"\xee" * 64)[:length]


def connection(**changes: Any) -> Connection:
    values: dict[str, Any] = {
        "cookie": 7, "netns": 2**63 + 5, "family": 2, "state": 1,
        "local": sock_diag._MAPPED + b"\n\0\0\1", "remote": sock_diag._MAPPED + b"\n\0\0\2",
        "local_port": 0x1234, "remote_port": 5001,
        "receive_queue_bytes": 11, "send_queue_bytes": 12, "inode": 99, "pid": 321,
        "info": tcp_info(snd_cwnd=10, snd_mss=1448, rcv_wnd=65), "congestion": b"cubic", "mark": 5,
        "cgroup": 2**40 + 3, "uid": 1000,
        "memory": struct.pack("=9I", 1, 2, 3, 4, 5, 6, 7, 8, 9),
    }  # fmt: skip
    return Connection(**{**values, **changes})


def message(
    family: int, state: int, attributes: dict[int, bytes], cookie: int = 0x1_0000_0002
) -> bytes:
    """A struct nlmsghdr with a struct inet_diag_msg and attributes, byte by byte."""
    address = V6 if family == 10 else b"\n\0\0\1" + bytes(12)
    body = bytes((family, state, 0, 0))
    body += bytes.fromhex("1389 0050")  # ports 5001 and 80
    body += address + address
    body += struct.pack("=IIIIIIII", 0, cookie & 0xFFFFFFFF, cookie >> 32, 0, 21, 22, 1000, 4242)
    assert len(body) == 72
    for kind, value in attributes.items():
        body += struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


class Wire:
    """A socket that hands out these datagrams."""

    def __init__(self, *datagrams: bytes) -> None:
        self.left = list(datagrams)

    def recv(self, size: int) -> bytes:
        return self.left.pop(0)[:size]


def received(*datagrams: bytes) -> list[tuple[bytes, list[int]]]:
    """What a dump of these datagrams holds; its end follows them if it is not among them."""
    return list(sock_diag._receive(Wire(*datagrams, DONE)))


def answer(monkeypatch: pytest.MonkeyPatch, *datagrams: bytes) -> None:
    """Lets the kernel answer with these datagrams, in a namespace without a cookie."""
    parts = received(*datagrams)

    def run_inside(fd: int, call: Callable[[], Any]) -> Any:
        return parts

    monkeypatch.setattr(sock_diag, "run_inside", run_inside)
    monkeypatch.setattr(sock_diag, "cookie_of", lambda fd: 77)


def test_the_layout_is_that_of_the_uapi_header() -> None:
    fields: Any = TCP_INFO.fields
    offsets = {name: fields[name][1] for name in TCP_INFO.names or ()}
    known = {
        "rto": 8, "snd_mss": 16, "unacked": 24, "pmtu": 60, "snd_cwnd": 80, "total_retrans": 100,
        "pacing_rate": 104, "bytes_acked": 120, "segs_out": 136, "min_rtt": 148,
        "delivery_rate": 160, "busy_time": 168, "delivered": 192, "bytes_sent": 200,
        "dsack_dups": 216, "snd_wnd": 228, "rcv_wnd": 232,
    }  # fmt: skip
    assert {name: offsets[name] for name in known} == known
    assert TCP_INFO.itemsize == 236


def test_every_named_column_exists() -> None:
    names = {field.name for field in load_schema().event("SNAPSHOT").fields}
    assert set(FROM_INFO) | set(FROM_MEMORY) <= names
    assert {name for name, _ in sock_diag._columns([connection()], 1)} == TOLD
    assert names >= TOLD
    assert set(FROM_INFO.values()) <= set(TCP_INFO.names or ())


def test_an_entry_byte_by_byte() -> None:
    info = tcp_info(snd_cwnd=10, snd_mss=1448, rto=204_000, retransmits=3, options=0x19, rcv_wnd=65)
    where = layout()
    entry = make_entries(where, [connection(info=info)], MONO_NS)
    raw = entry.tobytes()
    assert len(raw) == where.entry_size
    assert raw[:4] == bytes(4)
    assert struct.unpack_from("=Q", raw, 4) == (MONO_NS,)
    assert struct.unpack_from("=II", raw, 12) == (0, EXISTING)
    assert raw[20:24] == bytes.fromhex("1234 1389")  # network order
    assert struct.unpack_from("=I", raw, 24) == (14480,)
    one = entry[0]
    expected = {
        "time_ns": MONO_NS, "lport": 0x1234, "rport": 5001, "snd_cwnd_segs": 10, "mss": 1448,
        "rto_us": 204_000, "retransmits": 3, "ecn_flags": 9, "rcv_wnd": 65, "pid": 321,
        "netns": 2**63 + 5, "cgroup": 2**40 + 3, "uid": 1000, "sk_mark": 5,
        "rcv_sb_cc": 11, "snd_sb_cc": 12,
        "sk_rmem_bytes": 1, "sk_rcvbuf": 2, "sk_wmem_alloc": 3, "sb_hiwat": 4,
        "sk_forward_alloc": 5, "sk_wmem_bytes": 6, "state": 1, "family": 2,
    }  # fmt: skip
    assert {name: int(one[name]) for name in expected} == expected
    assert one["laddr"].tobytes() == bytes(10) + b"\xff\xff\n\0\0\1"
    assert one["ca_name"].tobytes() == b"cubic".ljust(16, b"\0")
    told = {name for name, _ in sock_diag._columns([connection()], 1)}
    for name in where.dtype.names or ():
        if name not in told | {"tv_sec", "tv_usec"}:
            assert not any(one[name].tobytes()), name


def test_each_member_goes_to_its_column() -> None:
    """Each member of tcp_info has a value of its own, and so has then each column."""
    row = np.zeros(1, TCP_INFO)
    for index, name in enumerate(TCP_INFO.names or ()):
        row[name] = index + 1
    entry = make_entries(layout(), [connection(info=row.tobytes())], 1)[0]
    members = list(TCP_INFO.names or ())
    for column, member in FROM_INFO.items():
        assert entry[column] == members.index(member) + 1, column


def test_a_short_tcp_info_gives_what_it_has() -> None:
    """Linux 4.4 ended after 160 bytes, and no member beyond is made up."""
    info = tcp_info(160, data_segs_out=17, snd_cwnd=2, snd_mss=3, delivered=9, rcv_wnd=65)
    entry = make_entries(layout(), [connection(info=info)], 1)[0]
    assert (entry["data_segs_out"], entry["delivered"], entry["rcv_wnd"]) == (17, 0, 0)


def test_the_columns_are_those_of_the_layout() -> None:
    for where in (layout("classic"), layout("default", ("bytes_acked", "snd_wnd"))):
        entries = make_entries(where, [connection(), connection(local_port=6)], 1)
        assert entries.dtype == where.dtype
        assert list(entries["lport"]) == [0x1234, 6]
    assert make_entries(layout(), [], 1).shape == (0,)


def test_messages_become_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    info = tcp_info(snd_cwnd=4)
    four = message(2, 1, {2: info, 4: b"bbr\0", 7: bytes(36), 15: struct.pack("=I", 6)})
    six = message(10, 8, {8: b"\3", 2: info}, cookie=5)
    answer(monkeypatch, four + six, DONE)
    one, two = list_connections([3], Filters())
    assert one.cookie == 0x1_0000_0002
    assert (one.netns, one.family, one.state, one.inode, one.mark) == (77, 2, 1, 4242, 6)
    assert (one.local_port, one.remote_port) == (5001, 80)
    assert one.local == bytes(10) + b"\xff\xff\n\0\0\1"
    assert (one.receive_queue_bytes, one.send_queue_bytes) == (21, 22)
    assert (one.info, one.congestion) == (info, b"bbr")
    assert (two.family, two.state, two.local, two.congestion) == (10, 8, V6, b"")


def test_what_is_no_full_socket_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    time_wait = message(2, 5, {8: b"\0"}, cookie=1)
    listener = message(2, 10, {2: tcp_info()}, cookie=2)
    answer(monkeypatch, time_wait + listener, DONE)
    assert list_connections([3], Filters()) == []


def test_a_connection_that_is_told_twice_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = message(2, 1, {2: tcp_info()})
    answer(monkeypatch, one + one, one + DONE)
    assert len(list_connections([3], Filters())) == 1
    other = message(2, 1, {2: tcp_info()}, cookie=9)
    answer(monkeypatch, one, other)
    assert len(list_connections([3], Filters())) == 2


def test_filters_by_port(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, message(2, 1, {2: tcp_info()}))
    assert len(list_connections([3], Filters(local_ports=(5001,)))) == 1
    assert not list_connections([3], Filters(local_ports=(80,)))


def test_damaged_messages_end_the_datagram() -> None:
    good = message(2, 1, {2: tcp_info()})
    endless = struct.pack("=IHHII", 0, 20, 2, 1, 0) + bytes(64)
    too_long = struct.pack("=IHHII", 4000, 20, 2, 1, 0) + bytes(64)
    for damaged in (endless, too_long, b"\x01"):
        assert received(good + damaged) == [(good + damaged, [0])]
    short = struct.pack("=IHHII", 80, 20, 2, 1, 0) + bytes(64)
    assert sock_diag._parse(short, 0, 0, {}) is None
    cut = message(2, 1, {2: tcp_info()}, cookie=3)
    cut = cut[:88] + struct.pack("=HH", 9999, 2) + cut[92:]
    assert sock_diag._parse(cut, 0, 0, {}) is None


def test_the_end_of_a_dump_tells_its_error() -> None:
    one = message(2, 1, {2: tcp_info()})
    assert received(DONE) == []
    assert received(one + one, one + DONE, one) == [(one + one, [0, len(one)]), (one + DONE, [0])]
    refused = struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -2) + bytes(16)
    with pytest.raises(OSError, match="No such file") as told:
        received(one, refused)
    assert told.value.errno == 2


def test_a_kernel_without_sock_diag(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(sock_diag, "open_socket", refuse)
    with pytest.raises(KernelError, match="does not list its connections: Protocol not supported"):
        sock_diag._dump()
