# SPDX-License-Identifier: Apache-2.0
"""tcpkmon.collector.plan.filters: what the options mean, and the bytes that reach the BPF maps."""

from __future__ import annotations

import ipaddress
import os
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader.sock_diag import SOCKET, choose_sockets
from tcpkmon.collector.plan import filters
from tcpkmon.collector.plan.cgroups import check_mounted
from tcpkmon.collector.plan.filters import Address, Filters, parse
from tcpkmon.formats.base.errors import KernelError, UsageError


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
def test_cgroups(tmp_path: Path, root: str, base: int) -> None:
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
