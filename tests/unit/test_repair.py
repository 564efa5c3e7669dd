# SPDX-License-Identifier: Apache-2.0
"""verify on captures with flipped bits: found wherever a check covers the bit; and repair.

What is not covered is listed here as it is in docs/verify.md.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tcpkmon
from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.base.whose import GroupPart
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.verify import verify_file
from tcpkmon.formats.verify.repair import Repair, repair_file
from tests.full import IS_FULL
from tests.unit.psc_files import (
    FURTHER,
    CaptureBuilder,
    classic_2000,
    clean_capture,
    decoded,
    find,
    full_capture,
)

BITS = range(8) if IS_FULL else range(1)

# Every entry: a difference of less than 10 ms between time and time_ns, of the entry or the clock.
TIMES = {"time", "time_ns"}
WORDS = {
    "snd_cwnd", "snd_max", "snd_fack", "sb_hiwat", "snd_sb_cc",
    "rcv_sb_cc", "sb_target_hiwat", "sb_net_target", "hiwat_fair_share", "m_clused",
}  # fmt: skip
SNAPSHOT = WORDS | {"callvalue", "lport", "rport", "conn_id", "srtt_us", "pad"}
# Counters in checkpoints before the last may be off by 64; a row of zeros may become another one.
SLACK = WORDS | {"callvalue", "location"}
UNCOVERED = {
    "snapshot": SNAPSHOT,
    "EXISTING": SNAPSHOT,
    "MARK": WORDS | {"callvalue", "location"},
    "PROGRAM": WORDS | {"callvalue", "location"},
    "START": {"snd_cwnd", "snd_fack", "snd_sb_cc", "rcv_sb_cc"},
    "CLOCK": {"location", "snd_cwnd", "snd_fack", "snd_sb_cc", "rcv_sb_cc", "sb_target_hiwat"},
    "LOSS": {"snd_sb_cc"},
    "CHANGE": WORDS | {"callvalue", "location"},
    "CPU": SLACK,
    "LEDGER": SLACK,
    "LOSSES": SLACK,
    "COLLECTOR": SLACK,
    "CHECKPOINT": set[str](),
    "END": {"callvalue"},
}
FINAL_UNCOVERED = {
    "CPU": {"hiwat_fair_share", "m_clused"},
    "LEDGER": set[str](),
    "LOSSES": {"location"},
    "COLLECTOR": {"location"},
}


def small_capture() -> CaptureBuilder:
    build = CaptureBuilder(locations=(1, 2))
    build.clock()
    build.existing()
    build.snapshots(0, 1, 3)
    build.mark()
    build.switch(2, False)
    build.switch(2, True)
    build.checkpoint()
    build.snapshots(1, 2, 2)
    build.lose("ring_full", 1, 2, 2)
    build.withheld(0, 1, 1, 1)
    build.snapshots(1, 2, 2)
    build.clock(10)
    build.end()
    return build


@pytest.mark.parametrize("part", range(8 if IS_FULL else 1))
def test_a_flipped_bit_is_found_where_a_check_covers_it(part: int, tmp_path: Path) -> None:
    build = small_capture()
    path = build.write(tmp_path / "capture.pm")
    whole = path.read_bytes()
    array = build.array()
    final = int(np.flatnonzero(array["location"] == control.Checkpoint.location)[-1])
    start = len(whole) - len(array) * build.entry_size
    column_at = {
        column.offset + at: column.name for column in build.columns for at in range(column.length)
    }
    for at in range(start + part, len(whole), 8):
        entry, offset = divmod(at - start, build.entry_size)
        kind = facts.NAMES.get(int(array["location"][entry]), "snapshot")
        uncovered = UNCOVERED[kind] | TIMES
        if entry > final:
            uncovered = FINAL_UNCOVERED.get(kind, UNCOVERED[kind]) | TIMES
        for bit in BITS if IS_FULL else ((at // 8) % 8,):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            report = verify_file(path)
            column = column_at.get(offset, "pad")
            assert report.exit_code == 5 or column in uncovered, (kind, entry, column, bit)


def test_flipped_bits_in_the_header_end_in_a_report(tmp_path: Path) -> None:
    build = small_capture()
    path = build.write(tmp_path / "capture.pm")
    whole = path.read_bytes()
    start = len(whole) - len(build.rows) * build.entry_size
    for at in range(0, start, 1 if IS_FULL else 11):
        for bit in BITS if IS_FULL else (at % 8,):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            assert verify_file(path).exit_code == 5, (at, bit)
            if (at + bit) % 5:
                continue
            with contextlib.suppress(DamagedError):
                repair_file(path, tmp_path / "new.pm")
            (tmp_path / "new.pm").unlink(missing_ok=True)


def test_a_file_of_one_kind_of_control_entries_alone(tmp_path: Path) -> None:
    """Nothing but CHECKPOINTs, CLOCKs, ...: an answer, not a hang."""
    build = full_capture()
    array = build.array()
    others = [control.Trigger(1, 5, 1, 6, 1, 0), Reconciled(0, 0, 1, 1, 1, 1)]
    others += [GroupPart(0, 1, 7, b"{}"), Unseen(5, 6), DropPlace(1, b"nf_hook_slow")]
    array = np.concatenate([array, control.encode_many(others, array.dtype)])
    for location in sorted(set(facts.NAMES) - {control.EXISTING}):
        at = np.flatnonzero(array["location"] == location)[0]
        raw = array[at : at + 1].tobytes() * 3000
        rows = np.frombuffer(bytearray(raw), array.dtype)
        path = build.write(tmp_path / f"{location}.pm", rows)
        assert verify_file(path).exit_code == 5
        rows["seq"] = np.arange(1, 3001)
        rows["seq_no"] = rows["seq"]
        path = build.write(tmp_path / f"{location}.pm", rows)
        assert verify_file(path).exit_code in {3, 5}


def test_an_older_header_is_named_as_not_checked(tmp_path: Path) -> None:
    build = small_capture()
    assert verify_file(build.write(tmp_path / "new.pm")).unchecked == []
    header, version_1 = replace(build.header(), has_checksum=False), build.array()
    path = tmp_path / "old.pm"
    path.write_bytes(encode_header(header) + version_1.tobytes())
    assert "the header has lost its checksum" in verify_file(path).problems[0].what
    version_1["callvalue"][0] = 1
    path.write_bytes(encode_header(header) + version_1.tobytes())
    report = verify_file(path)
    assert (report.exit_code, report.unchecked) == (3, ["the header (it has no checksum)"])
    further = {"seq": 8, "time_ns": 8}
    classic = verify_file(CaptureBuilder(further=further).write(tmp_path / "classic.pm"))
    assert classic.unchecked == ["each CPU's counts (no column cpu)", "serials (no column serial)"]


Rows = npt.NDArray[Any]


def repair(build: CaptureBuilder, tmp_path: Path, array: Rows | None = None) -> Repair:
    path = build.write(tmp_path / "old.pm", array)
    before = path.read_bytes()
    out = tmp_path / "new.pm"
    out.unlink(missing_ok=True)
    result = repair_file(path, out)
    assert path.read_bytes() == before
    assert [problem.what for problem in verify_file(out).problems] == [
        problem.what for problem in result.report.problems
    ]
    return result


def last_entry(path: Path) -> control.Control:
    with tcpkmon.open(path) as capture:
        ((_, found),) = list(capture.controls(len(capture) - 1))
        return found


def test_a_whole_file_stays_as_it_is(tmp_path: Path) -> None:
    for options in ({}, {"further": {}}, {"big_endian": True}):
        result = repair(full_capture(**options), tmp_path)
        assert (result.dropped, result.missing, result.cut_bytes) == (0, 0, 0)
        assert (tmp_path / "new.pm").read_bytes() == (tmp_path / "old.pm").read_bytes()


def test_a_cut_entry_is_left_out_and_the_end_marked(tmp_path: Path) -> None:
    build = clean_capture()
    path = build.write(tmp_path / "old.pm")
    path.write_bytes(path.read_bytes()[:-30])
    result = repair_file(path, tmp_path / "new.pm")
    assert result.cut_bytes == build.entry_size - 30
    assert result.report.exit_code == 0  # the final checkpoint is there: all is proven
    end = last_entry(tmp_path / "new.pm")
    assert isinstance(end, control.End)
    assert end.reason == control.EndReason.ERROR
    assert end.entries == len(build.rows) - 1


@pytest.mark.parametrize("further", [FURTHER, {}, {"seq": 8}, {"serial": 8, "cpu": 2}], ids=str)
@pytest.mark.parametrize("big_endian", [False, True])
def test_one_nonsense_entry_is_counted(
    further: dict[str, int], big_endian: bool, tmp_path: Path
) -> None:
    build = clean_capture(further=dict(further), big_endian=big_endian)
    array = build.array()
    at = np.flatnonzero(array["location"] == 1)[7]
    raw = array.view(f"V{build.entry_size}")
    raw[at] = b"\xff" * build.entry_size
    result = repair(build, tmp_path, array)
    assert (result.dropped, result.missing) == (1, 1)
    report = result.report
    assert [problem.what for problem in report.problems] == []
    assert report.exit_code == 3
    assert (report.seq_lost, report.totals.lost["damaged"]) == (1, 1 if "cpu" in further else 0)
    with tcpkmon.open(tmp_path / "new.pm") as capture:
        losses = [entry for _, entry in capture.controls() if isinstance(entry, control.Loss)]
        assert losses == [control.Loss(control.ANY_CPU, 0, 1, control.LossCause.DAMAGED)]
        assert capture.lost == 1
        assert not capture.damaged and capture.complete


@pytest.mark.parametrize("at", range(0, 120, 7 if IS_FULL else 31))
@pytest.mark.parametrize("column", ["seq", "seq_no", "location", "time_ns", "tv_sec"])
@pytest.mark.parametrize("bit", [0, 5, 31])
def test_a_flipped_bit_of_an_entry(at: int, column: str, bit: int, tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    array[column][at] ^= np.array(1 << bit, array.dtype[column])
    broken = verify_file(build.write(tmp_path / "old.pm", array))
    result = repair(build, tmp_path, array)
    assert result.report.exit_code == 3, result.report.problems
    assert broken.exit_code == 3 or result.dropped >= 1


def test_numbers_missing_without_a_loss_entry(tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    at = find(array, control.Loss, 1)
    loss = decoded(array, at)
    assert isinstance(loss, control.Loss)
    keep = np.delete(array.view(f"V{build.entry_size}"), at).view(array.dtype)
    result = repair(build, tmp_path, keep)
    assert (result.dropped, result.missing) == (0, loss.count + 1)
    assert result.report.exit_code == 3


def test_entries_after_the_end(tmp_path: Path) -> None:
    build = clean_capture()
    array = build.array()
    raw = array.view(f"V{build.entry_size}")
    result = repair(build, tmp_path, np.concatenate((raw, raw[5:9])).view(array.dtype))
    assert result.dropped == 5  # the old END with them
    assert result.report.exit_code in {0, 3}
    assert (tmp_path / "new.pm").stat().st_size == (tmp_path / "old.pm").stat().st_size - (
        4 * build.entry_size
    )


def test_large_files_are_cleaned_across_segments(tmp_path: Path, monkeypatch: Any) -> None:
    for module in ("repair", "psc"):
        monkeypatch.setattr(f"tcpkmon.formats.verify.{module}.SEGMENT_ROWS", 100)
    build = CaptureBuilder()
    for _ in range(5):
        build.snapshots(0, 1, 60)
        build.checkpoint()
        build.snapshots(1, 2, 61)
        build.lose("ring_full", 0, 1, 3)
        build.snapshots(0, 1, 1)
    build.end()
    assert verify_file(build.write(tmp_path / "whole.pm")).exit_code == 3
    array = build.array()
    chosen = np.flatnonzero(array["location"] < 224)[10:-10:37]
    array["seq"][chosen[::2]] ^= np.uint64(1 << 40)
    array["seq_no"][chosen[1::2]] = 0
    result = repair(build, tmp_path, array)
    assert result.report.exit_code == 3, result.report.problems
    assert result.dropped == result.missing == len(chosen)
    assert result.report.totals.lost["damaged"] == len(chosen)


def test_a_file_of_2000_loses_only_its_cut_entry(tmp_path: Path) -> None:
    build = classic_2000(30, {7: 2})
    whole = build.write(tmp_path / "old.pm").read_bytes()
    (tmp_path / "old.pm").write_bytes(whole + b"\x01" * 11)
    result = repair_file(tmp_path / "old.pm", tmp_path / "new.pm")
    assert (result.kept, result.cut_bytes, result.report.exit_code) == (30, 11, 3)
    assert (tmp_path / "new.pm").read_bytes() == whole


# The new file.


def test_the_output_is_new_private_and_never_a_link(tmp_path: Path) -> None:
    path = clean_capture().write(tmp_path / "old.pm")
    before = path.read_bytes()
    mask = os.umask(0)
    try:
        repair_file(path, tmp_path / "new.pm")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.pm").stat().st_mode) == 0o640
    with pytest.raises(FileError, match="already"):
        repair_file(path, tmp_path / "new.pm")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError):
        repair_file(path, tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "same").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for same in (path, tmp_path / "same", tmp_path / "hard"):
        with pytest.raises(UsageError):
            repair_file(path, same)
    assert path.read_bytes() == before


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    path = clean_capture().write(tmp_path / "old.pm")
    with pytest.raises(FileError):
        repair_file(path, tmp_path / "no such directory" / "new.pm")
    with pytest.raises(FileError):
        repair_file(tmp_path / "none.pm", tmp_path / "new.pm")
    path.write_bytes(encode_header(clean_capture().header())[:-2])
    with pytest.raises(DamagedError):
        repair_file(path, tmp_path / "new.pm")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["old.pm"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    path = clean_capture().write(tmp_path / "old.pm")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="No space left"):
        repair_file(path, tmp_path / "new.pm")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["old.pm"]
