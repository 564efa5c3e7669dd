# SPDX-License-Identifier: Apache-2.0
"""Segments become Parquet or are compressed; the original goes only when that is proven."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import formats
from collector.plan.rotation import Rotation
from collector.session import archive as module
from collector.session.archive import Archive
from collector.session.keeper import Keeper
from formats.psc.reader import Capture, open_capture
from formats.registry import format_of
from tests.unit.segment_maker import CPUS, index_of, make

parquet = pytest.importorskip("pyarrow.parquet")


def archive(folder: Path, form: str) -> list[str]:
    """Archive all segments as the capture does; the names that are left."""
    names = sorted(path.name for path in folder.glob("*.pm"))
    fd = os.open(folder, os.O_RDONLY)
    with Keeper(Rotation(every_s=1, archive=form), fd, str(folder), None) as keeper:
        for name in names:
            keeper.sealed(name)
    os.close(fd)
    return sorted(name for name in os.listdir(folder) if name != "index.jsonl")


def test_compressed_segments_are_read_and_verified(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=3, count=2000, lose=2)
    shutil.copytree(tmp_path / "out", tmp_path / "plain")
    assert archive(tmp_path / "out", "zst") == [f"{path.name}.zst" for path in paths]
    with formats.open(tmp_path / "out") as packed, formats.open(tmp_path / "plain") as plain:
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


def test_parquet_has_every_snapshot(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=4, count=500)
    with open_capture(paths[1]) as capture:
        expected = capture.column("serial")[~capture.control()]
    last = paths[3].rename(tmp_path / "last")
    names = archive(tmp_path / "out", "parquet")
    assert names == [f"{path.name}.parquet" for path in paths[:3]]
    file = parquet.ParquetFile(tmp_path / "out" / names[1])
    assert sorted(file.read()["serial"].to_pylist()) == sorted(expected.tolist())
    assert file.metadata.row_group(0).column(0).statistics is not None
    last.rename(paths[3])
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 0, chain.problems
    assert any("3 segment(s) are Parquet" in note for note in chain.notes)
    (tmp_path / "out" / names[1]).unlink()
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 5
    assert [problem.what for problem in chain.problems] == [f"{paths[1].name} is missing"]


def test_an_archive_that_is_wrong_leaves_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = make(tmp_path / "out", segments=1, count=100)
    data = path.read_bytes()
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    monkeypatch.setattr(module.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(5, "bad")))
    for form in ("zst", "parquet"):
        assert Archive(form, fd).take(path.name) == path.name
    monkeypatch.undo()
    middle = len(data) // 2
    path.write_bytes(data[: middle - 500] + data[middle:])
    assert Archive("parquet", fd).take(path.name) == path.name
    assert "does not add up" in capfd.readouterr().err
    os.close(fd)
    assert sorted(os.listdir(tmp_path / "out")) == ["index.jsonl", path.name][::1]
    assert not np.array_equal(path.read_bytes(), data)


def test_no_link_is_archived(tmp_path: Path) -> None:
    (path,) = make(tmp_path / "out", segments=1, count=10)
    path.rename(tmp_path / "victim")
    path.symlink_to(tmp_path / "victim")
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    assert Archive("zst", fd).take(path.name) == path.name
    os.close(fd)
    assert path.is_symlink() and (tmp_path / "victim").exists()
