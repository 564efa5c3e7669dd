# SPDX-License-Identifier: Apache-2.0
"""`import tcpkmon`: what it has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.formats.commands.requests import command
from tests.kept.make import unpack
from tests.unit.log_files import ROOT, clean_log
from tests.unit.psc_files import write_capture


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture.pm", 2000, 3)


def test_the_page_has_each_function() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    functions = {name for name in tcpkmon.__all__ if name.islower()}
    assert functions == set(re.findall(r"`(\w+)\(", "\n".join(
        line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `")
    )))  # fmt: skip


def test_tables_of_a_capture(capture: Path) -> None:
    table = tcpkmon.connections(capture)
    with tcpkmon.open(capture) as reader:
        assert table.conn_id.tolist() == reader.table("connections")["conn_id"].to_pylist()
    assert set(tcpkmon.intervals(capture).conn_id) <= set(table.conn_id)
    told = tcpkmon.why(capture)
    assert {one.connection.conn_id for one in told} == set(table.conn_id)
    assert all(one.sentences for one in told)
    sizes = [max(one.connection.bytes_acked, one.connection.bytes_received) for one in told]
    assert sizes == sorted(sizes, reverse=True)


def test_verify_and_diff(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    capture = next(tmp_path.rglob("*.pm"))
    [report] = tcpkmon.verify(capture)
    assert (report.exit_code, report.path) == (0, str(capture))
    compared = tcpkmon.diff(capture, [capture]).compared
    assert compared and not any(one.is_worse for one in compared.values())


def test_requests_and_intervals(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    capture = next(tmp_path.rglob("*.pm"))
    told = tcpkmon.requests(capture)
    asked = CliRunner().invoke(command, [str(capture), "--json"]).stdout.splitlines()
    rows = [json.loads(line) for line in asked]
    assert rows and [row["start_ns"] for row in rows] == told.start_ns.tolist()
    assert [row["request_bytes"] for row in rows] == told.request_bytes.tolist()
    assert set(tcpkmon.intervals(capture).limit) == {"opening", "app", "idle", "closing"}


def test_a_capture_without_connections_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    clean_log().finish().write(folder / "kernlog.dump.cpu0")
    with pytest.raises(tcpkmon.UsageError):
        tcpkmon.connections(folder)
    with pytest.raises(tcpkmon.FileError):
        tcpkmon.open(tmp_path / "none")
    with pytest.raises(tcpkmon.UsageError, match="a PSC file, not a log of events"):
        tcpkmon.latency(write_capture(tmp_path / "run.pm", 100, 2))
