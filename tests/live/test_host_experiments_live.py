# SPDX-License-Identifier: Apache-2.0
"""The host's experiments in short: what is about time is measured, the rest must be as wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.benchmark import running
from scripts.benchmark.results import Results
from scripts.host import floods, groups, mix, overhead
from scripts.host.experiments import EXPERIMENTS

pytestmark = pytest.mark.live


def run(folder: Path, *names: str) -> Results:
    """These experiments, one round of each in small sizes; none may fail to run."""
    results = Results(rounds=1, quick=True)
    measures = {name: EXPERIMENTS[name].measure for name in names}
    running.measure(results, measures, str(folder), ("cc", "ed", "groff"))
    assert running.is_whole(results), results.skipped
    return results


def test_u1_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"Benchmark I": (mix.CC_DRIVER, 10, mix.ed(2), mix.PWD, mix.fork(5), mix.CAT)}
    monkeypatch.setattr(mix, "BENCHMARKS", short)
    monkeypatch.setattr(overhead, "BENCHMARKS", short)
    results = run(tmp_path, "U1")
    for condition in overhead.CONDITIONS:
        for command in (f"Benchmark I: {name}" for name in (mix.CC_DRIVER.name, "pwd", "fork")):
            assert overhead.mean_s(results, command, condition) > 0
    assert overhead.events(results, 3) > 1000  # cc touches many pages
    # A shell for each command and user, and fork's own.
    assert overhead.events(results, 6) > 10


def test_h8_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "QUICK_TRIES", 1)
    for name, count in (("PAGES", 2000), ("TURNS", 100), ("READS", 100), ("PROGRAMS", 4)):
        monkeypatch.setattr(floods, name, count)
    results = run(tmp_path, "H8")
    least = {1: 2, 2: 0, 3: 2, 4: 2, 5: 3, 6: 3}  # START and END, or so, of each operation
    for group, records in least.items():
        if f"group {group}" not in results.skipped.get("H8", {}):
            found = results.median("H8", groups.RECORDS, str(group))
            assert found is not None and found >= records, group
            assert groups.cost_ns(results, group, groups.ON) is not None
