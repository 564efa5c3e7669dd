# SPDX-License-Identifier: Apache-2.0
"""The table connections against what the application counted, TCP_INFO and how it was closed."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.formats.analysis.why import LIMITS, connections, intervals
from tests.full import first
from tests.live.capturing import (
    capturing,
    connected,
    join,
    listening,
    receive,
    tcp_info,
    wait_until,
    within,
)

_LINGER_0 = struct.pack("ii", 1, 0)


def rows_by_port(table: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows by local address and port of the client, whichever side they are of."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for n in range(len(table["conn_id"])):
        row = {name: values[n] for name, values in table.items()}
        client = row["laddr"] == "10.77.0.1"
        rows["a" if client else "b", row["lport"] if client else row["rport"]] = row
    return rows


@pytest.mark.parametrize("columns", first(1, ["all", "default"]))
def test_rows_are_what_was_done(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "a.pm"
    narrow = Bottleneck(rate_mbit=50, queue_bytes=60_000, loss_percent=2.0)
    with Lab(narrow) as lab, connected(lab) as existing:
        existing.exchange(5000)
        with capturing(path, "--columns", columns, *within(lab)):
            existing.exchange(30_000)
            existing.exchange(1)  # a record is made before its segment counts
            with listening(lab.b, "10.77.0.2") as listener:
                closed, reset = (join(lab.a, listener, "10.77.0.2") for _ in range(2))
                port = listener.getsockname()[1]
            first_rtt = tcp_info(closed.client)["rtt"]
            closed.client.sendall(bytes(400_000))
            receive(closed.server, 400_000)
            for size in (1, 70_000, 2):
                closed.server.sendall(bytes(size))
                receive(closed.client, size)
            # Nothing is in flight any more.
            wait_until(lambda: not tcp_info(closed.server)["unacked"])
            told = {
                "bytes_retrans": tcp_info(closed.client)["bytes_retrans"],
                "total_retrans": tcp_info(closed.client)["total_retrans"],
                "min_rtt_us": tcp_info(closed.client)["min_rtt"],
            }
            ends = {"closed": closed.client_port, "reset": reset.client_port,
                    "existing": existing.client_port}  # fmt: skip
            closed.client.shutdown(socket.SHUT_WR)
            assert not closed.server.recv(1)
            closed.server.close()
            assert not closed.client.recv(1)
            closed.client.close()
            reset.client.sendall(bytes(3000))
            reset.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            time.sleep(0.1)
            reset.server.close()
            with pytest.raises(ConnectionResetError):
                receive(reset.client, 1)
            reset.client.close()
            refused = lab.a.run(socket.socket)
            with pytest.raises(ConnectionRefusedError):
                refused.connect(("10.77.0.2", port))
            refused.close()
            time.sleep(0.2)
    table = connections(path)
    rows = rows_by_port(table)
    for side, sent, received, reason, role in (
        ("a", 400_000, 70_003, "fin_local", "active"),
        ("b", 70_003, 400_000, "fin_remote", "passive"),
    ):
        row = rows[side, ends["closed"]]
        assert (row["bytes_sent"], row["bytes_acked"]) == (sent, sent), side
        assert row["bytes_received"] == received, side
        assert (row["end_reason"], row["role"], row["proven"]) == (reason, role, True)
        assert row["goodput_mean"] == pytest.approx(400_000 / (row["duration_us"] / 1e6))
        assert row["goodput_p50"] <= row["goodput_p99"] <= row["goodput_max"]
    row = rows["a", ends["closed"]]
    assert row["bytes_retrans"] == told["bytes_retrans"]
    assert row["retrans_rto"] + row["retrans_fast"] + row["retrans_tlp"] == row["retransmissions"]
    assert row["retransmissions"] == told["total_retrans"]
    assert 0 < row["min_rtt_us"] <= told["min_rtt_us"]
    assert row["handshake_us"] == pytest.approx(first_rtt, rel=0.2, abs=300)
    for side, reason in (("a", "rst_received"), ("b", "rst_sent")):
        assert rows[side, ends["reset"]]["end_reason"] == reason
    assert rows["a", ends["reset"]]["errno"] == errno.ECONNRESET
    assert rows["b", ends["reset"]]["bytes_received"] == 3000
    one = rows["a", ends["existing"]]
    assert (one["role"], one["end_reason"]) == ("existing", "open")
    assert all(30_000 <= one[name] <= 30_001 for name in ("bytes_acked", "bytes_received"))
    (row,) = (row for row in rows.values() if row["rport"] == port and row["errno"] == 111)
    assert (row["role"], row["end_reason"], row["bytes_sent"]) == ("active", "rst_received", 0)
    for row in rows.values():
        assert sum(row[f"us_{name}"] for name in LIMITS) == pytest.approx(row["duration_us"])
    runs = intervals(path)
    assert runs["certain"].all()
    lengths = np.bincount(runs["conn_id"], runs["end_ns"] - runs["start_ns"])
    assert lengths[table["conn_id"]] / 1000 == pytest.approx(table["duration_us"])


_TRANSFER = """
import socket, threading
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
def read():
    while server.recv(1 << 16): pass
reader = threading.Thread(target=read); reader.start()
client.sendall(bytes(3_000_000)); client.shutdown(socket.SHUT_WR); reader.join()
print("port", listener.getsockname()[1])
"""


def test_collect_says_why_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pm"
    tool = Path(sys.executable)
    command = [tool.with_name("collect"), "--why", "-o", path, "--", tool, "-c", _TRANSFER]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = subprocess.check_output([tool.with_name("tcpkmon"), "why", path], text=True)
    port = done.stdout.split()[1]
    assert done.stdout.partition("\n")[2] == said
    assert f"-> 127.0.0.1:{port}, " in said
    assert "3.0 MB" in said
