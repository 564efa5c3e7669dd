# SPDX-License-Identifier: Apache-2.0
"""The benchmark's page is made of results alone, whatever of them there is."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from test_bench_stats import add_lean, filled

from scripts.benchmark import drain, inkernel, rates, reading, scale, sizes, startup
from scripts.benchmark.main import MEASURES
from scripts.benchmark.report import markdown, sections
from scripts.benchmark.tables import SECTIONS
from scripts.experiments import program_runs
from scripts.experiments.report import print_results
from scripts.experiments.results import Results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results() -> Results:
    found = filled(default=80.0, perf=50.0)
    found.machine = {"CPU": "one | two"}
    found.add("slowdown", "records", "collect", 1000)
    add_lean(found, rates.LEAN, calls=1e6, records=1e6, lost=0.25, cpu_us=0.1, kernel_us=0.3)
    found.add(inkernel.NAME, f"{program_runs.EMPTY}, btf", "recorded", 60.0)
    found.add(inkernel.NAME, "SEGMENT_RECEIVED, btf", "recorded", 1020.0)
    found.add(inkernel.NAME, "SEGMENT_RECEIVED, btf", "filtered", 50.0)
    found.add(inkernel.NAME, f"{program_runs.EMPTY}, kprobe", "recorded", 60.0)
    found.add(inkernel.NAME, "CWND_UNDO, kprobe", "recorded", 1020.0)
    found.add(startup.NAME, startup.FIRST, startup.CACHED, 0.75)
    found.add(reading.NAME, reading.WALL, reading.PERF_SCRIPT, 5000.0)
    found.add(reading.NAME, reading.WALL, reading.READ, 100.0)
    for step in drain.STEPS:
        found.add(drain.NAME, f"drain, {step}", "classic", 40.0)
    found.add(sizes.NAME, sizes.SUBJECT, sizes.PARQUET, 23.0)
    found.add(scale.NAME, scale.LOST, "100,000", 7)
    found.skip(reading.NAME, reading.PARQUET, "no such command")
    return found


def test_page_has_every_section_that_was_measured(results: Results) -> None:
    page = markdown(results)
    assert set(SECTIONS) == set(MEASURES)
    for title, _ in SECTIONS.values():
        assert f"## {title}\n" in page
    for part in ("one \\| two", "| collect | 25.0 % | 0.25 |", "4 kB files: 0.25",
                 "Over loopback", "25.0 %", "Skipped: tcpkmon export"):
        assert part in page
    # Less an empty program (elsewhere than at tracepoints two): 1020 - 60; never below nothing.
    assert "| CWND_UNDO, kprobe | 900 | - | - | - |" in page
    assert "| SEGMENT_RECEIVED, btf | 960 | - | - | 0 |" in page
    assert "| classic | 40 | 40 | 80 | 12.50 |" in page
    assert "| 23.0 bytes (" in page and "50.0" in page


def test_page_of_nothing_says_that_nothing_was_measured() -> None:
    page = markdown(Results(quick=True))
    assert "quick run" in page
    assert page.count("not measured") >= 10
    assert not any(f"## {title}\n" in page for title, _ in SECTIONS.values())


def test_terminal_shows_the_same_tables(results: Results) -> None:
    shown = io.StringIO()
    results.skip(reading.NAME, reading.DECODE, "bad \x1b[31m news")
    console = Console(file=shown, width=200, markup=False, highlight=False)
    print_results(sections(results), results, console)
    text = shown.getvalue()
    assert "SEGMENT_RECEIVED, btf" in text and "12.50" in text
    assert "\x1b[31m" not in text


def test_saved_results_are_reported_without_measuring(results: Results, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(results.to_json())
    done = run_bench("--read", str(saved))
    assert done.returncode == 0, done.stderr
    assert "Record rate" in done.stdout
    saved.write_text("{}}")
    done = run_bench("--read", str(saved))
    assert done.returncode == 1
    assert done.stderr.startswith("bench: ") and "Traceback" not in done.stderr


def test_unknown_section_is_refused_before_anything_is_measured() -> None:
    done = run_bench("--only", "rates,nonsense", "--quick")
    assert done.returncode == 2
    assert "nonsense" in done.stderr and "slowdown" in done.stderr


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
