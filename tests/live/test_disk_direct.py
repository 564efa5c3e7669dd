# SPDX-License-Identifier: Apache-2.0
"""Writes past the page cache on real file systems: the same bytes, and a full disk is survived."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.writer.direct_io import LEAST_BYTES, PIECE_BYTES, alignment
from tcpkmon.collector.writer.file_sink import Calls, FileSink
from tcpkmon.formats.verify import verify_file
from tests.full import first
from tests.live.faults import Collector, Flood, Space, check_flood, cpus, verify, wait_until
from tests.live.file_workload import PAGE, resident
from tests.unit.makers import CPUS, Maker

ENTRY_BYTES = 360
RATE = 50_000
"""Calls a second that a busy machine keeps up with, too."""


@contextmanager
def mounted(folder: Path, *arguments: str | Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", *arguments, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def ext4(folder: Path, size_bytes: int, *options: str) -> Iterator[Path]:
    """A file system of its own on a loop device."""
    image = folder / "image"
    with image.open("wb") as stream:
        stream.truncate(size_bytes)
    try:
        subprocess.run(["mkfs.ext4", "-q", *options, image], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mkfs.ext4")
    with mounted(folder / "disk", "-o", "loop", image) as disk:
        yield disk


@contextmanager
def overlay(folder: Path) -> Iterator[Path]:
    with ext4(folder, 256 << 20) as disk:
        for name in ("lower", "upper", "work"):
            (disk / name).mkdir()
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        with mounted(folder / "over", "-t", "overlay", "-o", options, "overlay") as over:
            yield over


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Path]:
    """A folder on a file system of this kind, with room for 200 MiB."""
    if kind == "tmpfs":
        with mounted(folder / "memory", "-t", "tmpfs", "-o", "size=256m", "tmpfs") as disk:
            yield disk
    elif kind == "overlay":
        with overlay(folder) as disk:
            yield disk
    else:
        with ext4(folder, 256 << 20, *kind.split()[1:]) as disk:
            yield disk


class Counting(Calls):
    """Counts what was written directly."""

    def __init__(self) -> None:
        self.direct_bytes = 0

    def write(self, fd: int, data: memoryview) -> int:  # type: ignore[override]
        count = os.write(fd, data)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            self.direct_bytes += count
        return count


@pytest.mark.parametrize("kind", first(3, [
    "ext4 -b 1024", "overlay", "tmpfs", "ext4", "ext4 -b 4096 -O bigalloc",
]))  # fmt: skip
def test_the_same_bytes_on_every_file_system(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(1)
    source = random.integers(0, 256, 8 << 20, np.uint8)
    expected, written = [], 0
    calls = Counting()
    with place(kind, tmp_path) as disk:
        path = disk / "file"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        possible = alignment(fd) != (0, 0)
        assert possible == (kind != "tmpfs")
        sink = FileSink(fd, ENTRY_BYTES, calls)
        for turn in range(60):
            most = (2 * LEAST_BYTES, LEAST_BYTES, 3 * PIECE_BYTES // 2)[turn % 3] // ENTRY_BYTES
            size = int(random.integers(1, most)) * ENTRY_BYTES
            start = int(random.integers(0, len(source) - size))
            piece = source[start : start + size]
            if turn % 2:
                # Where the disk can take it from.
                begin = written % mmap.PAGESIZE
                memory = np.frombuffer(mmap.mmap(-1, begin + size), np.uint8)
                memory[begin:], piece = piece, memory[begin:]
            expected.append(piece.tobytes())
            assert sink.write(piece.data).error is None
            written += size
            # Who reads while it grows sees all of it, read before or not.
            if turn % 7 == 0:
                assert sink.sync() is None
                with path.open("rb") as stream:
                    assert stream.read() == b"".join(expected)
            assert path.stat().st_size == written
        assert sink.close() is None
        assert path.read_bytes() == b"".join(expected)
    assert calls.direct_bytes > 0.9 * written if possible else not calls.direct_bytes


@pytest.mark.parametrize(
    "options", first(1, [(), (("-b", "1024"),)]), ids=["4 KiB blocks", "1 KiB blocks"]
)
def test_a_full_disk_is_proven_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> None:
    calls = Counting()
    monkeypatch.setattr(Calls, "write", lambda _, fd, data: calls.write(fd, data))
    with ext4(tmp_path, 24 << 20, *options) as disk:
        path = disk / "out.pm"
        maker = Maker(path, rotates=False)
        for turn in range(40):
            maker.records(1500, lose=turn % 2)
            maker.checkpoint()
            # When much waits, the page cache takes it.
            wait_until(lambda: maker.stream._spool._bytes < 4 << 20, "it is written")
        maker.close()
        report = verify_file(path)
        assert not report.problems, report.problems
        assert report.proven_end
        assert report.exit_code == 3
        assert report.totals.lost["disk full"] > 0
        assert report.totals.in_file + report.totals.lost["disk full"] == CPUS * 60_000
        assert calls.direct_bytes > 8 << 20
        assert path.stat().st_size > 0.7 * os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize


def resident_bytes(path: Path) -> int:
    """How much of a file is in the page cache."""
    with path.open("r+b") as stream:
        return resident(stream.fileno()) * PAGE


def test_a_capture_stays_out_of_the_page_cache(tmp_path: Path) -> None:
    with ext4(tmp_path, 256 << 20) as disk, Space() as space, Flood(space) as flood:
        path = disk / "out.pm"
        with Collector(
            "--netns", space.path, "--ports", str(flood.port), "--no-existing",
            "--locations", "RECEIVE_CALL", "-o", str(path),
        ).ready() as collector:  # fmt: skip
            for cpu in cpus():
                flood.begin(cpu, 60_000, RATE)
                flood.end()
            done = collector.finish()
        assert done.code == 0, done.stderr
        resident = resident_bytes(path)
        assert resident < path.stat().st_size / 4, (resident, path.stat().st_size)
        verify(path, 0)
        assert check_flood(path, flood) == sum(flood.totals().values())
