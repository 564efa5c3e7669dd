# SPDX-License-Identifier: Apache-2.0
"""sock_diag's answers as arrays: the same sockets as one by one, of any length and order."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader.listing import ends_of
from tcpkmon.collector.loader.sock_diag import STATES
from tcpkmon.collector.loader.socket_table import MEMBERS, SOCKET, WHOLE, choose_sockets, decode
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.collector.plan.filters import Cgroup, Filters, parse
from tests.unit.test_sock_diag import message, received, tcp_info

NETNS = 2**63 + 9
CGROUP = 21


def info(length: int = 280, **members: int) -> dict[int, bytes]:
    return {2: tcp_info(length, **members)}


def rows_of(*messages: bytes) -> Any:
    return decode(received(*messages), NETNS)


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


def one_by_one(data: bytes) -> dict[str, Any] | None:
    """A message, decoded field by field; None for what is no full socket."""
    family, state = data[16], data[17]
    lport, rport, local, remote = struct.unpack_from(">HH16s16s", data, 20)
    _, cookie, _, rqueue, wqueue, uid, inode = struct.unpack_from("=IQIIIII", data, 56)
    if family == 2:
        local, remote = (bytes(10) + b"\xff\xff" + end[:4] for end in (local, remote))
    attributes: dict[int, bytes] = {}
    at = 88
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if not 4 <= size <= len(data) - at:
            break
        attributes[kind] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    if 2 not in attributes or not STATES >> state & 1:
        return None
    infos = np.frombuffer(attributes[2][: TCP_INFO.itemsize].ljust(TCP_INFO.itemsize, b"\0"),
                          TCP_INFO)[0]  # fmt: skip
    values = {
        "family": family, "state": state, "cookie": cookie, "rqueue": rqueue, "wqueue": wqueue,
        "uid": uid, "inode": inode, "netns": NETNS, "pid": 0,
        "cgroup": int.from_bytes(attributes.get(CGROUP, b"")[:8], "little"),
        "mark": int.from_bytes(attributes.get(15, b"")[:4], "little"),
        "congestion": attributes.get(4, b"")[:16].ljust(16, b"\0"),
        "memory": attributes.get(7, b"")[:24].ljust(24, b"\0"),
        "ends": ((local, lport), (remote, rport)),
    }  # fmt: skip
    return values | {name: infos[name] for name in TCP_INFO.names or () if name != "state"}


def test_the_same_sockets_as_one_by_one() -> None:
    at = random.Random(7)
    datagrams = [
        b"".join(random_message(at) for _ in range(at.randrange(1, 9))) for _ in range(200)
    ]
    answers = received(*datagrams)
    whole, short = decode(answers, NETNS, WHOLE), decode(answers, NETNS)
    rows = iter(zip(whole, short, strict=True))
    for data, offsets in answers:
        for begin, end in zip(offsets, [*offsets[1:], len(data)], strict=True):
            if (one := one_by_one(data[begin:end])) is None:
                continue
            row, some = next(rows)
            assert ends_of(row) == ends_of(some) == one.pop("ends")
            for name, value in one.items():
                assert row[name] == (np.void(value) if type(value) is bytes else value), name
                assert name not in SOCKET.fields or some[name] == row[name]
    assert next(rows, None) is None
    assert len(whole) > 200


def test_nothing() -> None:
    assert len(decode([], NETNS)) == len(rows_of()) == 0
    assert len(rows_of(message(2, 6, info()))) == 0, "time-wait"
    assert len(rows_of(message(2, 1, {}))) == 0, "a request"
    assert len(rows_of(message(2, 1, info()), message(10, 8, info()))) == 2


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
    rows = decode(answers, NETNS, WHOLE)
    assert choose_sockets(rows, filters)["family"].tolist() == families


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
