# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of Klogger logs, with counted calls: what is in a dump and what was evicted
before it are all of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of
from tests.live.faults import Collector, wait_until

MS = 1_000_000
PORT = 31_000 + os.getpid() % 500  # tests run in several processes at once


def sealed(folder: Path) -> list[Path]:
    if not folder.exists():
        return []
    return [one.path(folder) for one in find_segments(folder) if one.sealed]


def test_what_is_in_a_dump_and_what_was_evicted_are_all_calls(tmp_path: Path) -> None:
    folder, made = tmp_path / "dumps", 0
    options = ("--record-last", "1s", "--after", "300ms", "--dumps-per-hour", "1")
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
        "--format", "klogger", "--ports", str(PORT), "--locations", "SEND_CALL,STATE_CHANGE",
        "--no-existing", "-o", str(folder), *options, "--on", f"send_call and rport == {PORT}",
    ) as one:  # fmt: skip
        one.ready()
        assert not sealed(folder)
        send(100)
        wait_until(lambda: len(sealed(folder)) == 1, "a dump")
        send(1000)
        time.sleep(2.5)
        send(77)
        one.send(signal.SIGUSR2)
        wait_until(lambda: len(sealed(folder)) == 2, "two dumps")
        assert one.finish().code == 0
    reports = [format_of(path).verify(path)[-1] for path in sealed(folder)]
    for report in reports:
        assert not report.problems and report.exit_code == 0, report.problems
        assert report.window[0].startswith("complete from"), report.window
        assert report.end_reason == "dumped"
    first, second = reports
    assert 0 < first.totals.in_file <= 100 and first.evicted == 0
    assert second.evicted >= 1000 and second.totals.in_file >= 77
    assert second.evicted + second.totals.in_file == made
    assert "asked for by SIGUSR2" in second.window[1]
    with open_log(sealed(folder)[0]) as log:
        fired = next(iter(log.choose("TRIGGER")))
        assert fired["number"] == 1 and fired["count"] >= 1
        assert 0 <= fired["told_ns"] - fired["mono_ns"] < 100 * MS
        assert sum(1 for event in log.choose("SNAPSHOT")) == first.totals.in_file
