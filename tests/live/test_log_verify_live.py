# SPDX-License-Identifier: Apache-2.0
"""Klogger logs of a counted flood: read and lost are what was made, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.klogger.logs import LOG_NAME
from tcpkmon.formats.klogger.reader import LogReader
from tests.live.faults import (
    FULL,
    TCPKMON,
    TIMEOUT_S,
    WAIT_S,
    Collector,
    Disk,
    cpus,
    environment,
    program_lives,
    run,
    wait_until,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

EVENT = "GETPPID"
NUMBERS = {"x86_64": 110, "aarch64": 173}
CONF = """
// A call of the flood.
event GETPPID {
    uint pid                // who called
    ulonglong where         // a constant: what a record holds
}
"""
PROGRAM = """/* SPDX-License-Identifier: GPL-2.0-only */
#include "klogger.h"

PROBE(getppid, "GETPPID", "btf:sys_enter raw:sys_enter")
{
    u32 pid = bpf_get_current_pid_tgid() >> 32;

    if (ARG(1) == %d && pid == %d)
        klogger(GETPPID, pid, 0x1122334455667788);
}
"""
KILLS = 40 if FULL else 4
START_S, CAPTURE_S = 1.0, 0.8
SMALL = 10_000


class Calls:
    """A process that makes counted getppid calls, and a schema that logs them."""

    def __init__(self, folder: Path) -> None:
        program = Path(__file__).with_name("calling.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip
        self.made: dict[int, int] = {}
        self.schema = folder / "flood"
        self.schema.mkdir()
        (self.schema / "flood.conf").write_text(CONF)
        number = NUMBERS[os.uname().machine]
        text = PROGRAM % (number, self._process.pid)
        (self.schema / "flood.bpf.c").write_text(text)

    def begin(self, cpu: int) -> None:
        """Starts to call on a CPU until end()."""
        self._cpu = cpu
        self._send(f"{cpu} 0")

    def end(self) -> int:
        """Stops what begin() started; how many calls it were."""
        self._send("0 -1")
        return self._answer()

    def make(self, cpu: int, count: int) -> None:
        """Makes so many calls on a CPU."""
        self._cpu = cpu
        self._send(f"{cpu} {count}")
        assert self._answer() == count

    def forget(self) -> None:
        """Another capture begins."""
        self.made = {}

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], WAIT_S)[0], "the flood hangs"
        count = int(self._process.stdout.readline())
        self.made[self._cpu] = self.made.get(self._cpu, 0) + count
        return count


@pytest.fixture(scope="module")
def flood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """One for all tests: what it is called with stands in the program, which compiles once."""
    made = Calls(tmp_path_factory.mktemp("schema"))
    yield made
    made.close()


@pytest.fixture
def calls(flood: Calls) -> Calls:
    flood.forget()
    return flood


def collecting(calls: Calls, folder: Path, *more: str) -> Collector:
    return Collector("--schema", str(calls.schema), "-o", str(folder), *more)


def verify_all(folder: Path, code: int) -> list[dict[str, Any]]:
    """`tcpkmon verify --json FOLDER`, which must end with this code; the reports."""
    done = run([TCPKMON, "verify", "--json", str(folder)])
    reports: list[dict[str, Any]] = json.loads(done.stdout)["files"]
    problems = [report["problems"] for report in reports]
    assert done.code == code, (done.code, problems, [report["verdict"] for report in reports])
    return reports


def read_counts(folder: Path) -> dict[int, int]:
    """By CPU, the flood's records, each of which must be what was logged."""
    counts = {}
    for path in sorted(folder.iterdir()):
        with LogReader(path) as reader:
            count = 0
            for batch in reader.batches():
                rows = batch.rows(EVENT)
                assert (rows["where"] == 0x1122334455667788).all()
                count += len(rows)
            assert not reader.damage
            counts[reader.cpu] = count
    return counts


