# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon sql` and tcpkmon.sql(): answers, what they may touch, and what is said of mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.dataset import Store, add
from tcpkmon.formats.tables import Query
from tests.unit.log_files import clean_log
from tests.unit.psc_files import write_capture
from tests.unit.test_tables import capture_of

PROGRAM = Path(sys.executable).parent / "tcpkmon"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return capture_of("psc-plain", tmp_path)


def ask(*words: object) -> Result:
    return CliRunner().invoke(command, ["sql", *map(str, words)])


def fail(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    assert run(command, ["sql", *map(str, words)], prog="tcpkmon") == code
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    return told


def test_answers_in_each_form(capture: Path, tmp_path: Path) -> None:
    query = "select conn_id, start, raddr, bytes_sent, us_app from connections order by conn_id"
    frame = tcpkmon.connections(capture).sort_values("conn_id")
    wanted = frame.conn_id.tolist()
    lines = ask(capture, query, "--format", "json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["conn_id"] for row in rows] == wanted
    assert [row["start"] for row in rows] == frame.start.tolist()
    told = [*csv.DictReader(io.StringIO(ask(capture, query, "--format", "csv").stdout))]
    assert [float(row["us_app"]) for row in told] == frame.us_app.tolist()
    plain = ask(capture, query).stdout
    assert len(plain.splitlines()) == len(wanted) + 1 and frame.start.iloc[0] in plain
    out = tmp_path / "out.parquet"
    assert ask(capture, query, "-o", out).exit_code == 0
    assert pyarrow.parquet.read_table(out)["conn_id"].to_pylist() == wanted
    assert ask(capture, query, "-o", tmp_path / "out.arrow").exit_code == 0
    with pyarrow.ipc.open_file(tmp_path / "out.arrow") as file:
        assert file.read_all().equals(pyarrow.parquet.read_table(out))
    assert tcpkmon.sql(query, capture)["bytes_sent"].to_pylist() == frame.bytes_sent.tolist()


def test_several_captures_and_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: object) -> tuple[int, str, str]:
        code = run(command, ["sql", *map(str, words), "--format", "csv"], prog="tcpkmon")
        return code, *capsys.readouterr()

    one = capture_of("psc-plain", tmp_path)
    many = capture_of("psc-lossy", tmp_path)
    query = "select file, count(*) as n from connections group by 1 order by 2"
    code, out, error = told(one, many, query)
    assert (code, out) == (3, f"file,n\n{one},8\n{many},20\n")
    assert "734 records were lost" in error
    folder = capture_of("klogger-rotated", tmp_path)
    query = "select distinct file, count(*) as n from connections group by 1"
    assert told(folder, query) == (0, f"file,n\n{folder},24\n", "")
    assert told(many, "select 1")[0] == 0  # it read nothing
    many.write_bytes(many.read_bytes()[:-100])
    assert told(many, "select count(*) from snapshots")[0] == 5


def test_events_of_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    clean_log().finish().write(folder / "kernlog.dump.cpu0")
    query = "select pid, misses from schedout order by pid"
    assert tcpkmon.sql(query, folder).to_pylist()[0] == {"pid": 10, "misses": 7}
    told = ask(folder, "--tables").stdout
    assert "SCHEDIN: a row for each record SCHEDIN" in told and "connections:" not in told


def test_tables_are_listed_with_units(capture: Path) -> None:
    told = ask(capture, "--tables").stdout
    assert "connections: a row for each connection\n" in told
    [line] = [one for one in told.splitlines() if one.startswith("  snd_cwnd ")]
    assert line.split()[:3] == ["snd_cwnd", "int64", "bytes"] and "congestion window" in line


HOSTILE = (
    "copy connections to 'OUT'", "copy (select 1) to 'OUT' (format parquet)",
    "attach 'OUT'", "export database 'OUT'", "select * from read_csv('SECRET')",
    "select * from read_text('SECRET')", "select * from 'SECRET'", "select * from glob('/etc/*')",
    "set enable_external_access = true", "set memory_limit = '99GB'", "reset lock_configuration",
    "set temp_directory = 'OUT'", "install httpfs", "load 'OUT'", "import database 'OUT'",
    "create persistent secret s (type s3, key_id 'a', secret 'b')",
    "pragma enable_profiling='json'", "set profiling_output = 'OUT'",
    "copy connections from 'SECRET'",
)  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_a_query_touches_no_file(
    query: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "secret.csv").write_text("name\nhidden\n")
    before = sorted(tmp_path.rglob("*"))
    query = query.replace("SECRET", str(tmp_path / "secret.csv"))
    query = query.replace("OUT", str(tmp_path / "made"))
    told = fail(capsys, capture, query)
    assert "hidden" not in told and sorted(tmp_path.rglob("*")) == before


def test_python_is_out_of_reach(capture: Path) -> None:
    hidden = pyarrow.table({"a": [1]})
    with pytest.raises(tcpkmon.UsageError, match="no table 'hidden'"):
        tcpkmon.sql("select * from hidden", capture)
    assert hidden.num_rows == 1


def test_mistakes_are_told_in_a_line(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 'syntax error at or near "selct"' in fail(capsys, capture, "selct 1")
    told = fail(capsys, capture, "select bytes_snt from connections")
    assert told == ('tcpkmon: Referenced column "bytes_snt" not found in FROM clause; '
                    "did you mean 'bytes_sent'?\n")  # fmt: skip
    told = fail(capsys, capture, "select xyzzy from connections")
    assert "connections has file, host, boot_id" in told and "--tables" in told
    told = fail(capsys, capture, "select 1 from latency")
    assert "no table 'latency', which needs the schema magnet" in told
    assert "it has snapshots, connections" in told
    assert "there is no query" in fail(capsys, capture, capture)
    assert "one of them is there" in fail(capsys, "select 1")
    assert "No such file" in fail(capsys, tmp_path / "none.pm", "select 1", code=1)
    assert "parquet needs -o" in fail(capsys, capture, "select 1", "--format", "parquet")
    assert "capture itself" in fail(capsys, capture, "select 1", "-o", capture, "--format", "csv")
    (tmp_path / "there.csv").touch()
    told = fail(capsys, capture, "select 1", "-o", tmp_path / "there.csv", code=1)
    assert "there already" in told
    told = fail(capsys, capture, "select 9223372036854775807::hugeint * 2 from connections")
    assert "no room in 64 bits" in told
    assert "Could not convert" in fail(capsys, capture, "select 'a'::int from connections")


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 100, 2)
    path.write_bytes(path.read_bytes().replace(b"unit", b"\x1b[2J"))
    query = "select host, 'a,\"b\n' as \"x\x1b\" from connections limit 1"
    for form in ("table", "csv", "json"):
        told = ask(path, query, "--format", form).stdout
        assert "\x1b" not in told and "1b[2J" in told, form
    out = ask(path, query, "--format", "csv").stdout.splitlines()
    assert out == ["host,x\\x1b", '\\x1b[2J,"a,""b\\n"']


def test_on_a_terminal(capture: Path) -> None:
    def shown(query: str) -> str:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [PROGRAM, "sql", capture, query], stdout=theirs, env=os.environ | {"COLUMNS": "80"}
        ) as child:
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 1 << 16):
                    text += part
            except OSError:  # the child ended
                pass
            os.close(ours)
        assert child.returncode == 0
        return text.decode().replace("\r", "")

    wide = shown("select * from connections limit 2")
    assert "row 2" in wide and "main_limit" in wide


