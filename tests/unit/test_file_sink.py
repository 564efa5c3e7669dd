# SPDX-License-Identifier: Apache-2.0
"""The file sink: whole entries or none, whatever the write calls answer."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from failing_calls import SHORT, FaultyCalls

from tcpkmon.collector.writer.file_sink import Calls, FileSink, cause_of
from tcpkmon.formats.base.control import LossCause

SIZE = 96


def entries(count: int, first: int = 0) -> bytes:
    return b"".join(bytes([(first + n) % 251]) * SIZE for n in range(count))


class Case:
    def __init__(self, path: Path, reserve_bytes: int = 0, direct: bool = True) -> None:
        self.path = path
        self.calls = FaultyCalls()
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(fd, b"header")
        self.sink = FileSink(fd, SIZE, self.calls, reserve_bytes, direct)

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()[6:]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    yield Case(tmp_path / "file")


def test_writes_after_what_is_there(case: Case) -> None:
    assert case.sink.end_bytes == 6
    assert case.sink.write(entries(3)).kept_bytes == 3 * SIZE
    assert case.sink.write(memoryview(entries(2, 3))).error is None
    assert case.data == entries(5)
    assert case.calls.counts["write"] == 2
    assert case.sink.close() is None
    assert case.path.read_bytes() == b"header" + entries(5)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_whole_entries_are_kept_and_writing_goes_on(case: Case, code: int) -> None:
    case.calls.fail("write", SHORT, 1)
    case.calls.fail("write", code, 2)
    outcome = case.sink.write(entries(20))
    kept = outcome.kept_bytes // SIZE
    assert outcome.error is not None and outcome.error.errno == code
    assert 0 < kept < 20
    assert case.data == entries(kept)
    assert case.sink.write(entries(4, kept)).error is None
    assert case.data == entries(kept + 4)


def test_half_an_entry_that_cannot_be_cut_off_is_cut_off_later(case: Case) -> None:
    case.calls.fail("write", SHORT, 1)
    case.calls.fail("write", errno.EIO, 2)
    case.calls.fail("ftruncate", errno.EIO)
    kept = case.sink.write(entries(20)).kept_bytes
    outcome = case.sink.write(entries(1))
    assert outcome.kept_bytes == 0 and outcome.error is not None
    case.calls.heal()
    assert case.sink.write(entries(3, kept // SIZE)).error is None
    assert case.data == entries(kept // SIZE + 3)


def test_errors_of_sync_and_close_come_back(case: Case) -> None:
    case.calls.fail("fsync", errno.EIO)
    error = case.sink.sync()
    assert error is not None and error.errno == errno.EIO
    case.calls.heal()
    case.calls.fail("close", errno.EIO)
    error = case.sink.close()
    assert error is not None and error.errno == errno.EIO


def test_reserve_is_kept_for_the_last_entries(tmp_path: Path) -> None:
    case = Case(tmp_path / "file", reserve_bytes=10 * SIZE)
    blocked = FullAt(6 + 30 * SIZE)
    case.calls.fallocate = blocked  # type: ignore[method-assign]  # what it fakes is the disk
    case.calls.limit_bytes = 6 + 30 * SIZE
    outcome = case.sink.write(entries(100))
    assert outcome.error is not None and outcome.error.errno == errno.ENOSPC
    assert outcome.kept_bytes == 20 * SIZE
    assert case.sink.write(entries(1, 20)).kept_bytes == 0
    assert case.sink.write(entries(10, 20), whole=True, reserved=True).error is None
    assert case.data == entries(30)
    assert case.sink.close() is None
    assert case.data == entries(30)


class FullAt:
    """An fallocate on a disk where the file may not grow beyond so many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes

    def __call__(self, fd: int, offset: int, length: int) -> None:
        if offset + length > self.limit_bytes:
            raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("allocates", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_a_limit_of_the_files_size_leaves_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocates: bool, direct: bool
) -> None:
    limit = 6 + 9000 * SIZE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    case = Case(tmp_path / "file", reserve_bytes=10 * SIZE, direct=direct)
    if not allocates:
        case.calls.fail("fallocate", errno.EOPNOTSUPP)
    outcome = case.sink.write(entries(20_000))
    assert outcome.error is not None and outcome.error.errno == errno.EFBIG
    assert outcome.kept_bytes == 8990 * SIZE
    assert case.sink.write(entries(2), whole=True).kept_bytes == 0
    assert case.sink.write(entries(10, 8990), whole=True, reserved=True).error is None
    assert case.sink.close() is None
    assert case.data == entries(9000)


def test_reserve_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sink = FileSink(os.open(path, os.O_RDWR | os.O_CREAT), SIZE, reserve_bytes=1 << 20)
    sink.write(entries(1))
    held = path.stat()
    assert held.st_size == SIZE
    sink.close()
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks <= max(held.st_blocks - 1024, 16)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_goes_without_a_reserve_where_there_is_none(tmp_path: Path, code: int) -> None:
    case = Case(tmp_path / "file", reserve_bytes=4096)
    case.calls.fail("fallocate", code)
    assert case.sink.write(entries(3)).error is None
    assert case.sink.write(entries(3, 3)).error is None
    assert case.calls.counts["fallocate"] == 1
    assert case.data == entries(6)


def test_pipes_take_all_and_their_end_is_raised() -> None:
    reader, writer = os.pipe()
    sink = FileSink(writer, SIZE, Calls())
    assert sink.write(entries(5)).error is None
    assert os.read(reader, 10_000) == entries(5)
    assert sink.sync() is None
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        sink.write(entries(1))
    assert sink.close() is None


def test_causes() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert cause_of(OSError(code, "")) == LossCause.DISK_FULL
    assert cause_of(OSError(errno.EIO, "")) == LossCause.WRITE_ERROR