def check_books(calls: Calls, folder: Path, code: int) -> int:
    """Calls made are records read and losses counted, on each CPU; how many were lost."""
    *each, whole = verify_all(folder, code)
    assert whole["proven_end"]
    read, lost = read_counts(folder), 0
    for report in each:
        [row] = [row for row in report["rows"] if row["name"] == EVENT] or [None]
        if row is None:
            continue
        made = calls.made.get(row["cpu"], 0)
        assert row["attempts"] == made
        assert row["in_file"] == read[row["cpu"]]
        assert row["in_file"] + row["lost_total"] == made
        assert report["seq_lost"] == row["lost_total"]
        lost += row["lost_total"]
    assert sum(read.values()) + lost == sum(calls.made.values())
    assert whole["lost_total"] == lost
    return lost


def test_small_rings_and_a_collector_that_stands_still(
    calls: Calls, tmp_path: Path, rings: str
) -> None:
    folder = tmp_path / "log"
    with collecting(calls, folder, "--buffer-size", "0.03", "--rings", rings).ready() as collector:
        for cpu in cpus():
            calls.make(cpu, SMALL)
            collector.pause()
            calls.make(cpu, SMALL)
            collector.resume()
            calls.make(cpu, 7)
        collector.pause()
        calls.make(cpus()[0], SMALL)
        collector.resume()
        done = collector.finish()
    assert done.code == 0, done.stderr
    lost = check_books(calls, folder, 3)
    print(f"{sum(calls.made.values())} calls, {lost} lost")
    assert lost > SMALL


def is_gone(program: int) -> bool:
    return not program_lives(program)


def check_killed(folder: Path) -> int:
    """All finished dumps of a killed capture are there, and what is not is called unknown."""
    paths = sorted(folder.iterdir())
    assert all(LOG_NAME.match(path.name) for path in paths), paths
    reports = verify_all(folder, 3)
    for report in reports:
        assert report["tail_unknown"]
        assert "tail unknown" in report["verdict"]
        assert not report["problems"]
    records = 0
    for path, report in zip(paths, reports, strict=False):
        with LogReader(path) as reader:
            here = sum(len(batch.where(EVENT)) for batch in reader.batches())
            assert "tail unknown" in reader.tail
        told = sum(row["in_file"] for row in report["rows"] if row["name"] == EVENT)
        assert here == told + report["after_checkpoint"]
        records += here
    return records


def test_killed_at_any_moment(calls: Calls, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    moments = random.Random(seed)
    folders = records = 0
    calls.begin(cpus()[-1])
    for number in range(KILLS):
        folder = tmp_path / f"log{number}"
        ready = number % 4 > 0
        with collecting(calls, folder) as collector:
            if ready:
                collector.ready()
            with pytest.raises(subprocess.TimeoutExpired):
                collector.process.wait(moments.uniform(0, CAPTURE_S if ready else START_S))
            programs = collector.programs()
            collector.process.kill()
            collector.process.wait(WAIT_S)
        assert programs or not ready
        for program in programs:
            wait_until(partial(is_gone, program), "its programs are gone")
        if folder.exists() and any(folder.iterdir()):
            records += check_killed(folder)
            folders += 1
        else:
            assert not ready
    calls.end()
    print(f"{KILLS} kills, {folders} logs, {records} records")
    assert folders >= KILLS * 3 // 4
    assert records


def test_a_full_disk_and_room_again(calls: Calls, tmp_path: Path) -> None:
    with Disk(2 << 20) as disk:
        folder = disk.path / "log"
        with collecting(calls, folder).ready() as collector:
            paths = {cpu: folder / f"kernlog.dump.cpu{cpu}" for cpu in cpus()}
            calls.make(cpus()[0], 100)
            held = paths[cpus()[0]].stat().st_size
            ballast = disk.fill()
            calls.make(cpus()[-1], SMALL)
            collector.says("No space left on device; records are being lost, counted")
            ballast.unlink()
            calls.make(cpus()[0], 500)
            collector.says("writing goes on")
            wait_until(lambda: paths[cpus()[0]].stat().st_size > held + 500 * 40, "written again")
            done = collector.finish()
        assert done.code == 3, done.stderr
        assert "disk full" in done.stderr
        lost = check_books(calls, folder, 3)
        assert SMALL // 2 < lost <= SMALL + 600
