# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform in a guest: no false alarm with its kernel's congestion controls, and what breaks
rules for real breaks them there too. scripts/conform puts the counts into docs/conformance.md."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from scripts import conform_breaks
from scripts.conform_matrix import Tally
from scripts.conform_plays import PATHS, Judged, judge, play

_tallies: dict[str, Tally] = {}


def keep(algorithm: str, judged: Judged) -> None:
    """What was found so far, where the host reads it."""
    _tallies.setdefault(algorithm, Tally()).add(judged)
    told = {name: one.write() for name, one in _tallies.items()}
    if folder := os.environ.get("TCPKMON_RESULTS"):
        path = Path(folder) / "conform.json"
        path.write_text(json.dumps({"kernel": platform.release(), "tallies": told}))


@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
@pytest.mark.parametrize("path", PATHS)
def test_a_transfer_keeps_the_rules(algorithm: str, path: str, tmp_path: Path) -> None:
    play(tmp_path / "run.pm", path, algorithm)
    found = judge(tmp_path / "run.pm")
    keep(algorithm, found)
    assert found.verdicts.counts
    assert not found.verdicts.broken(), [f"{x.rule.name}: {x}" for x in found.verdicts.breaks]


@pytest.mark.parametrize("name", ["idle", "loss window", "many cuts"])
def test_what_breaks_a_rule(name: str, tmp_path: Path) -> None:
    found = conform_breaks.play(tmp_path / "run.pm", name).verdicts
    one = conform_breaks.BREAKS[name]
    broken = {x.rule.name for x in found.breaks}
    assert {*one.rules} <= broken <= {*one.rules, *one.may}
