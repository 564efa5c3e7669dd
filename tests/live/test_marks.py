# SPDX-License-Identifier: Apache-2.0
"""SIGUSR1 puts a mark into the capture and does not end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import tcpkmon
from tcpkmon.formats.base.control import Mark

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0


def test_marks_are_numbered_and_in_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pm"
    ready, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "from tcpkmon.collector.commands.collect import main; main()",
         "--pid", str(os.getpid()), "-q", "-o", str(path), "--ready-fd", str(theirs)],
        cwd=ROOT, pass_fds=(theirs,), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    try:
        assert os.read(ready, 1) == b"!"
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        os.close(ready)
    with tcpkmon.open(path) as capture:
        assert capture.complete and not capture.lost
        marks = [entry for _, entry in capture.controls() if isinstance(entry, Mark)]
    assert marks == [Mark(1, "SIGUSR1")]
