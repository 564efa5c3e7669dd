# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform on transfers over a test link: no false alarm, and what breaks a rule for real.

scripts/test --truth conform plays all paths with all congestion controls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.formats.analysis.conform import RULES
from tests.full import first
from tests.truth.conform import breaks
from tests.truth.conform.control import Control, registered
from tests.truth.conform.plays import Judged, judge, play

ALWAYS = ("repair", "many cuts")
"""One of each kind; --full plays the others too."""


def told(found: Judged, column: int = 0) -> dict[str, int]:
    """How often each rule is kept (0) or broken (1)."""
    return {rule.name: int(found.verdicts.total(rule)[column]) for rule in RULES}


@pytest.mark.parametrize(
    ("algorithm", "path", "judged"),
    first(1, [
        ("cubic", "outage", ("window", "cwnd", "growth", "loss_window", "backoff")),
        ("reno", "marks", ("ssthresh", "once", "reduced", "recovery")),
        ("cubic", "pause", ("restart", "validation")),
        ("reno", "lost ends", ("probe",)),
        ("cubic", "both ways", ("sample",)),
    ]),
)
def test_a_transfer_keeps_the_rules(
    algorithm: str, path: str, judged: tuple[str, ...], tmp_path: Path
) -> None:
    play(tmp_path / "run.pm", path, algorithm)
    found = judge(tmp_path / "run.pm")
    assert not found.verdicts.broken(), [f"{x.rule.name}: {x}" for x in found.verdicts.breaks]
    kept = told(found)
    assert all(kept[name] for name in judged), kept


@pytest.mark.parametrize(
    "name",
    [
        name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full)
        for name in breaks.BREAKS
    ],
)
def test_what_breaks_a_rule(name: str, tmp_path: Path) -> None:
    """A setting, or a congestion control of our own, breaks this rule and no other."""
    found = told(breaks.play(tmp_path / "run.pm", name), 1)
    one = breaks.BREAKS[name]
    seen = {rule for rule, count in found.items() if count}
    assert {*one.rules} <= seen <= {*one.rules, *one.may}


@pytest.mark.full
def test_reno_of_our_own_breaks_none(tmp_path: Path) -> None:
    """The congestion control that is changed to break rules keeps them where it is not."""
    with registered(Control()) as name:
        play(tmp_path / "run.pm", "bursts of loss", name)
    found = judge(tmp_path / "run.pm", "reno")
    assert not found.verdicts.broken(), [f"{x.rule.name}: {x}" for x in found.verdicts.breaks]
    assert told(found)["recovery"] and told(found)["growth"]
