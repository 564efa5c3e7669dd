# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, the limits of CI, and what is shown of results."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from scripts.benchmark import rates, slowdown, tables
from scripts.benchmark.release import MOST, figures, renew, slower_than_release, too_slow
from scripts.benchmark.results import (
    Results,
)
from scripts.benchmark.slowdown import (
    WORK,
)

READER = "default record, reader / perf's"


def filled(**rate_of: float) -> Results:
    """Results in which the bare work does 100 a second, and each named case what is given."""
    names = {"default": slowdown.DEFAULT, "same": slowdown.COLUMNS, "perf": slowdown.PERF,
             "filtered": slowdown.FILTERED, "off": slowdown.ATTACHED}  # fmt: skip
    results = Results(rounds=1)
    for short, rate in rate_of.items():
        case = names[short]
        for subject in WORK:
            cpu = slowdown.cpu_subject(subject)
            results.add(slowdown.NAME, subject, slowdown.bare(case), 100.0)
            results.add(slowdown.NAME, subject, case, rate)
            results.add(slowdown.NAME, cpu, slowdown.bare(case), 1.0)
            results.add(slowdown.NAME, cpu, case, 100.0 / rate)
    return results


def add_lean(results: Results, case: str, **metrics: float) -> None:
    for metric, value in metrics.items():
        results.add(rates.NAME, rates.subject("getppid", rates.ANY, metric), case, value)


def shown(results: Results) -> str:
    text = io.StringIO()
    tables.show(results, Console(file=text, width=240, markup=False, highlight=False))
    return text.getvalue()


def test_ci_fails_only_on_what_is_several_times_slower() -> None:
    assert too_slow(Results()) == []
    assert too_slow(filled(same=50.0, perf=80.0)) == []
    assert len(too_slow(filled(same=20.0, perf=80.0))) == 1
    results = Results(rounds=1)
    add_lean(results, rates.PERF_LEAN, cpu_us=0.2, kernel_us=0.8)
    add_lean(results, rates.LEAN, cpu_us=0.2, kernel_us=1.8)
    assert too_slow(results) == []
    results = Results(rounds=1)
    add_lean(results, rates.PERF_LEAN, cpu_us=0.2, kernel_us=0.8)
    add_lean(results, rates.LEAN, cpu_us=5.0, kernel_us=0.8)
    assert len(too_slow(results)) == 1


def quick(reader_us: float = 0.3, bytes_a_record: float = 360.0) -> Results:
    """Rounds of which the last was disturbed."""
    results = Results(rounds=2, quick=True)
    results.machine = {"CPU model": "AMD EPYC", "tree": "abc"}
    kernel = rates.subject("receive", rates.ANY, "kernel_us")
    for micros, disturbed in ((reader_us, 0.5), (40.0, 7.0)):
        results.add(slowdown.NAME, slowdown.READER, slowdown.DEFAULT, micros)
        results.add(slowdown.NAME, "bytes", slowdown.DEFAULT, bytes_a_record)
        results.add(rates.NAME, kernel, rates.PERF_SOCKET, disturbed)
    add_lean(results, rates.LEAN, cpu_us=0.05)
    return results


def test_figures_are_the_lowest_of_the_rounds_beside_perfs() -> None:
    assert figures(quick()) == {
        "lean record, reader / perf's": 0.1, READER: 0.6, "default record, bytes": 360.0,
    }  # fmt: skip
    without_perf = quick()
    del without_perf.values[rates.NAME]
    assert figures(without_perf) == {"default record, bytes": 360.0}


def test_twice_the_release_fails_and_noise_does_not(tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    assert slower_than_release(quick(), file) == [], "no release yet"
    renew(quick(), file)
    assert slower_than_release(quick(reader_us=0.3 * MOST), file) == []
    [problem] = slower_than_release(quick(reader_us=0.6), file)
    assert problem == f"{READER}: 1.20, in the last release (abc) 0.60"
    [problem] = slower_than_release(quick(bytes_a_record=720), file)
    assert "bytes" in problem


def test_another_cpu_has_figures_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    renew(quick(), file)
    other = quick(reader_us=3.0)
    other.machine = {"CPU model": "Intel Xeon", "tree": "def"}
    assert slower_than_release(other, file) == []
    renew(other, file)
    assert set(json.loads(file.read_text())) == {"AMD EPYC", "Intel Xeon"}
    assert len(slower_than_release(quick(reader_us=3.0), file)) == 1
