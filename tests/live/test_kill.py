# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at any moment: the file opens, all up to its last checkpoint is there."""

from __future__ import annotations

import os
import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.ring.rings import TRANSPORTS
from tcpkmon.formats.base import control, facts
from tcpkmon.formats.psc.reader import Capture
from tests.live.faults import (
    COUNTED,
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

KILLS = 200 if FULL else 3 if GUEST else 5
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


def before_checkpoint(path: Path) -> tuple[int, int]:
    """What the last whole checkpoint says is in the file, and what stands before it, in records."""
    with tcpkmon.open(path) as capture:
        location = capture.column("location").tolist()
        rows = capture.array
        heads = [i for i, n in enumerate(location) if n == control.Checkpoint.location]
        for head in reversed(heads):
            decoded = [
                facts.decode(int(rows["callvalue"][i]), location[i], words)
                for i, words in enumerate(_words(capture, head), head)
            ]
            checkpoint = decoded[0]
            assert isinstance(checkpoint, control.Checkpoint)
            if len(decoded) == checkpoint.group + 1:
                told = sum(e.in_file for e in decoded if isinstance(e, control.Collector))
                return told, location[:head].count(RECEIVE_CALL)
    return 0, 0


def _words(capture: Capture, head: int) -> list[list[int]]:
    """The words of a checkpoint and of as much of its group as the file has."""
    rows = capture.array[head:]
    group = int(control.words_view(rows[:1].copy())[0, 4])
    return [list(map(int, row)) for row in control.words_view(rows[: group + 1].copy())]


def test_killed_at_any_moment(flood: Flood, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    moments = random.Random(seed)
    files = records = 0
    flood.begin(cpus()[-1], 0, RATE)
    for number in range(KILLS):
        path = tmp_path / f"{number}.pm"
        ready = number % 5 > 0
        with Collector(
            "--netns", flood.space.path, "--ports", str(flood.port), "--no-existing", *COUNTED,
            "-o", str(path), "--rings", list(TRANSPORTS)[number % len(TRANSPORTS)],
        ) as collector:  # fmt: skip
            if ready:
                collector.ready()
            programs = kill_after(collector, moments.uniform(0, CAPTURE_S if ready else START_S))
        assert programs or not ready
        for program in programs:
            wait_until(partial(is_gone, program), "its programs are gone")
        assert path.exists() or not ready
        assert os.listdir(tmp_path) == ([path.name] if path.exists() else [])
        if path.exists():
            report = verify(path, 3)
            assert report["tail_unknown"]
            assert "tail unknown" in report["verdict"]
            assert not report["problems"]
            records += check_sequence(path)
            told, there = before_checkpoint(path)
            assert told == there
            files += 1
            path.unlink()
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
