# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform in a guest: no false alarm with any congestion control of its kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.conform_plays import PATHS, judge, play


@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
@pytest.mark.parametrize("path", PATHS)
def test_a_transfer_keeps_the_rules(algorithm: str, path: str, tmp_path: Path) -> None:
    found = play(tmp_path / "run.pm", path, algorithm)
    assert found.counts
    assert not found.broken(), [f"{one.rule.name}: {one}" for one in found.breaks]
