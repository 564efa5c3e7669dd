# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon latency`: what it prints and writes; what it says of wrong arguments and bad logs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.latency import command
from tests.unit.log_files import write_folder
from tests.unit.psc_files import write_capture
from tests.unit.test_latency import FIRST, begin, transfer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = begin()
    transfer(log, 20_000, transfer(log))
    return write_folder(tmp_path / "log", log)


def run(*words: object) -> int:
    return cli.run(command, [str(word) for word in words])


def test_a_psc_file_is_told_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_capture(tmp_path / "run.pm", 100, 2)) == 2
    assert "a PSC file, not a log of events; collect --latency" in capsys.readouterr().err


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "200 bytes: 200 measured, 0 unknown" in lines[0]
    assert "10.0.0.1:5000 > 10.0.0.2:80  (test 0; both ends)" in lines
    network = next(line.split() for line in lines if line.startswith("network"))
    assert network[:3] == ["network", "22.2", "%"] and network[-3:-1] == ["80.0", "ns"]
    assert any(", in the queue 45.0 ns, " in line and "waited for the reader 200 ns" in line
               for line in lines)  # fmt: skip


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (flow,) = found["flows"]
    assert flow["bytes_by_state"]["measured"] == 200
    assert flow["once"]["qdisc"]["max_ns"] == 40 and flow["once"]["qdisc"]["mean_ns"] == 40
    assert sum(part["share"] for name, part in flow["once"].items() if name != "whole") == (
        pytest.approx(1)
    )


def test_a_table_and_a_picture(folder: Path, tmp_path: Path) -> None:
    table, picture = tmp_path / "ranges.parquet", tmp_path / "waits.svg"
    assert run(folder, "-o", table, "-o", picture) == 0
    rows = parquet.read_table(table)
    assert rows.column("seq_lo").to_pylist() == [FIRST, FIRST + 100]
    parts = [name for name in rows.column_names if name.endswith("_us")]
    total = sum(np.nan_to_num(rows.column(name).to_numpy()) for name in parts)
    whole = rows.column("t_read").to_numpy() - rows.column("t_write").to_numpy()
    assert (np.abs(total * 1000 - whole) < 1e-6).all()
    assert rows.column("return_us").null_count == 2  # both ends: there is no such part
    assert rows.column("state").to_pylist() == ["measured"] * 2
    assert parquet.read_metadata(table).row_group(0).column(0).statistics is not None
    assert "The slowest ranges" in picture.read_text() or picture.stat().st_size > 1000
    assert run(folder, "-o", picture) == 1  # it is there already
    assert run(folder, "-o", picture, "--force") == 0


def test_losses_and_missing_ends_have_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = begin()
    transfer(log)
    log.lose("ring_full", 5, "DEV_RECV")
    assert run(write_folder(tmp_path / "lossy", log)) == 3
    assert "100 unknown" in capsys.readouterr().out
    cut = begin()
    transfer(cut)
    path = cut.end_dump().write(tmp_path / "kernlog.dump.cpu0")
    assert run(path) == 3
    assert "tail unknown" in capsys.readouterr().err
