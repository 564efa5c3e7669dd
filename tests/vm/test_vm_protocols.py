# SPDX-License-Identifier: Apache-2.0
"""What the column protocols says of TCP-AO and SMC, which many kernels lack, against the kernel's
own word: its count of signed segments, and what sock_diag says of sockets of SMC."""

from __future__ import annotations

import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.formats.analysis import why
from tests.live.capturing import capturing, within
from tests.live.test_mptcp_live import COLUMNS, Make, connected

AF_SMC = 43
TCP_AO_ADD_KEY = 38
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, NLMSG_DONE = 4, 20, 0x301, 3
SMCR, FALLBACK, SMCD = 0, 1, 2
"""How a connection goes, in struct smc_diag_msg of linux/smc_diag.h."""


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """The connection's rows, by role."""
    return {row["role"]: row for row in why.rows_of(why.connections(path))}


def keyed(peer: str) -> Make:
    """A TCP socket with a key of TCP-AO for this peer: struct tcp_ao_add of linux/tcp.h."""

    def make() -> socket.socket:
        made = socket.socket()
        address = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(peer))
        ids = struct.pack("=iIH6B", 0, 0, 0, 32, 100, 100, 12, 0, len(b"secret"))
        value = address.ljust(128, b"\0") + b"hmac(sha1)".ljust(64, b"\0") + ids
        try:
            made.setsockopt(socket.IPPROTO_TCP, TCP_AO_ADD_KEY, value + b"secret".ljust(80, b"\0"))
        except OSError as error:
            pytest.skip(f"this kernel has no TCP-AO: {error}")
        return made

    return make


def signed_segments(side: Side) -> int:
    """How many segments with a good signature the namespace has received."""
    lines = side.command(["cat", "/proc/net/netstat"]).splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True))["TCPAOGood"])


def test_signed_segments(tmp_path: Path, lab: Lab) -> None:
    path, ends = tmp_path / "ao.pm", (keyed(lab.b.address4), keyed(lab.a.address4))
    ends[0]().close()
    with capturing(path, *within(lab), "--columns", COLUMNS) as run:
        with connected(lab, *ends) as (client, server):
            client.sendall(bytes(1000))
            assert server.recv(1000)
            assert signed_segments(lab.a) and signed_segments(lab.b)
        run.stop().check_complete()
    assert {role: row["protocols"] for role, row in rows_of(path).items()} == {
        "active": "tcp-ao", "passive": "tcp-ao"}  # fmt: skip


def smc_socket() -> socket.socket:
    """Its addresses are those of IPv4, so for Python it is a socket of that family."""
    number = socket.socket(AF_SMC, socket.SOCK_STREAM).detach()
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)


def modes(side: Side) -> set[int]:
    """How the namespace's connections of SMC go, as the kernel says."""
    request = struct.pack("=IHHIIB51x", 68, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0, AF_SMC)
    found = set()
    kind = socket.SOCK_RAW
    with side.run(lambda: socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG)) as asking:
        asking.send(request)
        while True:
            answer, at = asking.recv(1 << 16), 0
            while at < len(answer):
                size, said = struct.unpack_from("=IH", answer, at)
                if said != SOCK_DIAG_BY_FAMILY:
                    assert said == NLMSG_DONE, answer[at:].hex()
                    return found
                mode, remote = struct.unpack_from(">B3xH", answer, at + 18)
                if remote:  # no listener
                    found.add(mode)
                at += size + 3 & ~3


@pytest.mark.parametrize("ends", ["both", "client", "server"])
def test_smc(tmp_path: Path, lab: Lab, ends: str) -> None:
    """Both ends agree on SMC, and use it or fall back to TCP; or one of them has no SMC."""
    for module in ("smc", "smc_diag"):
        if subprocess.run(["modprobe", module], capture_output=True, check=False).returncode:
            pytest.skip(f"no module {module}")
    path = tmp_path / "smc.pm"
    client = socket.socket if ends == "server" else smc_socket
    server = socket.socket if ends == "client" else smc_socket
    with capturing(path, *within(lab), "--columns", COLUMNS) as run:
        with connected(lab, client, server) as (near, far):
            near.sendall(bytes(1000))
            assert far.recv(1000)
            far.sendall(bytes(1000))
            assert near.recv(1000)
            told = modes(lab.a) | modes(lab.b)
        run.stop().check_complete()
    rows = rows_of(path)
    print(ends, told, {role: (row["protocols"], row["bytes_sent"]) for role, row in rows.items()})
    assert len(told) == 1
    expected = {"both": "smc smc-fallback" if told == {FALLBACK} else "smc"}.get(ends)
    assert {role: row["protocols"] for role, row in rows.items()} == {
        "active": expected, "passive": expected}  # fmt: skip
    # What goes by SMC is not in the connection of TCP, whose own is a handshake.
    assert all((row["bytes_sent"] >= 1000) == (told == {FALLBACK}) for row in rows.values())
