# SPDX-License-Identifier: Apache-2.0
"""tcpkmon selftest: passes here, sees what is wrong, and is named in later captures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from capturing import ROOT, capturing

from tcpkmon.collector.commands import selftest_checks, selftest_traffic
from tcpkmon.collector.commands.selftest_checks import NOT_CAUSED, NOT_HERE, OK, WRONG

DRIVER = "from tcpkmon.collector.commands.tcpkmon import main; main()"


def test_all_is_well_here_and_the_next_capture_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_CACHE", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, "selftest", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    results = Counter(one["result"] for one in told["findings"])
    assert set(results) <= {OK, NOT_HERE, NOT_CAUSED}
    assert results[OK] >= 40
    assert {one["area"] for one in told["findings"]} == set(selftest_checks.AREAS)
    with capturing(tmp_path / "a.pm") as run:
        outcome = run.stop()
    named = outcome.capture.settings["selftest"]
    assert named["digest"] == told["digest"]
    assert named["results"] == dict(results)


def test_a_call_that_nobody_recorded_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application counts one call more, the kernel one retransmission more than there was."""
    make = selftest_traffic.Traffic.run

    def run(self: selftest_traffic.Traffic) -> selftest_traffic.Counts:
        counts = make(self)
        counts.exchanges["v4"].client.connections[0].sends += 1
        counts.exchanges["v6"].client.connections.pop()
        counts.kernel["a"]["RetransSegs"] += 1
        return counts

    monkeypatch.setattr(selftest_traffic.Traffic, "run", run)
    findings = selftest_checks.run(tmp_path, lambda text: None)
    wrong = {one.name for one in findings if one.result == WRONG}
    assert {"SEND_CALL", "RETRANSMIT", "DESTROY", "magnet: SOCK_SEND", "--addr", "-6"} <= wrong
    assert not wrong & {"RTO", "RESET_SENT", "-4", "--ports", "perf", "klogger"}
