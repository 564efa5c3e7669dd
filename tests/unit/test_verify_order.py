# SPDX-License-Identifier: Apache-2.0
"""The records of a PSC file are in the order of their serials, and of time: verify finds others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.verify import verify_file
from tests.unit.makers import CPUS, Maker

Rows = npt.NDArray[Any]
NUMBERS = ("seq_no", "seq")


def capture(path: Path, count: int = 60) -> tuple[Path, Rows, npt.NDArray[np.int64], int]:
    """A capture; its entries, which of them are records, and where they begin in the file."""
    maker = Maker(path, rotates=False)
    maker.records(count)
    maker.close()
    with open_capture(path) as read:
        return path, read.rows(), np.flatnonzero(~read.control()), read.data_offset


def rewrite(path: Path, rows: Rows, offset: int) -> None:
    path.write_bytes(path.read_bytes()[:offset] + rows.tobytes())


def reverse(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return at[::-1]


def swap_one_cpus(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Two records of CPU 0, as each CPU has every second one."""
    moved = at.copy()
    moved[[0, CPUS]] = moved[[CPUS, 0]]
    return moved


@pytest.mark.parametrize("change", [reverse, swap_one_cpus])
def test_records_in_another_order_do_not_add_up(
    tmp_path: Path, change: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
) -> None:
    path, rows, records, offset = capture(tmp_path / "out.pm")
    assert verify_file(path).exit_code == 0
    some = records[20:60]
    moved = rows.copy()
    moved[some] = rows[change(some)]
    for name in NUMBERS:
        if name in (rows.dtype.names or ()):
            moved[name][some] = rows[name][some]
    rewrite(path, moved, offset)
    report = verify_file(path)
    assert report.exit_code == 5
    assert "the records are not in order" in report.problems[0].what


def test_another_cpus_records_far_from_their_time_do_not_add_up(tmp_path: Path) -> None:
    """Without serials: those of a CPU rise here too."""
    path, rows, records, offset = capture(tmp_path / "out.pm")
    moved = rows.copy()
    late = records[rows["cpu"][records] == 1][30:]
    moved["time_ns"][late] += np.uint64(3_000_000_000)
    seconds = moved["tv_sec"][late] + 3
    moved["tv_sec"][late] = seconds
    rewrite(path, moved, offset)
    report = verify_file(path)
    assert report.exit_code == 5
    assert "time_ns runs back by" in report.problems[0].what
