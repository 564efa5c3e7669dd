# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at any moment: the file opens, all up to its last checkpoint is there."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tcpkmon.collector.ring.rings import TRANSPORTS
from tcpkmon.formats.registry import format_of
from tests.live.faults import (
    COUNTED,
    FORMS,
    FULL,
    GUEST,
    RECEIVE_CALL,
    TIMEOUT_S,
    WAIT_S,
    Collector,
    Flood,
    check_sequence,
    cpus,
    program_lives,
    verify,
    wait_until,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

KILLS = 200 if FULL else 4 if GUEST else 6
START_S, CAPTURE_S = 1.0, 1.5
RATE = 1_000 if GUEST else 20_000


def kill_after(collector: Collector, delay_s: float) -> set[int]:
    """SIGKILL after a time; the ids of the programs that the process held just before."""
    with pytest.raises(subprocess.TimeoutExpired):
        collector.process.wait(delay_s)
    programs = collector.programs()
    collector.process.kill()
    collector.process.wait(WAIT_S)
    return programs


def is_gone(program: int) -> bool:
    return not program_lives(program)


def check_killed(path: Path) -> int:
    """All up to the last checkpoint is there, what follows is called unknown; how many calls."""
    reports = format_of(path).verify(path)
    for report in reports:
        assert report.exit_code == 3 and report.tail_unknown and not report.problems, report.path
        assert "tail unknown" in report.verdict
    whole = reports[-1]
    told = sum(row.in_file for row in whole.rows if row.location == RECEIVE_CALL)
    calls = check_sequence(path)
    assert calls == told + whole.after_checkpoint
    return calls


def test_killed_at_any_moment(flood: Flood, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    moments = random.Random(seed)
    files = records = 0
    flood.begin(cpus()[-1], 0, RATE)
    for number in range(KILLS):
        path = tmp_path / f"{number}"
        ready, form = number % 6 > 0, list(FORMS)[number // 2 % 2]
        with Collector(
            "--netns", flood.space.path, "--ports", str(flood.port), "--no-existing", *COUNTED,
            "-o", str(path), "--rings", list(TRANSPORTS)[number % len(TRANSPORTS)], *FORMS[form],
        ) as collector:  # fmt: skip
            if ready:
                collector.ready()
            programs = kill_after(collector, moments.uniform(0, CAPTURE_S if ready else START_S))
        assert programs or not ready
        for program in programs:
            wait_until(partial(is_gone, program), "its programs are gone")
        assert path.exists() or not ready
        assert os.listdir(tmp_path) == ([path.name] if path.exists() else [])
        if path.exists() and (path.is_file() or any(path.iterdir())):
            records += check_killed(path)
            files += 1
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    flood.halt()
    print(f"{KILLS} kills, {files} files, {records} records")
    assert files >= KILLS * 4 // 5


def test_what_was_killed_is_at_most_a_second_or_two_old(flood: Flood, tmp_path: Path) -> None:
    """Records reach the file at once, not only with a checkpoint."""
    path = tmp_path / "recent.pm"
    with Collector(
        "--netns", flood.space.path, "--ports", str(flood.port), "--no-existing", *COUNTED,
        "-o", str(path),
    ) as collector:  # fmt: skip
        collector.ready()
        flood.burst(cpus()[0], 1_000)
        # Headers, and 1,000 entries of 88 bytes.
        wait_until(lambda: path.stat().st_size > 88 * 1_000, "the burst is in the file")
        collector.process.kill()
        collector.process.wait(WAIT_S)
    assert check_sequence(path) == 1_000
    assert verify(path, 3)["tail_unknown"]
