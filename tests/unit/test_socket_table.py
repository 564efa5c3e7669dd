# SPDX-License-Identifier: Apache-2.0
"""sock_diag's answers as arrays: the same sockets as one by one, of any length and order."""

from __future__ import annotations

import ipaddress
import random
import struct
from typing import Any

import pytest

from tcpkmon.collector.loader import sock_diag
from tcpkmon.collector.loader.socket_table import MEMBERS, choose_sockets, decode
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.collector.plan.filters import Cgroup, Filters, parse
from tests.unit.test_sock_diag import message, received, tcp_info

NETNS = 2**63 + 9
CGROUP = 21


def info(length: int = 280, **members: int) -> dict[int, bytes]:
    return {2: tcp_info(length, **members)}


def rows_of(*messages: bytes) -> Any:
    return decode(received(*messages), NETNS)


def ends_of(row: Any) -> tuple[bytes, bytes, int, int]:
    words = row["ends"]
    data, ports = words[:4].tobytes(), int(words[4])
    return data[:16], data[16:], ports >> 16, ports & 0xFFFF


def random_message(at: random.Random) -> bytes:
    """A socket of any family, state, age of the kernel and set of attributes."""
    attributes: dict[int, bytes] = {}
    kinds = at.sample([1, 2, 4, 7, 8, 15, CGROUP], at.randrange(8))
    for kind in kinds:
        if kind == 2:
            values = {name: at.randrange(1 << 32) for name in MEMBERS}
            attributes |= info(at.choice((104, 128, 136, 192, 232, 280, 280, 280)), **values)
        elif kind == CGROUP:
            attributes[kind] = struct.pack("=Q", at.randrange(1 << 64))
        else:
            attributes[kind] = at.randbytes(at.randrange(12))
    data = message(at.choice((2, 10)), at.randrange(1, 13), attributes, at.randrange(1 << 64))
    if at.random() < 0.1:  # an attribute that is longer than the message
        data += struct.pack("=HH", 60, 2)
        data = struct.pack("=I", len(data)) + data[4:]
    return data


def test_the_same_sockets_as_one_by_one() -> None:
    at = random.Random(7)
    datagrams = [
        b"".join(random_message(at) for _ in range(at.randrange(1, 9))) for _ in range(200)
    ]
    answers = received(*datagrams)
    rows = iter(decode(answers, NETNS))
    seen = 0
    for data, offsets in answers:
        for offset in offsets:
            one = sock_diag._parse(data, offset, NETNS, {})
            if one is None:
                continue
            row: Any = next(rows)
            seen += 1
            assert (row["cookie"], row["netns"], row["state"]) == (one.cookie, NETNS, one.state)
            assert (row["cgroup"], row["uid"]) == (one.cgroup, one.uid)
            assert ends_of(row) == (one.local, one.remote, one.local_port, one.remote_port)
            padded = one.info.ljust(TCP_INFO.itemsize, b"\0")
            for name in MEMBERS:
                kind, place = (TCP_INFO.fields or {})[name][:2]
                whole = len(one.info) >= place + kind.itemsize
                expected = int.from_bytes(padded[place : place + kind.itemsize], "little")
                assert row[name] == (expected if whole else 0), name
    assert next(rows, None) is None
    assert seen > 200


def test_nothing() -> None:
    assert len(decode([], NETNS)) == len(rows_of()) == 0
    assert len(rows_of(message(2, 6, info()))) == 0, "time-wait"
    assert len(rows_of(message(2, 1, {}))) == 0, "a request"
    assert len(rows_of(message(2, 1, info()), message(10, 8, info()))) == 2


@pytest.mark.parametrize(
    "given",
    [{"ports": "80"}, {"local_ports": "5001"}, {"local_ports": "80"}, {"remote_ports": "80"},
     {"remote_ports": "5001"}, {"pairs": ["5001.80"]}, {"pairs": ["80.5001"], "ports": "7"},
     {"family": 4}, {"family": 6}, {"addresses": ["10.0.0.0/8"]}, {"addresses": ["11.0.0.0/8"]},
     {"addresses": ["2021::/16"]}, {"addresses": ["2021::/16"], "ports": "1"},
     {"addresses": ["::ffff:10.0.0.1"], "family": 4}, {"addresses": ["::/0"]}],
    ids=str,
)  # fmt: skip
def test_filters_choose_what_they_accept(given: dict[str, Any]) -> None:
    filters = parse(**given)
    rows = rows_of(message(2, 1, info()), message(10, 1, info()))
    expected = [
        row["cookie"]
        for row in rows
        for local, remote, near, far in [ends_of(row)]
        if filters.accepts(
            ipaddress.IPv6Address(local), near, ipaddress.IPv6Address(remote), far
        )
    ]
    assert choose_sockets(rows, filters)["cookie"].tolist() == expected


def test_cgroups() -> None:
    rows = rows_of(message(2, 1, {**info(), CGROUP: struct.pack("=Q", 77)}), message(2, 1, info()))
    filters = Filters(cgroups=(Cgroup("/x", 77, 1),))
    assert choose_sockets(rows, filters, {77})["cgroup"].tolist() == [77]
    assert len(choose_sockets(rows, filters, {78})) == 0


def test_users() -> None:
    rows = rows_of(message(2, 1, info()))
    (user,) = rows["uid"].tolist()
    assert len(choose_sockets(rows, Filters(users=(user,)))) == 1
    assert len(choose_sockets(rows, Filters(users=(user + 1,)))) == 0
