# SPDX-License-Identifier: Apache-2.0
"""The index of a folder is made shorter, and says the same: also when that is killed, while others
add lines, and of several captures."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session import short_index
from tcpkmon.collector.session.retention import Retention
from tcpkmon.collector.session.short_index import shorten
from tcpkmon.collector.writer.own_files import append_line
from tcpkmon.formats.anonymise.run import anonymise
from tcpkmon.formats.base.segments import INDEX, NEW_INDEX, find_segments, name_segment
from tcpkmon.formats.psc.pieces import find_files
from tcpkmon.formats.registry import format_of
from tests.unit.makers import Maker, index_of, make
from tests.unit.test_anonymise import who


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def retain(folder: Path, count: int) -> None:
    with opened(folder) as fd:
        Retention(Rotation(every_s=1, keep_files=count), fd).apply()


def verified(folder: Path) -> tuple[int, list[str], list[str]]:
    """Exit code, notes and problems of the folder's captures."""
    chains = [each for each in format_of(folder).verify(folder) if each.path == str(folder)]
    assert chains
    return (
        max(each.exit_code for each in chains),
        sorted(note for each in chains for note in each.notes),
        sorted(problem.what for each in chains for problem in each.problems),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Segments 1 to 9, of which 7 to 9 are there."""
    made = tmp_path / "out"
    make(made, segments=9, count=5)
    retain(made, 3)
    return made


def test_the_index_of_a_capture_that_rotates_for_long_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcpkmon.collector.session.retention.INDEX_BYTES", 3000)
    folder, sizes = tmp_path / "out", []
    maker = Maker(folder)
    maker.records(5)
    with opened(folder) as fd:
        retention = Retention(Rotation(every_s=1, keep_files=3), fd)
        for number in range(2, 61):
            maker.rotate()
            maker.records(5)
            flush(maker, number)
            retention.apply()
            sizes.append((folder / INDEX).stat().st_size)
        maker.close()
        assert len(retention.sealed()) == 4
    assert max(sizes) < 4500, sizes
    code, notes, problems = verified(folder)
    assert (code, problems) == (0, [])
    assert "56 segment(s) were deleted, as index.jsonl says: 1-56" in notes
    assert find_files(folder)[1] == ""


def flush(maker: Maker, number: int) -> None:
    until_s = time.monotonic() + 30
    while maker.folder.joinpath(INDEX).exists() is False or not any(
        one.number == number and not one.sealed for one in find_segments(maker.folder)
    ) or not any(line["number"] == number - 1 for line in index_of(maker.folder)):
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_what_is_missing_is_found(folder: Path) -> None:
    before = verified(folder)
    assert before[0] == 0
    with opened(folder) as fd:
        shorten(fd)
    lines = [line for line in index_of(folder) if line["what"] == "deleted"]
    assert [(line["first"], line["number"]) for line in lines] == [(1, 6)]
    assert len(index_of(folder)) == 4
    assert verified(folder) == before
    gone = next(folder.glob("*-000008.pm"))
    gone.unlink()
    assert verified(folder)[2] == [f"{gone.name} is missing"]
    with opened(folder) as fd:
        shorten(fd)
    assert verified(folder)[2] == [f"{gone.name} is missing"]
    assert find_files(folder)[1] == "segment 8 is missing"


def test_a_segment_that_could_not_be_deleted_keeps_its_lines(folder: Path) -> None:
    """Its deletion is tried again."""
    lines = index_of(folder)
    (last,) = (line for line in lines if line["what"] == "sealed" and line["number"] == 9)
    with opened(folder) as fd:
        append_line(fd, {**last, "what": "deleted"})
        shorten(fd)
    assert [line["what"] for line in index_of(folder) if line["number"] == 9] == [
        "sealed", "deleted",
    ]  # fmt: skip
    retain(folder, 1)
    assert [one.number for one in find_segments(folder)] == [9]


def test_captures_in_one_folder_and_one_that_is_written(folder: Path) -> None:
    for _ in range(2):
        make(folder, segments=3, count=5)
    writing = Maker(folder)
    writing.records(5)
    retain(folder, 2)
    before = verified(folder)
    with opened(folder) as fd:
        shorten(fd)
        shorten(fd)
    assert verified(folder) == before
    assert not before[2]
    deleted = [line for line in index_of(folder) if line["what"] == "deleted"]
    assert [line.get("first", line["number"]) for line in deleted] == [1, 1, 1]
    assert len({line["capture"] for line in deleted}) == 3
    writing.rotate()
    writing.records(5)
    writing.close()
    assert verified(folder)[0] == 0


def test_a_copy_without_names_has_its_runs(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as fd:
        shorten(fd)
    anonymise(folder, tmp_path / "new", who())
    code, notes, problems = verified(tmp_path / "new")
    assert (code, problems) == (0, [])
    assert "6 segment(s) were deleted, as index.jsonl says: 1-6" in notes


STEPS = ["open", "unlink", "fchmod", "fchown", "fsync", "rename"]


def test_a_kill_at_each_step_leaves_an_index_that_says_the_same(folder: Path) -> None:
    whole, before = (folder / INDEX).read_bytes(), verified(folder)
    (folder / INDEX).chmod(0o640)
    ends = set()
    for step in STEPS:
        for after in (False, True):
            for at in range(1, 3):
                (folder / INDEX).write_bytes(whole)
                ends.add((step, killed(folder, step, at, after)))
                assert verified(folder) == before, (step, at, after)
                assert (folder / INDEX).stat().st_mode & 0o777 == 0o640
    assert {step for step, was_killed in ends if was_killed} == set(STEPS)
    with opened(folder) as fd:  # what a killed one left is in nobody's way
        shorten(fd)
    assert len(index_of(folder)) == 4 and not (folder / NEW_INDEX).exists()


def killed(folder: Path, step: str, at: int, after: bool) -> bool:
    """Shorten it in a process that is killed at the at-th call of this name, before or after it."""
    child = os.fork()
    if not child:
        real: Callable[..., Any] = getattr(os, step)
        count = 0

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*arguments, **named)
            finally:
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        fd = os.open(folder, os.O_RDONLY)
        setattr(os, step, call)
        shorten(fd)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("step", ["fchown", "fsync", "rename", "find"])
def test_a_line_that_is_added_meanwhile_stays(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {**index_of(folder)[-1], "number": 10, "what": "sealed"}
    line["name"] = line["name"].replace("000006", "000010")
    module = short_index if step == "find" else os
    name = "find_segments" if step == "find" else step
    real = getattr(module, name)
    with opened(folder) as fd:

        def add(*arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(module, name, real)
            append_line(fd, line)
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, add)
        shorten(fd)
    assert len(index_of(folder)) == 5 and line in index_of(folder)
    assert verified(folder)[2] == [f"{line['name']} is missing"]


def test_another_process_made_it_shorter(folder: Path) -> None:
    """Retention goes by the lines that were added since, in whichever file."""
    with opened(folder) as fd:
        retention = Retention(Rotation(every_s=1, keep_files=3), fd)
        assert retention.apply() == []
        shorten(fd)
        paths = make(folder, segments=12, count=2)  # now it is longer than it was
        assert len(retention.apply()) == 12
    assert [one.path(folder) for one in find_segments(folder)] == paths[-3:]


def test_nothing_is_done_where_another_holds_it(folder: Path) -> None:
    import fcntl

    before = (folder / INDEX).read_bytes()
    with opened(folder) as fd, (folder / INDEX).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError):
            shorten(fd)
    assert (folder / INDEX).read_bytes() == before


def test_a_forged_run_is_no_work(folder: Path) -> None:
    capture = index_of(folder)[0]["capture"]
    name = name_segment("h", 0, 1, ".pm")
    lines = [
        {"what": "deleted", "name": name, "capture": capture, "first": first, "number": 10**15}
        for first in (-(10**15), 1, 10**16, 7)
    ]
    with (folder / INDEX).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    began_s = time.monotonic()
    assert verified(folder)[0] == 0
    next(folder.glob("*-000008.pm")).unlink()
    assert "000008.pm is missing" in verified(folder)[2][0]  # its own line says that it was sealed
    assert time.monotonic() - began_s < 10
