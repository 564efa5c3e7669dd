# SPDX-License-Identifier: Apache-2.0
"""The tests of docs/ci.md, on this kernel: as it comes, and with the setting that one fails by."""

from __future__ import annotations

from pathlib import Path

from tests.live.ci_example import outcome, pause_in, start


def test_the_example_passes_and_fails(tmp_path: Path) -> None:
    outcome(start(tmp_path / "right", 1), 2, 0)
    text = outcome(start(tmp_path / "wrong", 0, "-k", "pause"), 0, 1)
    assert "FAILED snd_cwnd_segs <= 10 where" in text
    assert pause_in(tmp_path / "wrong").stat().st_size
