# SPDX-License-Identifier: Apache-2.0
"""docs/analysis.md: its programs run, over a log whose statistics are known."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tcpkmon.formats.schema import format_schema, load
from tests.unit.log_files import BASE, ROOT, LogMaker, Values, describe_events

DOCUMENT = ROOT / "docs" / "analysis.md"
SCHED = ROOT / "bpf" / "schemata" / "sched.conf"
US = 1_000


def programs() -> dict[str, str]:
    """The programs of the document by the names of their files."""
    found = re.findall(r"^```python (\S+)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    return dict(found)


def sched_maker(cpu: int) -> LogMaker:
    """A log of base and sched."""
    schema = load([BASE, SCHED])
    return LogMaker(cpu=cpu, schema=format_schema(schema), events=describe_events(schema))


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPUs' logs in the folder `run`, which is here."""
    folder = tmp_path / "run"
    folder.mkdir()
    first, second = sched_maker(0), sched_maker(1)
    for maker in (first, second):
        maker.add("KLOGGER_START", {"kernel": "6.18.0"}, at=0)
    wake: Values = {"pid": 7, "wakes": 1}
    run: Values = {"pid": 7, "comm": "sleep"}
    second.add("TRY_TO_WAKEUP", wake, at=10 * US).add("SCHEDIN", run, at=11 * US)
    second.add("SCHEDOUT", {**run, "reason": "BLOCKED"}, at=15 * US)
    first.add("MARK", {"number": 1, "pid": 1}, at=20 * US)
    for start in (100, 200, 300):
        # Woken on one CPU, run on the other: only in time order does that make sense.
        first.add("TRY_TO_WAKEUP", wake, at=start * US)
        first.add("TRY_TO_WAKEUP", {"pid": 7, "wakes": 0}, at=(start + 1) * US)
        second.add("ADD_TO_RUNQ", {"pid": 7}, at=(start + 2) * US)
        second.add("SCHEDIN", run, at=(start + 30) * US)
        second.add("SCHEDOUT", {**run, "reason": "BLOCKED"}, at=(start + 40) * US)
        second.add("REMOVE_FROM_RUNQ", {"pid": 7}, at=(start + 41) * US)
        second.add("SLEEP", {"tid": 7, "tgid": 7, "class": "TIMER"}, at=(start + 42) * US)
    second.add("SCHEDIN", {"pid": 8, "comm": "sh"}, at=400 * US)
    second.add("SCHEDOUT", {"pid": 8, "comm": "sh", "reason": "PREEMPTED"}, at=460 * US)
    second.add("EXIT", {"pid": 8, "comm": "sh"}, at=465 * US)
    first.add("MARK", {"number": 1, "pid": 1}, at=500 * US)
    second.add("SCHEDOUT", {"pid": 9, "reason": "EXITED"}, at=600 * US)
    for maker in (first, second):
        maker.add("KLOGGER_FINISH", {"reason": 0}, at=700 * US)
        maker.write(folder / f"kernlog.dump.cpu{maker.format.cpu}")
    monkeypatch.chdir(tmp_path)
    return folder


def output_of(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / name
    path.write_text(programs()[name])
    runpy.run_path(str(path))
    return capsys.readouterr().out.splitlines()


def test_the_worked_example(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_of("analyse.py", tmp_path, capsys) == [
        "0 events lost",
        "BLOCKED: 3 switches",
        "PREEMPTED: 1 switches",
        "3 wake-ups, 30.0 us to the CPU (median)",
    ]


def test_the_filters(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of("filters.py", tmp_path, capsys)
    assert re.fullmatch(r"\d+ EXIT 8", lines[0])
    # Two marks, 3 x 6 events, and 3 of the shell; and what brackets their dumps.
    assert re.fullmatch(r"\d+ events inside", lines[1])
    assert 23 <= int(lines[1].split()[0]) <= 27


def test_the_pairs(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of("pairs.py", tmp_path, capsys) == [
        "2 naps, 0.061 ms on average, p99 0.061 ms",
        "pid 7 slept 2 times",
        "8 sh: 0.1 ms in 1 slices",
        "7 sleep: 0.0 ms in 4 slices",
        "28 us to the CPU (p99)",
        "7 waited 0.1 ms for TIMER",
    ]
