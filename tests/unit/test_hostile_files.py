# SPDX-License-Identifier: Apache-2.0
"""Files made to hang, to crash or to fill the memory of a reader, and cells made to be formulas."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import DamagedError, SchemaError
from tcpkmon.formats.base.text import quote_spreadsheet
from tcpkmon.formats.commands.export import command as export
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.pmgraph import terminal
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import build_pages
from tcpkmon.formats.schema import field_type, parse
from tests.unit.log_files import LogMaker, sample_header
from tests.unit.psc_files import REPORT_COLUMNS, Builder, merge, sawtooth

MOST_SECONDS = 5.0
LONG = "abcdefghijklmnopqrstuvwxyzabcdefghij"


def within_time(act: Callable[[], object]) -> None:
    start = time.monotonic()
    act()
    assert time.monotonic() - start < MOST_SECONDS


def refuse(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # 1,000 unknown names, among 500 that are similar
        "".join(f"enum {LONG}{n} {{ A{n} }}\n" for n in range(500))
        + "event e {"
        + "".join(f"{LONG[:34]}x{n} f{n};" for n in range(1000))
        + "}",
        "".join(f"event {LONG}{n} {{}}\n" for n in range(500))
        + "loglevel l <"
        + "".join(f"omit {LONG[:34]}x{n};" for n in range(1000))
        + ">",
    ],
)
def test_unknown_names_of_a_schema_take_no_minutes(text: str) -> None:
    within_time(lambda: refuse(text))


def test_comments_above_a_token_take_no_minutes() -> None:
    within_time(lambda: parse("//x\n" * 130_000 + "event e {}"))


def test_types_of_many_enums_take_no_minutes() -> None:
    names = [f"e{n:x}" for n in range(12_000)]
    text = "".join(f"enum {name}{{A}}" for name in names)
    schema = parse(text + "event e{" + "".join(f"{names[-1]} x{n:x};" for n in range(20_000)) + "}")
    within_time(lambda: [field_type(schema, field) for field in schema.events[0].fields])


def draw(path: Path) -> str:
    with tcpkmon.open(path) as capture:
        pages, _ = build_pages(capture, Selection(columns=("snd_cwnd",)), terminal.BINS)
        for page in pages:
            for line in page.panels[0].lines:
                assert page.limits[0] <= line.times.min() <= line.times.max() <= page.limits[1]
        return "\n".join(terminal.draw_text(pages, 100))


@pytest.mark.parametrize("later_s", [3600, -3600, 10**9])
@pytest.mark.parametrize("row", [20, -1])
def test_a_record_of_another_time_does_not_fill_the_memory(
    tmp_path: Path, later_s: int, row: int
) -> None:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=40, start_s=4000.0)
    builder.lose(3, 4001.0)
    sawtooth(builder, 1055, 5050, 1, rounds=10, start_s=4001.1)
    builder.rows[row]["at"] += later_s
    tracemalloc.start()
    assert "records lost" in draw(builder.write(tmp_path / "late.pm"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def run(command: Any, *args: object) -> int:
    return cli.run(command, [str(arg) for arg in args], prog="x")


def test_fields_of_a_log_that_overlap() -> None:
    """One record of them would be a text of any length."""
    header = sample_header("event A { int a }")
    fields = [
        {"name": f"f{n}", "kind": "string", "offset": 0, "length": 4096, "type": "t"}
        for n in range(2)
    ]
    event = {"number": 200, "name": "E", "size": 4096, "fields": fields}
    with pytest.raises(DamagedError, match="fields that overlap"):
        LogFormat.of({**header, "events": [*header["events"], event]})
    LogFormat.of({**header, "events": [*header["events"], {**event, "fields": fields[:1]}]})


def test_a_matplotlibrc_in_the_current_folder_is_not_obeyed(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=20)
    merge(builder)
    path = builder.write(tmp_path / "a.pm")
    (tmp_path / "matplotlibrc").write_text("figure.facecolor: ff0000\naxes.facecolor: 00ff00\n")
    subprocess.run(
        [sys.executable, "-c", "from tcpkmon.formats.commands.pmgraph import main; main()",
         path, "-c", "-o", "a.svg"],
        cwd=tmp_path, check=True, capture_output=True,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    picture = (tmp_path / "a.svg").read_text()
    assert "#ff0000" not in picture and "#00ff00" not in picture


def test_names_of_columns_are_quoted_in_csv(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = Builder()
    names = ['a,"b"', "=1+1", "x\n\x1by"]
    columns = list(REPORT_COLUMNS)
    for place, name in enumerate(names):
        columns[6 + place] = (name, *REPORT_COLUMNS[6 + place][1:])
    builder.columns = tuple(columns)
    builder.add(0.1)
    path = builder.write(tmp_path / "a.pm")
    for form, wanted in (("csv", "=1+1"), ("spreadsheet", "'=1+1")):
        run(export, path, "--format", form)
        head, row = csv.reader(io.StringIO(capfd.readouterr().out))
        assert head[6:9] == ['a,"b"', wanted, "x\\n\\x1by"]
        assert len(head) == len(row) == len(REPORT_COLUMNS)


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "-",
                                  "\uff1d1", "-1,2"])  # fmt: skip


def test_formulas_in_cells(text: str) -> None:
    assert quote_spreadsheet(text).strip('"') == f"'{text}"


@pytest.mark.parametrize("text", ["-3", "+5", "-1.5", "0", "", "reno", "'=", "::1", "a=b"])
def test_what_is_no_formula(text: str) -> None:
    assert quote_spreadsheet(text) == text


def test_a_spreadsheet_of_a_capture_and_of_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = Builder(tcpkmon=True)
    builder.add(0.1, conn_id=1, ca_name=b"=1+1")
    builder.end(0.2)
    capture = builder.write(tmp_path / "a.pm")
    maker = LogMaker()
    maker.add("EVERY", {"a": -5, "c": -7, "how": -9, "text": "@a"})
    log = maker.write(tmp_path / "log")
    found: dict[str, list[dict[str, str]]] = {}
    for form in ("csv", "spreadsheet"):
        found[form] = []
        for path in (capture, log):
            run(export, path, "--format", form)
            found[form] += csv.DictReader(io.StringIO(capfd.readouterr().out))
    plain, safe = found.values()
    changed = [
        (was, now[name])
        for row, now in zip(plain, safe, strict=True)
        for name, was in row.items()
        if now[name] != was
    ]
    assert changed == [("=1+1", "'=1+1"), ("@a", "'@a")]
    (every,) = (row for row in safe if row.get("type") == "EVERY")
    assert (every["a"], every["c"], every["how"]) == ("-5", "-7", "-9")
    run(export, capture, "--format", "json")
    assert json.loads(capfd.readouterr().out)["ca_name"] == "=1+1"
