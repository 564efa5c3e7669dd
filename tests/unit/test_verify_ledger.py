# SPDX-License-Identifier: Apache-2.0
"""verify on whole captures, and on captures that are broken in one place each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tcpkmon.formats.base import control
from tcpkmon.formats.verify import verify_file
from tcpkmon.formats.verify.report import Report
from tests.full import IS_FULL
from tests.unit.psc_files import (
    FURTHER,
    CaptureBuilder,
    classic_2000,
    clean_capture,
    decoded,
    find,
    full_capture,
    replace,
)

Rows = npt.NDArray[Any]
Break = Callable[[Rows], None]


def check(build: CaptureBuilder, tmp_path: Path, array: Rows | None = None) -> Report:
    return verify_file(build.write(tmp_path / "capture.pm", array))


def problems(report: Report) -> str:
    return "\n".join(problem.what for problem in report.problems)


WITHOUT_CPU = {name: width for name, width in FURTHER.items() if name != "cpu"}
WITHOUT_SERIAL = {name: width for name, width in FURTHER.items() if name != "serial"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "classic": {"further": {}},
    "no cpu": {"further": WITHOUT_CPU},
    "no serial": {"further": WITHOUT_SERIAL},
    "no 64-bit seq": {"further": {"time_ns": 8, "serial": 8, "cpu": 2}},
    "big endian": {"big_endian": True},
    "no header kinds": {"with_header_kinds": False},
    "odd widths": {"further": {"cpu": 1, "serial": 4, "srtt_us": 3, "seq": 8}},
    "eight CPUs": {"cpus": 8},
}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_nothing_lost_is_proven(options: dict[str, Any], tmp_path: Path) -> None:
    report = check(clean_capture(**options), tmp_path)
    assert problems(report) == ""
    assert report.exit_code == 0
    assert report.proven_end and not report.tail_unknown
    assert (report.totals.attempts, report.totals.in_file, report.lost_total) == (37, 30, 0)


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_every_loss_is_accounted_for(options: dict[str, Any], tmp_path: Path) -> None:
    build = full_capture(**options)
    report = check(build, tmp_path)
    assert problems(report) == ""
    assert report.exit_code == 3
    totals = report.totals
    expected = {"ring full": 4, "no ring": 2, "no turn": 3, "table full": 4, "no slot": 5}
    expected |= {"late": 6, "damaged": 7}
    if "cpu" in build.further:  # else it is not known of which location the damaged ones were
        assert {cause: n for cause, n in totals.lost.items() if n} == expected
    assert totals.lost_total == 31
    assert totals.attempts == totals.filtered + totals.unchanged + totals.in_file + 31
    assert totals.written == totals.in_file + 6 + 7
    assert report.seq_lost == build.lost == 22
    for row in report.rows:
        assert row.attempts == (
            row.filtered + row.unchanged + row.in_file + row.pending + row.lost_total
        )


@pytest.mark.parametrize("cause", ["queue_full", "disk_full", "write_error"])
@pytest.mark.parametrize("control_entries", [0, 5])
def test_losses_of_the_writer(cause: str, control_entries: int, tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 10)
    build.checkpoint()
    build.lose_writing(cause, 1, 2, 8, control_entries)
    build.snapshots(1, 2, 3)
    build.end()
    report = check(build, tmp_path)
    assert problems(report) == ""
    assert report.exit_code == 3
    assert report.totals.lost[cause.replace("_", " ")] == 8 == report.totals.lost_total
    assert report.seq_lost == 8 + control_entries


def test_a_loss_that_the_disk_took_with_it(tmp_path: Path) -> None:
    """A LOSS entry of the kernel's is among what the disk had no room for."""
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.lose("ring_full", 0, 1, 4, entry=False)
    build.lose_writing("disk_full", 0, 1, 2, control_entries=1)
    # The gap and the LOSS are one for the writer: put the kernel's four into it.
    loss = decoded(build.rows[-1], 0)
    assert isinstance(loss, control.Loss)
    replace(build.rows[-1], 0, dataclasses.replace(loss, count=loss.count + 4))
    build.snapshots(0, 1, 3)
    build.end()
    report = check(build, tmp_path)
    assert problems(report) == ""
    assert (report.exit_code, report.totals.lost_total) == (3, 6)


