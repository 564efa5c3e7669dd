# SPDX-License-Identifier: Apache-2.0
"""Filters: what options mean, the bytes of their maps, what sock_diag answers and they choose."""

from __future__ import annotations

import ipaddress
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader import sock_diag
from tcpkmon.collector.loader.sock_diag import (
    SOCKET,
    choose_sockets,
    decode,
    ends_of,
    list_sockets,
)
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.collector.plan import filters
from tcpkmon.collector.plan.cgroups import check_mounted
from tcpkmon.collector.plan.filters import Address, Cgroup, Filters, parse
from tcpkmon.formats.base.errors import KernelError, UsageError

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


def passes(
    filters: Filters, local: Address, local_port: int, remote: Address, remote_port: int
) -> bool:
    """Whether a connection passes the filters by port, address and family."""
    row: Any = np.zeros(1, SOCKET)
    ends = [(b"" if end.version == 6 else bytes(10) + b"\xff\xff") + end.packed
            for end in (local, remote)]  # fmt: skip
    row["ends"][0, :4] = np.frombuffer(b"".join(ends), "=u8")
    row["ends"][0, 4] = local_port << 16 | remote_port
    return len(choose_sockets(row, filters)) == 1


def address(text: str) -> filters.Address:
    return ipaddress.ip_address(text)


LOCAL, REMOTE = address("192.0.2.1"), address("198.51.100.2")


def test_port_lists() -> None:
    assert parse(ports="5001").ports == (5001,)
    assert parse(ports="5203,5201-5202, 1,5201").ports == (1, 5201, 5202, 5203)
    assert len(parse(ports="1-65535").ports) == 65535


NO_PORTS = ["", ",", "0", "65536", "1-", "-1", "9-7", "1-70000", "a b", "7\x1b[2J", "9" * 5000]


@pytest.mark.parametrize("text", [*NO_PORTS, "\u0663"], ids=repr)
@pytest.mark.parametrize("option", ["ports", "local_ports", "remote_ports"])
def test_unknown_ports_are_named(option: str, text: str) -> None:
    names = {"ports": "--ports", "local_ports": "-L", "remote_ports": "-D"}
    with pytest.raises(UsageError) as caught:
        parse(**{option: text})  # type: ignore[arg-type]  # one str option of several kinds
    assert caught.value.message.startswith(names[option])
    assert caught.value.hint


def test_pairs() -> None:
    assert parse(pairs=["1055.5050", "1055.5050", "2.3"]).pairs == ((1055, 5050), (2, 3))
    for text in ("1055", "1055.", ".5050", "1.2.3", "0.1"):
        with pytest.raises(UsageError, match="--pair"):
            parse(pairs=[text])


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.0/33", "::1/129", "host", "10.0.0.1/x"])
def test_unknown_addresses_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--addr"):
        parse(addresses=[text])


def test_family_and_addresses_that_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="no connection can match both"):
        parse(addresses=["10.0.0.0/8"], family=6)
    with pytest.raises(UsageError, match="no connection can match both"):
        parse(addresses=["2001:db8::/32"], family=4)
    parse(addresses=["::/0"], family=4)
    parse(addresses=["2001:db8::/32", "10.0.0.0/8"], family=4)


def test_processes() -> None:
    assert parse(pids=[os.getpid(), os.getpid()]).pids == (os.getpid(),)
    for pid in (0, -1, 2**40):
        with pytest.raises(UsageError, match="there is no process"):
            parse(pids=[pid])


def test_a_thread_is_no_process() -> None:
    waiting, done = threading.Event(), threading.Event()
    ids: list[int] = []

    def body() -> None:
        ids.append(threading.get_native_id())
        waiting.set()
        done.wait(60)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        assert waiting.wait(60)
        with pytest.raises(UsageError, match="is a thread") as caught:
            parse(pids=ids)
        assert str(os.getpid()) in caught.value.hint
    finally:
        done.set()
        thread.join()


MOUNTINFO = """\
21 1 0:20 / /proc rw - proc proc rw
30 25 0:26 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
"""


