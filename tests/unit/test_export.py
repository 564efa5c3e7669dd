# SPDX-License-Identifier: Apache-2.0
"""tcpkmon export: every snapshot once, as readers of Parquet, Arrow, CSV and JSON see it."""

from __future__ import annotations

import csv
import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands import export
from tcpkmon.formats.commands.export import command
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.psc.tables import Snapshots
from tests.kept.make import unpack
from tests.unit.forging import PLACES, PscFile
from tests.unit.psc_files import Builder, mapped, merge, sawtooth


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1)
    sawtooth(builder, 1056, 5050, 2, raddr=mapped("2001:db8::1"), family=10, ca_name=b'a,"\x1b[')
    merge(builder)
    builder.end(20.0)
    return builder.write(tmp_path / "two.pm")


def run(*arguments: object) -> int:
    return cli.run(command, [str(a) for a in arguments], prog="tcpkmon export")


def snapshots(path: Path) -> list[dict]:
    """What the reader gives, without pyarrow: the rows that are no control entries."""
    with tcpkmon.open(path) as found:
        keep = ~found.control()
        names = ["seq_no", "lport", "rport", "snd_cwnd", "srtt_us", "conn_id"]
        columns = found.columns(names)
        return [
            dict(zip(names, row, strict=True))
            for row in zip(*(columns[n][keep].tolist() for n in names), strict=True)
        ]


def read(snapshots: Snapshots, **how: object) -> list:
    return [table for piece in snapshots.tables(**how) for table in piece.values()]


def test_parquet_has_every_snapshot_grouped_by_connection(capture, tmp_path):
    out = tmp_path / "x.parquet"
    assert run(capture, "-o", out) == 0
    table = pyarrow.parquet.read_table(out)
    rows = table.select(["seq_no", "lport", "rport", "snd_cwnd", "srtt_us", "conn_id"]).to_pylist()
    connections = [row["conn_id"] for row in rows]
    assert connections == sorted(connections) and set(connections) == {1, 2}
    assert sorted(rows, key=lambda row: row["seq_no"]) == snapshots(capture)
    assert set(table["location"].to_pylist()) >= {"SEGMENT_RECEIVED", "RTO", "STATE_CHANGE"}
    assert set(table["raddr"].to_pylist()) == {"10.0.0.2", "2001:db8::1"}
    assert table.schema.field("time").type == pyarrow.timestamp("us", "UTC")
    assert out.stat().st_size < capture.stat().st_size / 4


def test_arrow_keeps_the_order_of_the_file(capture, tmp_path):
    out = tmp_path / "x.arrow"
    assert run(capture, "-o", out) == 0
    table = pyarrow.ipc.open_file(out).read_all()
    assert table["seq_no"].to_pylist() == [row["seq_no"] for row in snapshots(capture)]
    assert table.schema.field("state").type == pyarrow.string()


def test_json_lines_and_csv_hold_the_same(capture, tmp_path, capfdbinary):
    out = tmp_path / "x.jsonl"
    assert run(capture, "-o", out) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    wanted = snapshots(capture)
    assert [{name: line[name] for name in wanted[0]} for line in lines] == wanted
    assert {line["ca_name"] for line in lines} == {"reno", 'a,"\x1b['}
    assert lines[0]["time"].endswith("Z") and lines[0]["state"] == "TCP_ESTABLISHED"
    assert run(capture) == 0
    text = capfdbinary.readouterr().out.decode()
    assert "\x1b" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    for row, line in zip(rows, lines, strict=True):
        assert {name: str(line[name]) for name in wanted[0]} == {n: row[n] for n in wanted[0]}
        assert row["time"] == line["time"]


def test_text_needs_no_pyarrow(capture, tmp_path, monkeypatch, capsys):
    for name in ("x.csv", "x.json"):
        assert run(capture, "-o", tmp_path / name) == 0
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("y.csv", "y.json"):
        assert run(capture, "-o", tmp_path / name) == 0
        assert (tmp_path / name).read_text() == (tmp_path / name.replace("y", "x")).read_text()
    assert run(capture, "-o", tmp_path / "x.parquet") == 2
    assert "pyarrow is not installed" in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()


def test_pieces_make_the_same_whole(capture, monkeypatch):
    with tcpkmon.open(capture) as found:
        whole = read(Snapshots(found))
        parts = read(Snapshots(found), rows=7)
    assert len(whole) == 1 and len(parts) > 50
    plain = [table.to_pylist() for table in parts]
    assert [row for rows in plain for row in rows] == whole[0].to_pylist()


def test_losses_and_a_missing_end_are_told(tmp_path, capsys):
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=20)
    builder.lose(5, 1.0)
    path = builder.write(tmp_path / "cut.pm")
    assert run(path, "-o", tmp_path / "x.csv") == 3
    said = capsys.readouterr().err
    assert "5 records were lost" in said and "the end is missing" in said
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1 + 21


