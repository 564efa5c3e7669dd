# SPDX-License-Identifier: Apache-2.0
"""A capture that rotates: each segment adds up alone, and nothing is between two of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.plan.rotation import Rotation, parse_command
from tcpkmon.collector.session.rotating import Rotating
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.segment_folder import OPEN, SEAL, FolderGone, SegmentFolder, Segments
from tcpkmon.collector.writer.states import MOST
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import EXISTING, EndReason
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.quantities import parse_size
from tcpkmon.formats.base.segments import INDEX, find_segments, hidden, name_segment, parse_name
from tcpkmon.formats.psc.pieces import look
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_file
from tests.unit.failing_calls import FaultyCalls
from tests.unit.makers import CPUS, LOCATION, LogMaker, Maker, index_of, make
from tests.unit.test_takeover import Killed, cut

both = pytest.mark.parametrize("kind", [Maker, LogMaker])


def verify(folder: Path) -> list[Report]:
    """The reports of the segments and that of the chain, without a problem."""
    reports: list[Report] = format_of(folder).verify(folder)
    assert not any(report.problems for report in reports), [one.problems for one in reports]
    return reports


@pytest.mark.parametrize("lose", [0, 3])
def test_each_segment_adds_up_alone(tmp_path: Path, lose: int) -> None:
    paths = make(tmp_path / "out", segments=4, count=50, lose=lose)
    assert [parse_name(path.name).number for path in paths] == [1, 2, 3, 4]  # type: ignore[union-attr]
    reports = [verify_file(path) for path in paths]
    for report in reports:
        assert not report.problems, (report.path, report.problems)
        assert report.proven_end and report.exit_code == (3 if lose else 0)
        assert (report.totals.in_file, report.totals.attempts) == (50 * CPUS, (50 + lose) * CPUS)
        assert report.seq_lost == lose * CPUS
    assert [report.end_reason for report in reports] == ["rotated"] * 3 + ["asked"]
    last_seq, seen = 0, {cpu: 0 for cpu in range(CPUS)}
    for path in paths:
        with open_capture(path) as capture:
            assert int(capture.seq(0, 1)[0]) == last_seq + 1
            last_seq = int(capture.seq()[-1])
            snapshots = ~capture.control()
            for cpu in range(CPUS):
                serials = capture.column("serial")[snapshots & (capture.column("cpu") == cpu)]
                assert int(serials[0]) == seen[cpu] + lose + 1
                seen[cpu] = int(serials[-1])
    lines = index_of(tmp_path / "out")
    assert [(line["what"], line["name"]) for line in lines] == [
        ("sealed", path.name) for path in paths
    ]
    assert {(line["records"], line["lost"]) for line in lines} == {(50 * CPUS, lose * CPUS)}
    assert [line["bytes"] for line in lines] == [path.stat().st_size for path in paths]


@both
def test_records_that_wait_at_a_rotation_are_in_the_next_segment(
    kind: type[Maker], tmp_path: Path
) -> None:
    maker = kind(tmp_path / "out")
    for _ in range(3):
        maker.records(40, keep=7)
        maker.rotate()
    maker.records(40)
    maker.close()
    *reports, chain = verify(maker.folder)
    assert chain.exit_code == 0 and not any(report.lost_total for report in reports)
    assert [report.totals.in_file for report in reports] == [66, 80, 80, 94]
    assert [report.totals.pending for report in reports] == [14, 0, 0, -14]


def test_a_segment_is_hidden_until_it_has_its_end(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    maker.records(10)
    assert [path.name[0] for path in maker.paths] == ["."]
    maker.close()
    (path,) = maker.paths
    assert path.name[0] != "." and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750


def test_a_segment_may_be_sealed_while_it_is_read(tmp_path: Path) -> None:
    *_, sealed = make(tmp_path / "out", 2, 10)
    part = sealed.with_name(hidden(sealed.name))
    sealed.rename(part)
    header = look(part).header
    with open_capture(tmp_path / "out") as capture:
        part.rename(sealed)
        assert (capture.column("location") == LOCATION).sum() == CPUS * 2 * 10
    assert look(part).header == header


@both
def test_an_event_that_is_off_is_off_in_the_next_segment(kind: type[Maker], tmp_path: Path) -> None:
    maker = kind(tmp_path / "out")
    maker.records(5)
    maker.switch(0)
    maker.rotate()
    maker.switch(1)
    maker.rotate()
    maker.close()
    *reports, chain = verify(maker.folder)
    assert chain.exit_code == 0
    assert [bool(report.off) for report in reports] == [True, True, False]


def flip(path: Path, old: bytes, new: bytes) -> None:
    """Replace a text in the header, and mend the checksum."""
    from tcpkmon.formats.psc.header import KIND_CHECKSUM, decode_header

    data = path.read_bytes()
    _, size = decode_header(data, len(data))
    head = data[:size]
    assert head.count(old) == 1 and len(old) == len(new)
    head = head.replace(old, new)
    at = head.rindex(KIND_CHECKSUM.to_bytes(2, "big") + (8).to_bytes(2, "big")) + 4
    import zlib

    crc = zlib.crc32(head[:at] + bytes(4) + head[at + 4 :])
    path.write_bytes(head[:at] + crc.to_bytes(4, "big") + head[at + 4 :] + data[size:])


def test_a_forged_predecessor_does_not_add_up(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=2)
    with open_capture(paths[1]) as capture:
        last_seq = capture.settings["segment"]["previous"]["last_seq"]
    old, new = (f'"last_seq": {n},'.encode() for n in (last_seq, last_seq + 1))
    flip(paths[1], old, new)
    report = verify_file(paths[1])
    assert report.exit_code == 5
    assert any("not in order" in problem.what for problem in report.problems)


def test_no_link_is_followed_and_nothing_replaced(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    maker.records(5)
    name = maker.stream.segments.name  # type: ignore[union-attr]
    (tmp_path / "out" / name).write_text("mine")
    maker.close()
    assert (tmp_path / "out" / name).read_text() == "mine"
    assert (tmp_path / "out" / hidden(name)).exists()
    assert isinstance(maker.stream.written.rotation_error, OSError)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FileError, match="symbolic link"):
        Stream(STREAMS["psc"](), tmp_path / "link", rotates=True)


def test_the_folder_answers_for_segments_alone(tmp_path: Path) -> None:
    folder = SegmentFolder(tmp_path / "out")
    for name in ("../x.pm", "x.pm", "h-20261122T090000Z-000001.pm.zst", "a/b"):
        with pytest.raises(FileError, match="not the name of a segment"):
            folder.answer(OPEN, name.encode())
    with pytest.raises(FileError, match="not the name of a segment"):
        folder.answer(SEAL, b'{"name": "../../etc/passwd"}')
    folder.discard()
    assert os.listdir(tmp_path) == []


@both
def test_a_next_file_that_cannot_be_made_changes_nothing(kind: type[Maker], tmp_path: Path) -> None:
    """Of logs neither the folder, nor one file in it: then nothing of it stays."""
    maker = kind(tmp_path / "out")
    assert maker.stream.segments is not None
    ask, calls = maker.stream.segments.ask, list[int]()

    def refuse(request: int, data: bytes) -> int:
        calls.append(request)
        if request == OPEN and calls.count(OPEN) == 1:
            raise FileError("no room") from OSError(errno.ENOSPC, "No space left on device")
        if request == 3 and calls.count(3) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ask(request, data)

    maker.stream.segments.ask = refuse
    for _ in range(2 if kind is Maker else 3):
        maker.records(10)
        maker.rotate()
    maker.records(10)
    maker.close()
    *reports, chain = verify(maker.folder)
    assert chain.exit_code == 0
    assert [report.totals.in_file for report in reports] == [
        (20 if kind is Maker else 30) * CPUS, 10 * CPUS,
    ]  # fmt: skip
    assert kind is Maker or calls.count(2) == 1, "the folder of the second try was removed"
    assert maker.stream.written.segment == 2


def test_a_name_that_is_taken_is_that_of_the_next_second(tmp_path: Path) -> None:
    folder = SegmentFolder(tmp_path / "out")

    def deputy(request: int, data: bytes) -> int:
        try:
            return folder.answer(request, data)
        except OSError as error:
            raise FileError(str(error)) from OSError(error.errno, error.strerror)

    for ask in (folder.answer, deputy):
        first, second = (Segments("h", ".pm", ask) for _ in range(2))
        for each in (first, second):
            os.close(each.open(1, 10**9))
            each.begin()
        assert first.name < second.name
    assert len(os.listdir(tmp_path / "out")) == 4
    folder.discard()


def test_names(tmp_path: Path) -> None:
    name = name_segment("my host/..", 1_795_338_000 * 10**9, 42, ".pm")
    assert name == "my-host-..-20261122T090000Z-000042.pm"
    found = parse_name(hidden(name))
    assert found is not None and not found.sealed and found.number == 42 and found.name == name
    for other in ("index.jsonl", "a.pm", "h-20261122T090000Z-42.pm", name + ".part"):
        assert parse_name(other) is None, other
    assert name_segment("", 0, 1, ".pm").startswith("host-1970")
    assert parse_name(name_segment("ä" * 100, 0, 1, ".pm")) is not None
    (tmp_path / name).touch()
    (tmp_path / "other").touch()
    assert [segment.name for segment in find_segments(tmp_path)] == [name]


def test_sizes_and_commands() -> None:
    assert [parse_size(text) for text in ("100", "64K", "1.5M", "2GiB", "1 tb")] == [
        100, 65536, 3 << 19, 2 << 30, 1 << 40,
    ]  # fmt: skip
    for text in ("", "M", "-1", "1X", "1e3"):
        with pytest.raises(UsageError):
            parse_size(text)
    assert parse_command("gzip -9 'a b'") == ("gzip", "-9", "a b")
    for bad in ("", "'a"):
        with pytest.raises(UsageError):
            parse_command(bad)
    for wrong in (
        Rotation(keep_files=3), Rotation(size_bytes=10), Rotation(every_s=0.01),
        Rotation(every_s=1, keep_files=0),
        Rotation(every_s=1, on_rotate=("/no/such/command",)),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            wrong.check()
    assert EndReason.ROTATED == 6
    assert Segments


def test_control_entries_make_a_file_large_too(tmp_path: Path) -> None:
    """Members of the control group cause them: a file that has no records ends at its size too."""
    maker = Maker(tmp_path / "out")
    maker.records(5)
    before = maker.stream.segment_bytes
    for number in range(2000):
        maker.mark(number)
    maker.checkpoint()
    until_s, grown = time.monotonic() + 20, 1000 * maker.info.entry_size
    while maker.stream.segment_bytes < before + grown:
        assert time.monotonic() < until_s, maker.stream.segment_bytes
        time.sleep(0.01)
    maker.close()


STATE_CHANGE = 4


def connections(maker: Maker, *numbers: int, **columns: Any) -> None:
    """A record of each of these connections on CPU 0 (and as many of CPU 1, of none)."""
    maker.columns = {"conn_id": np.array(numbers), **columns}
    maker.records(len(numbers))
    maker.columns = {}


def states_of(path: Path) -> dict[int, Any]:
    with tcpkmon.open(path) as capture:
        rows = capture.columns(("conn_id", "location", "snd_cwnd", "callvalue", "serial", "cpu"))
        found = rows["location"] == EXISTING
        assert set(rows["cpu"][found].tolist()) <= {CPUS}
        return dict(zip(rows["conn_id"][found].tolist(), rows["snd_cwnd"][found].tolist(),
                        strict=True))  # fmt: skip


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "out")


def test_each_later_segment_begins_with_what_is_open(maker: Maker) -> None:
    connections(maker, 7, 9, 7, 12, snd_cwnd=np.array([1, 2, 3, 4]))
    maker.rotate()
    closed = {"location": STATE_CHANGE, "callvalue": 7}
    connections(maker, 9, **closed)
    connections(maker, 13, snd_cwnd=5)
    maker.rotate()
    maker.rotate()
    maker.close()
    paths = maker.paths
    found = [states_of(path) for path in paths]
    assert found == [{}, {7: 3, 9: 2, 12: 4}, {7: 3, 12: 4, 13: 5}, {7: 3, 12: 4, 13: 5}]
    for path, states in zip(paths, found, strict=True):
        report = verify_file(path)
        assert report.exit_code == 0 and not report.existing, (report.verdict, report.problems)
        told = f"it repeats the last record before it of {len(states)} connections that were open"
        assert report.window == ([told] if states else [])
        row = {row.cpu: row for row in report.rows if row.location == EXISTING}
        assert sum(one.in_file for one in row.values()) == len(states)
    *_, chain = format_of(maker.folder).verify(maker.folder)
    assert chain.exit_code == 0 and not chain.existing, (chain.verdict, chain.problems)


def test_a_folder_has_them_once_without_a_gap(maker: Maker) -> None:
    connections(maker, 7, 9)
    maker.rotate()
    connections(maker, 7)
    maker.rotate()
    connections(maker, 9)
    maker.close()
    first, second, third = maker.paths
    with open_capture(maker.folder) as capture:
        plain = ~capture.control()
        assert not np.isin(capture.column("location"), [EXISTING]).any()
        assert capture.column("conn_id")[plain & (capture.column("cpu") == 0)].tolist() == [
            7, 9, 7, 9,
        ]  # fmt: skip
        assert capture.lost == 0 and not capture.warnings
        seq = capture.seq().astype(np.int64)
        assert (np.diff(seq) == 1).all()
        assert capture.complete
    with open_capture(second, third) as capture:  # the first of them keeps its own
        assert (capture.column("location") == EXISTING).sum() == 2 and capture.lost == 0
    with open_capture(first, third) as capture:  # one is missing: what it had is repeated
        assert (capture.column("location") == EXISTING).sum() == 2


def test_what_is_repeated_is_bounded_by_the_size_of_a_segment(maker: Maker) -> None:
    connections(maker, *range(1, 401))
    maker.stream.rotate(maker.books(), maker.clocks.read(), "size")
    maker.close()
    _, path = maker.paths
    states = states_of(path)
    # The latest; 800 records were in the file, and a quarter of that may be repeated.
    assert sorted(states) == list(range(201, 401))
    assert "of 200 of 400 connections" in verify_file(path).window[0]


def test_connections_that_share_a_place(maker: Maker) -> None:
    connections(maker, 5, 5 + MOST, 6)
    maker.rotate()
    maker.close()
    assert sorted(states_of(maker.paths[1])) == [6, 5 + MOST]


def test_what_a_full_disk_takes_of_them_is_counted(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections(maker, *range(1, 101))
    writer = maker.stream._writer
    from tcpkmon.collector.writer import file_sink

    write = file_sink.FileSink.write

    def fail(self: Any, *data: Any, **named: Any) -> Any:
        size = sum(memoryview(one).nbytes for one in data)
        if size == 100 * maker.dtype.itemsize:
            write(self, memoryview(data[0])[: 40 * maker.dtype.itemsize], **named)
            return file_sink.Outcome(40 * maker.dtype.itemsize, OSError(28, "full"))
        return write(self, *data, **named)

    real = writer._repeat

    def narrow(states: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(file_sink.FileSink, "write", fail)
            real(states)

    monkeypatch.setattr(writer, "_repeat", narrow)
    maker.rotate()
    maker.stream._spool.flush()
    maker.close()
    *parts, chain = format_of(maker.folder).verify(maker.folder)
    assert not chain.problems, [one.problems for one in parts]
    assert chain.totals.lost["disk full"] >= 60
    with open_capture(maker.folder) as capture:
        assert not np.isin(capture.column("location"), [EXISTING]).any()


def test_a_header_that_lies_hides_nothing(maker: Maker) -> None:
    from tests.unit.test_segments import flip

    connections(maker, 7, 9)
    maker.rotate()
    connections(maker, 7)
    maker.close()
    with open_capture(maker.paths[1]) as capture:
        row = capture.settings["segment"]["states"]["row"]
    old, new = (f'"states": {{"row": {n},'.encode() for n in (row, row + 2))
    flip(maker.paths[1], old, new)
    with open_capture(maker.folder) as capture:
        rows = capture.column("location") == LOCATION
        assert int(rows.sum()) == 3 * CPUS


@pytest.mark.parametrize("short", [0, 10, 11])
def test_a_capture_that_goes_on_after_a_kill_adds_up(tmp_path: Path, short: int) -> None:
    """The next process counts on from what was repeated: 2 states, then 10 records."""
    killed = Killed(tmp_path / "a")
    connections(killed, 7, 9)
    killed.checkpoint()
    killed.rotate()
    killed.columns = {"conn_id": 9}
    killed.records(5)
    killed.wait()
    cut(killed.folder, tmp_path / "b", short * killed.dtype.itemsize)
    killed.go_on(tmp_path / "b", killed.notes(), 0)
    killed.rotate()
    killed.close()
    *parts, chain = format_of(tmp_path / "b").verify(tmp_path / "b")
    assert chain.exit_code == 0, (chain.problems, [one.problems for one in parts])
    paths = [one.path(tmp_path / "b") for one in find_segments(tmp_path / "b")]
    # The new process repeats what it put into the file itself.
    states = [sorted(states_of(path)) for path in paths]
    assert states == [[], [7, 9][: 2 - (short > 10)], [9] if short else []]


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
