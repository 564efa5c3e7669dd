# SPDX-License-Identifier: Apache-2.0
"""Klogger logs that rotate: every counted call is in one segment alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of
from tests.live.test_segments_live import CALLS, PORT, TRAFFIC, fill
from tests.unit.makers import CPUS, LogMaker


def collect(folder: Path, *options: str, environment: dict[str, str] | None = None) -> str:
    """Capture the calls of TRAFFIC; what collect prints."""
    command = [
        sys.executable, "-c", "from tcpkmon.collector.commands.collect import main; main()",
        "-o", str(folder), *options, "--", sys.executable, "-c", TRAFFIC,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_sum_of_all_logs_is_every_call(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    environment = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534"}
    collect(folder, "--format", "klogger", "--ports", str(PORT), "--locations",
            "SEND_CALL,STATE_CHANGE", "--rotate-size", "200K", "-G", "1",
            environment=environment)  # fmt: skip
    segments = find_segments(folder)
    assert all(segment.sealed and segment.suffix == ".klog" for segment in segments)
    assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 2
    owners = {path.stat().st_uid for path in folder.rglob("*")}
    assert owners == {65534}
    for segment in segments:
        (*_, whole) = format_of(segment.path(folder)).verify(segment.path(folder))
        assert whole.exit_code == 0, whole.problems
    *parts, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0 and len(parts) == len(segments), chain.problems
    assert {row.name: row.in_file for row in chain.rows}["SEND_CALL"] == CALLS
    with open_log(folder) as log:
        sent = sum(1 for event in log.choose("SNAPSHOT", where=["location=SEND_CALL"]))
        assert not log.problems
    assert sent == CALLS


def test_a_full_disk_loses_records_of_logs_and_the_chain_adds_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=True)
    try:
        folder = disk / "out"
        told = collect(folder, "--format", "klogger", "--ports", str(PORT), "--locations",
                       "SEND_CALL", "--rotate-size", "400K")  # fmt: skip
        assert "disk full" in told
        *_, chain = format_of(folder).verify(folder)
        assert not chain.problems and chain.exit_code == 3, chain.problems
        assert chain.proven_end and chain.totals.lost["disk full"] > 0
        sent = sum(row.attempts - row.filtered for row in chain.rows if row.name == "SEND_CALL")
        assert sent == CALLS
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("free_kb", [0, 16, 64, 128, 192, 256, 320, 384, 512])
def test_a_rotation_on_a_disk_of_any_fill_adds_up(tmp_path: Path, free_kb: int) -> None:
    """Whether the next segment has room, or a part of it, or none: nothing is torn."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        maker = LogMaker(disk / "out")
        maker.records(200)
        maker.checkpoint()
        maker.stream._spool.put_call(lambda: fill(disk, free_kb << 10))
        for _ in range(3):
            maker.records(100)
            maker.rotate()
        maker.close()
        *_, chain = format_of(disk / "out").verify(disk / "out")
        assert not chain.problems, chain.problems
        assert chain.proven_end, chain.notes
        assert chain.totals.attempts == CPUS * 500
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
