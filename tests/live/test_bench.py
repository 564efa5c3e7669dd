# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench --quick`: tcpkmon has not become several times slower than perf record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmark import rates, slowdown
from scripts.benchmark.results import Results

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


def test_quick_benchmark_is_within_its_wide_limits(tmp_path: Path) -> None:
    saved = tmp_path / "bench.json"
    done = subprocess.run(
        [
            *(sys.executable, "-I", str(ROOT / "scripts" / "bench"), "--quick", "--rounds", "1"),
            *("--only", "slowdown,rates", "--json", str(saved), "--folder", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = Results.from_json(saved.read_text())
    assert json.loads(saved.read_text())["quick"] is True
    lean = rates.subject("getppid", rates.ANY, "records")
    assert (results.median(rates.NAME, lean, rates.LEAN) or 0) > 1000
    assert (results.median(slowdown.NAME, "records", slowdown.COLUMNS) or 0) > 1000
    # Filtered, or switched off: nothing is recorded, whatever the traffic.
    for case in (slowdown.FILTERED, slowdown.ATTACHED):
        assert results.all(slowdown.NAME, "records", case) == [0]
    assert "Slowdown of TCP traffic" in done.stdout
