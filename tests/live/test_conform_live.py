# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform on transfers over a test link: no false alarm, and a setting that breaks a rule.

scripts/conform plays all paths with all congestion controls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.conform_plays import judge, play
from tcpkmon.formats.analysis.conform import RULES, Verdicts


def told(found: Verdicts) -> dict[str, int]:
    """How often each rule is kept; none is broken."""
    assert not found.broken(), [f"{one.rule.name}: {one}" for one in found.breaks]
    return {rule.name: int(found.total(rule)[0]) for rule in RULES}


@pytest.mark.parametrize(
    ("algorithm", "path", "judged"),
    [
        ("cubic", "outage", ("window", "cwnd", "growth", "loss_window", "backoff")),
        ("cubic", "pause", ("restart", "validation")),
    ],
)
def test_a_transfer_keeps_the_rules(
    algorithm: str, path: str, judged: tuple[str, ...], tmp_path: Path
) -> None:
    kept = told(play(tmp_path / "run.pm", path, algorithm))
    assert all(kept[name] for name in judged), kept


def test_without_slow_start_after_idle_a_rule_is_broken(tmp_path: Path) -> None:
    found = play(tmp_path / "run.pm", "pause", "cubic", {"tcp_slow_start_after_idle": "0"})
    assert {one.rule.name for one in found.breaks} == {"restart"}
    assert found.breaks[0].values["snd_cwnd_segs"][1] > 20
