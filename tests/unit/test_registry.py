# SPDX-License-Identifier: Apache-2.0
"""The registry of file formats: each file finds its own, and another format is one entry more."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.base.limits import MOST_HOLE_BYTES
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.registry import format_of
from tests.unit.log_files import LogMaker
from tests.unit.psc_files import Builder, sawtooth

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


def test_a_pipe_is_not_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in ("why", "connections"):
        assert tool(name, pipe) == 1
        assert "not a regular file" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["a.pm", "logs/kernlog.dump.cpu2"])
def test_holes_are_bounded(
    capture: Path, folder: Path, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = capture.parent / name
    size = path.stat().st_size
    os.truncate(path, size + MOST_HOLE_BYTES)  # its last block has less of the hole
    open_plain(path).close()
    os.truncate(path, 1 << 40)
    for words in (["verify"], ["repair", "-o", "out"], ["anonymise", "-o", "out"], ["why"]):
        assert tool(words[0], path, *words[1:]) == 5, words
        said = "".join(capfd.readouterr())
        assert "the file system, lost a part of it" in said, words
    [whole] = re.findall(r"truncate -s (\d+) COPY", said)
    assert size <= int(whole) < size + MOST_HOLE_BYTES
    os.truncate(path, int(whole))
    tool("repair", path, "-o", tmp_path / "new")
    assert "has holes" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("data", "what"),
    [
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
