# SPDX-License-Identifier: Apache-2.0
"""The registry of file formats: each file finds its own, and another format is one entry more."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.formats import registry
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tcpkmon.formats.export.forms import FORMS
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.psc import tables
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import FILE_FORMATS, FileFormat, format_of
from tcpkmon.formats.verify import Report
from tests.unit.klogger_samples import LogMaker
from tests.unit.pmgraph_capture import Builder, sawtooth

pyarrow = pytest.importorskip("pyarrow")


def tool(*args: object) -> int:
    return run(tcpkmon_command, [str(arg) for arg in args], prog="tcpkmon")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=3)
    builder.end(20.0)
    return builder.write(tmp_path / "a.pm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "logs"
    found.mkdir()
    for cpu in (10, 2):
        maker = LogMaker(cpu=cpu).add("KLOGGER_START")
        for at in range(5):
            maker.add("SCHEDOUT", {"pid": cpu}, at=1_000_000 + 100 * at + cpu)
        maker.add("KLOGGER_FINISH").write(found / f"kernlog.dump.cpu{cpu}")
    return found


def test_open_takes_what_any_format_wrote(capture: Path, folder: Path) -> None:
    with tcpkmon.open(capture) as reader:
        assert isinstance(reader, Capture) and reader.path == capture
    log = folder / "kernlog.dump.cpu2"
    with tcpkmon.open(log) as reader:
        assert isinstance(reader, Logs) and (reader.path, len(reader.readers)) == (log, 1)
    with tcpkmon.open(folder) as reader:
        assert isinstance(reader, Logs) and reader.path == folder
        assert [one.path.name for one in reader.readers] == [
            "kernlog.dump.cpu2", "kernlog.dump.cpu10"
        ]  # fmt: skip
    capture.rename(folder / "kernlog.dump.cpu0")  # the name does not matter
    assert format_of(folder / "kernlog.dump.cpu0").name == "psc"


@pytest.mark.parametrize("name", ["capture", "folder"])
def test_a_reader_tells_its_losses_read_or_not(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    with tcpkmon.open(path) as reader:
        assert (reader.lost, reader.complete, reader.damaged) == (0, True, False)
        assert list(reader.warnings) == []
    cut = max(path.iterdir()) if path.is_dir() else path
    os.truncate(cut, cut.stat().st_size - 3)
    for is_read in (False, True):
        with tcpkmon.open(path) as reader:
            if is_read:
                assert sum(len(table) for piece in reader.tables() for table in piece.values())
            assert not reader.complete and reader.damaged and reader.warnings


def test_losses_of_a_log_are_known_before_it_was_read(tmp_path: Path) -> None:
    maker = LogMaker().add("KLOGGER_START").add("SCHEDOUT", {"pid": 1}).skip(5)
    path = maker.add("KLOGGER_FINISH").write(tmp_path / "log")
    with tcpkmon.open(path) as reader:
        assert reader.lost == 5
    with tcpkmon.open(path) as reader:
        for _ in reader.tables():
            assert reader.lost == 5  # asking does not disturb who reads
    assert tool("export", path, "-o", tmp_path / "x.csv") == 3


def test_tables_are_valid_as_long_as_they_are_kept(
    capture: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    with open_capture(capture) as reader:
        wanted = reader.column("seq_no")[~reader.control()].tolist()
        pieces = list(reader.tables())
        kept = [number for piece in pieces for number in piece["SNAPSHOT"]["seq_no"].to_pylist()]
    assert kept == wanted and len(pieces) > 2
    with tcpkmon.open(folder) as logs:
        pids = [pid for piece in logs.tables() for pid in piece["SCHEDOUT"]["pid"].to_pylist()]
    assert pids == [2, 10] * 5


@pytest.mark.parametrize("form", ["csv", "json", "perl"])
def test_export_of_logs_is_what_decode_prints(
    form: str, folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    logs = sorted(folder.iterdir(), key=lambda path: len(path.name))
    for source, how in ((logs[:1], []), (logs, ["--merge"])):
        assert tool("decode", "--format", form, *how, *source) == 0
        wanted = capfdbinary.readouterr().out
        assert len(wanted) > 300
        file = source[0] if len(source) == 1 else folder
        assert tool("export", "--format", form, file) == 0
        assert capfdbinary.readouterr().out == wanted
        out = tmp_path / f"x.{len(source)}"
        assert tool("export", "--format", form, file, "-o", out) == 0
        assert out.read_bytes() == wanted


def test_tables_of_logs_are_a_folder(folder: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    decoded, exported, arrow = (tmp_path / name for name in ("decoded", "exported", "arrow"))
    assert tool("decode", "--merge", "--format=parquet", *folder.iterdir(), "-o", decoded) == 0
    assert tool("export", "--format=parquet", folder, "-o", exported) == 0
    assert tool("export", "--format=arrow", folder, "-o", arrow) == 0
    names = sorted(path.stem for path in decoded.iterdir())
    assert "SCHEDOUT" in names
    assert names == sorted(p.stem for p in exported.iterdir()) == sorted(
        p.stem for p in arrow.iterdir()
    )  # fmt: skip
    table = parquet.read_table(exported / "SCHEDOUT.parquet")
    assert table["pid"].to_pylist() == [2, 10] * 5
    assert pyarrow.ipc.open_file(arrow / "SCHEDOUT.arrow").read_all().equals(table)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--columns", "pid"], "--columns is for PSC captures"),
        (["--sort", "seq"], "--sort is for PSC captures"),
        (["-o", "x.parquet"], "can hold one event only"),
    ],
)
def test_what_logs_lack_is_said(
    arguments: list[str],
    what: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tool("export", folder, *arguments) == 2
    assert what in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_perl_is_not_for_psc(capture: Path, tmp_path: Path) -> None:
    with tcpkmon.open(capture) as reader, pytest.raises(UsageError, match="Klogger logs"):
        FORMS["perl"](reader, tmp_path / "x.pl", False)
    assert not (tmp_path / "x.pl").exists()


def test_what_is_there_stays(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert tool("export", folder, "--format", "csv", "-o", out) == 1
    assert out.read_text() == "mine"
    log = folder / "kernlog.dump.cpu2"
    before = log.read_bytes()
    assert tool("export", log, "--format", "csv", "-o", log, "--force") == 2
    assert log.read_bytes() == before


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        tcpkmon.open(tmp_path / "none")
    with pytest.raises(FileError, match="no Klogger log in"):
        tcpkmon.open(tmp_path)
    with pytest.raises(FileError, match="not a regular file"):
        tcpkmon.open("/dev/null")
    with pytest.raises(FileError, match="null"):
        tcpkmon.open("a\0b")


def test_another_format_is_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def note(what: str, result: object) -> Callable[..., object]:
        return lambda *paths: asked.append((what, *map(str, paths))) or result

    report = Report("third")
    third = FileFormat(
        "third",
        lambda path, head: head.startswith(b"THIRD"),
        note("open", "a reader"),  # type: ignore[arg-type]
        note("verify", [report]),  # type: ignore[arg-type]
        note("repair", ("done", report)),  # type: ignore[arg-type]
        "a file of a third format",
        "its own viewer",
    )
    monkeypatch.setattr(registry, "FILE_FORMATS", {"third": third, **FILE_FORMATS})
    path = tmp_path / "x"
    path.write_bytes(b"THIRD format")
    assert tcpkmon.open(path) == "a reader"
    assert tool("verify", path) == 0
    assert tool("repair", path, "-o", tmp_path / "y") == 0
    assert asked == [("open", str(path)), ("verify", str(path)), ("repair", str(path),
                                                                  str(tmp_path / "y"))]  # fmt: skip
    assert "done" in capfd.readouterr().err


def test_a_file_that_may_not_be_read_is_no_wrong_usage(
    capture: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: object, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("tcpkmon.formats.base.files.FileIO", refuse)
    for name in ("verify", "decode", "export", "why", "connections", "latency", "condense",
                 "translate", "flamegraph", "magnet-parse"):  # fmt: skip
        assert tool(name, capture) == 1, name
        assert capfd.readouterr().err == f"tcpkmon: cannot open {capture}: Permission denied\n"
    assert run(pmgraph, [str(capture), "-T"], prog="pmgraph") == 1


def test_a_link_to_itself_is_no_capture(
    capture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert tool("diff", capture, tmp_path / "loop") != 0
    said = capfd.readouterr().err
    assert "Too many levels of symbolic links" in said and "Traceback" not in said


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = (
        "from tcpkmon.formats.base.cli import run; import {0}; "
        f"run({{0}}.command, [{str(pipe)!r}])"
    )
    for module in ("tcpkmon.formats.commands.why", "tcpkmon.formats.commands.connections"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "not a regular file" in done.stderr


def test_pmgraph_names_a_folder_of_logs(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(pmgraph, [str(folder), "-T"], prog="pmgraph") == 1
    assert "is a Klogger log, not a PSC file; use tcpkmon decode" in capfd.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(pmgraph, [str(tmp_path / "empty"), "-T"], prog="pmgraph") == 1
    assert "no segment in it ends in .pm" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("# Grüße\n\nA README.\n".encode() * 40, "plain text"),
        (b'{"a": 1}', "plain text"),
        (b"\x7fELF\2\1\1", "a program"),
        (b"\x1f\x8b\x08\0abc", "compressed by gzip"),
    ],
)
def test_what_is_no_capture_is_said_first(
    data: bytes, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pm"
    path.write_bytes(data)
    assert run(pmgraph, [str(path), "-T"], prog="pmgraph") == 5
    said = capfd.readouterr().err
    assert said.startswith(f"pmgraph: {path}: not a capture: it seems to be {what}; a capture is ")
    path.write_bytes(b"\0\1\0\x08abcdefgh")  # the beginning of one
    assert run(pmgraph, [str(path), "-T"], prog="pmgraph") == 5
    assert "the file is damaged, or not a PSC file" in capfd.readouterr().err


def test_pmgraph_names_what_is_no_psc_file(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = folder / "kernlog.dump.cpu2"
    assert run(pmgraph, [str(log), "-T"], prog="pmgraph") == 1
    said = capfd.readouterr().err
    assert said == f"pmgraph: {log} is a Klogger log, not a PSC file; use tcpkmon decode\n"