def test_an_empty_capture_gives_an_empty_table(tmp_path):
    builder = Builder(tcpkmon=True)
    builder.end(1.0)
    path = builder.write(tmp_path / "empty.pm")
    for name in ("x.parquet", "x.arrow", "x.csv", "x.json"):
        assert run(path, "-o", tmp_path / name) == 0
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").num_rows == 0
    assert (tmp_path / "x.json").read_text() == ""


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["-o", "x.xls"], "no known format"),
        (["--format", "parquet"], "parquet needs -o"),
        (["--columns", "snd_cwn"], "snd_cwn"),
        (["--columns", " , "], "names none"),
    ],
)
def test_mistakes_are_told(capture, tmp_path, monkeypatch, capsys, arguments, what):
    monkeypatch.chdir(tmp_path)
    assert run(capture, *arguments) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))


def test_a_file_that_is_there_stays_unless_forced(capture, tmp_path):
    out = tmp_path / "x.csv"
    out.write_text("mine")
    assert run(capture, "-o", out) == 1 and out.read_text() == "mine"
    assert run(capture, "-o", capture, "--format", "csv", "--force") == 2
    assert run(capture, "-o", out, "--force") == 0 and out.read_text() != "mine"


def test_rows_without_an_id_stand_together_by_their_ports(tmp_path):
    builder = Builder(tcpkmon=True)
    for at in range(60):
        builder.add(at / 10, 1000 + at % 3, 80 + at % 2, conn_id=0 if at % 4 else 7)
    builder.end(7.0)
    path = builder.write(tmp_path / "no_id.pm")
    out = tmp_path / "x.parquet"
    assert run(path, "-o", out) == 0
    keys = ["conn_id", "rport", "lport", "seq_no"]
    table = pyarrow.parquet.read_table(out, columns=keys)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert len(rows) == 60 and rows == sorted(rows)


END, MODS, VERSION, ENTRY_SIZE, DEFINITION, ENDIAN, MCLSIZE = range(7)


def read_report(path: Path) -> tuple[dict[str, tuple[int, int, int]], list[dict[str, Any]]]:
    """Columns by name (offset, length, flags) and entries. ValueError for what the report lacks."""
    data, at, size, order = path.read_bytes(), 0, 0, "<"
    columns: dict[str, tuple[int, int, int]] = {}
    while True:
        kind, length = struct.unpack_from(">HH", data, at)
        body = data[at + 4 : at + length]
        if kind == ENTRY_SIZE:
            (size,) = struct.unpack_from(">H", body)
        elif kind == DEFINITION:
            name, offset, count, _, _, flags = struct.unpack(">24sHBBHH", body)
            if count:
                columns[name.rstrip(b"\0").decode()] = offset, count, flags
        elif kind == ENDIAN:
            order = "<" if struct.unpack(">I", body)[0] == 0 else ">"
        elif kind not in (END, MODS, VERSION, MCLSIZE):
            raise ValueError(f"kind {kind}")
        at += length
        if kind == END:
            break
    entries = []
    for start in range(at, len(data), size):
        row: dict[str, Any] = {}
        for name, (offset, count, flags) in columns.items():
            raw = data[start + offset : start + offset + count]
            sign = "little" if order == "<" and flags == 0 else "big"
            row[name] = raw if flags == 2 else int.from_bytes(raw, sign)  # type: ignore[arg-type]
        row["time"] = struct.unpack(f"{order}II", data[start + columns["time"][0] :][:8])
        entries.append(row)
    return columns, entries


@pytest.mark.parametrize("name", ["psc-plain", "psc-lossy", "psc-rotated", "psc-killed"])
def test_a_reader_of_the_report_reads_it(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    paths = sorted(tmp_path.rglob("*.pm"))
    path = paths[0] if len(paths) == 1 else paths[0].parent
    plain = tmp_path / "plain"
    lost = {"psc-lossy": 734}.get(name, 0)
    code = cli.run(export.command, ["--format", "psc1", "-o", str(plain), str(path)])
    assert code == (3 if lost or name == "psc-killed" else 0)
    columns, entries = read_report(plain)
    names = ("lport", "rport", "snd_cwnd")
    with open_capture(path) as capture:
        assert set(columns) == set(capture.names)
        snapshots = ~capture.control()
        found = [capture.column(one)[snapshots].tolist() for one in names]
    assert [tuple(one[name] for name in names) for one in entries] == [*zip(*found, strict=True)]
    assert all(one["lport"] or one["rport"] for one in entries)
    assert [one["seq_no"] for one in entries] == [*range(1, len(entries) + 1)]  # lost at the end
    with open_capture(plain) as again:
        assert not again.damaged


def test_a_gap_in_the_numbers_is_a_loss(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    file = PscFile(path.read_bytes())
    file.drop(range(100, 111))
    path.write_bytes(file.encode(leave=PLACES))
    words = ["--format", "psc1", "-o", str(tmp_path / "p"), str(path)]
    assert cli.run(export.command, words) in (3, 5)
    numbers = [one["seq_no"] for one in read_report(tmp_path / "p")[1]]
    assert numbers == [*range(1, 101), *range(112, len(numbers) + 12)]


def test_chosen_columns(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    words = ["--format", "psc1", "--columns", "srtt_us", "-o", str(tmp_path / "p"), str(path)]
    assert cli.run(export.command, words) == 0
    columns, entries = read_report(tmp_path / "p")
    assert set(columns) == {"seq_no", "time", "lport", "rport", "srtt_us"} and entries
    unpack("klogger-plain", tmp_path)
    words[-1] = str(tmp_path / "klogger-plain")
    assert cli.run(export.command, [*words[:2], *words[-1:]]) == 2
