# SPDX-License-Identifier: Apache-2.0
"""Files that somebody removes, moves or replaces while they are written: found, counted, told."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tcpkmon.collector.session.rotating import Rotating
from tcpkmon.collector.writer.segment_folder import FolderGone
from tcpkmon.formats.base.segments import INDEX, find_segments, hidden, parse_name
from tcpkmon.formats.registry import format_of
from tests.unit.failing_calls import FaultyCalls
from tests.unit.makers import CPUS, LogMaker, Maker

MAKERS = [Maker, LogMaker]
LOG = "kernlog.dump.cpu"


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    is_folder = path.is_dir()
    delete(path)
    path.mkdir() if is_folder else path.write_bytes(b"another")


WAYS = [delete, rename, replace]


def part_of(maker: Maker | LogMaker) -> Path:
    assert maker.stream.segments is not None
    return maker.folder / hidden(maker.stream.segments.name)


def settle(maker: Maker | LogMaker) -> None:
    """Wait until all that was handed over is done."""
    done = threading.Event()
    maker.stream._spool.put_call(done.set)
    maker.stream._spool.flush()
    assert done.wait(30)


def numbers(folder: Path) -> list[tuple[int, bool]]:
    """Number of each segment, and whether it has its name."""
    return [(one.number, one.sealed) for one in find_segments(folder)]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_segment_that_is_gone_does_not_keep_the_others_from_their_names(
    tmp_path: Path, make: type[Maker | LogMaker], way: Callable[[Path], None]
) -> None:
    maker = make(tmp_path / "out")
    sealed: list[str] = []
    assert maker.stream.segments is not None
    maker.stream.segments.sealed = lambda name, _: sealed.append(name)
    maker.records(10)
    maker.rotate()
    settle(maker)
    name = maker.stream.segments.name
    maker.records(20)
    settle(maker)
    way(part_of(maker))
    for _ in range(3):
        maker.rotate()
        settle(maker)
        maker.records(5)
    maker.close()
    there = [found for found in numbers(tmp_path / "out") if found != (2, False)]
    assert there == [(1, True), (3, True), (4, True), (5, True)]
    assert len(sealed) == 4 and name not in sealed
    assert maker.stream.segments.unsealed == []
    assert maker.stream.gone == {name: 20 * CPUS}
    assert maker.stream.written.rotation_error is None
    lines = [json.loads(line) for line in (tmp_path / "out" / INDEX).read_text().splitlines()]
    (gone,) = (line for line in lines if line["what"] == "gone")
    assert (gone["name"], gone["number"], gone["records"]) == (name, 2, 20 * CPUS)
    assert len(lines) == 5
    for rest in (tmp_path / "out" / hidden(name), tmp_path / "out" / "elsewhere"):
        if rest.exists():
            delete(rest)
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 5
    assert f"{name} was removed, moved or replaced while it was written: it is missing" in [
        problem.what for problem in chain.problems
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_cpus_file_in_a_segment_that_is_gone_is_counted(
    tmp_path: Path, way: Callable[[Path], None]
) -> None:
    maker = LogMaker(tmp_path / "out")
    maker.records(10)
    settle(maker)
    assert maker.stream.segments is not None
    name = maker.stream.segments.name
    way(part_of(maker) / f"{LOG}1")
    maker.rotate()
    maker.records(5)
    maker.close()
    assert maker.stream.gone == {f"{name}/1": 10}
    assert numbers(tmp_path / "out") == [(1, True), (2, True)]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_gone_at_the_end_is_told(
    tmp_path: Path, make: type[Maker | LogMaker], way: Callable[[Path], None]
) -> None:
    path = tmp_path / "out"
    maker = make(path, rotates=False)
    maker.records(10)
    settle(maker)
    way(path / f"{LOG}0" if make is LogMaker else path)
    maker.close()
    assert maker.stream.gone == ({"0": 10} if make is LogMaker else {"": 10 * CPUS})


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rotates", [False, True])
def test_a_folder_that_is_moved_is_told(
    tmp_path: Path, make: type[Maker | LogMaker], rotates: bool
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    maker = make(above / "out", rotates=rotates)
    maker.records(10)
    settle(maker)
    above.rename(tmp_path / "moved")
    maker.close()
    gone = maker.stream.gone
    if rotates:
        assert gone == {"": 0} and numbers(tmp_path / "moved" / "out") == [(1, True)]
    else:
        assert gone == ({"0": 10, "1": 10} if make is LogMaker else {"": 10 * CPUS})


def test_a_folder_that_was_removed_and_made_again_ends_the_capture(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    maker.records(10)
    settle(maker)
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    failed: list[Exception] = []
    rotating = Rotating(None, maker.stream, maker.books, maker.clocks, fail=failed.append)
    maker.rotate()
    settle(maker)
    rotating._tell(maker.stream.written.rotation_error)
    assert len(failed) == 1 and isinstance(failed[0], FolderGone)
    assert "start the capture again" in str(failed[0])
    maker.close()
    (name,) = filter(None, maker.stream.gone)
    assert parse_name(name) is not None
    assert maker.stream.gone == {name: 10 * CPUS, "": 0}


def test_a_name_that_is_taken_keeps_no_other_segment_from_its_own(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    maker.records(10)
    settle(maker)
    assert maker.stream.segments is not None
    first = maker.stream.segments.name
    (tmp_path / "out" / first).write_text("mine")
    for _ in range(3):
        maker.rotate()
        settle(maker)
    maker.close()
    assert maker.stream.segments.unsealed == [first]
    assert (tmp_path / "out" / first).read_text() == "mine"
    assert [one for one in numbers(tmp_path / "out") if one[0] > 1] == [
        (2, True), (3, True), (4, True),
    ]  # fmt: skip


def test_what_a_full_disk_took_is_known_at_the_end(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out.pm", rotates=False)
    maker.records(10)
    settle(maker)
    calls = FaultyCalls()
    maker.stream._writer.files[0].sink._calls = calls
    calls.fail("write", errno.ENOSPC)
    maker.records(30)
    settle(maker)
    calls.heal()
    maker.close()
    assert maker.stream.disk_lost == 30 * CPUS
