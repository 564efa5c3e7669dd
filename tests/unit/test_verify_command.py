# SPDX-License-Identifier: Apache-2.0
"""The commands verify and repair as people call them: output, exit codes, several files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.base.cli import run
from tcpkmon.formats.commands.repair import command as repair
from tcpkmon.formats.commands.verify import command as verify
from tcpkmon.formats.psc.header import Header, encode_header
from tcpkmon.formats.verify.report import Report, Row
from tcpkmon.formats.verify.table import make_console, print_report
from tests.unit.captures import CaptureBuilder, classic_2000, clean_capture, full_capture

SCHEMA = """enum location {
    SEGMENT_RECEIVED = 1, // a segment
    RETRANSMIT_SYNACK = 2, // %s
    ZERO_WINDOW_PROBE = 9, // a probe
}
event SNAPSHOT { uint seq_no // a number
}
"""


def columns(line: str) -> list[str]:
    return line.split()


def test_the_table_adds_up_and_stays_narrow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = full_capture().write(tmp_path / "a.pm")
    assert run(verify, [str(path)], prog="verify") == 3
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert "31 lost, all accounted for" in printed
    table = [line for line in lines if re.match(r"\s*(\d+\s+(\d+|EXISTING)|total)\s", line)]
    rows = [columns(line) for line in table]
    totals = [int(cell) for cell in rows[-1][1:]]
    assert rows[-1][0] == "total"
    assert totals == [sum(int(row[2 + at]) for row in rows[:-1]) for at in range(6)]
    attempts, filtered, unchanged, written, in_file, lost = totals
    assert attempts == filtered + unchanged + in_file + lost
    assert written == in_file + 6 + 7
    assert all(len(line) < 80 for line in lines if str(tmp_path) not in line)
    assert "\x1b" not in printed
    for cause in ("ring full", "no ring", "late", "damaged", "no slot"):
        assert cause in printed


def test_what_was_under_way_at_the_beginning_is_told_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file before, which counted these events, was deleted."""
    counts = {"attempts": 10, "written": 10}
    rows = [
        Row(0, 1, "RTO", **counts, in_file=24, pending=-14),
        Row(1, 1, "RTO", **counts, in_file=7, pending=3),
    ]
    print_report(make_console(False), Report("a.pm", ledger=True, proven_end=True, rows=rows))
    told = capsys.readouterr().out
    assert "-" not in told.split("cpu location")[1]
    assert "in file are 14 whose events the file before these counted" in told
    rows_told = [line.split()[-3:] for line in told.splitlines() if line.endswith(" 0")]
    assert rows_told == [["24", "0", "0"], ["7", "3", "0"], ["31", "3", "0"]]


def test_large_numbers_stay_narrow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.withheld(0, 1, filtered=10**11, unchanged=10**11)
    build.lose("table_full", 0, 1, 10**11)
    build.end()
    path = build.write(tmp_path / "a.pm")
    assert run(verify, [str(path)], prog="verify") == 3
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) < 80 for line in lines if str(tmp_path) not in line)
    assert any("300000000003" in line for line in lines)


def test_locations_have_the_names_of_the_files_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Named(CaptureBuilder):
        def header(self) -> Header:
            header = super().header()
            header.extras[0x103] = [(SCHEMA % "doc").encode()]
            return header

    build = Named()
    build.snapshots(1, 9, 3)
    build.end()
    assert run(verify, [str(build.write(tmp_path / "a.pm"))], prog="verify") == 0
    assert "ZERO_WINDOW_PROBE" in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = clean_capture().write(tmp_path / "a.pm")
    bad = full_capture()
    array = bad.array()
    array["serial"][array["location"] == 2] += 1
    broken = bad.write(tmp_path / "b.pm", array)
    assert run(verify, ["--json", str(good), str(broken)], prog="verify") == 5
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 5
    first, second = found["files"]
    assert (first["exit_code"], first["lost_total"], first["proven_end"]) == (0, 0, True)
    assert first["totals"]["attempts"] == 37
    assert second["exit_code"] == 5 and second["problems_total"] >= 1
    assert second["problems"][0]["offset"] > 0 and "serial" in second["problems"][0]["what"]


