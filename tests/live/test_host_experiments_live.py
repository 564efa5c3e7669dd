# SPDX-License-Identifier: Apache-2.0
"""The host's experiments in short: what is about time is measured, the rest must be as wanted.

The oracles of H1 to H6, U4 and U5 are in the tests of the schemata, test_condense.py and
test_monitor_live.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.experiments import running
from scripts.experiments.results import Results
from scripts.host import everything, floods, groups, mix, oracles, overhead, session
from scripts.host.page import EXPERIMENTS
from tests.live.experimenting import run_script
from tests.live.faults import FULL

pytestmark = pytest.mark.live


def run(folder: Path, *names: str) -> Results:
    """These experiments, one round of each in small sizes; none may fail to run."""
    results = Results(rounds=1, quick=True)
    measures = {name: EXPERIMENTS[name].measure for name in names}
    running.measure(results, measures, str(folder), ("cc", "ed", "groff"))
    assert running.is_whole(results), results.skipped
    return results


def check(results: Results, *names: str) -> None:
    """All figures of these are as wanted."""
    found = [one for name in names for one in EXPERIMENTS[name].figures(results)]
    assert found
    assert not [one for one in found if one.reached is False]


@pytest.mark.full
def test_u1_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"Benchmark I": (mix.CC_DRIVER, 10, mix.ed(2), mix.PWD, mix.fork(5), mix.CAT)}
    monkeypatch.setattr(mix, "BENCHMARKS", short)
    monkeypatch.setattr(overhead, "BENCHMARKS", short)
    results = run(tmp_path, "U1")
    for condition in overhead.CONDITIONS:
        for command in (f"Benchmark I: {name}" for name in (mix.CC_DRIVER.name, "pwd", "fork")):
            assert overhead.mean_s(results, command, condition) > 0
    assert overhead.events(results, 3) > 1000  # cc touches many pages
    assert overhead.events(results, 6) > 10  # a shell for each command and user, and fork's own


@pytest.mark.full
def test_u2_each_cell_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And H10: with everything on beside."""
    monkeypatch.setattr(session, "QUICK_SECONDS", 20.0 if FULL else 6.0)
    results = run(tmp_path, "U2", "H10")
    check(results, "U2", "H10")
    assert session.value(results, session.CELLS, "report") > 200
    for kind in ("light", "medium", "heavy"):
        assert session.value(results, session.DID, f"{kind} users' lines") >= 2
    for name in ("Light", "Medium", "Overall"):
        assert session.value(results, "Processes", name) > 0
    assert results.median(everything.NAME, everything.RECORDS, "SYSCALL_START")


def test_u3_oracles(tmp_path: Path) -> None:
    results = run(tmp_path, "U3")
    check(results, "U3")
    assert results.median("U3", "FORK: processes of /proc/stat", "ours") > oracles.QUICK_FORKS


@pytest.mark.full
def test_h8_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of page faults and of programs."""
    every = groups.floods

    @contextlib.contextmanager
    def some(
        folder: Path, missing: Callable[[int, str], None]
    ) -> Iterator[list[floods.Flood]]:
        with every(folder, missing) as found:
            yield [one for one in found if one.group in (3, 6)]

    monkeypatch.setattr(groups, "floods", some)
    monkeypatch.setattr(groups, "QUICK_TRIES", 2)
    results = run(tmp_path, "H8")
    for group, records in ((3, 2), (6, 3)):
        found = results.median("H8", groups.RECORDS, str(group))
        assert found is not None and found >= records, group
    on, off = (groups.cost_ns(results, 3, one) for one in (groups.ON, groups.OFF))
    assert on is not None and off is not None
    assert off < on / 2  # the events of perf are paused


@pytest.mark.full
def test_the_command(tmp_path: Path) -> None:
    run_script("host-experiments", tmp_path, EXPERIMENTS)
