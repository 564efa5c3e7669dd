# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform in a guest: no false alarm with its kernel's congestion controls, and what breaks
rules for real breaks them there too. `scripts/test --truth conform` puts the counts into
docs/conformance.md."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.lab.endpoint import congestion_controls
from tests.truth.conform import breaks
from tests.truth.conform.matrix import Tally
from tests.truth.conform.plays import Judged, judge, play_all

_tallies: dict[str, Tally] = {}
_broken: dict[str, list[str]] = {}


def keep() -> None:
    """What was found so far, where the host reads it."""
    told = {"kernel": platform.release(), "broken": _broken,
            "tallies": {name: one.write() for name, one in _tallies.items()}}  # fmt: skip
    if folder := os.environ.get("TCPKMON_RESULTS"):
        Path(folder, "conform.json").write_text(json.dumps(told))


def tally_of(judged: Judged) -> Tally:
    made = Tally()
    made.add(judged)
    return made


@pytest.mark.parametrize("algorithm", ["cubic", "reno", "bbr"])
def test_transfers_keep_the_rules(algorithm: str, tmp_path: Path) -> None:
    subprocess.run(["modprobe", f"tcp_{algorithm}"], capture_output=True, check=False)
    if algorithm not in congestion_controls():
        pytest.skip(f"no {algorithm}")
    play_all(tmp_path / "run.pm", algorithm)
    found = judge(tmp_path / "run.pm")
    _tallies[algorithm] = tally_of(found)
    keep()
    if folder := os.environ.get("TCPKMON_RESULTS"):
        shutil.copy(tmp_path / "run.pm", Path(folder, f"{algorithm}.pm"))  # to be looked at
    # Not all are proven: on 7.x a program that is preempted may miss a record, which is told.
    assert not found.verdicts.broken(), [f"{x.rule.name}: {x}" for x in found.verdicts.breaks]
    kept = {rule: int(count) for rule, (count, _, _) in _tallies[algorithm].by_rule().items()}
    always = {"window", "order", "acked", "retransmit", "cwnd", "rto", "loss_window", "backoff"}
    assert not [name for name in always if not kept[name]], kept


@pytest.mark.parametrize("name", ["idle", "loss window", "many cuts"])
def test_what_breaks_a_rule(name: str, tmp_path: Path) -> None:
    found = breaks.play(tmp_path / "run.pm", name).verdicts
    one = breaks.BREAKS[name]
    broken = {x.rule.name for x in found.breaks}
    assert {*one.rules} <= broken <= {*one.rules, *one.may}
    _broken[name] = [*one.rules]
    keep()
