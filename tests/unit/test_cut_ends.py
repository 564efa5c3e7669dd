# SPDX-License-Identifier: Apache-2.0
"""No file out of which records were cut counts as proven and complete, though all that is left is
numbered as if they had never been there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify.report import NOT_CLOSED
from tests.full import IS_FULL
from tests.fuzz.seeds import dumps as psc_dumps
from tests.unit.cutting import Cut, cut_log, cut_psc
from tests.unit.makers import LogMaker, Maker, make, make_logs
from tests.unit.test_recorder import last_second

Cuts = Callable[[Path], Iterator[tuple[Cut, bytes]]]


def _plain(path: Path) -> Path:
    maker = Maker(path, rotates=False)
    for _ in range(4):
        maker.records(5)
        maker.checkpoint()
    maker.close()
    return path


def _log(path: Path) -> Path:
    maker = LogMaker(path, rotates=False)
    for _ in range(4):
        maker.records(5)
        maker.checkpoint()
    maker.close()
    return path / "kernlog.dump.cpu0"


def _log_dump(path: Path) -> Path:
    made = last_second(path, after_s=2.0)
    for _ in range(4):
        made.second(4)
    made.stream.ask()
    for _ in range(4):
        made.second(4)
    made.close()
    return find_segments(path)[0].path(path) / "kernlog.dump.cpu0"


FILES: dict[str, tuple[Callable[[Path], Path], Cuts]] = {
    "psc": (_plain, cut_psc),
    "psc-segment": (lambda path: make(path, 3, 8)[0], cut_psc),
    "psc-later-segment": (lambda path: make(path, 3, 8)[1], cut_psc),
    "psc-dump": (lambda path: psc_dumps(path)[0], cut_psc),
    "log": (_log, cut_log),
    "log-segment": (lambda path: make_logs(path, 3, 8)[1] / "kernlog.dump.cpu0", cut_log),
    "log-dump": (_log_dump, cut_log),
}


@pytest.mark.parametrize("kind", FILES)
def test_no_cut_between_control_entries_is_complete(tmp_path: Path, kind: str) -> None:
    write, cuts = FILES[kind]
    path = write(tmp_path / f"out{'.pm' if kind == 'psc' else ''}")
    whole = format_of(path).verify(path)[0]
    assert whole.proven_end and not whole.problems and NOT_CLOSED not in whole.notes
    found = 0
    for cut, data in islice(cuts(path), 0, None, 1 if IS_FULL else 3):
        path.write_bytes(data)
        report = format_of(path).verify(path)[0]
        if cut.records:
            found += 1
            assert report.exit_code != whole.exit_code or report.tail_unknown, (
                cut, report.verdict, report.window,
            )  # fmt: skip
            assert not any(line.startswith("complete") for line in report.window)
    assert found > 1
