# SPDX-License-Identifier: Apache-2.0
"""Klogger logs that rotate: each segment verifies alone, the chain adds up, and all readers take
the folder as one log."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

import tcpkmon
from tcpkmon.collector.daemon.repairing import mend
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.commands.decode import command as decode
from tcpkmon.formats.verify import repair_folder, verify_log
from tests.unit.makers import CPUS, LogMaker, make_logs
from tests.unit.test_chain import verify, whats


def pings(folder: Path) -> list[int]:
    with open_log(folder) as log:
        return [event["n"] for event in log.choose("PING")]


def test_a_chain_adds_up_and_is_read_as_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    paths = make_logs(folder, segments=5, count=40)
    chain, segments = verify(folder)
    assert chain.exit_code == 0 and chain.words["entries"] == "records"
    assert all(one.totals.in_file == 40 * CPUS for one in segments)
    assert sorted(pings(folder)) == list(range(5 * 40 * CPUS))
    with open_log(folder) as log:
        types = Counter(event.type for event in log)
        assert not log.problems
    assert types["KLOGGER_START"] == types["KLOGGER_FINISH"] == CPUS, "no rotation looks a pause"
    with tcpkmon.open(folder) as reader:
        assert reader.complete and not (reader.lost or reader.damaged or reader.warnings)
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == [path.name for path in paths]
    assert {(line["records"], line["lost"]) for line in lines} == {(40 * CPUS, 0)}


def test_a_pause_is_shown_where_a_file_cannot_be_read(tmp_path: Path) -> None:
    """A rotation's START and FINISH are left out only between files that follow one another."""
    make_logs(tmp_path / "out", segments=4, count=9)
    middle = find_segments(tmp_path / "out")[1].path(tmp_path / "out")
    path = sorted(middle.iterdir())[0]  # of one CPU
    path.write_bytes(b"\0" * 4096 + path.read_bytes()[4096:])
    with open_log(tmp_path / "out") as log:
        assert sum(event.type == "KLOGGER_START" for event in log) == CPUS + 1
        assert "left out" in str(log.problems)


def test_a_loss_before_a_rotation_counts_once(tmp_path: Path) -> None:
    """The ledger of one segment has it, and the gap is in the next one."""
    maker = LogMaker(tmp_path / "out")
    maker.records(10)
    maker.serials += 3
    maker.ledger["attempts"][:, maker.row] += 3
    maker.ledger["ring_full"][:, maker.row] += 3
    maker.rotate()
    maker.records(10)
    maker.close()
    chain, _ = verify(tmp_path / "out")
    assert not chain.problems and chain.lost_total == 3 * CPUS, whats(chain)
    with tcpkmon.open(tmp_path / "out") as reader:
        assert reader.lost == 3 * CPUS and reader.complete


def test_a_missing_segment_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    paths = make_logs(folder, segments=4)
    shutil.rmtree(paths[1])
    chain, _ = verify(folder)
    assert chain.exit_code == 5 and f"{paths[1].name} is missing" in whats(chain)
    assert run(decode, [str(folder), "--merge", "--format", "csv"], prog="decode") == 5
    assert "segment 2 is missing" in capsys.readouterr().err
    with open_log(folder) as log:
        types = Counter(event.type for event in log)
    assert types["KLOGGER_START"] == 2 * CPUS, "what is missing is like a pause"
    shutil.rmtree(paths[3])
    with tcpkmon.open(folder) as reader:
        assert not reader.complete
        assert any("another file follows" in text for text in reader.warnings)
    chain, _ = verify(folder)
    assert chain.tail_unknown


def test_a_missing_log_of_a_cpu_is_said(tmp_path: Path) -> None:
    paths = make_logs(tmp_path / "out")
    (paths[1] / "kernlog.dump.cpu1").unlink()
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5, "records of CPU 1 are gone"


def test_a_log_that_is_not_there_is_said_by_readers(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first, *_ = make_logs(folder, segments=3, count=10)
    (first / "kernlog.dump.cpu1").unlink()
    with tcpkmon.open(first) as reader:
        assert not reader.complete and "kernlog.dump.cpu1 is missing" in reader.warnings[0]
    with tcpkmon.open(folder) as reader:
        assert reader.damaged and any("cannot open" in text for text in reader.warnings)
    assert len(pings(folder)) == (3 * CPUS - 1) * 10
    for path in folder.glob("*.klog/kernlog.dump.cpu1"):
        path.unlink()
    with tcpkmon.open(folder) as reader:
        assert not reader.complete and "kernlog.dump.cpu1 is missing" in reader.warnings[0]
    assert len(pings(folder)) == 3 * 10


def test_a_pause_and_what_is_off_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    maker = LogMaker(folder)
    maker.records(5)
    maker.switch(0)
    maker.rotate()
    maker.checkpoint()
    maker.switch(1)
    maker.records(5)
    maker.stream.pause()
    maker.rotate()
    maker.now_ns += 10**6
    maker.stream.resume()
    maker.records(5)
    maker.close()
    chain, (first, second, third) = verify(folder)
    assert not chain.problems, whats(chain)
    assert chain.exit_code == 0
    assert first.off and second.off and not third.off
    second_log = find_segments(folder)[1].path(folder) / "kernlog.dump.cpu0"
    report = verify_log(second_log)
    assert any("still switched off" in note for note in report.notes), report.notes
    with open_log(folder) as log:
        types = Counter(event.type for event in log)
    assert types["KLOGGER_START"] == 2 * CPUS, "at the start, and after the pause"


def test_a_cpu_that_comes_later(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "out", online=[0])
    maker.records(5, cpus=1)
    maker.rotate()
    maker.records(5)
    maker.rotate()
    maker.records(5)
    maker.close()
    chain, segments = verify(tmp_path / "out")
    assert not chain.problems, whats(chain)
    assert chain.exit_code == 0 and [one.totals.in_file for one in segments] == [5, 10, 10]
    assert sorted(pings(tmp_path / "out")) == list(range(25))


def test_a_killed_capture_has_an_unknown_tail_and_is_repaired(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    maker = LogMaker(folder)
    maker.records(10)
    maker.rotate()
    maker.records(10)
    maker.checkpoint()
    while maker.stream.written.segment < 2:
        time.sleep(0.01)
    with patch.object(maker.stream.segments, "seal"):
        maker.close(reason=None)
    (part,) = folder.glob(".*.part")
    with (part / "kernlog.dump.cpu1").open("ab") as file:
        file.write(b"KLOGDUMP" + b"\x01" * 30)
    chain, _ = verify(folder)
    assert chain.tail_unknown and not chain.problems, whats(chain)
    assert any("is not sealed" in note for note in chain.notes)
    assert len(pings(folder)) == 20 * CPUS
    with tcpkmon.open(folder) as reader:
        assert not reader.complete
    done = repair_folder(part, tmp_path / "new")
    assert not done.report.problems and done.report.part is not None, whats(done.report)
    with pytest.raises(FileError, match="is there already"):
        repair_folder(part, tmp_path / "new")
    with patch("tcpkmon.collector.linux.privileges.settle"):
        mend(folder, [part.name[1:-5]])
    assert not part.exists() and len(find_segments(folder)) == 2
    chain, _ = verify(folder)
    assert chain.tail_unknown and not chain.problems, whats(chain)
    assert chain.totals.in_file == 20 * CPUS
