# SPDX-License-Identifier: Apache-2.0
"""MPTCP over two paths: the connection above its subflows, at both ends, and what went twice; and
what else is above TCP, or in its options."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.lab.lab import Lab
from tests.live.capturing import ROOT, capturing, wait_until, within

PORT = 5801
IPPROTO_MPTCP = 262
SOL_MPTCP, MPTCP_INFO, TCP_MD5SIG = 284, 1, 14
SIZE, PIECE = 4 << 20, 64 << 10
COLUMNS = "default,mptcp_token,mptcp_sent,mptcp_received,mptcp_retrans,protocols,uid,netns"
Make = Callable[[], socket.socket]


def mptcp_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    except OSError:
        pytest.skip("this kernel has no MPTCP")


def two_paths(lab: Lab) -> None:
    """A second pair of devices; b announces its address there. Both paths are slow."""
    a, b = lab.a, lab.b
    a.command(f"ip link add veth1 type veth peer name veth1 netns {b.name}".split())
    for side, end in ((a, 1), (b, 2)):
        side.command(f"ip address add 10.78.0.{end}/24 dev veth1".split())
        side.command(["ip", "link", "set", "veth1", "up"])
        side.command(["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"])
    b.command(["ip", "mptcp", "endpoint", "add", "10.78.0.2", "dev", "veth1", "signal"])
    for device in ("veth0", "veth1"):
        shaper = f"tc qdisc add dev {device} root tbf rate 40mbit burst 10k latency 50ms"
        a.command(shaper.split())


def told_by_kernel(end: socket.socket) -> dict[str, int]:
    """Of the whole: struct mptcp_info of linux/mptcp.h, where a token follows 12 bytes."""
    raw = end.getsockopt(SOL_MPTCP, MPTCP_INFO, 256)
    numbers = struct.unpack_from("=I32x3Q", raw, 12)
    return dict(zip(("token", "retrans", "sent", "received"), numbers, strict=True))


@contextmanager
def connected(lab: Lab, make_client: Make, make_server: Make) -> Iterator[list[socket.socket]]:
    """Both ends of a connection from a to b, the client's first."""
    with ExitStack() as stack:
        listener = stack.enter_context(lab.b.run(make_server))
        client = stack.enter_context(lab.a.run(make_client))
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        client.connect((lab.b.address4, PORT))
        yield [client, stack.enter_context(listener.accept()[0])]


@pytest.mark.timeout(120)
def test_the_whole_above_its_subflows(tmp_path: Path, lab: Lab) -> None:
    mptcp_socket().close()
    two_paths(lab)
    path, got, told = tmp_path / "m.pm", bytearray(), {}
    with capturing(path, *within(lab), "--columns", COLUMNS) as run:
        with connected(lab, mptcp_socket, mptcp_socket) as (client, server):

            def read() -> None:
                while piece := server.recv(1 << 20):
                    got.extend(piece)

            thread = threading.Thread(target=read)
            thread.start()
            for at in range(0, SIZE, PIECE):
                client.sendall(bytes(PIECE))
                if at == SIZE // 2:  # what is on its way there goes on the first path again
                    rule = "add table t; add chain t c { type filter hook prerouting priority 0; };"
                    lab.b.command(["nft", f"{rule} add rule t c iif veth1 drop"])
            wait_until(lambda: len(got) == SIZE, timeout_s=60)
            wait_until(lambda: told_by_kernel(server)["received"] == SIZE, timeout_s=10)
            told = {"a": told_by_kernel(client), "b": told_by_kernel(server)}
            client.shutdown(socket.SHUT_WR)
            thread.join()
        run.stop().check_complete()
    rows = {row["token"]: row for row in tcpkmon.open(path).table("mptcp").to_pylist()}
    a, b = rows[told["a"]["token"]], rows[told["b"]["token"]]
    assert (a["peer_token"], b["peer_token"]) == (b["token"], a["token"])
    assert (len(rows), a["subflows"], b["subflows"], a["role"]) == (2, 2, 2, "active")
    assert a["bytes_sent"] == told["a"]["sent"] == SIZE
    assert b["bytes_received"] == told["b"]["received"] == SIZE
    assert a["timer_retrans"] > 0 and a["timer_retrans"] == told["a"]["retrans"]
    assert a["timer_retrans"] <= a["reinjected"] == a["carried_sent"] - SIZE < SIZE
    subflows = tcpkmon.open(path).table("connections").to_pylist()
    mine = [row for row in subflows if row["mptcp_token"] == a["token"]]
    assert {row["laddr"] for row in mine} == {"10.77.0.1", "10.78.0.1"}
    assert sum(row["bytes_sent"] for row in mine) == a["carried_sent"]
    assert {row["protocols"] for row in mine} == {"mptcp"}
    done = subprocess.run([ROOT / ".venv/bin/tcpkmon", "why", "--json", str(path)],
                          capture_output=True, text=True, check=True)  # fmt: skip
    first = next(one for one in json.loads(done.stdout)["mptcp"] if one["token"] == a["token"])
    text = "\n".join(first["verdict"])
    assert "2 subflows" in text and "went on a second subflow too" in text, text
    assert "% went by 10.78.0.1:" in text and "never acknowledged there" in text, text
    said = subprocess.run([ROOT / ".venv/bin/tcpkmon", "why", str(path)],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "\n    " in said and "\\n" not in said


def signed(peer: str) -> Make:
    """A TCP socket with a key for this peer: struct tcp_md5sig of linux/tcp.h."""

    def make() -> socket.socket:
        made = socket.socket()
        address = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(peer))
        value = address.ljust(128, b"\0") + struct.pack("=BBHi", 0, 0, 6, 0) + b"secret".ljust(80)
        try:
            made.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, value)
        except OSError:
            pytest.skip("this kernel has no TCP-MD5")
        return made

    return make


@pytest.mark.parametrize("which", ["refused", "md5"])
def test_what_is_in_the_options_is_named(tmp_path: Path, lab: Lab, which: str) -> None:
    refused = which == "refused"
    ends = (mptcp_socket, socket.socket) if refused else (
        signed(lab.b.address4), signed(lab.a.address4))  # fmt: skip
    path = tmp_path / "o.pm"
    with capturing(path, *within(lab), "--columns", COLUMNS) as run:
        with connected(lab, *ends) as (client, server):
            client.sendall(bytes(1000))
            assert server.recv(1000)
        run.stop().check_complete()
    found = {row["role"]: row["protocols"]
             for row in tcpkmon.open(path).table("connections").to_pylist()}  # fmt: skip
    expected = ("mptcp-refused", None) if refused else ("tcp-md5", "tcp-md5")
    assert (found["active"], found["passive"]) == expected
    assert tcpkmon.open(path).table("mptcp").num_rows == 0
