# SPDX-License-Identifier: Apache-2.0
"""A folder of segments: verify proves that they are one chain, and readers read them as one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.collector.daemon.repairing import mend
from tcpkmon.collector.session.archive import Archive
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.commands.decode import command as decode
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, repair_folder, verify_log
from tcpkmon.formats.verify.repair import repair_file
from tests.unit.makers import CPUS, LogMaker, Maker, make, make_logs
from tests.unit.test_segments import both, flip


def verify(folder: Path) -> tuple[Report, list[Report]]:
    """The report of the chain, and those of its segments."""
    *segments, chain = format_of(folder).verify(folder)
    return chain, segments


def whats(report: Report) -> str:
    return "; ".join(problem.what for problem in report.problems)


@both
def test_a_whole_chain_adds_up(
    kind: type[Maker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    make(folder, segments=5, count=50, kind=kind)
    chain, segments = verify(folder)
    assert not chain.problems, whats(chain)
    assert chain.exit_code == 0 and chain.proven_end and len(segments) == 5
    assert chain.totals.in_file == chain.totals.attempts == 5 * 50 * CPUS
    assert run(tcpkmon_command, ["verify", str(folder)], prog="tcpkmon") == 0
    text = capsys.readouterr().out
    assert "5 segment(s), number 1 to 5" in text and text.count("adds up: nothing lost") == 6


@both
def test_losses_of_the_segments_are_those_of_the_chain(kind: type[Maker], tmp_path: Path) -> None:
    make(tmp_path / "out", segments=3, count=20, lose=4, kind=kind)
    chain, segments = verify(tmp_path / "out")
    assert not chain.problems, whats(chain)
    assert chain.exit_code == 3
    assert chain.totals.lost["ring full"] == chain.seq_lost == 3 * 4 * CPUS
    assert [one.lost_total for one in segments] == [4 * CPUS] * 3


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_segment_that_was_removed_is_said(tmp_path: Path, at: int) -> None:
    paths = make(tmp_path / "out")
    paths[at].unlink()
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5 and f"{paths[at].name} is missing" in whats(chain)
    (tmp_path / "out" / "index.jsonl").unlink()
    chain, _ = verify(tmp_path / "out")
    if at == 3:  # nobody knows how many followed
        assert chain.exit_code == 3 and chain.tail_unknown
        assert any("another file follows" in note for note in chain.notes)
    else:
        assert chain.exit_code == 5 and f"number {at + 1} is missing" in whats(chain)


def test_what_retention_took_is_no_problem(tmp_path: Path) -> None:
    paths = make(tmp_path / "out")
    index = tmp_path / "out" / "index.jsonl"
    first = json.loads(index.read_text().splitlines()[0])
    for number in (1, 2):
        line = {**first, "what": "deleted", "number": number, "name": paths[number - 1].name}
        with index.open("a") as file:
            file.write(json.dumps(line) + "\nno json\n")
        paths[number - 1].unlink()
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 0, whats(chain)
    assert any("2 segment(s) were deleted" in note and "1-2" in note for note in chain.notes)


def test_two_that_were_swapped_are_said(tmp_path: Path) -> None:
    paths = make(tmp_path / "out")
    paths[1].rename(tmp_path / "other")
    paths[2].rename(paths[1])
    (tmp_path / "other").rename(paths[2])
    chain, segments = verify(tmp_path / "out")
    assert all(report.exit_code == 0 for report in segments)
    assert chain.exit_code == 5
    assert f"{paths[1].name}: it is number 3" in whats(chain)
    assert f"{paths[2].name}: it is number 2" in whats(chain)


def test_a_copy_and_a_foreign_segment_are_said(tmp_path: Path) -> None:
    paths = make(tmp_path / "out")
    other = make(tmp_path / "other", segments=1)
    twin = paths[1].with_name(paths[1].name.replace("000002", "000009"))
    shutil.copy(paths[1], twin)
    shutil.copy(other[0], tmp_path / "out" / other[0].name.replace("000001", "000007"))
    (tmp_path / "out" / "notes.txt").touch()
    chains = [one for one in format_of(tmp_path / "out").verify(tmp_path / "out") if not one.brief]
    assert f"{twin.name}: another segment has its number" in whats(chains[0])
    assert any("notes.txt" in note for note in chains[0].notes)
    assert [chain.exit_code for chain in chains] == [5, 5]
    assert "it is number 1 of its capture" in whats(chains[1])


def test_a_forged_number_is_said(tmp_path: Path) -> None:
    paths = make(tmp_path / "out")
    flip(paths[2], b'"number": 3', b'"number": 4')
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5 and "it is number 4 of its capture" in whats(chain)
    with open_capture(paths[3]) as capture:
        serial = capture.settings["segment"]["previous"]["serials"]["1"]
    flip(paths[3], f'"1": {serial}'.encode(), f'"1": {serial - 1}'.encode())
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5


def test_a_segment_of_another_run_in_its_place_is_said(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", count=50)
    others = make(tmp_path / "other", count=51)
    with open_capture(paths[2]) as mine, open_capture(others[2]) as theirs:
        names = [one.settings["segment"]["capture"].encode() for one in (theirs, mine)]
    flip(others[2], *names)
    shutil.copy(others[2], paths[2])
    chain, _ = verify(tmp_path / "out")
    assert chain.exit_code == 5
    assert "it follows number" in whats(chain) and "does not begin with that of" in whats(chain)


def test_a_folder_is_read_as_one_capture(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=4, count=500, lose=1)
    with tcpkmon.open(tmp_path / "out") as reader:
        assert isinstance(reader, Capture) and not reader.warnings
        assert reader.lost == 4 * CPUS and reader.complete and not reader.damaged
        seqs = reader.seq()
        whole = [reader.column("serial"), reader.column("serial", 400, 2500)]
        assert len(reader.array) == len(reader)
    parts = []
    for path in paths:
        with open_capture(path) as one:
            parts.append(one.column("serial"))
    expected = np.concatenate(parts)
    assert (whole[0] == expected).all() and (whole[1] == expected[400:2500]).all()
    assert (np.diff(seqs.astype(np.int64)) > 0).all()
    paths[1].unlink()
    with tcpkmon.open(tmp_path / "out") as reader:
        assert reader.warnings == ["segment 2 is missing"]
        assert reader.lost > 4 * CPUS + 900


def test_the_newest_of_several_captures_is_read(tmp_path: Path) -> None:
    make(tmp_path / "out", segments=2, count=10)
    maker = Maker(tmp_path / "out")
    maker.records(30)
    maker.rotate()
    maker.records(30)
    maker.close()
    with tcpkmon.open(tmp_path / "out") as reader:
        assert isinstance(reader, Capture) and not reader.warnings
        assert int((~reader.control()).sum()) == 60 * CPUS
    assert len(list((tmp_path / "out").glob("*.pm"))) == 4
    chains = [one for one in format_of(tmp_path / "out").verify(tmp_path / "out") if not one.brief]
    assert [chain.exit_code for chain in chains] == [0, 0]


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_repaired_segment_stays_in_the_chain(tmp_path: Path, cut: int) -> None:
    """The last one of a killed capture: its entries are numbered on from the file before."""
    folder = tmp_path / "out"
    maker = Maker(folder)
    for _ in range(3):
        maker.records(50, 2)
        maker.checkpoint()
        maker.rotate()
    maker.records(50, 2)
    maker.checkpoint()
    maker.records(20)
    maker.stream._spool.close(10)  # without end()
    last = find_segments(folder)[-1]
    with open_capture(last.path(folder)) as capture:
        size = capture.header.entry_size
    hidden = last.path(folder).rename(tmp_path / "hidden.pm")
    os.truncate(hidden, hidden.stat().st_size - cut * size)
    summary = repair_file(hidden, folder / last.name)
    assert (summary.dropped, summary.missing) == (0, 0)
    assert not summary.report.problems, whats(summary.report)
    chain, segments = verify(folder)
    assert not chain.problems, whats(chain)
    assert (chain.exit_code, len(segments)) == (3, 4)


def test_a_capture_of_which_no_file_is_left_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make(folder, segments=2, count=10)
    index = folder / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    old = [{**line, "capture": "a" * 32, "name": f"old-{line['name']}"} for line in lines]
    with index.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in old)
    *_, chain, lost = format_of(folder).verify(folder)
    assert (chain.exit_code, lost.exit_code) == (0, 5)
    assert whats(lost) == "; ".join(f"{line['name']} is missing" for line in old)
    with index.open("a") as file:
        file.writelines(json.dumps({**line, "what": "deleted"}) + "\n" for line in old)
    assert [one.exit_code for one in format_of(folder).verify(folder)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["sealed", "repaired", "archived"])
def test_a_segment_that_the_index_knows_is_missing(tmp_path: Path, how: str) -> None:
    """The last one of a capture that was killed and repaired was never sealed."""
    folder = tmp_path / "out"
    paths = make(folder, segments=3)
    index = folder / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[-1]["what"] = how
    lines[-1]["name"] += ".zst" if how == "archived" else ""
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verify(folder)[0].exit_code == 0
    paths[-1].unlink()
    chain, _ = verify(folder)
    assert chain.exit_code == 5 and f"{paths[-1].name} is missing" in whats(chain)
    with index.open("a") as file:
        file.write(json.dumps({**lines[-1], "what": "deleted"}) + "\n")
    assert "is missing" not in whats(verify(folder)[0])


@pytest.mark.parametrize("of", ["a file", "an archive", "a log"])
def test_a_segment_of_another_size_than_the_index_tells(tmp_path: Path, of: str) -> None:
    """Records and losses are as many: others stand there."""
    folder = tmp_path / "out"
    if of == "a log":
        maker = LogMaker(folder)
        maker.records(10)
        maker.rotate()
        maker.close()
    else:
        paths = make(folder, segments=2)
    if of == "an archive":
        fd = os.open(folder, os.O_RDONLY)
        assert Archive("zst", fd).take(paths[0].name).endswith(".zst")
        os.close(fd)
    assert verify(folder)[0].exit_code == 0
    index = folder / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    at = len(lines) - 1
    lines[at]["bytes"] += 1
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chain, *_ = verify(folder)
    assert chain.exit_code == 5
    size = lines[at]["bytes"]
    assert f"index.jsonl counts {size} bytes in it, but {size - 1} are there" in whats(chain)


@pytest.mark.parametrize("kind", [Maker, LogMaker])
def test_a_segment_that_was_renamed_by_hand_is_not_proven(
    kind: type[Maker | LogMaker], tmp_path: Path
) -> None:
    """It has its end, but not its name: the index has no line of it."""
    folder = tmp_path / "out"
    maker = kind(folder)
    maker.records(10)
    maker.rotate()
    maker.records(10)
    maker.close()
    *_, last = maker.paths
    index = folder / "index.jsonl"
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(line for line in lines if last.name not in line))
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 3
    assert f"index.jsonl does not say that {last.name} got this name" in chain.verdict


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
