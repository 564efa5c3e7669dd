# SPDX-License-Identifier: Apache-2.0
"""Verify of Klogger logs that are cut, flipped, killed, paused or of several CPUs; and repair."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.base.cli import run
from tcpkmon.formats.commands.repair import command as repair
from tcpkmon.formats.commands.verify import command as verify
from tcpkmon.formats.klogger.encode import DUMP_HEAD_BYTES, PREAMBLE
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.walk import DumpWalk
from tcpkmon.formats.verify import repair_log, verify_folder, verify_log
from tcpkmon.formats.verify.report import Report
from tests.full import IS_FULL
from tests.unit.log_files import LOST_EACH, LogBuilder, clean_log, lossy_log
from tests.unit.makers import make_logs

NAME = "kernlog.dump.cpu0"


def problems(report: Report) -> str:
    return "\n".join(problem.what for problem in report.problems)


def check(data: bytes, path: Path) -> Report:
    path.write_bytes(data)
    return verify_log(path)


def find_dumps(path: Path) -> DumpWalk:
    with LogReader(path) as reader:
        walk = reader.walk()
        list(walk)
        return walk


# Cut and damaged.


def test_cut_anywhere_the_tail_is_unknown_and_the_rest_adds_up(tmp_path: Path) -> None:
    path = lossy_log().finish().write(tmp_path / NAME)
    data, dumps = path.read_bytes(), find_dumps(path)
    assert dumps.end == len(data)
    ends = [dumps.begin] + [dump.end for dump in dumps.found]
    random_places = random.Random(4).sample(range(dumps.begin, len(data)), 400 if IS_FULL else 10)
    near = (0, 1, 47, 48, 49) if IS_FULL else (0, 1, 48)
    places = sorted({*random_places, *(end + n for end in ends[:-1] for n in near)})
    for place in places:
        report = check(data[:place], path)
        assert (report.exit_code, problems(report)) == (3, ""), place
        assert report.tail_unknown
        assert "nothing lost" not in report.verdict
        assert report.verdict.startswith("tail unknown")
        cut = place - max(end for end in ends if end <= place)
        assert (f"the last dump is cut off: {cut} bytes" in report.notes) == bool(cut)
    assert {row.pending for row in report.rows} == {0}


@pytest.mark.parametrize("tail", [b"x", b"KLOGDUMPx" * 20, b"\1" * 48, bytes(4096) + b"\1"])
def test_what_is_no_dump_is_damage(tmp_path: Path, tail: bytes) -> None:
    data = clean_log().ledger().data() + tail
    assert check(data, tmp_path / NAME).exit_code == 5


@pytest.mark.parametrize("tail", [b"\0", bytes(47), bytes(5000), b"KLOG"])
def test_room_that_was_never_written_is_the_unknown_tail(tmp_path: Path, tail: bytes) -> None:
    report = check(clean_log().ledger().data() + tail, tmp_path / NAME)
    assert (report.exit_code, problems(report)) == (3, "")
    report = check(clean_log().finish().data() + tail, tmp_path / NAME)
    assert report.exit_code == 5


def test_a_dump_in_the_middle_that_is_damaged_is_one_problem(tmp_path: Path) -> None:
    path = clean_log().finish().write(tmp_path / NAME)
    data, dumps = bytearray(path.read_bytes()), find_dumps(path)
    data[dumps.found[3].offset + 60] ^= 1
    report = check(bytes(data), path)
    assert report.exit_code == 5
    assert report.problems_total == 1
    assert "the checksum is wrong" in problems(report)
    assert report.problems[0].offset == dumps.found[3].offset + DUMP_HEAD_BYTES


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("DUMP_BEGIN", {"index": 7}, "DUMP_BEGIN 7 begins dump 1"),
        ("DUMP_FINISH", {"bytes": 8}, "DUMP_FINISH tells 8 bytes, not"),
    ],
)
def test_brackets_of_dumps_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, Any], what: str
) -> None:
    from tcpkmon.formats.klogger import encode
    from tests.unit import log_files

    original, count = encode.pack_event, 0

    def pack(log: Any, event: str, told: Any, serial: int, time_ns: int) -> Any:
        nonlocal count
        count += event == name
        changed = values if event == name and count == 2 else told
        return original(log, event, changed, serial, time_ns)

    monkeypatch.setattr(encode, "pack_event", pack)
    monkeypatch.setattr(log_files, "pack_event", pack)
    report = check(clean_log().finish().data(), tmp_path / NAME)
    assert report.exit_code == 5
    assert what in problems(report)
    assert report.problems_total == 1


def test_a_gap_before_a_base_event_is_found(tmp_path: Path) -> None:
    build = clean_log()
    build.maker.skip(3)
    report = check(build.finish().data(), tmp_path / NAME)
    assert "but only 14 given out" in problems(report)


# Ends and pauses.


def test_records_after_the_last_ledger_are_told(tmp_path: Path) -> None:
    build = clean_log().ledger().lose("ring_full", 2).log("SCHEDIN", pid=1)
    report = check(build.log("SCHEDOUT", pid=1).data(), tmp_path / NAME)
    assert (report.exit_code, report.after_checkpoint, report.seq_lost) == (3, 2, 2)
    assert report.verdict == "tail unknown (2 lost before)"


def test_records_after_the_final_ledger_are_found(tmp_path: Path) -> None:
    build = clean_log().ledger(final=True).log("SCHEDIN", pid=1)
    report = check(build.data(), tmp_path / NAME)
    assert report.exit_code == 5
    assert "records follow the final ledger" in problems(report)


def test_an_end_without_a_final_ledger_is_found(tmp_path: Path) -> None:
    build = clean_log().base("KLOGGER_FINISH", reason=0).end_dump()
    report = check(build.data(), tmp_path / NAME)
    assert report.exit_code == 5
    assert "KLOGGER_FINISH without a final ledger before it" in problems(report)
    build = clean_log().ledger(final=True).base("KLOGGER_FINISH", reason=0).end_dump()
    report = check(build.data(), tmp_path / NAME)
    assert "the final ledger is not in the last dump" in problems(report)


def test_after_an_error_the_final_ledger_may_be_missing(tmp_path: Path) -> None:
    build = clean_log().base("KLOGGER_FINISH", reason=4).end_dump()
    report = check(build.data(), tmp_path / NAME)
    assert (report.exit_code, report.end_reason, report.tail_unknown) == (3, "error", True)


def test_records_after_the_end_are_found(tmp_path: Path) -> None:
    build = clean_log().finish().log("SCHEDIN", pid=1)
    report = check(build.data(), tmp_path / NAME)
    assert report.exit_code == 5
    assert "records follow KLOGGER_FINISH" in problems(report)
    report = check(clean_log().finish().ledger(True, finish=0).data(), tmp_path / NAME)
    assert "a second KLOGGER_FINISH that ends the log" in problems(report)


def test_pauses_are_told(tmp_path: Path) -> None:
    build = clean_log().base("KLOGGER_FINISH", reason=5).end_dump()
    build.maker.time_ns += 2_000_000_000
    report = check(build.first().log("SCHEDIN").end_dump().finish().data(), tmp_path / NAME)
    assert (report.exit_code, problems(report)) == (0, "")
    assert report.notes == ["logging was switched off 1 time(s), 2.000 s in all"]
    still = clean_log().base("KLOGGER_FINISH", reason=5).end_dump()
    report = check(still.finish().data(), tmp_path / NAME)
    assert report.exit_code == 0
    assert report.notes == ["logging was and is still switched off 1 time(s), 0.000 s in all"]


def test_records_in_a_pause_are_found(tmp_path: Path) -> None:
    build = clean_log().base("KLOGGER_FINISH", reason=5).end_dump().log("SCHEDIN").end_dump()
    report = check(build.finish().data(), tmp_path / NAME)
    assert report.exit_code == 5
    assert "records of the kernel while logging was switched off" in problems(report)
    # A full disk may have kept KLOGGER_START out of the file.
    build = clean_log().base("KLOGGER_FINISH", reason=5).end_dump().lose("disk_full", 2)
    report = check(build.log("SCHEDIN").end_dump().finish().data(), tmp_path / NAME)
    assert (report.exit_code, problems(report)) == (3, "")
    assert any("events of the collector may be missing" in note for note in report.notes)


# Several CPUs.


def write_both(folder: Path, *, first: LogBuilder | None = None) -> None:
    (first or clean_log().finish()).write(folder / NAME)
    lossy_log(1).finish().write(folder / "kernlog.dump.cpu1")


def test_a_folder_is_each_log_and_all_of_them(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "kernlog.dump.cpu1.orig").write_bytes(b"not a log")
    one, two, whole = verify_folder(tmp_path)
    assert [report.exit_code for report in (one, two, whole)] == [0, 3, 3]
    assert whole.path == str(tmp_path)
    assert problems(whole) == ""
    rows = {row.name: row for row in whole.rows}
    assert rows["SCHEDIN"].cpu is None
    assert rows["SCHEDIN"].in_file == sum(
        row.in_file for report in (one, two) for row in report.rows if row.name == "SCHEDIN"
    )
    assert whole.lost_total == two.lost_total == 2 * LOST_EACH
    told = f"adds up: {2 * LOST_EACH} lost, all accounted for; {2 * 14} shed by the budget"
    assert whole.verdict == told


def test_an_event_that_the_kernel_did_not_count_is_not_proven(tmp_path: Path) -> None:
    for cpu in (0, 1):
        log = clean_log(cpu)
        log.maker.header["settings"] = {"unproven": {"SCHEDIN": "kprobe:schedule"}}
        log.finish().write(tmp_path / f"kernlog.dump.cpu{cpu}")
    reports = verify_folder(tmp_path)
    assert [report.exit_code for report in reports] == [3, 3, 3]
    assert problems(reports[-1]) == ""
    assert reports[-1].unproven == {"SCHEDIN": "kprobe:schedule"}
    assert "no loss(es) counted; not proven for 1 event(s)" in reports[-1].verdict


def test_one_log_that_was_cut_makes_the_whole_unknown(tmp_path: Path) -> None:
    write_both(tmp_path, first=clean_log().ledger())
    reports = verify_folder(tmp_path)
    assert [report.exit_code for report in reports] == [3, 3, 3]
    assert reports[-1].tail_unknown


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda f: (f / NAME).unlink(), "no log tells what the programs missed"),
        (
            lambda f: (f / "kernlog.dump.cpu1").rename(f / "kernlog.dump.cpu2"),
            "kernlog.dump.cpu2 is the log of CPU 1",
        ),
        (
            lambda f: LogBuilder(0, host="there").finish().write(f / NAME),
            "is of another capture: its host is another",
        ),
        (lambda f: clean_log().finish(3).write(f / NAME), "ended for different reasons"),
        (lambda f: (f / NAME).write_bytes(b"KERNLOG\1" + bytes(50)), "the header is damaged"),
    ],
)
def test_logs_that_do_not_belong_together_are_found(tmp_path: Path, make: Any, what: str) -> None:
    write_both(tmp_path)
    make(tmp_path)
    *_, whole = verify_folder(tmp_path)
    assert whole.exit_code == 5
    assert what in problems(whole)


def test_a_missing_log_of_a_cpu_is_found(tmp_path: Path) -> None:
    [folder] = make_logs(tmp_path / "capture", segments=1)
    assert verify_folder(folder)[-1].exit_code == 0
    (folder / "kernlog.dump.cpu1").unlink()
    *_, whole = verify_folder(folder)
    assert whole.exit_code == 5
    assert problems(whole) == "kernlog.dump.cpu1 is missing"


# The commands.


def test_names_in_a_log_do_no_harm_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = clean_log()
    build.programs["\x1b[31mred"] = (3, 0)
    path = build.finish().write(tmp_path / NAME)
    assert run(verify, [str(path)], prog="verify") == 3
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "never seen by the program of" in printed


def test_repair_keeps_all_dumps_before_the_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, new = lossy_log().finish().write(tmp_path / NAME), tmp_path / "new"
    data, dumps = path.read_bytes(), find_dumps(path)
    last = dumps.found[-1]
    path.write_bytes(data[: last.offset + 100])
    assert run(repair, [str(path), "-o", str(new)], prog="repair") == 0
    told = capsys.readouterr()
    assert f"{len(dumps.found) - 1} dumps kept, 0 left out, 100 bytes cut off" in told.err
    assert "tail unknown" in told.out
    assert new.read_bytes() == data[: last.offset]
    assert path.read_bytes() == data[: last.offset + 100]
    assert run(repair, [str(path), "-o", str(new)], prog="repair") == 1
    assert run(repair, [str(path), "-o", str(path)], prog="repair") == 2
    flipped = bytearray(data)
    flipped[dumps.found[4].offset + 70] ^= 4
    path.write_bytes(flipped)
    repaired = repair_log(path, tmp_path / "other")
    assert (repaired.kept, repaired.dropped) == (4, len(dumps.found) - 4)
    assert (repaired.report.exit_code, problems(repaired.report)) == (3, "")
    assert (tmp_path / "other").read_bytes() == data[: dumps.found[4].offset]


def test_repair_of_a_log_without_a_header_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"KERNLOG\1" + bytes(100))
    assert run(repair, [str(path), "-o", str(tmp_path / "new")], prog="repair") == 5
    assert not (tmp_path / "new").exists()


def test_a_header_that_has_counters_as_bytes_is_refused(tmp_path: Path) -> None:
    path = clean_log().finish().write(tmp_path / NAME)
    data, dumps = path.read_bytes(), find_dumps(path)
    text = data[PREAMBLE.size : dumps.begin].decode().rstrip()
    header = json.loads(text)
    fields = next(event for event in header["events"] if event["name"] == "LEDGER")["fields"]
    next(field for field in fields if field["name"] == "attempts")["kind"] = "bytes"
    text = json.dumps(header)
    text += " " * (-len(text) % 8)
    preamble = PREAMBLE.pack(data[:8], len(text), zlib.crc32(text.encode()), 0)
    report = check(preamble + text.encode() + data[dumps.begin :], path)
    assert (report.exit_code, report.error) == (5, "the header has LEDGER.attempts as bytes")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"clock": None}, "the header has no good clock pair"),
        ({"schema": "enum {"}, "the log's schema cannot be read"),
        ({"host": "\ud800"}, "the header is no JSON"),
    ],
)
def test_a_header_that_no_reader_understands_is_not_passed(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = clean_log().finish().write(tmp_path / NAME)
    data, dumps = path.read_bytes(), find_dumps(path)
    header = json.loads(data[PREAMBLE.size : dumps.begin])
    text = json.dumps({**header, **change}).encode()
    text += b" " * (-len(text) % 8)
    preamble = PREAMBLE.pack(data[:8], len(text), zlib.crc32(text), 0)
    report = check(preamble + text + data[dumps.begin :], path)
    assert report.exit_code == 5
    assert what in (report.error or report.problems[0].what)
