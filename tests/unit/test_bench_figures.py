# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, the limits of CI, and what is shown of results."""

from __future__ import annotations

import io
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from scripts import markdown
from scripts.benchmark import rates, reading, slowdown, tables
from scripts.benchmark.main import MEASURES
from scripts.benchmark.release import FILE, MOST, figures, renew, slower_than_release, too_slow
from scripts.benchmark.results import (
    Results,
    standard_error,
)
from scripts.benchmark.slowdown import (
    WORK,
    deciding,
    mean_slowdown,
    scatter_of,
)

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
READER = "default record, reader / perf's"


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """scripts/bench as the Python of .venv runs it, without setting anything up."""
    return subprocess.run(
        [sys.executable, "-I", str(ROOT / "scripts" / "bench"), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def test_standard_error_is_that_of_the_median_of_normal_values() -> None:
    random.seed(1)
    medians, errors = [], []
    for _ in range(400):
        values = [random.gauss(3, 2) for _ in range(15)]
        medians.append(statistics.median(values))
        errors.append(standard_error(values))
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(medians), rel=0.15)
    assert math.isnan(standard_error([1.0]))


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


def scatter(results: Results, work: str, percents: float) -> None:
    """Three rounds without a tool beside the same without, which differ by so much."""
    for value in (-percents, 0.0, percents):
        results.add(slowdown.NAME, work, slowdown.bare(slowdown.OFF), 100.0)
        results.add(slowdown.NAME, work, slowdown.OFF, 100 / (1 + value / 100))


def test_what_scatters_decides_nothing() -> None:
    """Absent against absent: one work is steady, another is not, though its median is as good."""
    results = filled(default=90.0, perf=50.0)
    results.values[slowdown.NAME]["bulk transfer"][slowdown.DEFAULT] = [40.0]
    for work in WORK:
        scatter(results, work, 8.0 if work == "bulk transfer" else 2.0)
    assert scatter_of(results, "churn") == pytest.approx(0.02 / 1.349)
    assert set(deciding(results)) == set(WORK) - {"bulk transfer"}
    mean = mean_slowdown(results, slowdown.DEFAULT)
    assert mean is not None and mean.value == pytest.approx(1 / 9)
    text = shown(results)
    assert "5.9 %" in text and "150.0 %" in text, "it is printed all the same"
    results.quick = True
    assert deciding(results) == list(WORK)


def shown(results: Results) -> str:
    text = io.StringIO()
    tables.show(results, Console(file=text, width=240, markup=False, highlight=False))
    return text.getvalue()


def whole() -> Results:
    """Results of all sections, of a slowdown of 25 % where perf has 100 %."""
    results = filled(default=80.0, same=90.0, perf=50.0, filtered=98.0, off=99.0)
    results.machine = {"CPU model": "Xeon | 9", "date": "2026-11-23 10:00 UTC", "tree": "abc1234"}
    add_lean(results, rates.LEAN, calls=1e6, records=1e6, lost=0.25, cpu_us=0.1, kernel_us=0.3)
    for case, ns in ((reading.PERF_SCRIPT, 5000.0), (reading.READ, 100.0)):
        results.add(reading.NAME, reading.WALL, case, ns)
    for name in MEASURES:
        results.seconds[name] = 1.0
    return results


def test_a_run_writes_the_row_of_its_model_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "cost.md"
    page.write_text((DOCS / "cost.md").read_text())
    before = markdown.part_of(page, tables.SCRIPT).splitlines()
    tables.write_row(whole(), page)
    lines = markdown.part_of(page, tables.SCRIPT).splitlines()
    [row] = set(lines) - set(before)
    assert row == (
        "| Xeon \\| 9 | 2026-11-23 | abc1234 | 1.0 % | 25.0 % | 0.25 | 0.11 | 2.0 % "
        "| 0.30 + 0.10 us | - | 50.0 times |"
    )
    assert row.count(" | ") == before[0].count(" | ")
    # Measured again: the row is another.
    again = whole()
    again.machine["tree"] = "def5678"
    tables.write_row(again, page)
    text = page.read_text()
    assert text.count("Xeon \\| 9") == 1 and "def5678" in text
    assert not list(tmp_path.glob("*.new"))


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


def test_a_quick_run_exits_with_1_when_it_is_slower(tmp_path: Path) -> None:
    release = json.loads(FILE.read_text(encoding="utf-8"))
    model, known = next(iter(release.items()))
    results = quick(reader_us=0.5 * 2 * known[READER])
    results.machine["CPU model"] = model
    saved = tmp_path / "saved.json"
    saved.write_text(results.to_json())
    done = run_bench("--read", str(saved), "--quick")
    assert done.returncode == 1
    assert f"bench: too slow: {READER}" in done.stderr
    # Only a quick run has limits.
    assert run_bench("--read", str(saved)).returncode == 0
