# SPDX-License-Identifier: Apache-2.0
"""What is said of real connections does not depend on their first sequence numbers.

A server's first number is a hash of addresses and ports, which is secret, and a clock that counts
in 64 ns. Who knows what it was for a port knows what it will be: so it can be chosen.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.pair import join, listening, receive
from tcpkmon.formats.analysis.why import connections_of, tables, verdict
from tcpkmon.formats.analysis.why.snapshots import Source
from tests.full import first
from tests.live.capturing import capturing, within
from tests.unit.test_first_numbers import EDGES, answers, renumbered

pytestmark = pytest.mark.live
HERE = "127.0.0.1"
DOWNLOADS, PROBED, SIZE = 40, 160, 300_000
_REPAIR, _REPAIR_QUEUE, _QUEUE_SEQ, _SEND_QUEUE = 19, 20, 21, 2
_TICK_NS = 64
_ABORT = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def first_number(end: socket.socket) -> int:
    """Of what this end sends, before it sends anything (TCP_REPAIR tells it)."""
    level = socket.IPPROTO_TCP
    end.setsockopt(level, _REPAIR, 1)
    end.setsockopt(level, _REPAIR_QUEUE, _SEND_QUEUE)
    found = struct.unpack("I", end.getsockopt(level, _QUEUE_SEQ, 4))[0]
    end.setsockopt(level, _REPAIR, -1)  # off, without a window probe
    return int(found) - 1


def connect(listener: socket.socket, port: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends, the one that connects first. Reset at their close, so that their port is free."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((HERE, port))
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    return client, server


def hashes(listener: socket.socket) -> dict[int, int]:
    """Of ports of clients: the server's first number at a clock of 0."""
    found = {}
    for _ in range(PROBED):
        client, server = connect(listener)
        now = time.clock_gettime_ns(time.CLOCK_REALTIME) // _TICK_NS
        found[client.getsockname()[1]] = (first_number(server) - now) % 2**32
        for end in (client, server):
            end.setsockopt(*_ABORT)
            end.close()
    return found


def download(listener: socket.socket, ports: dict[int, int], wanted: int) -> int:
    """One with a first number near this one, of which the port is used up; the number."""
    now = time.clock_gettime_ns(time.CLOCK_REALTIME) // _TICK_NS
    port = min(ports, key=lambda one: abs((ports[one] + now - wanted + 2**31) % 2**32 - 2**31))
    del ports[port]
    client, server = connect(listener, port)
    number = first_number(server)
    with client, server:
        client.sendall(b"get")
        receive(server, 3)
        sender = threading.Thread(target=server.sendall, args=(bytes(SIZE),))
        sender.start()
        receive(client, SIZE)
        sender.join()
        server.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    return number


@pytest.mark.parametrize("turn", first(1, range(3)))
def test_downloads_without_loss(tmp_path: Path, turn: int) -> None:
    """Beside a connection with losses: what waits behind one of its segments waits alone."""
    path = tmp_path / "downloads.pm"
    bottleneck = Bottleneck(loss_percent=10.0, queue_bytes=1_000_000, delay_ms=2)
    with Lab(bottleneck) as lab, listening(lab.a, HERE) as listener:
        ports = lab.a.run(lambda: hashes(listener))
        with capturing(path, *within(lab), "--no-existing") as running:
            lossy_upload(lab)

            def run() -> list[int]:
                step = 2**32 // DOWNLOADS
                return [download(listener, ports, n * step + step // 2) for n in range(DOWNLOADS)]

            numbers = lab.a.run(run)
            time.sleep(0.3)
            running.stop().check_complete()
    counts, _ = np.histogram(numbers, 8, (0, 2**32))
    assert (counts >= 2).all(), numbers
    with Source(path) as source:
        table, _ = tables(source, with_intervals=False)
    (other,) = np.flatnonzero(table["bytes_received"] == 2 * SIZE)
    assert table["us_rx_reorder"][other] > 0
    receivers = np.flatnonzero(table["bytes_received"] == SIZE)
    assert len(receivers) == DOWNLOADS
    for one in connections_of(table, receivers):
        assert one.receiving_ns["rx_reorder"] == 0, one
        text = "; ".join(verdict(one))
        assert not re.search("missing|lost|drops|reorder|again|timeout|not certain", text), text


def lossy_upload(lab: Lab) -> None:
    with listening(lab.b, "10.77.0.2") as listener:
        pair = join(lab.a, listener, "10.77.0.2")
    sender = threading.Thread(target=pair.client.sendall, args=(bytes(2 * SIZE),))
    sender.start()
    receive(pair.server, 2 * SIZE)
    sender.join()
    pair.close()


def lossy_traffic(lab: Lab) -> None:
    """Transfers of both directions, requests and answers."""
    for number in range(4):
        with listening(lab.b, "10.77.0.2") as listener:
            pair = join(lab.a, listener, "10.77.0.2")
        ends = (pair.client, pair.server) if number % 2 else (pair.server, pair.client)
        sender = threading.Thread(target=ends[0].sendall, args=(bytes(SIZE),))
        sender.start()
        receive(ends[1], SIZE)
        sender.join()
        for _ in range(5):
            pair.client.sendall(bytes(100))
            receive(pair.server, 100)
            pair.server.sendall(bytes(5000))
            receive(pair.client, 5000)
        pair.close()

def connect_to_itself() -> None:
    with socket.socket() as own:
        own.bind((HERE, 0))
        own.connect(own.getsockname())
        own.sendall(b"abc")
        receive(own, 3)


@pytest.mark.full
def test_each_analysis_of_a_lossy_path_says_the_same(tmp_path: Path) -> None:
    path, options = tmp_path / "lossy.pm", ("--columns", "all", "--locations", "all")
    with Lab(Bottleneck(loss_percent=2.0, delay_ms=5)) as lab, capturing(
        path, *within(lab), *options, "--no-existing"
    ) as running:
        lossy_traffic(lab)
        time.sleep(0.3)
        outcome = running.stop()
        outcome.check_complete()
    opened = outcome.records.at("STATE_CHANGE").where(state=2, callvalue=1)
    more = [["packetdrill", "-p", f"{opened['lport'][0]}.{opened['rport'][0]}"]]
    wanted: dict[str, bytes] = {}
    for opener, other in ((1000, 500_000), *zip(EDGES, (*EDGES[1:], EDGES[0]), strict=True)):
        home = tmp_path / f"{opener}.{other}"
        home.mkdir()
        found = answers(renumbered(path, home / "a.pm", opener, other), home, more)
        wanted = wanted or found
        # These show a retransmission's own number; of a SYN a number 0 is not drawn.
        shown = ("report", "export", *(("pmgraph -x",) if opener in (0, 2**32 - 1) else ()))
        assert [one for one in wanted
                if found[one] != wanted[one] and not one.startswith(shown)] == []  # fmt: skip


def test_a_socket_that_is_connected_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "itself.pm"
    with Lab() as lab, capturing(path, "--netns", lab.a.name, "--no-existing") as running:
        lab.a.run(connect_to_itself)
        time.sleep(0.3)
        running.stop().check_complete()
    with Source(path) as source:
        table, _ = tables(source, with_intervals=False)
    (own,) = np.flatnonzero(table["laddr"] == HERE)
    assert [table[name][own] for name in ("bytes_sent", "bytes_acked", "bytes_received")] == [3] * 3
