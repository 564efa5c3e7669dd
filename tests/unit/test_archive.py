# SPDX-License-Identifier: Apache-2.0
"""Segments become Parquet or are compressed; the original goes only when that is proven."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session import archive as module
from tcpkmon.collector.session.archive import Archive
from tcpkmon.collector.session.keeper import Keeper
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.files import open_plain, read_head
from tcpkmon.formats.base.table_file import write_parquet
from tcpkmon.formats.psc.archive import describe
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import format_of
from tests.fuzz.seeds import seeds
from tests.unit.segment_maker import CPUS, Maker, index_of, make

parquet = pytest.importorskip("pyarrow.parquet")
COME_OUT = ("few", "shed", "small", "clean", "full", "big", "classic", "dump", "LITTLE", "why")
"""What fuzzing starts from; some of the others are damaged."""


def archive(folder: Path, form: str) -> list[str]:
    """Archive all segments as the capture does; the names that are left."""
    names = sorted(path.name for path in folder.glob("*.pm"))
    fd = os.open(folder, os.O_RDONLY)
    with Keeper(Rotation(every_s=1, archive=form), fd, str(folder), None) as keeper:
        for name in names:
            keeper.sealed(name)
    os.close(fd)
    return sorted(name for name in os.listdir(folder) if name != "index.jsonl")


def test_what_was_compressed_has_the_digest_of_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make(folder, segments=2)
    archive(folder, "zst")
    assert format_of(folder).verify(folder)[-1].exit_code == 0
    index = folder / "index.jsonl"
    index.write_text(re.sub(r'"sha256": "..', '"sha256": "zz', index.read_text(), count=1))
    chain = format_of(folder).verify(folder)[-1]
    assert chain.exit_code == 5 and "SHA-256" in str(chain.problems)


def test_compressed_segments_are_read_and_verified(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=3, count=2000, lose=2)
    shutil.copytree(tmp_path / "out", tmp_path / "plain")
    assert archive(tmp_path / "out", "zst") == [f"{path.name}.zst" for path in paths]
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
    assert chain.totals.in_file == 4 * 500 * CPUS
    (tmp_path / "out" / names[1]).unlink()
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 5
    assert [problem.what for problem in chain.problems] == [f"{paths[1].name} is missing"]


def parquets(folder: Path, **made: int) -> list[Path]:
    make(folder, **{"segments": 3, "count": 50, **made})
    return [folder / name for name in archive(folder, "parquet")]


def test_parquet_becomes_the_file_again(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    for _ in range(4):
        maker.columns = {"conn_id": [7, 9] * 20}
        maker.records(40, 3)
        maker.rotate()
    maker.close()
    paths, whole = maker.paths, [path.read_bytes() for path in maker.paths]
    assert archive(tmp_path / "out", "parquet") == [f"{path.name}.parquet" for path in paths]
    for path, data in zip(paths, whole, strict=True):
        with open_plain(f"{path}.parquet") as file:
            assert file.read() == data
        assert read_head(f"{path}.parquet", 64) == data[:64]
    with tcpkmon.open(tmp_path / "out") as reader:
        assert reader.lost == 4 * 3 * CPUS and reader.complete and not reader.damaged


def without_padding(data: bytes, path: Path) -> bytes:
    """A PSC file with zeros in the bytes of snapshots that belong to no column."""
    with open_capture(path) as capture:
        offset, plain = capture.data_offset, ~capture.control()
        columns, size = capture.columns_by_name.values(), capture.header.entry_size
    rows = np.frombuffer(data, np.uint8, offset=offset).reshape(-1, size).copy()
    used = np.zeros(size, np.bool_)
    for column in columns:
        used[column.offset : column.offset + column.length] = True
    rows[np.ix_(plain, ~used)] = 0
    return data[:offset] + rows.tobytes()


@pytest.mark.parametrize("kind", seeds("psc"))
def test_any_capture_comes_out_of_parquet(tmp_path: Path, kind: str) -> None:
    data = seeds("psc")[kind]
    path, packed = tmp_path / "in.pm", tmp_path / "out.parquet"
    path.write_bytes(data)
    try:
        with open_capture(path) as capture, packed.open("wb+") as out:
            records = capture.for_export("parquet")
            write_parquet(records, out, describe(capture, records))
        with open_plain(packed) as file:
            assert without_padding(file.read(), path) == without_padding(data, path)
    except (DamagedError, FileError):
        assert kind not in COME_OUT


def test_names_of_any_bytes_come_out_of_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Maker, "chosen", "full")
    maker = Maker(tmp_path / "out")
    names = [b"sh", b"\xff\xfe", b"a\\xff", b"", b"x" * 16, b"=1", b"a\nb", "\u00e4".encode()]
    maker.columns = {"comm": np.array(names, "S16").view("V16")}
    maker.records(len(names))
    maker.close()
    (path,) = maker.paths
    data = path.read_bytes()
    assert archive(tmp_path / "out", "parquet") == [f"{path.name}.parquet"]
    with open_plain(f"{path}.parquet") as file:
        assert file.read() == data


def test_parquet_proves_its_losses(tmp_path: Path) -> None:
    """As the segment itself: the index alone told of them."""
    paths = parquets(tmp_path / "out", lose=7)
    assert run(tcpkmon_command, ["verify", str(tmp_path / "out")], prog="tcpkmon") == 3
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.lost_total == 3 * 7 * CPUS and not chain.problems
    (report,) = format_of(paths[1]).verify(paths[1])
    assert report.exit_code == 3 and report.lost_total == 7 * CPUS


def strip(path: Path, keep: int | None = None, **change: bytes) -> None:
    """Write a Parquet file anew: with the first rows alone, without or with other metadata."""
    table = parquet.read_table(path)
    metadata = {**(table.schema.metadata or {})}
    for name, value in change.items():
        metadata[f"tcpkmon.{name}".encode()] = value
    parquet.write_table(table.slice(0, keep).replace_schema_metadata(metadata or None), path)


def other_value(path: Path) -> None:
    table = parquet.read_table(path)
    at = table.schema.get_field_index("lport")
    ports = table.column(at).to_numpy().copy()
    ports[3] += 1
    parquet.write_table(table.set_column(at, table.schema.field(at), [ports]), path)


def forget(path: Path) -> None:
    parquet.write_table(parquet.read_table(path).replace_schema_metadata(None), path)


@pytest.mark.parametrize(
    ("damage", "code", "what"),
    [
        (lambda path: path.write_bytes(b""), 5, "header"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), 5, "not a whole Parquet file"),
        (lambda path: strip(path, 0), 5, "0 rows and"),
        (lambda path: strip(path, 99), 5, "99 rows and"),
        (other_value, 5, "does not come out again"),
        (lambda path: strip(path, control=b"AAAA"), 5, "metadata of an archive are damaged"),
        (lambda path: strip(path, capture=b"{}"), 5, "metadata of an archive are damaged"),
        (forget, 3, "not proven"),
    ],
    ids=range(8),
)
def test_parquet_that_is_not_what_it_was_proves_nothing(
    tmp_path: Path, damage: Callable[[Path], object], code: int, what: str
) -> None:
    paths = parquets(tmp_path / "out")
    damage(paths[1])
    (report,) = format_of(paths[1]).verify(paths[1])
    assert report.exit_code == code and what in report.verdict, report.verdict
    assert run(tcpkmon_command, ["verify", str(tmp_path / "out")], prog="tcpkmon") == code
    assert run(tcpkmon_command, ["connections", str(tmp_path / "out")], prog="tcpkmon") in (3, 5)


def test_parquet_in_the_place_of_another_is_said(tmp_path: Path) -> None:
    paths = parquets(tmp_path / "out")
    others = parquets(tmp_path / "other", count=51)
    shutil.copy(paths[0], tmp_path / "kept")
    shutil.copy(paths[1], paths[0])
    assert run(tcpkmon_command, ["verify", str(tmp_path / "out")], prog="tcpkmon") == 5
    shutil.copy(tmp_path / "kept", paths[0])
    shutil.copy(others[1], paths[1])
    assert run(tcpkmon_command, ["verify", str(tmp_path / "out")], prog="tcpkmon") == 5


def test_archives_of_earlier_versions_are_not_proven(tmp_path: Path) -> None:
    paths = parquets(tmp_path / "out")
    for path in paths:
        forget(path)
    *_, chain = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert chain.exit_code == 3 and "without a proof: 1-3" in chain.verdict
    assert run(tcpkmon_command, ["verify", str(tmp_path / "out")], prog="tcpkmon") == 3


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
