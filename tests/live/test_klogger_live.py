# SPDX-License-Identifier: Apache-2.0
"""The Python module: a capture is started, marked, switched and stopped; its log is analysed."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.formats.analysis import match_pairs, open_log
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.verify import verify_folder
from tests.live.faults import WAIT_S, environment
from tests.unit.test_examples import programs

START, STOP = 1, 2
OWN = 100 * os.getpid()
prctl = ctypes.CDLL(None).prctl


def watch(number: int) -> None:
    """One measurement with the stopwatch, which others may use meanwhile."""
    prctl(0x6B6C6F67, START, OWN + number, 0, 0)
    prctl(0x6B6C6F67, STOP, OWN + number, 0, 0)


@pytest.mark.parametrize("rings", ["bpf", pytest.param("perf", marks=pytest.mark.full)])
def test_a_capture_under_control(tmp_path: Path, rings: str) -> None:
    folder = tmp_path / "log"
    options = ("--rings", rings)
    with capturing.start(
        "stopwatch", folder, buffer_mb=0.5, low_water=60, options=options
    ) as capture:
        assert capturing.attach(capture.pid).status()["rings"] == rings
        watch(1)
        capture.mark(77)
        with pytest.raises(TcpkmonError, match="cannot change while logging is on"):
            capture.set_buffer_size(1)
        capture.disable()
        watch(2)
        assert capture.set_buffer_size(1) == 1
        capture.set_low_water(30)
        capture.enable()
        watch(3)
        capture.disable("EVENT_STOP")
        watch(4)
        capture.enable("EVENT_STOP")
        watch(5)
        status = capture.status()
        assert (status["buffer_bytes"], status["low_water_percent"]) == (1 << 20, 30)
        with pytest.raises(UsageError, match="no event 'EVENT_STOPP'"):
            capture.disable("EVENT_STOPP")
        command = [sys.executable, "-c", "raise SystemExit(3)"]
        assert capture.run_workload(command, mark=2**64 - 1) == 3
        with pytest.raises(UsageError, match="cannot run"):
            capture.run_workload([str(tmp_path / "nothing")])
        ended = capture.stop()
        assert ended.exit_code == 0
        assert "lost: none" in ended.messages
        assert capture.stop() is ended
        assert not capture.running
    with pytest.raises(UsageError, match="no collector runs as process"):
        capture.mark(1)
    with open_log(folder) as log:
        mine = (f"id>={OWN}", f"id<{OWN + 100}")
        watched = log.choose("EVENT_START", "EVENT_STOP", where=mine)
        pairs = match_pairs(watched)
        assert sorted(interval.key - OWN for interval in pairs) == [1, 3, 5]
        assert (pairs.unstopped, pairs.unstarted) == (1, 0)
        assert [event["id"] - OWN for event in watched if event.type == "EVENT_START"] == [
            1, 3, 4, 5,
        ]  # fmt: skip
        marks = [(event["number"], event["pid"]) for event in log.choose("MARK")]
        assert marks == [(n, os.getpid()) for n in (77, 2**64 - 1, 2**64 - 1)]
        *_, last = log.choose("KLOGGER_START")
        assert (last["buffer_bytes"], last["low_water_percent"]) == (1 << 20, 30)
        ended = {event["reason"] for event in log.choose("KLOGGER_FINISH")}
        assert ended == {"DISABLED", "ASKED"}
        assert (log.lost, log.problems) == (0, [])
    *_, whole = verify_folder(folder)
    assert whole.exit_code == 0
    counts = {row.name: row.in_file for row in whole.rows}
    assert (counts["EVENT_START"] >= 4, counts["EVENT_STOP"] >= 3) == (True, True)


def run(name: str, folder: Path) -> str:
    path = folder / name
    path.write_text(programs()[name])
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_of_the_document(tmp_path: Path) -> None:
    assert run("measure.py", tmp_path) == ""
    assert (tmp_path / "run" / "kernlog.dump.cpu0").exists()
    printed = run("analyse.py", tmp_path)
    assert re.search(r"^\d+ events lost$", printed, re.M)
    assert re.search(r"^BLOCKED: [1-9]\d* switches$", printed, re.M)
    waits = re.search(r"^(\d+) wake-ups, [\d.]+ us to the CPU \(median\)$", printed, re.M)
    assert waits is not None
    assert int(waits[1]) >= 5
    assert re.search(r"^[1-9]\d* events inside$", run("filters.py", tmp_path), re.M)
    printed = run("pairs.py", tmp_path)
    assert re.search(r"^[1-9]\d* naps, [\d.]+ ms on average", printed, re.M)
    assert re.search(r"^\d+ .*: [\d.]+ ms in [1-9]\d* slices$", printed, re.M)
