# SPDX-License-Identifier: Apache-2.0
"""tcpkmon monitor and msmod on this kernel: on, counted forks, off, the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.history.names_1988 import NAMES
from tests.live.faults import as_nobody, run
from tests.unit.test_translate import old_records

FORKS = 40
TCPKMON = Path(sys.executable).with_name("tcpkmon")


def run_tcpkmon(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TCPKMON, *words], check=False, capture_output=True, text=True, **options
    )


def monitor(folder: Path, *words: str, answer: str = "") -> tuple[int, str]:
    done = run_tcpkmon("monitor", *words, cwd=folder, input=answer)
    return done.returncode, done.stdout


def test_on_off_and_the_report(tmp_path: Path) -> None:
    code, said = monitor(tmp_path, "-on", "-b", "4", "1048576", "-e", "6")
    assert code == 0
    assert said.splitlines()[1:] == [
        "Number of buffers to be used : 4", "Size of each buffer (bytes) : 1048576",
        "Output file name : monitor.out", "Events to be monitored are :", "6. Fork/Exit",
    ]  # fmt: skip
    try:
        assert monitor(tmp_path, "-on", "-f", "other")[1] == "MONITOR is already turned on\n"
        made = [os.spawnlp(os.P_NOWAIT, "true", "true") for _ in range(FORKS)]
        for pid in made:
            os.waitpid(pid, 0)
        status = monitor(tmp_path, "-s")[1]
        assert "Events being monitored are :\n6. Fork/Exit" in status
        assert "Size of each CPU's ring (bytes) : 4194304\n" in status
    finally:
        code, said = monitor(tmp_path, "-off")
    assert said == "MONITOR is turned OFF\nEvent data collected in file monitor.out\n"
    with open_log(tmp_path / "monitor.out") as log:
        forks = [event["child_pid"] for event in log.choose("FORK", where=["kind=PROCESS"])]
        exits = [event["tgid"] for event in log.choose("EXIT", where=["group_dead=1"])]
    assert set(made) <= set(forks) & set(exits)
    assert run_tcpkmon("verify", "monitor.out", cwd=tmp_path).returncode == 0
    report = run_tcpkmon("condense", "monitor.out", "--json", cwd=tmp_path)
    told = json.loads(report.stdout)
    assert told["process_life"]["count"] >= FORKS
    assert 0 < told["cpu"]["total"] <= 1
    assert run_tcpkmon(
        "translate", "--records-1987", "old", "monitor.out", cwd=tmp_path
    ).returncode in (0, 3)
    old = old_records((tmp_path / "old").read_bytes())
    began = [int.from_bytes(aux, "big") for head, aux in old if head[1] == 6 << 8]
    assert sorted(began) == sorted(forks)
    ended = [head[3] for head, _ in old if head[1] == 6 << 8 | 1]
    assert sorted(ended) == sorted(pid & 0xFFFF for pid in exits)
    assert monitor(tmp_path, "-on", answer="n\n")[0] == 2  # monitor.out exists, and is kept
    assert "not turned on" in monitor(tmp_path, "-s")[1]


def test_iscan_takes_the_log_level_it_needs(tmp_path: Path) -> None:
    words = [TCPKMON, "iscan", "bdwrite", "disc_io_id", "trap", "-o", "log", "--duration", "1s"]
    with subprocess.Popen([*words, "-q"], cwd=tmp_path) as scan:
        while scan.poll() is None:
            (tmp_path / "file").write_bytes(bytes(1 << 16))
            time.sleep(0.1)
    assert scan.returncode in (0, 3)
    with open_log(tmp_path / "log") as log:
        on = {one["name"] for one in log.choose("LOGGING_EVENT") if one["enabled"] == 1}
        mine = log.collector_pids
        assert len(mine) > 1, "its helpers too"
        assert all(e.get("tgid") not in mine for e in log.without_collector())
        logged = Counter(event.type for event in log)
    assert on == {"PAGE_DIRTY", "DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE", "TRAP"}
    said = run_tcpkmon("translate", "--names", "log", cwd=tmp_path).stdout.splitlines()
    printed = Counter(line.split()[0] for line in said)
    assert {name: printed[NAMES[name]] for name in on} == {name: logged[name] for name in on}
    assert logged["PAGE_DIRTY"]


def test_a_user_may_list_and_nothing_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become a user")

    listed = run(as_nobody("tcpkmon", "msmod", "-l"), cwd="/")
    assert listed.code == 0
    said = listed.stdout.decode()
    assert "setrq (ADD_TO_RUNQ): seconds, microseconds, pid<<16|priority<<8" in said
    assert "BKL_LOCK_FINISH: not on this kernel: no probe logs it" in said
    for words in (["monitor", "-on"], ["iscan", "swtch", "-o", "/tmp/nobodys-log"]):
        refused = run(as_nobody("tcpkmon", *words), cwd="/")
        assert refused.code != 0
        assert "needs root" in refused.stderr
