# SPDX-License-Identifier: Apache-2.0
"""Retention deletes the oldest segments of its own, says so, and touches nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session.archive import Archive
from tcpkmon.collector.session.keeper import Keeper
from tcpkmon.collector.session.retention import Retention
from tcpkmon.formats.base.segments import find_segments, name_segment, parse_name
from tcpkmon.formats.registry import format_of
from tests.unit.makers import index_of, make


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
