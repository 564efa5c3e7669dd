# SPDX-License-Identifier: Apache-2.0
"""verify on captures with flipped bits: no traceback, and found wherever a check covers the bit.

What is not covered is listed here as it is in docs/verify.md.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.base.whose import GroupPart
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.verify import verify_file
from tcpkmon.formats.verify.repair import repair_file
from tests.full import IS_FULL
from tests.unit.psc_files import CaptureBuilder, full_capture

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
