# SPDX-License-Identifier: Apache-2.0
"""Whose a record is: sockets that are no connections, connections that share a socket, owners."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Lab
from tests.full import first
from tests.live.capturing import (
    capturing,
    connected,
    listening,
    make_socket,
    receive,
    tcp_info,
    wait_until,
    within,
)

NETLINK_XFRM = 6
ACK = 16
HOPS = 3
CALLS = ("--columns", "default,pid,comm", "--locations", "default,SEND_CALL,RECEIVE_CALL")
_SET_NAME = 15  # PR_SET_NAME, of the thread that calls


def disconnect(client: socket.socket) -> None:
    """connect(2) to no family at all: the socket can be connected again."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.connect(client.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16) == 0


def stray(source: int, target: int, local: str, remote: str) -> bytes:
    """A segment with an ACK that nobody asked for."""
    head = struct.pack("!HHIIBBHHH", source, target, 1, 1, 0x50, ACK, 1000, 0, 0)
    ends = socket.inet_aton(local) + socket.inet_aton(remote)
    words = np.frombuffer(ends + struct.pack("!BBH", 0, 6, len(head)) + head, ">u2")
    total = int(words.sum())
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return head[:16] + struct.pack("!H", ~total & 0xFFFF) + head[18:]


def test_sockets_that_only_have_the_protocol_number_of_tcp(tmp_path: Path, lab: Lab) -> None:
    """Raw sockets and netlink's 6 (XFRM) are no connections: no record, no identity."""
    with capturing(tmp_path / "a.pm", *CALLS, "--netns", lab.a.name) as run:
        with lab.a.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)) as raw:
            raw.sendto(stray(1, 2, "127.0.0.1", "127.0.0.1"), ("127.0.0.1", 0))
            raw.recv(100)
        with (
            suppress(OSError),  # not in every kernel
            lab.a.run(lambda: socket.socket(16, socket.SOCK_RAW, NETLINK_XFRM)) as netlink,
        ):
            netlink.send(struct.pack("=IHHII", 16, 0x12, 0x301, 1, 0))
        outcome = run.stop()
    assert not len(outcome.records.at("SEND_CALL", "RECEIVE_CALL", "SOCKET_ERROR"))
    assert outcome.books("SEND_CALL")["attempts"] == outcome.books("SEND_CALL")["filtered"]


@pytest.mark.parametrize("locations", ["default", "SEGMENT_RECEIVED"])
def test_connections_one_after_the_other_on_one_socket(
    tmp_path: Path, lab: Lab, locations: str
) -> None:
    """Each is one of its own, also when state changes are not recorded."""
    arguments = ("--locations", locations, *within(lab))
    with capturing(tmp_path / "a.pm", *arguments) as run:
        with listening(lab.b, lab.b.address4) as listener, make_socket(lab.a) as client:
            port = listener.getsockname()[1]
            for _ in range(HOPS):
                client.connect((lab.b.address4, port))
                server, _ = listener.accept()
                with server:
                    server.sendall(b"x")
                    receive(client, 1)
                    disconnect(client)
        outcome = run.stop()
    outcome.check_complete()
    mine = outcome.records.at("SEGMENT_RECEIVED").where(rport=port)
    assert len(np.unique(mine["conn_id"])) == HOPS


def test_a_process_is_known_whatever_is_recorded(tmp_path: Path, lab: Lab) -> None:
    """--pid, with segments alone: what tells the owner is watched nevertheless."""
    segments = ("--locations", "SEGMENT_RECEIVED", "--columns", "default,pid")
    arguments = ("--pid", str(os.getpid()), *segments, *within(lab))
    with capturing(tmp_path / "a.pm", *arguments) as run:
        with connected(lab) as pair:
            pair.exchange()
            pair.exchange()
            ports = (pair.client_port, pair.server_port)
        outcome = run.stop()
    segments = outcome.records.at("SEGMENT_RECEIVED")
    assert {*segments["lport"].tolist()} == {*ports}
    # The server has no owner before somebody accepts.
    assert {*segments["pid"].tolist()} <= {0, os.getpid()}
    assert {*segments.where(lport=ports[0])["pid"].tolist()} == {os.getpid()}
    assert segments.where(lport=ports[1])["pid"][-1] == os.getpid()
    assert outcome.records.counts().keys() == {"SEGMENT_RECEIVED"}


@pytest.mark.parametrize("kinds", first(1, ["", "raw,kprobe"]))
def test_the_owner_has_the_name_of_its_process(tmp_path: Path, lab: Lab, kinds: str) -> None:
    """Also where a thread with another name calls."""
    process = Path("/proc/self/comm").read_bytes().strip()

    def exchange() -> None:
        assert ctypes.CDLL(None).prctl(_SET_NAME, b"another-name") == 0
        with connected(lab) as pair:
            pair.exchange()
            pair.exchange()

    with capturing(tmp_path / "a.pm", *CALLS, *within(lab), kinds=kinds) as run:
        thread = threading.Thread(target=exchange)
        thread.start()
        thread.join()
        outcome = run.stop()
    segments = outcome.records.at("SEGMENT_RECEIVED")
    assert process in segments["comm"].tolist()
    assert {*segments["comm"].tolist()} <= {b"", process}


def test_what_could_not_be_sent_is_no_retransmission(tmp_path: Path, lab: Lab) -> None:
    """The route is gone when the timer fires: it counts, but no segment was sent again."""
    with capturing(tmp_path / "a.pm", "--columns", "all", "--netns", lab.a.name) as run:
        with connected(lab) as pair:
            pair.exchange()
            lab.b.command(["ip", "address", "flush", "to", lab.b.address4])
            pair.client.sendall(b"x")
            lab.a.command(["ip", "route", "replace", "unreachable", f"{lab.b.address4}/32"])
            wait_until(lambda: tcp_info(pair.client)["retransmits"] >= 3)
            port, total = pair.client_port, tcp_info(pair.client)["total_retrans"]
        outcome = run.stop()
    outcome.check_complete()
    mine = outcome.records.where(lport=port)
    assert len(mine.at("RTO")) >= 3
    assert len(mine.at("RETRANSMIT")) == total