def test_missed_events_are_losses(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.missed[2] = (3, 4)
    build.snapshots(0, 1, 3)
    build.end()
    report = check(build, tmp_path)
    assert report.exit_code == 3
    assert (report.missed_total, report.lost_total) == (7, 7)
    assert [(one.location, one.recursion, one.kprobe) for one in report.missed] == [(2, 3, 4)]


def test_existing_connections_are_in_the_ledger(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.existing(3)
    build.snapshots(0, 1, 2)
    build.end()
    report = check(build, tmp_path)
    assert (report.exit_code, report.existing, report.totals.in_file) == (0, 3, 5)
    array = build.array()
    array["location"][array["location"] == 1] = control.EXISTING  # more than the ledger knows
    assert check(build, tmp_path, array).exit_code == 5


def test_a_ring_that_itself_counts_more_losses_leaves_it_unproven(tmp_path: Path) -> None:
    build = clean_capture()
    assert check(build, tmp_path).notes == []
    array = build.array()
    at = find(array, control.Cpu, 3)
    entry = decoded(array, at)
    assert isinstance(entry, control.Cpu)
    replace(array, at, dataclasses.replace(entry, ring_lost=99))
    report = check(build, tmp_path, array)
    assert (report.exit_code, report.ring_lost, report.ring_unexplained) == (3, 99, 99)
    counted = "no loss(es) counted, 99 more by the rings themselves"
    assert report.verdict == f"adds up: {counted} (see below)"
    assert report.notes == ["CPU 1: its ring itself counts 99 that found no room, the ledger 0"]


# A file that ends without END.


def test_a_crash_after_a_checkpoint(tmp_path: Path) -> None:
    build = clean_capture()
    array = build.array()
    cut = find(array, control.Checkpoint, 1)
    report = check(build, tmp_path, array[:cut])
    assert problems(report) == ""
    assert report.exit_code == 3
    assert report.tail_unknown and report.after_checkpoint == 10
    assert "tail unknown" in report.verdict and "nothing lost" not in report.verdict


@pytest.mark.parametrize(("kind", "counter"), [(control.Ledger, "attempts"), (control.Cpu, "read")])
def test_earlier_checkpoints_are_judged_with_some_slack(
    tmp_path: Path, kind: type[Any], counter: str
) -> None:
    """Events half counted when the kernel's counters were read: 64 are, 65 are not. Read before the
    end of a segment or a dump, too: there records that its ledger counts were taken out."""
    for number, expected in ((64, 3), (65, 5)):
        build = clean_capture()
        array = build.array()
        at = find(array, kind, 0)
        entry: Any = decoded(array, at)
        assert isinstance(entry, kind)
        more = {counter: getattr(entry, counter) + number}
        replace(array, at, dataclasses.replace(entry, **more))
        cut = find(array, control.Checkpoint, 1)
        assert check(build, tmp_path, array[:cut]).exit_code == expected


# Every break of a sound file is found.


def change(kind: type[control.Control], nth: int = 0, **fields: Any) -> Break:
    """Change fields of one control entry; a callable gets the old value."""

    def apply(array: Rows) -> None:
        at = find(array, kind, nth)
        old = decoded(array, at)
        new = {n: v(getattr(old, n)) if callable(v) else v for n, v in fields.items()}
        assert all(getattr(old, name) != value for name, value in new.items())
        replace(array, at, dataclasses.replace(old, **new))

    return apply


def add(number: int) -> Callable[[int], int]:
    return lambda value: value + number


def put(column: str, value: Any, location: int = 1, number: int = 0) -> Break:
    """Change a column of one snapshot."""

    def apply(array: Rows) -> None:
        at = np.flatnonzero(array["location"] == location)[number]
        old = array[column][at]
        array[column][at] = value(int(old)) if callable(value) else value
        assert array[column][at] != old

    return apply


BREAKS: dict[str, tuple[Break, str]] = {
    "attempts": (change(control.Ledger, -6, attempts=add(1)), "attempts"),
    "filtered": (change(control.Ledger, -6, filtered=add(1)), "attempts"),
    "unchanged": (change(control.Ledger, -6, unchanged=add(1)), "attempts"),
    "written": (change(control.Ledger, -6, written=add(1)), "attempts"),
    "ring full": (change(control.Losses, -6, ring_full=add(1)), "attempts"),
    "no slot": (change(control.Losses, -6, no_slot=add(1)), "attempts"),
    "late": (change(control.Collector, -5, late=add(1)), "late"),
    "in file": (change(control.Collector, -5, in_file=add(1)), "entries in the file"),
    "counter falls": (change(control.Ledger, 2, attempts=10**6, filtered=10**6), "less than"),
    "run count falls": (change(control.Program, 0, runs=7), "less than"),
    "loss count": (change(control.Loss, 1, count=add(1)), "LOSS entry counts"),
    "loss count 0": (change(control.Loss, 1, count=0), "LOSS entry counts"),
    "loss cause": (change(control.Loss, 1, cause=9), "unknown cause"),
    "loss of another CPU": (change(control.Loss, 1, cpu=0), "serial"),
    "loss elsewhere": (change(control.Loss, 1, first_serial=add(1)), "serial"),
    "loss beyond": (change(control.Loss, 1, first_serial=2**64 - 1), "beyond"),
    "checkpoint number": (change(control.Checkpoint, 1, number=5), "is due"),
    "checkpoint entries": (change(control.Checkpoint, 1, entries=add(1)), "entries before it"),
    "checkpoint lost": (change(control.Checkpoint, 1, lost=add(1)), "its place says"),
    "checkpoint group less": (change(control.Checkpoint, 1, group=add(-1)), "no checkpoint"),
    "checkpoint final": (change(control.Checkpoint, 1, final=1), "follows the final one"),
    "checkpoint not final": (change(control.Checkpoint, 2, final=0), "without a final"),
    "END entries": (change(control.End, 0, entries=add(-1)), "END counts"),
    "END lost": (change(control.End, 0, lost=add(-1)), "END counts"),
    "END checkpoints": (change(control.End, 0, checkpoints=2), "END counts"),
    "END reason": (change(control.End, 0, reason=77), "reason"),
    "clock value": (change(control.Clock, 1, realtime_ns=add(50_000_000)), "step"),
    "format version": (change(control.Start, 0, version=3), "version"),
    "fewer locations": (change(control.Start, 0, locations=1), "locations"),
    "fewer CPUs": (change(control.Start, 0, cpus=1), "CPU"),
    "location": (put("location", 2), "entries in the file"),
    "location 0": (put("location", 0), "no entry has location 0"),
    "unknown location": (put("location", 250), "no control entry has location 250"),
    "cpu": (put("cpu", 1), "serial"),
    "cpu beyond": (put("cpu", 77), "CPU 77"),
    "serial": (put("serial", add(1)), "serial"),
    "serial huge": (put("serial", 2**64 - 1), "serial"),
    "seq": (put("seq", add(1)), "seq_no"),
    "seq huge": (put("seq", 2**64 - 1), "seq_no"),
    "seq_no": (put("seq_no", add(1)), "seq_no"),
    "time": (put("tv_sec", add(1)), "time"),
    "ports of a control entry": (
        put("lport", 5, control.Clock.location),
        "no control entry has location 225",
    ),
    "two LEDGER rows": (
        change(control.Ledger, -6, cpu=lambda cpu: 1 - cpu, point=1),
        "twice",
    ),
}


BREAKS |= {
    "came out": (change(control.Ledger, -1, written=add(-1), filtered=add(1)),
                 "written by the kernel, but"),
    "nowhere": (change(control.Cpu, -2, damaged=add(1)), "not lost and not in the file)"),
    "read": (change(control.Cpu, -1, read=add(1)), "records read (written, not damaged)"),
    "late by CPU": (change(control.Cpu, -1, late=add(1)), "late, but its locations add up to"),
    "serials by CPU": (change(control.Cpu, -1, serials=add(1)), "serials reserved, but its"),
    "a row of no CPU": (change(control.Cpu, -1, cpu=77), "CPU row of CPU 77, not possible here"),
    "a program of no location": (change(control.Program, -1, point=300),
                                 "no location 300 has a program"),
    "losses alone": (change(control.Losses, -1, point=5),
                     "LOSSES row of CPU 1, location 5 without a LEDGER row"),
    "on or off": (change(control.Cpu, -1, online=2), "CPU row is not on or off"),
    "a group too large": (change(control.Checkpoint, 1, group=2**32 - 1),
                          "checkpoint announces 4294967295 entries"),
    "a group not whole": (change(control.Checkpoint, 1, group=add(1)), "follow it"),
    "two STARTs": (put("location", control.Start.location, control.Mark.location),
                   "a second START entry"),
    "no START": (put("location", control.Mark.location, control.Start.location),
                 "the file does not begin with a START entry"),
    "a final of 2": (change(control.Checkpoint, 1, final=2), "checkpoint 1 has final 2"),
    "two ENDs": (put("location", control.End.location, control.Mark.location),
                 "a second END entry"),
    "a clock's callvalue": (put("callvalue", 1, control.Clock.location),
                            "the callvalue of a clock pair should be zero"),
    "clock step told": (change(control.Clock, 1, step_ns=add(50_000_000)),
                        "clock pair says a step of"),
    "clock runs back": (
        change(control.Clock, 1, mono_ns=add(-(10**9)), realtime_ns=add(-(10**9))),
        "the monotonic clock of this pair runs back",
    ),
    "times apart": (put("time_ns", add(10**8)), "further apart than any clock pair"),
    "an unused word": (put("m_clused", 1, control.End.location), "bytes that should be zero"),
    "an unused column": (put("conn_id", 1, control.Mark.location), "bytes that should be zero"),
    "a LOSS of the disk names a CPU": (change(control.Loss, 1, cause=3), "may not name this CPU"),
    "a serial that was never taken": (put("serial", 10**6), "in the file, but only"),
    "a serial twice": (put("serial", add(1)), "is there twice"),
    "a LOSS of what is there": (change(control.Loss, 1, first_serial=1), "is there twice"),
    "no serial": (put("serial", 0), "gave no serial 0"),
    "not in order": (put("seq", 1, 9), "not in order"),
    "losses of the ledger": (change(control.Losses, -1, ring_full=add(1)),
                             "records lost, late or damaged, the LOSS entries"),
    "losses of the writer": (change(control.Collector, -1, disk_full=1),
                             "lost by queue, disk or write error, the LOSS entries"),
    "more lost than missing": (change(control.Losses, -1, ring_full=add(1)),
                               "more than the sequence numbers missing"),
}  # fmt: skip
"""Each check by words that no other has."""


@pytest.mark.parametrize("name", BREAKS)
def test_every_break_is_found(name: str, tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    apply, expected = BREAKS[name]
    apply(array)
    report = check(build, tmp_path, array)
    assert report.exit_code == 5, report.verdict
    assert expected in problems(report)
    offset = report.size_bytes - len(array) * build.entry_size
    for problem in report.problems:
        assert problem.offset == offset + problem.entry * build.entry_size


def without(array: Rows, which: npt.NDArray[np.bool_] | int) -> Rows:
    keep = np.ones(len(array), np.bool_)
    keep[which] = False
    return np.frombuffer(array.tobytes(), np.dtype(("V", array.dtype.itemsize)))[keep].view(
        array.dtype
    )


def test_any_entry_left_out_or_doubled_is_found(tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    step = 1 if IS_FULL else 4
    for at in range(0, len(array) - 1, step):
        assert check(build, tmp_path, without(array, at)).exit_code == 5, at
    opaque = array.view(f"V{array.dtype.itemsize}")
    for at in range(0, len(array), step):
        twice = np.concatenate((opaque[: at + 1], opaque[at:])).view(array.dtype)
        assert check(build, tmp_path, twice).exit_code == 5, at


def test_a_loss_entry_left_out_is_a_silent_gap(tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    report = check(build, tmp_path, without(array, find(array, control.Loss)))
    assert "without a LOSS entry" in problems(report)


def test_a_tail_cut_and_a_false_end_is_found(tmp_path: Path) -> None:
    """Somebody cuts the file at a checkpoint and puts an END there with the right counts."""
    build = clean_capture()
    keep = len(build.rows) - len(build.group()) - 2
    build.rows = build.rows[:keep]
    build.seq = keep
    build.put(control.End(0, keep, 0, 1))
    report = check(build, tmp_path)
    assert report.exit_code == 5
    assert "without a final checkpoint" in problems(report)


def test_serials_missing_at_the_end_are_found(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 5)
    build.lose("no_ring", 1, 2, 4, entry=False)
    build.seq -= 4
    build.lost -= 4
    build.end()
    report = check(build, tmp_path)
    assert report.exit_code == 5
    assert "serials reserved, none in the file" in problems(report)


def test_order_of_time(tmp_path: Path) -> None:
    """A nested program may be stamped a little early; two seconds are too much."""
    for ns, expected in ((500_000_000, 0), (2_000_000_000, 5)):
        build = CaptureBuilder()
        build.snapshots(0, 1, 5)
        build.nested(0, 1, -ns)
        build.end()
        report = check(build, tmp_path)
        assert report.exit_code == expected, problems(report)


def test_order_of_time_without_monotonic_time(tmp_path: Path) -> None:
    for clock, expected in ((True, 0), (False, 5)):
        build = CaptureBuilder(further={})
        build.snapshots(0, 1, 5)
        if clock:
            build.clock(-5_000_000_000)
        else:
            build.offset_ns -= 5_000_000_000
        build.snapshots(0, 1, 5)
        build.end()
        report = check(build, tmp_path)
        assert report.exit_code == expected, problems(report)
        assert report.clock_steps == int(clock)


def test_what_follows_the_end_is_found(tmp_path: Path) -> None:
    build = clean_capture()
    build.mark()
    assert "entries follow END" in problems(check(build, tmp_path))
    build = CaptureBuilder()
    build.checkpoint(final=True)
    build.snapshots(0, 1, 2)
    build.put(control.End(0, len(build.rows), 0, 1))
    assert "snapshots follow the final checkpoint" in problems(check(build, tmp_path))


def test_serials_that_vanish_are_found(tmp_path: Path) -> None:
    """A record takes a serial and a number, and neither LOSS entry nor ledger tells of it."""
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.serials[0] += 1
    build.snapshots(0, 1, 3)
    build.end()
    assert "CPU 0: 1 serial(s) missing, not counted" in problems(check(build, tmp_path))
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.serials[0] += 100
    build.snapshots(0, 1, 3)
    build.checkpoint()
    found = problems(check(build, tmp_path))
    assert "CPU 0: 100 serial(s) missing without a LOSS entry" in found
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.serials[0] += 5
    build.lose_writing("disk_full", 0, 1, 2)
    build.end()
    found = problems(check(build, tmp_path))
    assert "7 serials missing, more than the 2 lost with CPU unknown" in found


# Files of others.


def test_a_file_of_2000(tmp_path: Path) -> None:
    report = check(classic_2000(50), tmp_path)
    assert report.exit_code == 0
    assert "no ledger in this file: only the sequence can be checked" in report.verdict
    assert not report.tail_unknown
    report = check(classic_2000(50, {10: 4, 20: 1}), tmp_path)
    assert (report.exit_code, report.seq_gaps, report.lost_total) == (3, 2, 5)


def test_a_file_of_2000_with_numbers_in_disorder(tmp_path: Path) -> None:
    build = classic_2000(50)
    array = build.array()
    array["seq_no"][20] = 3
    assert check(build, tmp_path, array).exit_code == 5


def test_a_file_of_2000_wraps_and_starts_anywhere(tmp_path: Path) -> None:
    build = classic_2000(50)
    array = build.array()
    array["seq_no"] = (np.arange(50) + 2**32 - 20).astype(np.uint32)
    report = check(build, tmp_path, array)
    assert (report.exit_code, report.lost_total) == (0, 0)


def test_a_cut_file_of_2000_is_damaged(tmp_path: Path) -> None:
    build = classic_2000(50)
    path = build.write(tmp_path / "capture.pm")
    path.write_bytes(path.read_bytes()[:-1])
    assert verify_file(path).exit_code == 5


def test_sequence_beyond_32_bits(tmp_path: Path) -> None:
    """seq_no wraps in the middle of the file: with and without the 64-bit column."""
    for further in (FURTHER, {}):
        build = CaptureBuilder(further=dict(further))
        build.snapshots(0, 1, 3)
        build.lose("ring_full", 0, 1, 2**31 - 10)
        build.snapshots(0, 1, 1)
        build.lose("ring_full", 0, 1, 2**31 - 10)
        build.snapshots(0, 1, 100)
        build.end()
        report = check(build, tmp_path)
        assert problems(report) == ""
        assert report.totals.lost["ring full"] == 2 * (2**31 - 10)


@pytest.mark.parametrize("rows", [1, 2, 7, 50])
def test_the_answer_does_not_depend_on_the_segments(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups, gaps, clock pairs and nested records that stand across a segment's edge."""
    whole = check(full_capture(), tmp_path).as_json()
    build = full_capture()
    array = build.array()
    array["serial"][np.flatnonzero(array["location"] == 9)[4]] += 1
    broken = check(build, tmp_path, array)
    monkeypatch.setattr("tcpkmon.formats.verify.psc.SEGMENT_ROWS", rows)
    assert check(full_capture(), tmp_path).as_json() == whole
    again = check(build, tmp_path, array)
    assert broken.exit_code == again.exit_code == 5


@pytest.mark.parametrize("name", ["seq_no", "location", "lport"])
def test_a_renamed_column_that_the_ledger_needs(name: str, tmp_path: Path) -> None:
    """Not a file of 2000, of which less is asked: tcpkmon wrote the header."""
    path = clean_capture().write(tmp_path / "capture.pm")
    data = path.read_bytes()
    at = data.index(name.encode() + b"\0")
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    report = verify_file(path)
    assert report.exit_code == 5
    assert "no ledger, although" in report.verdict


def test_numbers_of_a_file_of_2000_are_those_that_its_readers_see(tmp_path: Path) -> None:
    """Here of the column `seq`, and of eight bits in seq_no, which wrap."""
    build = classic_2000(400)
    array = build.array()
    path = build.write(tmp_path / "capture.pm")
    data = path.read_bytes().replace(b"seq_no\0", b"other\0\0")
    path.write_bytes(data)
    report = verify_file(path)
    assert (report.exit_code, report.verdict[:29]) == (5, "the file has no sequence numb")
    narrow = path.read_bytes().replace(b"other\0\0", b"seq_no\0")
    at = narrow.index(b"seq_no\0") + 26
    path.write_bytes(narrow[:at] + b"\1" + narrow[at + 1 :])
    assert verify_file(path).exit_code == 0
    entries = len(path.read_bytes()) - array.nbytes
    path.write_bytes(path.read_bytes()[:entries] + np.delete(array, 300).tobytes())
    report = verify_file(path)
    assert (report.exit_code, report.seq_lost, report.seq_gaps) == (3, 1, 1)


def test_texts_of_the_header_that_no_reader_can_parse(tmp_path: Path) -> None:
    path = clean_capture().write(tmp_path / "capture.pm")
    path.write_bytes(path.read_bytes().replace(b'{"locations"', b'["locations"'))
    report = verify_file(path)
    assert (report.exit_code, report.suspects) == (5, set())
    found = {(problem.offset, problem.what) for problem in report.problems}
    assert (0, "the header's settings cannot be read") in found
