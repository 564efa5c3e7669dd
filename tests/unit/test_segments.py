# SPDX-License-Identifier: Apache-2.0
"""A capture that rotates: each segment adds up alone, and nothing is between two of them."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from tcpkmon.collector.plan.rotation import Rotation, parse_command
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.segment_folder import OPEN, SEAL, SegmentFolder, Segments
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.quantities import parse_size
from tcpkmon.formats.base.segments import find_segments, hidden, name_segment, parse_name
from tcpkmon.formats.psc.pieces import look
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_file
from tests.unit.makers import CPUS, LOCATION, LogMaker, Maker, index_of, make

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
