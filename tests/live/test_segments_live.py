# SPDX-License-Identifier: Apache-2.0
"""A capture in many files: every counted call is in one of them, and in no other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from formats.base.segments import find_segments
from formats.psc.reader import open_capture
from formats.verify import verify_file

PORT, CALLS = 45991, 20_011
TRAFFIC = f"""
import socket, threading
listener = socket.create_server(("127.0.0.1", {PORT}))
def serve():
    with listener.accept()[0] as end:
        while end.recv(1 << 16):
            pass
thread = threading.Thread(target=serve)
thread.start()
with socket.create_connection(("127.0.0.1", {PORT})) as client:
    for _ in range({CALLS}):
        client.send(b"x")
thread.join()
"""


def collect(folder: Path, *options: str, code: int = 0) -> str:
    """Capture the calls of TRAFFIC; what collect prints."""
    command = [
        sys.executable, "-c", "from collector.commands.collect import main; main()",
        "--ports", str(PORT), "--locations", "SEND_CALL,STATE_CHANGE", "-o", str(folder),
        *options, "--", sys.executable, "-c", TRAFFIC,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize("options", [("--rotate-size", "600K"), ("-C", "1", "-G", "1")])
def test_the_sum_of_all_segments_is_every_call(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = tmp_path / "out"
    collect(folder, *options)
    segments = find_segments(folder)
    assert all(segment.sealed for segment in segments)
    assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 3
    found: Counter[str] = Counter()
    last_seq = 0
    for segment in segments:
        report = verify_file(segment.path(folder))
        assert not report.problems and report.exit_code == 0, report.problems
        with open_capture(segment.path(folder)) as capture:
            assert int(capture.seq(0, 1)[0]) == last_seq + 1
            last_seq = int(capture.seq()[-1])
        for row in report.rows:
            found[row.name] += row.in_file
    assert found["SEND_CALL"] == CALLS
