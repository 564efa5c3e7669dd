# SPDX-License-Identifier: Apache-2.0
"""A value by which the kernel says that it has none is null in every table, and only there."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.collector.plan.columns import EVENT, load_schema
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.schema import Field, format_schema, parse
from tests.unit.log_files import LogMaker
from tests.unit.makers import Maker

GIVEN: dict[str, Any] = {
    "min_rtt_us": [2**32 - 1, 77, 4_294_961_111, 2**32 - 1],
    "pacing_rate": [2**64 - 1, 0, 1_000_000, 999_999],
    "snd_ssthresh": [2**31 - 1, 2, 2**31 - 2, 0],
    "srtt_us": [0, 1, 2, 3],
    "pid": [0, 17, 0, 2**32 - 1],
    "comm": [b"", b"sh", b"\0junk", b"\xff"],
}
WANTED: dict[str, list[Any]] = {
    "min_rtt_us": [None, 77, 4_294_961_111, None],
    "pacing_rate": [None, 0, 1_000_000, 999_999],
    "snd_ssthresh": [None, 2, 2**31 - 2, 0],
    "srtt_us": [None, 1, 2, 3],
    "pid": [None, 17, None, 2**32 - 1],
    "comm": [None, "sh", "", "\\xff"],
}


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Maker, "chosen", "full")
    monkeypatch.setattr(Maker, "schema_text", format_schema(load_schema()))
    maker = Maker(tmp_path / "out")
    columns = GIVEN | {"comm": np.array(GIVEN["comm"], "S16").view("V16")}
    maker.columns = {**columns, "conn_id": [1, 2, 3, 4]}
    maker.records(4)
    maker.close()
    return maker.paths[0]


def export(capture: Path, *words: object) -> None:
    assert run(command, ["export", *map(str, words), str(capture)], prog="tcpkmon") == 0


def first_of(table: Any) -> dict[str, list[Any]]:
    """The columns of CPU 0's records, by connection."""
    rows = [row for row in table.to_pylist() if row["conn_id"]]
    rows.sort(key=lambda row: row["conn_id"])
    return {name: [row[name] for row in rows] for name in WANTED}


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_tables_in_files(capture: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"x.{ending}"
    export(capture, "-o", out)
    read = pyarrow.parquet.read_table if ending == "parquet" else (
        lambda path: pyarrow.ipc.open_file(path).read_all()
    )
    table = read(out)
    assert first_of(table) == WANTED
    nullable = {field.name for field in table.schema if field.nullable}
    declared = {field.name for field in load_schema().event(EVENT).fields if field.none is not None}
    assert nullable == declared & set(table.column_names) and "snd_una" not in nullable


@pytest.mark.parametrize("form", ["json", "csv", "spreadsheet"])
def test_text(capture: Path, capfdbinary: Any, form: str) -> None:
    export(capture, "--format", form)
    text = capfdbinary.readouterr().out.decode()
    if form == "json":
        rows = [json.loads(line) for line in text.splitlines()]
        found = {name: [row[name] for row in rows if row["conn_id"]] for name in WANTED}
        assert found == WANTED
        return
    assert "null" not in text and "4294967295,4294967295" not in text
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["conn_id"] != "0"]
    for name, values in WANTED.items():
        wanted = ["" if value is None else str(value).replace("\\", "\\") for value in values]
        assert [row[name] for row in rows] == wanted, name


def test_tables_of_the_reader_have_nulls_and_arrays_what_the_file_has(capture: Path) -> None:
    with tcpkmon.open(capture) as reader:
        names = ["conn_id", *WANTED]
        mine = np.flatnonzero(~reader.control() & (reader.column("conn_id") > 0))
        table = reader.table(names)
        table = table.filter(pyarrow.compute.greater(table["conn_id"], 0))
        assert {name: table[name].to_pylist() for name in WANTED} == WANTED
        assert reader.column("min_rtt_us")[mine].tolist() == GIVEN["min_rtt_us"]
        assert reader.column("pid")[mine].tolist() == GIVEN["pid"]


LOG = """
event TOLD {
    uint rtt        // @none4294967295
    int left        // @none-1
    string8 name    // @none0
    uint plain
}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    maker = LogMaker(LOG)
    maker.add("TOLD", {"rtt": 2**32 - 1, "left": -1, "name": b"", "plain": 2**32 - 1})
    maker.add("TOLD", {"rtt": 5, "left": 0, "name": b'a"$b', "plain": 0})
    return maker.write(tmp_path / "kernlog.dump.cpu0")


def decode(log: Path, form: str, *words: object) -> int:
    asked = ["decode", "--event", "TOLD", "--format", form, *words, log]
    return run(command, [str(word) for word in asked], prog="tcpkmon")


def test_logs_as_text(log: Path, capfdbinary: Any, tmp_path: Path) -> None:
    decode(log, "json")
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    values = [[row[name] for name in ("rtt", "left", "name", "plain")] for row in rows]
    assert values == [[None, None, None, 2**32 - 1], [5, 0, 'a"$b', 0]]
    decode(log, "csv")
    ends = [line.split(",")[-4:] for line in capfdbinary.readouterr().out.decode().splitlines()]
    assert ends[1:] == [["", "", "", "4294967295"], ["5", "0", '"a""$b"', "0"]]
    decode(log, "perl")
    (tmp_path / "x.pl").write_bytes(capfdbinary.readouterr().out)
    program = (
        'for (@{do "./x.pl"}) { print join(",", map { defined ? $_ : "undef" } '
        '@$_{qw(rtt left name plain)}), "\\n" }'
    )
    done = subprocess.run(
        ["perl", "-we", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ('undef,undef,undef,4294967295\n5,0,a"$b,0\n', "")


@pytest.mark.parametrize(
    ("tag", "none"),
    [("@none0", 0), ("@none-1", -1), ("@none18446744073709551615", 2**64 - 1), ("@none", None),
     (f"@none{'9' * 5000}", None), ("@nonesuch", None), ("", None)],
)  # fmt: skip
def test_the_schema_declares_it(tag: str, none: int | None) -> None:
    (event,) = parse(f"event A {{ long value // what [us] {tag} @default\n }}", "x").events
    field: Field = event.fields[0]
    assert field.none == none
