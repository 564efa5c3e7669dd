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
from tcpkmon.formats.psc.header import encode_header
from tests.unit.psc_files import CaptureBuilder, clean_capture, full_capture


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


@pytest.mark.parametrize("settings", [{}, {"unseen": ["x"]}, {"unproven": {}}, {"unproven": [""]}])
def test_what_is_counted_is_proven(settings: dict[str, Any], tmp_path: Path) -> None:
    path = clean_capture(settings=settings).write(tmp_path / "a.pm")
    assert run(verify, [str(path)], prog="verify") == 0


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
