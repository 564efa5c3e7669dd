# SPDX-License-Identifier: Apache-2.0
"""The tables of captures as Arrow: `tcpkmon.open(x).table(name)`, and captures in notebooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import tcpkmon
from tcpkmon.collector.plan.columns import EVENT, load_schema
from tcpkmon.formats.base.analysed import Analysed
from tcpkmon.formats.klogger.logs import open_logs
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.tables import SHIPPED, Opened, snapshot_columns, views_of
from tests.full import first
from tests.kept.make import unpack
from tests.unit.log_files import ROOT, clean_log
from tests.unit.psc_files import write_capture

TCP = {"snapshots", "connections", "causes", "intervals", "requests", "ledger", "proof"}
KEPT = {
    "psc-lossy": TCP, "psc-rotated": TCP, "klogger-rotated": TCP,
    "events-plain": {"latency", "ledger", "proof"}, "magnet-plain": {"ledger", "proof"},
    "psc-plain": TCP, "psc-zst": TCP, "klogger-plain": TCP, "klogger-lossy": TCP,
    "magnet-rotated": {"ledger", "proof"},
}  # fmt: skip
# A column whose number is no quantity: an identity, a sequence number, a port, a count of times.
NO_UNIT = re.compile(
    r"(conn_id|netns|cgroup|uid|token|subflows|seq|serial|segment|port|family|pid|errno|cpu|location|number|state"
    r"|flags|code|retrans|count|recoveries|probes|timeouts|rto|dups|undo|ooopack|rcvq_full|wscale"
    r"|records|lost|problems|checkpoints|rto_unanswered|spread|share|ratio|addr|callvalue)"
)


def capture_of(name: str, folder: Path) -> Path:
    unpack(name, folder)
    return next(path for path in folder.iterdir() if path.name.startswith(name))


@pytest.mark.parametrize("name", first(5, KEPT))
def test_each_table_is_as_it_is_declared(name: str, tmp_path: Path) -> None:
    path = capture_of(name, tmp_path)
    with tcpkmon.open(path) as reader:
        views = views_of(Opened((path,), reader))
        assert KEPT[name] == {one for one in views if one in SHIPPED or one == "snapshots"}
        for view in views.values():
            table = reader.table(view.name)
            assert table.column_names == [column.name for column in view.columns]
            assert [field.type for field in table.schema] == [one.arrow for one in view.columns]
            assert table.validate(full=True) is None
            for column in view.columns:
                nulls = table[column.name].null_count
                # 2^64-1, which an earlier version did not declare as null
                is_old = column.name == "pacing_rate"
                assert column.null or not nulls or is_old, (view.name, column.name)
        # The ledgers of MAGNeT files of before are not added up.
        full = KEPT[name] - {"causes"} - ({"ledger"} if name.startswith("magnet-") else set())
        assert all(reader.table(one).num_rows for one in full)


@pytest.mark.parametrize("name", ["psc-plain", "klogger-plain", "psc-rotated"])
def test_the_values_are_those_of_other_interfaces(name: str, tmp_path: Path) -> None:
    path = capture_of(name, tmp_path)
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Analysed)
        frame = tcpkmon.connections(path)
        table = reader.table("connections").to_pandas()
        for column in ("conn_id", "bytes_sent", "raddr", "main_limit", "us_app", "proven"):
            assert table[column].tolist() == frame[column].tolist(), column
        assert [f"{at:%FT%T.%f}Z" for at in table.start] == frame.start.tolist()
        runs = tcpkmon.intervals(path).sort_values(["conn_id", "start_ns"])
        told = reader.table("intervals").to_pandas().sort_values(["conn_id", "start_ns"])
        for column in ("start_ns", "end_ns", "limit", "bytes_acked", "certain"):
            assert told[column].tolist() == runs[column].tolist(), column
        assert len(reader.table("requests")) == len(tcpkmon.requests(path))


def test_snapshots_have_the_records_and_nulls(tmp_path: Path) -> None:
    path = capture_of("psc-plain", tmp_path)
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Capture)
        table = reader.table("snapshots")
        mine = ~reader.control()
        for name in ("time_ns", "lport", "snd_una", "srtt_us"):
            values = reader.column(name)[mine].astype(np.int64)
            none = reader.none_of(name)
            wanted = [None if one == none else one for one in values.tolist()]
            assert table[name].to_pylist() == wanted, name
        times = table["time"].cast(pyarrow.int64()).to_numpy()
        assert (times == reader.time_ns()[mine] // 1000).all()
        assert set(table["location"].to_pylist()) >= {"SEGMENT_RECEIVED", "DESTROY"}
        assert set(table["laddr"].to_pylist()) == {"127.0.0.1"}
        assert reader.table(["lport"]).column_names == ["lport"]
        assert table.field("snd_cwnd").metadata[b"unit"] == b"bytes"


@pytest.mark.parametrize("name", ["psc-lossy", "psc-rotated", "klogger-rotated", "klogger-lossy"])
def test_the_ledger_counts_once(name: str, tmp_path: Path) -> None:
    path = capture_of(name, tmp_path)
    with tcpkmon.open(path) as reader:
        table, proof = reader.table("ledger"), reader.table("proof").to_pylist()
    sums = {one: sum(table[one].to_pylist()) for one in table.column_names
            if table[one].type == pyarrow.int64() and one not in ("cpu", "segment")}  # fmt: skip
    aside = sum(sums[one] for one in ("filtered", "unchanged", "limited", "shed", "pending"))
    assert sums["attempts"] == aside + sums["in_file"] + sums["lost"]
    parts = [row for row in proof if not row["whole"]]
    assert sums["lost"] + sums["missed"] == sum(row["lost"] for row in parts)
    reports = {report.path: report for report in tcpkmon.verify(path)}
    assert [row["verdict"] for row in proof] == [one.verdict for one in reports.values()]
    in_file = sum(reports[row["path"]].totals.in_file for row in parts)
    assert sums["in_file"] == in_file > 0
    assert all(row["proven"] == (row["exit_code"] == 0) for row in proof)
    assert any(row["proven"] for row in proof) != name.endswith("lossy")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 500, 3)
    with tcpkmon.open(path) as reader:
        with pytest.raises(tcpkmon.UsageError, match=r"run.pm has no table 'latency', which needs"):
            reader.table("latency")
        with pytest.raises(tcpkmon.UsageError, match=r"no table 'conections' \(did you mean 'conn"):
            reader.table("conections")
    clean_log().finish().write(tmp_path / "kernlog.dump.cpu0")
    with open_logs(tmp_path) as logs, pytest.raises(tcpkmon.UsageError, match=r"tcpkmon\.open"):
        logs.table("ledger")
    with tcpkmon.open(tmp_path / "kernlog.dump.cpu0") as log:
        assert log.table("schedin")["pid"].to_pylist() == [10, 11, 12]
        assert log.table("SCHEDIN").num_rows == 3


def test_in_a_notebook(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 5000, 20)
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Analysed)
        page = reader._repr_html_()
    assert page is not None and page is reader._repr_html_()
    assert "those with the most acknowledged bytes of 20" in page and page.count("<tr>") == 11
    assert "host unit" in page and "kernel 6.1.0 test" in page
    for name in ("main_limit", "srtt_p50_us", "snapshots", "ledger"):
        assert f">{name}<" in page
    report = tcpkmon.verify(path)[0]
    assert f">{report.verdict}</span>" in page
    path.write_bytes(path.read_bytes()[:-10])
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Analysed)
        assert "tcpkmon verify</code> says more" in (reader._repr_html_() or "")


def test_hostile_names_are_escaped_in_a_notebook(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "<img src=x>.pm", 500, 3)
    path.write_bytes(path.read_bytes().replace(b"unit", b"<b>\x1b").replace(b"test", b"\"'<s"))
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Analysed)
        page = reader._repr_html_() or ""
    assert "&lt;b&gt;\\x1b" in page and "&lt;img src=x&gt;" in page and "&#x27;&lt;s" in page
    tags = {"div", "p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "code", "br",
            "span"}  # fmt: skip
    assert set(re.findall(r"<(\w+)", page)) <= tags and "\x1b" not in page


def rows_of_page() -> dict[str, dict[str, list[str]]]:
    """docs/tables.md: of each section the cells by column."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in (ROOT / "docs" / "tables.md").read_text().split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("| `")]
        cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
        found[name] = {row[0].strip("|` "): row for row in cells}
    return found


def test_the_page_has_every_column_with_its_type() -> None:
    page = rows_of_page()
    schema = load_schema()
    declared: dict[str, Any] = {name: columns for name, (_, columns) in SHIPPED.items()}
    declared["snapshots"] = snapshot_columns(schema, schema.event(EVENT))
    assert set(page) == {*declared, "events"}
    for name, columns in declared.items():
        assert [*page[name]] == [one.name for one in columns]
        for one in columns:
            assert page[name][one.name][1].startswith(one.type)
            is_number = one.type in ("int64", "double", "uint64")
            if name != "snapshots" and is_number and not NO_UNIT.search(one.name):
                assert one.unit, f"{name}.{one.name} has no unit"
