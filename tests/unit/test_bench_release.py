# SPDX-License-Identifier: Apache-2.0
"""The limits of CI: the figures of the last release, on the same CPU model."""

from __future__ import annotations

import json
from pathlib import Path

from test_bench_report import run_bench
from test_bench_stats import add_lean

from scripts.benchmark import rates, slowdown
from scripts.benchmark.release import FILE, MOST, figures, renew, slower_than_release
from scripts.experiments import interleaved
from scripts.experiments.results import Results

READER = "default record, reader / perf's"


def quick(reader_us: float = 0.3, bytes_a_record: float = 360.0) -> Results:
    """Rounds of which the last was disturbed."""
    results = Results(rounds=2, quick=True)
    results.machine = {"CPU model": "AMD EPYC", "tree": "abc"}
    kernel = rates.subject("receive", rates.ANY, "kernel_us")
    for micros, disturbed in ((reader_us, 0.5), (40.0, 7.0)):
        results.add(slowdown.NAME, interleaved.READER, slowdown.DEFAULT, micros)
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


def test_figures_of_a_release_are_those_of_a_quick_run() -> None:
    done = run_bench("--release")
    assert done.returncode == 2 and "--quick" in done.stderr