def test_it_reads_as_it_is_asked(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 300_000, 30)
    with Query([path]) as query:
        reader = query.run("select seq from snapshots")
        first = reader.read_next_batch()
        assert 0 < first.num_rows < 200_000
        rest = sum(batch.num_rows for batch in reader)
        assert first.num_rows + rest == 300_000
    assert not Path(query._folder).exists()


def test_a_spreadsheet_takes_no_text_for_a_formula(capture: Path) -> None:
    query = "select '=1+1' as text, -5 as number"
    told = ask(capture, query, "--format", "spreadsheet").stdout
    assert told.splitlines() == ["text,number", "'=1+1,-5"]


def test_a_dataset_answers_as_its_captures_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, names = tmp_path / "fleet", ("psc-plain", "psc-lossy")
    captures = [capture_of(name, tmp_path) for name in names]
    for path in captures:
        add(Store(str(place)), path)
    query = "select laddr, bytes_sent, us_app, proven from connections order by all"
    done = ask(place, query, "--format", "json")
    assert run(command, ["sql", str(place), query], prog="tcpkmon") == 3  # one lost records
    assert "psc-lossy.pm of" in capsys.readouterr().err
    one, other = (ask(path, query, "--format", "json").stdout.splitlines() for path in captures)
    assert sorted(done.stdout.splitlines()) == sorted(one + other)
    query = "select proven, count(*) as n from {} group by 1 order by 1"
    for table in ("connections", "intervals", "ledger", "settings"):
        rows = ask(place, query.format(table), "--format", "json").stdout.splitlines()
        assert [json.loads(row)["proven"] for row in rows] == [False, True], table
    assert tcpkmon.sql("select * from intervals", place).num_rows == sum(
        tcpkmon.sql("select * from intervals", path).num_rows for path in captures)  # fmt: skip
    assert "proven" in ask(place, "--tables").stdout
    assert "did you mean 'connections'?" in fail(capsys, place, "select 1 from conections")
    query = "select * from read_csv('/etc/passwd')"
    assert "the tables of the dataset" in fail(capsys, place, query)
    assert "asked alone" in fail(capsys, place, captures[0], "select 1")
    part = Store(str(place)).parts("table=connections")[0]
    (place / part.key).with_name("copy.parquet").write_bytes((place / part.key).read_bytes())
    assert "is there twice" in fail(capsys, place, "select 1", code=5)
