# SPDX-License-Identifier: Apache-2.0
"""docs/ci.md: its tests, on this kernel, and which setting explains that one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.ci_example import SETTING, outcome, pause_in, start


@pytest.mark.full
def test_a_setting_makes_an_assertion_fail_and_diff_names_it(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    runs = start(right, 1), start(wrong, 0, "-k", "pause")
    outcome(runs[0], 2, 0)
    text = outcome(runs[1], 0, 1)
    assert "FAILED snd_cwnd_segs <= 10 where bytes_acked >= 150000" in text
    assert ": 1 of 1 records break it" in text and "pause.pm" in text
    done = subprocess.run(
        [Path(sys.executable).with_name("tcpkmon"), "diff", f"right={pause_in(right)}",
         f"wrong={pause_in(wrong)}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = (line.split() for line in done.stdout.splitlines() if "net.ipv4" in line)
    assert row == [SETTING, "1", "0"]
