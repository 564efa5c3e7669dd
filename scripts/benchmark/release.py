# SPDX-License-Identifier: Apache-2.0
"""What a quick run costs beside perf, and beside the last release: the limits of CI.

release.json has the figures of the last release by CPU model. `scripts/bench --quick --release`
writes those of this machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from scripts.benchmark import rates, reading, slowdown
from scripts.benchmark.results import Results, number

FILE = Path(__file__).with_name("release.json")
MOST = 1.8
"""Times the release's figure: less than a doubling, more than noise in the lowest of the rounds."""
ENOUGH_RECORDS = 50_000
"""With fewer, the time is mostly the start of Python."""


def figures(results: Results) -> dict[str, float]:
    """By name. Times are divided by what a record of perf takes in the kernel in the same run.

    That differs least from run to run; perf's reader has often not begun when the flood ends.
    """
    lean, default = (
        {metric: rates.subject(flood, rates.ANY, metric) for metric in ("kernel_us", "cpu_us")}
        for flood in ("getppid", "receive")
    )
    perf = _lowest(results, rates.NAME, default["kernel_us"], rates.PERF_SOCKET)
    times = {
        "lean record, kernel": (rates.NAME, lean["kernel_us"], rates.LEAN),
        "lean record, reader": (rates.NAME, lean["cpu_us"], rates.LEAN),
        "default record, kernel": (rates.NAME, default["kernel_us"], rates.DEFAULT),
        "default record, reader": (slowdown.NAME, slowdown.READER, slowdown.DEFAULT),
        "perf's columns, reader": (slowdown.NAME, slowdown.READER, slowdown.COLUMNS),
    }
    found = {}
    for name, where in times.items():
        value = _lowest(results, *where)
        if value is not None and perf is not None and perf > 0:
            found[f"{name} / perf's"] = round(value / perf, 4)
    size = _lowest(results, slowdown.NAME, "bytes", slowdown.DEFAULT)
    if size is not None:
        found["default record, bytes"] = round(size, 1)
    return found


def _lowest(results: Results, section: str, subject: str, case: str) -> float | None:
    """The lowest of the rounds, which disturbances do not raise."""
    return min(results.all(section, subject, case), default=None)


def model_of(results: Results) -> str:
    return results.machine.get("CPU model", "unknown")


def renew(results: Results, file: Path = FILE) -> None:
    """Writes the figures of this machine's model; those of others stay."""
    known = _read(file)
    known[model_of(results)] = {"tree": results.machine.get("tree", ""), **figures(results)}
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _read(file: Path) -> dict[str, dict[str, float | str]]:
    found: dict[str, dict[str, float | str]] = {}
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
    return found


def slower_than_release(results: Results, file: Path = FILE) -> list[str]:
    """What costs MOST times as much as in the last release, on the same CPU model or more.

    Of an unknown model there is no verdict: the ratios depend on the CPU.
    """
    release = _read(file).get(model_of(results), {})
    problems = []
    for name, value in figures(results).items():
        before = release.get(name)
        if isinstance(before, float | int) and value > MOST * before:
            problems.append(
                f"{name}: {number(value)}, in the last release ({release.get('tree')}) "
                f"{number(float(before))}"
            )
    return problems


def too_slow(results: Results) -> list[str]:
    """What is several times slower than perf on the same machine, whatever its CPU.

    The margins are wide, as the machines of CI are shared. Without perf there is no verdict.
    """
    problems = []
    ours, perf = (slowdown.mean_cpu(results, one) for one in (slowdown.COLUMNS, slowdown.PERF))
    if ours is not None and perf is not None and ours > 2.5 * max(perf, 1.0):
        problems.append(
            f"TCP takes {number(ours)} times as much CPU under collect, "
            f"under perf {number(perf)} times"
        )
    lean, other = (rates.cost_of(results, one) for one in (rates.LEAN, rates.PERF_LEAN))
    if lean is not None and other is not None and sum(lean) > 5 * max(sum(other), 0.2):
        problems.append(
            f"a record of collect costs {number(sum(lean))} us, perf's {number(sum(other))}"
        )
    times = reading.faster_than_perf(results, reading.READ)
    read = results.median(reading.NAME, reading.RECORDS, reading.READ) or 0
    if times is not None and times < 0.5 and read > ENOUGH_RECORDS:
        problems.append(f"reading a record takes {number(1 / times)} times as long as perf's")
    return problems
