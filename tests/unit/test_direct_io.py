# SPDX-License-Identifier: Apache-2.0
"""Direct writes: the same bytes in the file as without, whatever the calls and the disk answer."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_calls import SHORT, FaultyCalls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcpkmon.collector.writer import direct_io
from tcpkmon.collector.writer.direct_io import (
    BLOCK_BYTES,
    LEAST_BYTES,
    PIECE_BYTES,
    alignment,
)
from tcpkmon.collector.writer.file_sink import FileSink
from tests.full import examples

SIZE = 360
SECTOR_BYTES = 512


def entries(count: int, first: int = 0) -> bytes:
    """Entries that all differ, and of which no block is like another."""
    words = np.arange(first, first + count)[:, None] * 1000 + np.arange(SIZE // 8)
    return words.astype(np.uint64).tobytes()


def lying(data: bytes, place: int) -> memoryview:
    """The bytes where a direct write at this place of a file can take them from."""
    memory = mmap.mmap(-1, len(data) + 2 * BLOCK_BYTES)
    start = place % BLOCK_BYTES
    memory[start : start + len(data)] = data
    return memoryview(memory)[start : start + len(data)]


class Watched(FaultyCalls):
    """Notes of each write whether it was a direct one, and its size. `short`: so many of the next
    direct ones come to an end within a block, as on a disk with smaller sectors."""

    def __init__(self) -> None:
        super().__init__()
        self.direct: list[int] = []
        self.cached: list[int] = []
        self.refuse: OSError | None = None
        self.short = 0
        real = self.write

        def write(fd: int, data: memoryview) -> int:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            if flags & os.O_DIRECT:
                self.direct.append(len(data))
                assert np.frombuffer(data, np.uint8).ctypes.data % BLOCK_BYTES == 0
                assert len(data) % BLOCK_BYTES == 0
                assert os.lseek(fd, 0, os.SEEK_CUR) % BLOCK_BYTES == 0
                if self.refuse is not None:
                    raise self.refuse
                if self.short:
                    self.short -= 1
                    data = data[: len(data) // 2 // BLOCK_BYTES * BLOCK_BYTES + SECTOR_BYTES]
            else:
                self.cached.append(len(data))
            return int(real(fd, data))

        self.write = write  # type: ignore[method-assign]  # an instance's own


class Case:
    def __init__(self, path: Path, reserve_bytes: int = 0, **options: Any) -> None:
        self.path = path
        self.calls = Watched()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(self.fd, b"header")
        self.sink = FileSink(self.fd, SIZE, self.calls, reserve_bytes, **options)

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()[6:]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path / "file")
    if alignment(case.fd) == (0, 0):
        pytest.skip("no direct writes on the file system of temporary files")
    yield case
    os.close(case.fd)


def test_alignment_is_told_of_files_that_have_it(case: Case) -> None:
    memory_bytes, offset_bytes = alignment(case.fd)
    assert BLOCK_BYTES % memory_bytes == 0 and BLOCK_BYTES % offset_bytes == 0
    reader, writer = os.pipe()
    assert alignment(writer) == alignment(-1) == (0, 0)
    os.close(reader)
    os.close(writer)


def test_all_but_the_edges_is_written_directly(case: Case) -> None:
    count = (2 * PIECE_BYTES + LEAST_BYTES + BLOCK_BYTES) // SIZE + 1
    assert case.sink.write(entries(count)).kept_bytes == count * SIZE
    assert case.data == entries(count)
    assert case.calls.direct[:2] == [PIECE_BYTES] * 2
    assert case.calls.cached[0] == BLOCK_BYTES - 6
    assert sum(case.calls.cached) < 2 * BLOCK_BYTES
    # The next goes on where this one ended, within a block.
    assert case.sink.write(entries(count, count)).error is None
    assert case.data == entries(2 * count)
    assert not fcntl.fcntl(case.fd, fcntl.F_GETFL) & os.O_DIRECT


def test_no_direct_writes_where_the_kernel_tells_of_none() -> None:
    """tmpfs takes O_DIRECT and does without; a copy for it would be for nothing."""
    fd = os.memfd_create("file")
    calls = Watched()
    sink = FileSink(fd, SIZE, calls, reserve_bytes=0)
    assert sink.write(entries(10_000)).error is None
    assert os.pread(fd, 4_000_000, 0) == entries(10_000)
    assert not calls.direct
    sink.close()


def test_a_refused_flag_too(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refusing(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return int(real(fd, command, argument))

    monkeypatch.setattr(direct_io.fcntl, "fcntl", refusing)
    assert case.sink.write(entries(10_000)).error is None
    assert case.data == entries(10_000)
    assert not case.calls.direct


def test_threads_do_not_write_each_others_bytes(tmp_path: Path) -> None:
    cases = [Case(tmp_path / str(number)) for number in range(3)]

    def work(number: int) -> None:
        for turn in range(30):
            assert cases[number].sink.write(entries(2000, number + 10 * turn)).error is None

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, case in enumerate(cases):
        assert case.data == b"".join(entries(2000, number + 10 * turn) for turn in range(30))
        case.sink.close()


_Step = st.tuples(
    st.lists(st.integers(0, 300), min_size=1, max_size=4),  # entries of each piece
    st.booleans(),  # all or none
    st.booleans(),  # through the cache
    st.sampled_from([0] * 4 + [SHORT, errno.EINTR, errno.EINVAL, errno.ENOSPC, errno.EIO]),
    st.integers(1, 12),  # which call of write fails
)


@given(st.lists(_Step, max_size=25), st.sampled_from([0, 4096]))
@settings(
    max_examples=examples(120), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_any_course_leaves_what_the_outcomes_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Any], reserve_bytes: int
) -> None:
    """With small pieces, so that many of them meet."""
    monkeypatch.setattr(direct_io, "LEAST_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(direct_io, "PIECE_BYTES", 5 * BLOCK_BYTES)
    monkeypatch.setattr(direct_io, "_local", threading.local())
    case = Case(tmp_path / "file", reserve_bytes)
    known, number = b"", 0
    for counts, whole, cached, code, at in steps:
        pieces: list[bytes | memoryview] = []
        for count in counts:
            piece: bytes | memoryview = entries(count, number)
            if number % 2:
                piece = lying(piece, case.sink.end_bytes + sum(map(len, pieces)))
            pieces.append(piece)
            number += count
        case.calls.heal()
        if code == errno.EINVAL and not cached:
            case.calls.refuse = OSError(code, os.strerror(code))
        elif code == SHORT and at > 2:
            case.calls.short = at
        elif code:
            case.calls.fail("write", code, at)
        outcome = case.sink.write(*pieces, whole=whole, cached=cached)
        case.calls.refuse = None
        whole_bytes = sum(map(len, pieces))
        assert outcome.kept_bytes % SIZE == 0
        assert (outcome.kept_bytes == whole_bytes) == (outcome.error is None)
        if whole and outcome.error is not None:
            assert outcome.kept_bytes == 0
        known += b"".join(pieces)[: outcome.kept_bytes]
        number -= (whole_bytes - outcome.kept_bytes) // SIZE
        assert case.data == known
        assert case.sink.end_bytes == 6 + len(known)
        assert not fcntl.fcntl(case.fd, fcntl.F_GETFL) & os.O_DIRECT
    case.calls.heal()
    assert case.sink.close() is None
    assert case.data == known == entries(number)
