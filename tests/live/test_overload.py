# SPDX-License-Identifier: Apache-2.0
"""More events than the rings hold: entries and losses add up to the events that were made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.full import first
from tests.live.faults import (
    COUNTED,
    FORMS,
    FULL,
    GUEST,
    TIMEOUT_S,
    Collector,
    Flood,
    balance,
    check_books,
    cpus,
    verify,
    verify_by_command,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

SMALL = ("--buffer-size", "0.03")
SAID = ("not seen", "process 1 had", "2 log(s)")
"""Notes on kernels that run no program while process 1 has a CPU; of a folder."""


def arguments(flood: Flood, path: Path, *more: str) -> list[str]:
    where = ["--netns", flood.space.path, "--ports", str(flood.port)]
    return [*where, "--no-existing", *COUNTED, "-o", str(path), *more]


def check(path: Path, flood: Flood, report: dict[str, Any]) -> tuple[int, int]:
    """The books, and those of the rings."""
    entries, lost = check_books(path, flood, report)
    assert report["missed_total"] == 0
    # The rings counted the same losses themselves.
    rows = balance(report).values()
    assert report["ring_lost"] == sum(row["lost"].get("ring full", 0) for row in rows)
    assert [note for note in report["notes"] if not note.startswith(SAID)] == []
    return entries, lost


@pytest.mark.parametrize(("rings", "form"), first(2, [
    ("bpf", "psc"), ("perf", "klogger"), ("perf", "psc"), ("bpf", "klogger"),
]))  # fmt: skip
def test_overload(flood: Flood, tmp_path: Path, rings: str, form: str) -> None:
    path = tmp_path / "overload"
    bursts, size, stop_s = (20, 1_000_000, 1.0) if FULL else (4, 20_000 if GUEST else 50_000, 0.3)
    with Collector(
        *arguments(flood, path, *SMALL, "--fail-on-loss", "--rings", rings, *FORMS[form])
    ).ready() as collector:
        halted = threading.Event()
        for number in range(bursts):
            flood.begin(cpus()[number % len(cpus())], size)
            if number:
                flood.advance(1_000)
                collector.pause()
                halted.wait(stop_s)
                collector.resume()
            flood.end()
        done = collector.finish()
    assert done.code == 3, done.stderr
    assert "ring full" in done.stderr
    entries, lost = check(path, flood, verify(path, 3))
    assert entries and lost
    assert entries + lost == bursts * size
    print(f"overload: {bursts * size} calls = {entries} entries + {lost} lost")


def test_a_tail_of_losses(flood: Flood, tmp_path: Path, rings: str) -> None:
    """A burst that ends in losses, and nothing after it that could carry the news."""
    path = tmp_path / "tail.pm"
    with Collector(*arguments(flood, path, *SMALL, "--rings", rings)).ready() as collector:
        flood.burst(cpus()[0], 100)
        collector.pause()
        flood.burst(cpus()[0], 50_000)
        collector.resume()
        done = collector.finish()
    assert done.code == 0, done.stderr
    report = verify(path, 3)
    assert GUEST or report == verify_by_command(path, 3)
    entries, lost = check(path, flood, report)
    assert 100 < entries < 1_000  # 100, and no more than a ring holds
    assert entries + lost == 50_100


def test_a_steady_stream(flood: Flood, tmp_path: Path) -> None:
    path = tmp_path / "steady.pm"
    rate, seconds = (50_000, 60) if FULL else (1_000 if GUEST else 10_000, 5)
    with Collector(*arguments(flood, path)).ready() as collector:
        flood.begin(cpus()[-1], rate * seconds, rate)
        flood.advance(rate)  # a second's worth: buffers are grown by then
        before = collector.resident_bytes()
        flood.end()
        growth = collector.resident_bytes() - before
        done = collector.finish()
    assert done.code == 0, done.stderr
    report = verify(path, 0 if "lost: none" in done.stderr else 3)
    entries, lost = check(path, flood, report)
    assert entries + lost == rate * seconds
    # What passed in that time is rate * 80 bytes * seconds: a leak of it would show.
    assert growth < rate * (seconds - 1) * 80 / 2 + (1 << 20)
    print(f"steady {rate}/s for {seconds} s: {lost} lost, memory {growth / 1024:+.0f} KiB")
