# SPDX-License-Identifier: Apache-2.0
"""What sock_diag answers, by byte: struct inet_diag_msg, tcp_info of any age, the same sockets as
one by one, of any length and order; the filters."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader import sock_diag
from tcpkmon.collector.loader.sock_diag import (
    choose_sockets,
    decode,
    ends_of,
    list_sockets,
)
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.collector.plan.filters import Cgroup, Filters, parse
from tcpkmon.formats.base.errors import KernelError

V6 = bytes(range(0x20, 0x30))
NETNS = 2**63 + 9
CGROUP = 21


def tcp_info(length: int = 280, **members: int) -> bytes:
    """struct tcp_info as a newer kernel has it, longer than the part that is known."""
    row = np.zeros(1, TCP_INFO)
    for name, value in members.items():
        row[name] = value
    return (row.tobytes() + b"\xee" * 64)[:length]


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


def test_messages_become_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    info = tcp_info(bytes_acked=4)
    four = message(2, 1, {2: info, CGROUP: struct.pack("=Q", 6)})
    six = message(10, 8, {8: b"\3", 2: info}, cookie=5)
    answer(monkeypatch, four + six, DONE)
    one, two = list_sockets([3])
    assert one["cookie"] == 0x1_0000_0002
    expected = {"netns": 77, "family": 2, "state": 1, "inode": 4242, "cgroup": 6, "uid": 1000,
                "bytes_acked": 4}  # fmt: skip
    assert {name: int(one[name]) for name in expected} == expected
    mapped = bytes(10) + b"\xff\xff\n\0\0\1"
    assert ends_of(one) == ((mapped, 5001), (mapped, 80))
    assert (two["family"], two["state"], ends_of(two)[0]) == (10, 8, (V6, 5001))
    assert two["cgroup"] == 0


def test_sockets_of_all_states_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    time_wait = message(2, 5, {8: b"\0"}, cookie=1)
    listener = message(2, 10, {2: tcp_info()}, cookie=2)
    answer(monkeypatch, time_wait + listener, DONE)
    assert list_sockets([3])["state"].tolist() == [5, 10]
    assert not len(decode(received(time_wait + listener), NETNS))


def test_a_connection_that_is_told_twice_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = message(2, 1, {2: tcp_info()})
    answer(monkeypatch, one + one, one + DONE)
    assert len(list_sockets([3])) == 1
    other = message(2, 1, {2: tcp_info()}, cookie=9)
    answer(monkeypatch, one, other)
    assert len(list_sockets([3])) == 2


def test_damaged_messages_end_the_datagram() -> None:
    good = message(2, 1, {2: tcp_info()})
    endless = struct.pack("=IHHII", 0, 20, 2, 1, 0) + bytes(64)
    too_long = struct.pack("=IHHII", 4000, 20, 2, 1, 0) + bytes(64)
    for damaged in (endless, too_long, b"\x01"):
        assert received(good + damaged) == [(good + damaged, [0])]
    short = struct.pack("=IHHII", 80, 20, 2, 1, 0) + bytes(64)
    assert not len(decode([(short, [0])], 0))
    cut = message(2, 1, {2: tcp_info()}, cookie=3)
    cut = cut[:88] + struct.pack("=HH", 9999, 2) + cut[92:]
    assert not len(decode([(cut, [0])], 0))


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

    monkeypatch.setattr(sock_diag, "DiagSocket", refuse)
    with pytest.raises(KernelError, match="does not list its connections: Protocol not supported"):
        sock_diag.list_answers()


def info(length: int = 280, **members: int) -> dict[int, bytes]:
    return {2: tcp_info(length, **members)}


def rows_of(*messages: bytes) -> Any:
    return decode(received(*messages), NETNS)


@pytest.mark.parametrize(
    ("given", "families"),
    [({"ports": "80"}, [2, 10]), ({"local_ports": "5001"}, [2, 10]), ({"local_ports": "80"}, []),
     ({"remote_ports": "80"}, [2, 10]), ({"remote_ports": "5001"}, []),
     ({"pairs": ["5001.80"]}, [2, 10]), ({"pairs": ["80.5001"], "ports": "7"}, []),
     ({"family": 4}, [2]), ({"family": 6}, [10]), ({"addresses": ["10.0.0.0/8"]}, [2]),
     ({"addresses": ["11.0.0.0/8"]}, []), ({"addresses": ["2021::/16"]}, [10]),
     ({"addresses": ["2021::/16"], "ports": "1"}, []),
     ({"addresses": ["::ffff:10.0.0.1"], "family": 4}, [2]), ({"addresses": ["::/0"]}, [2, 10])],
    ids=str,
)  # fmt: skip
def test_filters_choose(given: dict[str, Any], families: list[int]) -> None:
    filters = parse(**given)
    answers = received(message(2, 1, info()), message(10, 1, info()))
    rows = decode(answers, NETNS)
    assert choose_sockets(rows, filters)["family"].tolist() == families


def test_cgroups() -> None:
    rows = rows_of(message(2, 1, {**info(), CGROUP: struct.pack("=Q", 77)}), message(2, 1, info()))
    filters = Filters(cgroups=(Cgroup("/x", 77, 1),))
    assert choose_sockets(rows, filters, {77})["cgroup"].tolist() == [77]
    assert len(choose_sockets(rows, filters, {78})) == 0
