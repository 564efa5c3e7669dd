# SPDX-License-Identifier: Apache-2.0
"""Segments are compressed; the original goes only when that is proven. No table is a capture."""

from __future__ import annotations

import ast
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session import archive as module
from tcpkmon.collector.session.archive import Archive
from tcpkmon.collector.session.keeper import Keeper
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import format_of
from tests.unit.makers import CPUS, index_of, make

pyarrow = pytest.importorskip("pyarrow")


def archive(folder: Path) -> list[str]:
    """Archive all segments as the capture does; the names that are left."""
    names = sorted(path.name for path in folder.glob("*.pm"))
    fd = os.open(folder, os.O_RDONLY)
    with Keeper(Rotation(every_s=1, archive="zst"), fd, str(folder), None) as keeper:
        for name in names:
            keeper.sealed(name)
    os.close(fd)
    return sorted(name for name in os.listdir(folder) if name != "index.jsonl")


def test_what_was_compressed_has_the_digest_of_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make(folder, segments=2)
    archive(folder)
    assert format_of(folder).verify(folder)[-1].exit_code == 0
    index = folder / "index.jsonl"
    index.write_text(re.sub(r'"sha256": "..', '"sha256": "zz', index.read_text(), count=1))
    chain = format_of(folder).verify(folder)[-1]
    assert chain.exit_code == 5 and "SHA-256" in str(chain.problems)


def test_compressed_segments_are_read_and_verified(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=3, count=2000, lose=2)
    shutil.copytree(tmp_path / "out", tmp_path / "plain")
    assert archive(tmp_path / "out") == [f"{path.name}.zst" for path in paths]
    with tcpkmon.open(tmp_path / "out") as packed, tcpkmon.open(tmp_path / "plain") as plain:
        assert isinstance(packed, Capture) and isinstance(plain, Capture)
        assert not packed.warnings and packed.array.tobytes() == plain.array.tobytes()
    *parts, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 3 and not chain.problems, chain.problems
    assert chain.totals.in_file == 3 * 2000 * CPUS and len(parts) == 3
    one = tmp_path / "out" / f"{paths[1].name}.zst"
    with open_capture(one) as alone:
        assert int((~alone.control()).sum()) == 2000 * CPUS
    assert one.stat().st_size < (tmp_path / "plain" / paths[1].name).stat().st_size / 2
    lines = [line for line in index_of(tmp_path / "out") if line["what"] == "archived"]
    assert [line["name"] for line in lines] == [f"{path.name}.zst" for path in paths]


def test_the_index_counts_too(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=3, count=50)
    index = tmp_path / "out" / "index.jsonl"
    told = index.read_text()
    for old, new, what in (
        ('"lost": 0', '"lost": 20418', "counts 20418 lost"),
        ('"records": 100', '"records": 101', "counts 101 records"),
    ):
        index.write_text(told.replace(old, new, 1))
        *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
        assert chain.exit_code == 5 and what in chain.problems[0].what
    index.write_text(told)
    assert run(tcpkmon_command, ["verify", str(paths[0].parent)], prog="tcpkmon") == 0


def test_an_archive_that_is_wrong_leaves_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = make(tmp_path / "out", segments=1, count=100)
    data = path.read_bytes()
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    monkeypatch.setattr(module.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(5, "bad")))
    assert Archive("zst", fd).take(path.name) == path.name
    monkeypatch.undo()
    assert "is not archived: bad" in capfd.readouterr().err
    os.close(fd)
    assert sorted(os.listdir(tmp_path / "out")) == ["index.jsonl", path.name]
    assert path.read_bytes() == data


def write_table(path: Path, form: str) -> None:
    table = pyarrow.table({"a": list(range(100))})
    if form == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
        return
    make = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    with make(path, table.schema) as out:
        out.write_table(table)


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_a_table_is_no_capture(
    tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exports, and the archives and streams of earlier versions: no reader takes them for PSC."""
    path = tmp_path / "run.arrow"
    write_table(path, form)
    with pytest.raises(UsageError, match="not a capture"):
        tcpkmon.open(path)
    for command in ("verify", "why", "export", "repair"):
        more = ["-o", str(tmp_path / "out")] if command == "repair" else []
        assert run(tcpkmon_command, [command, str(path), *more], prog="tcpkmon") == 2, command
        (line,) = capfd.readouterr().err.splitlines()
        assert "run.arrow is " in line and "a475560f" in line


def test_no_thread_of_its_libraries_keeps_privileges(tmp_path: Path) -> None:
    """Capabilities are given up by the thread that does so alone."""
    code = """if True:
        import os, sys
        from tcpkmon.collector.session.archive import Archive
        import tcpkmon.collector.session.dataset as dataset
        folder = os.open(sys.argv[1], os.O_RDONLY)
        Archive("zst", folder)
        dataset.settle = lambda *given, **named: print(os.listdir("/proc/self/task"))
        dataset.Adder(sys.argv[1], folder).give_up()
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert len(ast.literal_eval(done.stdout)) == 1


def test_more_archives_than_files_that_a_process_opens(tmp_path: Path) -> None:
    """A reader holds what it unpacked: with the usual 1,024, a folder of more could not be read."""
    folder = tmp_path / "out"
    make(folder, 30, 2)
    archive(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    least = next(most for most in range(15, 4096) if len({*range(most)} - used) >= 15)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    try:
        with open_capture(folder) as capture:
            assert not capture.warnings and (capture.column("location") == 1).sum() == 30 * 2 * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