@pytest.mark.parametrize(("root", "base"), [("/", 0), ("/system.slice/box", 2)])
def test_cgroups_by_path(tmp_path: Path, root: str, base: int) -> None:
    mount = tmp_path / "a mount"
    leaf = mount / "one" / "two"
    leaf.mkdir(parents=True)
    info = tmp_path / "mountinfo"
    info.write_text(MOUNTINFO.format(root=root, point=str(mount).replace(" ", "\\040")))
    for text in (str(leaf), "one/two", "/one/two", str(leaf / "..") + "/two/"):
        found = filters.find_cgroup(text, info)
        assert found == filters.Cgroup(str(leaf), leaf.stat().st_ino, base + 2)
    assert filters.find_cgroup(str(mount), info).level == base
    with pytest.raises(UsageError, match="is no directory of cgroup2"):
        filters.find_cgroup("absent", info)
    with pytest.raises(UsageError, match="is no directory of cgroup2"):
        filters.find_cgroup(str(tmp_path), info)


def test_a_machine_without_cgroup2(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(MOUNTINFO.splitlines()[0])
    with pytest.raises(KernelError, match="no cgroup2"):
        filters.find_cgroup("/", info)
    with pytest.raises(KernelError, match="--unit: no cgroup2"):
        check_mounted("--unit", info)


def test_map_entries_byte_for_byte() -> None:
    given = Filters(
        ports=(80,), local_ports=(80, 81), remote_ports=(81,), pairs=((1055, 5050),),
        addresses=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/32")),
        family=6, cgroups=(filters.Cgroup("/x", 1 << 40, 3),), pids=(77,),
    )  # fmt: skip
    one = struct.pack("=I", 1)
    entries = given.entries()
    assert entries["filter_ports"] == [
        (struct.pack("=I", 80), struct.pack("=I", 3)),
        (struct.pack("=I", 81), struct.pack("=I", 6)),
    ]
    assert entries["filter_pairs"] == [(struct.pack("=I", (1055 << 16) + 5050), one)]
    assert entries["filter_addresses"] == [
        (struct.pack("=I", 104) + bytes.fromhex("00000000000000000000ffff0a000000"), one),
        (struct.pack("=I", 32) + bytes.fromhex("20010db8000000000000000000000000"), one),
    ]
    assert entries["filter_cgroups"] == [(struct.pack("=Q", 1 << 40), one)]
    assert entries["filter_pids"] == [(struct.pack("=I", 77), one)]
    assert entries["filter_netns"] == []
    flags = 1 | 2 | 4 | 8 | 16 | 64 | 256 | 512
    assert entries["filter_settings"] == [(bytes(4), struct.pack("=II", flags, 3))]


def test_any_port_filter_will_do() -> None:
    given = parse(ports="1", local_ports="2", remote_ports="3", pairs=["4.5"])
    passing = [(1, 9), (9, 1), (2, 9), (9, 3), (4, 5)]
    failing = [(9, 2), (3, 9), (5, 4), (9, 9)]
    for local, remote in passing:
        assert passes(given, LOCAL, local, REMOTE, remote), (local, remote)
    for local, remote in failing:
        assert not passes(given, LOCAL, local, REMOTE, remote), (local, remote)


def test_address_and_family_must_match_too() -> None:
    given = parse(ports="1", addresses=["192.0.2.0/24"])
    mapped = address("::ffff:192.0.2.9")
    other = address("2001:db8::1")
    assert passes(given, LOCAL, 1, REMOTE, 9)
    assert passes(given, REMOTE, 1, LOCAL, 9)
    assert passes(given, mapped, 1, address("::ffff:198.51.100.2"), 9)
    assert not passes(given, LOCAL, 9, REMOTE, 9)
    assert not passes(given, REMOTE, 1, REMOTE, 9)
    assert not passes(given, other, 1, other, 9)
    for family, expects in ((4, (True, True, False)), (6, (False, False, True))):
        one = Filters(family=family)
        for end, expected in zip((LOCAL, mapped, other), expects, strict=True):
            assert passes(one, end, 1, end, 2) is expected