def test_the_worst_of_several_files_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = str(clean_capture().write(tmp_path / "clean.pm"))
    lossy = str(full_capture().write(tmp_path / "lossy.pm"))
    broken = tmp_path / "broken.pm"
    broken.write_bytes(b"no capture at all")
    missing = str(tmp_path / "missing.pm")
    assert run(verify, [clean, clean], prog="verify") == 0
    assert run(verify, [clean, lossy, clean], prog="verify") == 3
    assert run(verify, [clean, lossy, missing], prog="verify") == 1
    assert "missing.pm" in capsys.readouterr().out
    assert run(verify, [str(broken), missing, lossy], prog="verify") == 5
    assert run(verify, [], prog="verify") == 2


def test_a_missing_file_is_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(verify, [str(tmp_path / "none.pm")], prog="verify") == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "none.pm" in err


def test_problems_are_listed_with_their_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = full_capture()
    array = build.array()
    at = int(np.flatnonzero(array["location"] == 1)[2])
    array["location"][at] = 0
    path = build.write(tmp_path / "a.pm", array)
    offset = path.stat().st_size - (len(array) - at) * build.entry_size
    assert run(verify, [str(path)], prog="verify") == 5
    printed = " ".join(capsys.readouterr().out.split())
    assert f"offset {offset}, entry {at}: no entry has location 0" in printed


def test_a_crash_says_that_the_tail_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = clean_capture()
    path = build.write(tmp_path / "a.pm", build.array()[:-3])
    assert run(verify, [str(path)], prog="verify") == 3
    printed = capsys.readouterr().out
    assert "tail unknown" in printed and "nothing lost" not in printed
    assert "0 lost" not in printed


@pytest.mark.parametrize(("make", "lost"), [(clean_capture, "no"), (full_capture, "31")])
def test_what_the_kernel_did_not_count_is_not_proven(
    make: Callable[..., CaptureBuilder],
    lost: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = make(settings={"unproven": {"RETRANSMIT": "kprobe:tcp_retransmit_skb\x1b"}})
    path = str(build.write(tmp_path / "a.pm"))
    assert run(verify, [path], prog="verify") == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert f"adds up: {lost} loss(es) counted" in printed
    assert "not proven for 1 location(s)" in printed and "nothing lost" not in printed
    assert "not proven: RETRANSMIT by kprobe:tcp_retransmit_skb\\x1b: the kernel did" in printed
    assert run(verify, [path, "--json"], prog="verify") == 3
    assert json.loads(capsys.readouterr().out)["files"][0]["unproven"].keys() == {"RETRANSMIT"}


def test_what_no_program_was_shown_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(clean_capture(settings={"unseen": "process 1\x1b"}).write(tmp_path / "a.pm"))
    assert run(verify, [path], prog="verify") == 0
    assert "not seen: process 1\\x1b" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("settings", [{}, {"unseen": ["x"]}, {"unproven": {}}, {"unproven": [""]}])
def test_what_is_counted_is_proven(settings: dict[str, Any], tmp_path: Path) -> None:
    path = clean_capture(settings=settings).write(tmp_path / "a.pm")
    assert run(verify, [str(path)], prog="verify") == 0


def test_a_file_of_2000_is_said_to_have_no_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = classic_2000(20).write(tmp_path / "old.pm")
    assert run(verify, [str(path)], prog="verify") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no ledger in this file: only the sequence can be checked" in printed


def test_nothing_from_a_file_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b]0;gotcha\x07[red]\u202e.pm"
    path = full_capture().write(tmp_path / name)
    assert run(verify, [str(path)], prog="verify") == 3
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed and "\u202e" not in printed
    assert "[red]" in printed.replace("\n", "")


def test_repair_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = clean_capture()
    path = build.write(tmp_path / "a.pm")
    path.write_bytes(path.read_bytes()[:-5])
    new = tmp_path / "new.pm"
    assert run(repair, [str(path), "-o", str(new)], prog="repair") == 0
    out, err = capsys.readouterr()
    assert "kept" in err and "new.pm" in out.replace("\n", "")
    assert run(repair, [str(path), "-o", str(new)], prog="repair") == 1
    assert "already" in capsys.readouterr().err
    assert run(repair, [str(path), "-o", str(path)], prog="repair") == 2
    assert run(repair, [str(path)], prog="repair") == 2
    broken = tmp_path / "broken.pm"
    broken.write_bytes(encode_header(build.header())[:-1])
    assert run(repair, [str(broken), "-o", str(tmp_path / "b.pm")], prog="repair") == 5
    assert not (tmp_path / "b.pm").exists()
