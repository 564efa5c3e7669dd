# SPDX-License-Identifier: Apache-2.0
"""The scenarios of tests/truth/why, each with any congestion control, captured for the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tests.truth.conform.plays import capturing
from tests.truth.why.main import UNSEEN
from tests.truth.why.scenarios import SCENARIOS
from tests.truth.why.stage import run

EACH = {one.name: one for one in (*SCENARIOS, *UNSEEN)}


def play(path: Path, name: str, algorithm: str) -> None:
    """The scenario of this name, of which the side is captured that `why` judges."""
    scenario = replace(EACH[name], congestion=algorithm, witness=None)
    with Lab(scenario.bottleneck, scenario.link) as lab:
        side = lab.b if scenario.receiver or scenario.from_b else lab.a
        with capturing(side, path):
            run(lab, scenario, scenario.seconds)
