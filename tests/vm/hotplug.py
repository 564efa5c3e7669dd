# SPDX-License-Identifier: Apache-2.0
"""What the tests of CPUs that come and go share: a flood that follows, and books that add up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tcpkmon
from tcpkmon.formats.base import control
from tests.live.faults import COUNTED, PERIOD, RECEIVE_CALL, Flood, Space, balance, verify

RATE = 500
CPU = 1
PATIENCE_S = 300.0
ONLINE = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")


def set_online(wanted: bool) -> None:
    ONLINE.write_text("1" if wanted else "0")


@contextmanager
def flooding() -> Iterator[Flood]:
    with Space() as space, Flood(space) as made:
        yield made


def arguments(flood: Flood, path: Path) -> list[str]:
    return ["--netns", flood.space.path, "--ports", str(flood.port), *COUNTED, "-o", str(path)]


def wait_for_ring(path: Path) -> None:
    """Until CPU 1 has a ring, by a checkpoint of the file that began after this call."""
    begun = _checkpoints(path)[0]
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        number, online = _checkpoints(path)
        # One of them may have been under way.
        if number >= begun + 2 and online:
            return
        assert time.monotonic() < deadline, f"{number - begun} checkpoints, ring: {online}"
        pause.wait(0.5)


def _checkpoints(path: Path) -> tuple[int, bool]:
    """How many there are in a file that is being written; whether CPU 1 has a ring in the last."""
    with tcpkmon.open(path) as capture:
        location = capture.column("location")
        number = int(np.count_nonzero(location == control.Checkpoint.location))
        here = (location == control.Cpu.location) & (capture.column("callvalue") == CPU)
        rows = np.nonzero(here)[0]
        if not len(rows):
            return number, False
        last = int(rows[-1])
        row = next(entry for _, entry in capture.controls(last, last + 1))
    assert isinstance(row, control.Cpu) and row.cpu == CPU
    return number, bool(row.online)


def check_exact(path: Path, calls: int, code: int) -> dict[int, dict[str, int]]:
    """Entries and counted losses are the calls that were made; returns the rows by CPU."""
    report = verify(path, code)
    rows = balance(report)
    assert report["proven_end"]
    assert report["missed_total"] == 0
    assert sum(row["attempts"] - row["filtered"] for row in rows.values()) == calls
    assert sum(row["in_file"] + row["lost_total"] for row in rows.values()) == calls
    assert report["seq_lost"] == sum(row["lost_total"] for row in rows.values())
    assert all(row["pending"] == 0 for row in rows.values())
    return rows


def calls_on(path: Path, cpu: int) -> npt.NDArray[np.int64]:
    """The numbers of the calls that were recorded on a CPU."""
    with tcpkmon.open(path) as capture:
        here = (capture.column("location") == RECEIVE_CALL) & (capture.column("cpu") == cpu)
        numbers: npt.NDArray[np.int64] = capture.column("callvalue")[here].astype(np.int64) - 1
    assert numbers.max(initial=0) < PERIOD
    return numbers
