# SPDX-License-Identifier: Apache-2.0
"""A process `collect` that hangs, as the demo bounds it: at its start, and at its end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.formats.base.errors import TcpkmonError

READY_AND_DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[1]), b"x")
time.sleep(60)
"""


def hangs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(
        capturing.isolated, "command", lambda *words: [sys.executable, "-c", code, words[2]]
    )


def test_at_its_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(TcpkmonError, match=r"did not start within 0\.2 s"):
        capturing.launch([], tmp_path / "a.pm", within_s=0.2)


def test_at_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs(monkeypatch, READY_AND_DEAF)
    with (
        pytest.raises(TcpkmonError, match=r"did not end within 0\.2 s"),
        capturing.launch([], tmp_path / "a.pm", within_s=30) as capture,
    ):
        capture.stop(0.2)
    assert capture._process.poll() == -signal.SIGKILL
