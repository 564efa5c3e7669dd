# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files that rotate: each verifies alone, the chain adds up, the folder is read as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.session.archive import Archive
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.commands.decode import command as decode
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, repair_magnet, verify_magnet
from tests.unit.magnet_builder import MagnetBuilder


def build(folder: Path, segments: int = 3, count: int = 20, lose: int = 0) -> list[Path]:
    """A finished capture of so many segments; their paths."""
    made = MagnetBuilder(folder, rotates=True)
    for number in range(segments):
        if number:
            made.rotate()
        made.log("IP_SEND", 0, count)
        if lose:
            made.lose("IP_SEND", 0, lose)
        made.log("DEV_SEND", 1, count)
        if lose:
            made.lose("DEV_SEND", 1, lose)
        made.checkpoint()
    made.write()
    made.stream.discard()
    return [one.path(folder) for one in find_segments(folder)]


def verify(folder: Path) -> tuple[Report, list[Report]]:
    *segments, chain = format_of(folder).verify(folder)
    return chain, segments


def whats(report: Report) -> str:
    return "; ".join(problem.what for problem in report.problems)


@pytest.mark.parametrize("lose", [0, 3])
def test_a_chain_adds_up_and_is_read_as_one_file(tmp_path: Path, lose: int) -> None:
    folder = tmp_path / "out"
    paths = build(folder, 4, 20, lose)
    chain, segments = verify(folder)
    assert not chain.problems, whats(chain)
    assert chain.exit_code == (3 if lose else 0) and chain.proven_end and len(segments) == 4
    assert chain.totals.in_file == 4 * 2 * 20 and chain.lost_total == 4 * 2 * lose
    assert all(one.totals.in_file == 2 * 20 and not one.problems for one in segments)
    assert [one.totals.lost_total for one in segments] == [2 * lose] * 4
    with tcpkmon.open(folder) as reader:
        assert reader.complete and not reader.damaged and not reader.warnings
        assert reader.lost == 4 * 2 * lose
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == [path.name for path in paths]


def test_each_record_is_decoded_once_and_serials_rise(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture
) -> None:
    paths = build(tmp_path / "out", 3, 10)
    assert run(decode, [str(tmp_path / "out"), "--format", "json"], prog="decode") == 0
    text = capsysbinary.readouterr().out
    found = [json.loads(line)["header"] for line in text.splitlines()]
    assert sum(one["type"] == "MAGNET_IP_SEND" for one in found) == 3 * 10
    assert [one["serial"] for one in found] == list(range(1, len(found) + 1))
    words = [str(paths[1]), str(paths[0]), str(paths[2]), "--format", "json"]
    assert run(decode, words, prog="decode") == 0
    assert capsysbinary.readouterr().out == text


def test_a_missing_segment_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = build(tmp_path / "out", 4)
    paths[2].unlink()
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5 and f"{paths[2].name} is missing" in whats(chain)
    assert run(decode, [str(tmp_path / "out")], prog="decode") == 3
    assert "segment 3 is missing" in capsys.readouterr().err


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_that_cannot_be_read_is_left_out(tmp_path: Path, which: int) -> None:
    folder = tmp_path / "out"
    build(folder)[which].write_bytes(b"")
    with tcpkmon.open(folder) as reader:
        assert reader.damaged and any("left out" in text for text in reader.warnings)
        assert sum(len(table) for tables in reader.tables() for table in tables.values())


def test_records_that_moved_between_segments_are_said(tmp_path: Path) -> None:
    """Each file of another run is sound, and the chain tells."""
    build(tmp_path / "out", 3, 10)
    others = build(tmp_path / "other", 3, 11)
    mine = [one.path(tmp_path / "out") for one in find_segments(tmp_path / "out")]
    mine[1].write_bytes(others[1].read_bytes())
    *_, first, second = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert {first.exit_code, second.exit_code} == {5}


def test_what_is_off_is_said_in_the_next_segment(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "out", rotates=True).log("IP_SEND", 0, 5).checkpoint()
    point = made.places["DEV_SEND"][0]
    made.stream.changed([Change(0, point, made.now_ns - 5, made.now_ns, 1, 0, 0)])
    made.rotate().log("IP_SEND", 0, 5).write()
    made.stream.discard()
    chain, (first, second) = verify(tmp_path / "out")
    assert not chain.problems and first.off and second.off, whats(chain)


def test_a_segment_is_repaired(tmp_path: Path) -> None:
    path = build(tmp_path / "out", 3, 200)[1]
    data = bytearray(path.read_bytes())
    data[-3000] ^= 1
    path.write_bytes(data)
    assert verify_magnet(path).exit_code == 5
    done = repair_magnet(path, tmp_path / "new.magnet")
    assert not done.report.problems and done.report.part is not None, whats(done.report)


def test_segments_are_compressed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import os

    folder = tmp_path / "out"
    paths = build(folder, 3)
    fd = os.open(folder, os.O_RDONLY)
    try:
        names = [Archive("zst", fd).take(path.name) for path in paths]
    finally:
        os.close(fd)
    assert names == [f"{path.name}.zst" for path in paths]
    chain, _ = verify(folder)
    assert chain.exit_code == 0 and chain.totals.in_file == 3 * 2 * 20, whats(chain)
    with tcpkmon.open(folder) as reader:
        assert reader.complete and not reader.lost
