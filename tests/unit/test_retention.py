# SPDX-License-Identifier: Apache-2.0
"""Retention deletes the oldest segments of its own, says so, and touches nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session import archive as module
from tcpkmon.collector.session.archive import Archive
from tcpkmon.collector.session.keeper import Keeper
from tcpkmon.collector.session.retention import Retention
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.segments import find_segments, name_segment, parse_name
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import format_of
from tests.unit.makers import CPUS, index_of, make


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "out"
    make(made, segments=6, count=20)
    yield made


def retained(folder: Path, rotation: Rotation, **more: object) -> list[int]:
    """Apply once; the numbers that are left."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        Retention(rotation, fd, **more).apply()  # type: ignore[arg-type]
    finally:
        os.close(fd)
    return [segment.number for segment in find_segments(folder)]


def test_by_size_and_age_and_free_space(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*.pm"))
    assert retained(folder, Rotation(every_s=1, keep_bytes=size)) == [1, 2, 3, 4, 5, 6]
    assert retained(folder, Rotation(every_s=1, keep_bytes=size - 1)) == [2, 3, 4, 5, 6]
    later = time.time() + 100
    assert retained(folder, Rotation(every_s=1, keep_s=200), now_s=lambda: later) == [2, 3, 4, 5, 6]
    old = next(folder.glob("*-000002.pm"))
    os.utime(old, (1, 1))
    assert retained(folder, Rotation(every_s=1, keep_s=200)) == [3, 4, 5, 6]

    def free(fd: int) -> int:
        return 100 * (7 - len(list(folder.glob("*.pm"))))

    assert retained(folder, Rotation(every_s=1, keep_free_bytes=500), free_bytes=free) == [5, 6]
    assert retained(folder, Rotation(every_s=1, keep_free_bytes=10**9), free_bytes=free) == []


def test_all_conditions_together(folder: Path) -> None:
    rotation = Rotation(every_s=1, size_bytes=1 << 20, keep_files=5, keep_bytes=1, keep_s=10**6)
    assert retained(folder, rotation) == []
    assert {line["why"] for line in index_of(folder) if line["what"] == "deleted"} == {
        "keep-files", "keep-size",
    }  # fmt: skip


def test_what_is_not_its_own_stays(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / name_segment("a", 0, 1, ".pm")).symlink_to(victim)
    (folder / name_segment("b", 0, 1, ".pm")).write_text("not in the index")
    (folder / "notes.txt").write_text("x")
    os.mkfifo(folder / name_segment("c", 0, 1, ".pm"))
    own = sorted(folder.glob("*-00000[12].pm"))
    link = next(path for path in own if path.name.endswith("000002.pm") and not path.is_symlink())
    link.unlink()
    link.symlink_to(victim)
    with (folder / "index.jsonl").open("a") as file:
        for name in ("../victim", str(victim), "notes.txt", name_segment("a", 0, 1, ".pm"),
                     name_segment("c", 0, 1, ".pm"), "index.jsonl"):  # fmt: skip
            file.write(json.dumps({"what": "sealed", "name": name}) + "\n")
    before = {path.name for path in folder.iterdir()}
    retained(folder, Rotation(every_s=1, keep_bytes=1))
    assert victim.read_text() == "mine"
    gone = before - {path.name for path in folder.iterdir()}
    assert len(gone) == 5 and all("vm" in name or "-" in name for name in gone)
    assert {"notes.txt", "index.jsonl", link.name} <= {path.name for path in folder.iterdir()}


def test_the_keeper_runs_the_command_without_a_shell(tmp_path: Path) -> None:
    out = tmp_path / "seen"
    code = f"import sys; open({str(out)!r}, 'a').write(repr(sys.argv[1:]) + chr(10))"
    rotation = Rotation(every_s=1, keep_files=3, on_rotate=(sys.executable, "-c", code, "$HOME; x"))
    folder = tmp_path / "out"
    paths = make(folder, segments=5, count=5)
    fd = os.open(folder, os.O_RDONLY)
    with Keeper(rotation, fd, str(folder), None) as keeper:
        for path in paths:
            keeper.sealed(path.name)
    os.close(fd)
    assert out.read_text().splitlines() == [repr(["$HOME; x", str(path)]) for path in paths]
    assert [segment.number for segment in find_segments(folder)] == [3, 4, 5]


def test_a_command_that_is_slow_or_fails_holds_nothing_up(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    paths = make(folder, segments=2, count=5)
    code = "import sys, time; time.sleep(0.5); sys.exit(3)"
    rotation = Rotation(every_s=1, on_rotate=(sys.executable, "-c", code))
    child = os.fork()
    if not child:
        fd = os.open(folder, os.O_RDONLY)
        began = time.monotonic()
        keeper = Keeper(rotation, fd, str(folder), None, lambda: True)
        for _ in range(20_000):  # more than the pipes hold
            keeper.sealed(paths[0].name)
        keeper.close()
        os._exit(0 if time.monotonic() - began < 5 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_was_repaired_is_deleted_too(folder: Path) -> None:
    """A line for it is added while the keeper runs."""
    lines = index_of(folder)
    (folder / "index.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines[1:]))
    fd = os.open(folder, os.O_RDONLY)
    retention = Retention(Rotation(every_s=1, keep_files=4), fd)
    assert [parse_name(name).number for name in retention.apply()] == [2]  # type: ignore[union-attr]
    line = json.dumps({**lines[0], "what": "repaired"}) + "\n"
    for part, deleted in ((line[:20], []), (line[20:], [lines[0]["name"]])):
        with (folder / "index.jsonl").open("a") as file:
            file.write(part)
        assert retention.apply() == deleted
    os.close(fd)
    assert index_of(folder)[-1]["capture"] == lines[0]["capture"]
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0, chain.problems


def test_archives_that_were_deleted_are_not_missing(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    for path in sorted(folder.glob("*.pm"))[1:4]:
        Archive("zst", fd).take(path.name)
    (first,) = folder.glob("*-000001.pm")
    first.rename(folder.parent / first.name)
    retention = Retention(Rotation(every_s=1, keep_files=3), fd)
    assert len(retention.apply()) == 2
    os.close(fd)
    (folder.parent / first.name).rename(first)
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0, chain.problems


def test_an_index_that_is_read_in_part_proves_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained(folder, Rotation(every_s=1, keep_files=3))
    assert format_of(folder).verify(folder)[-1].exit_code == 0
    size = (folder / "index.jsonl").stat().st_size
    monkeypatch.setattr("tcpkmon.formats.base.segments.MOST_INDEX_BYTES", 400)  # deleted: 2 and 3
    *_, chain = format_of(folder).verify(folder)
    assert size > 1000 and chain.exit_code == 0, chain.problems
    next(folder.glob("*-000005.pm")).unlink()
    assert format_of(folder).verify(folder)[-1].exit_code == 5


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
