# SPDX-License-Identifier: Apache-2.0
"""What the daemon says of captures that stand still."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.daemon import telling
from tcpkmon.collector.daemon.child import State
from tcpkmon.collector.daemon.telling import HEARD_S, Telling
from tcpkmon.collector.writer import segment_folder
from tcpkmon.collector.writer.segment_folder import take_over_file
from tcpkmon.formats.base.errors import FileError


class Capture:
    state, name, records, lost, heard_s = State.ATTACHED, "web", 0, 0, 0.0


class Told:
    def __init__(self) -> None:
        self.words: list[str] = []

    def tell(self, text: str) -> None:
        self.words.append(text)


def test_a_capture_that_stands_still_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, told, capture = [0.0], Told(), Capture()
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    told_of: Any = Telling(told)  # type: ignore[arg-type]

    def rounds(count: int, *, heard: bool) -> str:
        told.words.clear()
        for _ in range(count):
            now[0] += 1.0
            if heard:
                capture.heard_s = now[0]
            told_of.tell([capture], True)
        return capsys.readouterr().err

    assert rounds(6, heard=True) == "" and told.words.count("WATCHDOG=1") == 6
    said = rounds(20, heard=False)
    assert said.count("\n") == 1 and f"web has not drained its rings for {HEARD_S:g} s" in said
    assert told.words.count("WATCHDOG=1") == 4  # of the first seconds
    assert any("web stands still" in word for word in told.words)
    said = rounds(6, heard=True)
    assert said == "tcpkmon daemon: capture web drains its rings again\n"


def test_a_file_is_not_taken_over_while_its_writer_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_folder, "HANDOVER_S", 0.05)
    path = tmp_path / "one"
    path.write_bytes(b"")
    writer = os.open(path, os.O_WRONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    other = os.open(path, os.O_WRONLY)
    with pytest.raises(FileError, match="has not ended"):
        take_over_file(other, "one")
    os.close(writer)
    take_over_file(other, "one")
    os.close(other)
