# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of MAGNeT files, with counted calls: what is in a dump and what was evicted
before it are all of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of
from tests.live.faults import FULL, Collector, wait_until

PORT = 31_500 + os.getpid() % 500  # tests run in several processes at once


def sealed(folder: Path) -> list[Path]:
    if not folder.exists():
        return []
    return [one.path(folder) for one in find_segments(folder) if one.sealed]


def test_what_is_in_a_dump_and_what_was_evicted_are_all_calls(tmp_path: Path) -> None:
    folder, made = tmp_path / "dumps", 0
    server = socket.create_server(("127.0.0.1", PORT))
    client = socket.create_connection(("127.0.0.1", PORT))
    peer, _ = server.accept()

    def send(count: int) -> None:
        nonlocal made
        made += count
        for _ in range(count):
            client.send(b"x")
        peer.recv(1 << 20)

    with server, client, peer, Collector(
        "--format", "magnet", "--schema", "magnet", "--ports", str(PORT), "-o", str(folder),
        "--record-last", "500ms", "--after", "200ms", "--dumps-per-hour", "1",
        "--on", "SOCK_SEND and size == 1",
    ) as one:  # fmt: skip
        one.ready()
        assert not sealed(folder)
        send(50)
        wait_until(lambda: len(sealed(folder)) == 1, "a dump")
        if FULL:
            send(500)
            time.sleep(2.1)  # a block of the window lasts a second
            send(77)
            one.send(signal.SIGUSR2)
            wait_until(lambda: len(sealed(folder)) == 2, "two dumps")
        assert one.finish().code == 0
    reports = [format_of(path).verify(path)[-1] for path in sealed(folder)]
    for report in reports:
        assert not report.problems and report.exit_code == 0, report.problems
        assert report.window[0].startswith("complete from"), report.window
        assert report.end_reason == "dumped"
    first, *more = reports
    assert any("trigger: SOCK_SEND and size == ?" in line for line in first.window)
    calls = [row.in_file for row in first.rows if row.name == "MAGNET_SOCK_SEND"]
    assert sum(calls) == 50 and first.evicted == 0
    *_, last = format_of(folder).verify(folder)
    assert last.exit_code == 0
    assert len(more) == FULL
    for second in more:
        calls = [row.in_file for row in second.rows if row.name == "MAGNET_SOCK_SEND"]
        assert 77 <= sum(calls) < made and second.evicted >= 500
        assert "asked for by SIGUSR2" in second.window[1]
