# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up while capturing: counted, resumed when there is room, and a whole file."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.live.faults import (
    COUNTED,
    FORMS,
    Collector,
    Disk,
    Flood,
    balance,
    check_books,
    cpus,
    listen,
    verify,
    wait_until,
)

ENTRY_BYTES = 88
"""Of COUNTED at least."""


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk(768 << 10) as made:
        yield made


def start(flood: Flood, path: Path, *more: str, **options: Any) -> Collector:
    return Collector(
        "--netns", flood.space.path, "--ports", str(flood.port), "--no-existing", *COUNTED,
        *more, "-o", str(path), **options,
    )  # fmt: skip


def check(path: Path, flood: Flood) -> int:
    """The books of a copy; what the full disk cost."""
    report = verify(path, 3)
    check_books(path, flood, report)
    return sum(int(row["lost"].get("disk full", 0)) for row in balance(report).values())


@pytest.mark.parametrize("words", first(1, [(), (("--format", "klogger"),)]))
def test_a_limit_of_the_files_size_is_a_full_disk(
    flood: Flood, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "limited"
    limit = 2 << 20

    def restrict() -> None:
        listen()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with start(flood, path, *words, preexec_fn=restrict).ready() as collector:
        for cpu in cpus():
            flood.burst(cpu, limit // 64)
        collector.says("File too large; records are being lost, counted")
        done = collector.finish()
    assert done.code == 3 and "--fail-on-loss" in done.stderr, done.stderr
    report = format_of(path).verify(path)[-1]
    assert (report.exit_code, report.proven_end) == (3, True), report.verdict
    assert report.totals.lost.get("disk full", 0) > 0
    assert report.totals.attempts == report.totals.filtered + sum(flood.totals().values())


def size_of(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_and_room_again(flood: Flood, disk: Disk, tmp_path: Path, form: str) -> None:
    path = disk.path / "full"
    with start(flood, path, *FORMS[form]).ready() as collector:
        begun = size_of(path) + 100 * ENTRY_BYTES
        flood.burst(cpus()[0], 100)
        wait_until(lambda: size_of(path) >= begun, "records are in the file")
        ballast = disk.fill()
        flood.burst(cpus()[-1], 2_000)
        collector.says("No space left on device; records are being lost, counted")
        flood.burst(cpus()[0], 2_000)
        ballast.unlink()
        collector.says("writing goes on")
        held = size_of(path)
        flood.burst(cpus()[0], 500)
        wait_until(lambda: size_of(path) >= held + 500 * ENTRY_BYTES, "it is written again")
        done = collector.finish()
    assert done.code == 3, done.stderr
    assert "disk full" in done.lines[-2] and "--fail-on-loss" in done.lines[-1]
    lost = check(path, flood)
    assert 1_000 < lost <= 4_000
    print(f"{sum(flood.totals().values())} calls, {lost} lost to the full disk")


def test_a_disk_that_stays_full(flood: Flood, disk: Disk, tmp_path: Path) -> None:
    """The file is finished nonetheless: room for its last entries was kept."""
    path = disk.path / "full.pm"
    with start(flood, path, "--fail-on-loss").ready() as collector:
        for number in range(4):
            flood.burst(cpus()[number % len(cpus())], 10_000)
        collector.says("No space left on device; records are being lost, counted")
        done = collector.finish()
    assert done.code == 3, done.stderr
    assert check(path, flood) > 40_000 - (1 << 20) // ENTRY_BYTES
