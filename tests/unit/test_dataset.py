# SPDX-License-Identifier: Apache-2.0
"""Datasets: each segment once and whole, also when writers race or die; answers as of the files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tcpkmon.formats.analysis.check import Capture
from tcpkmon.formats.analysis.check import check as check_capture
from tcpkmon.formats.analysis.diff import compare
from tcpkmon.formats.analysis.diff.sides import choose_connections, values_of_side
from tcpkmon.formats.analysis.why import connections
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.commands.dataset import command
from tcpkmon.formats.dataset import (
    QUERIES,
    Store,
    add,
    ask,
    check,
    compact,
    drop,
    opened,
)
from tcpkmon.formats.dataset.store import Part
from tests.kept.make import unpack
from tests.unit.psc_files import write_capture

DAY, ANOTHER = "2023-11-14", "2026-11-22"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("captures")
    made = [write_capture(folder / f"{n}.pm", 2000 + n, 20 + n, lose={500} if n == 2 else set())
            for n in range(3)]  # fmt: skip
    unpack("psc-rotated", folder)
    unpack("psc-plain", folder)
    more = sorted(path for path in folder.rglob("*") if "psc-" in str(path) and path.is_file())
    return made + [path for path in more if path.suffix == ".pm"]


def rows_of(store: Store) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in store.parts():
        found[part.table] = found.get(part.table, 0) + store.read(part, ["segment_id"]).num_rows
    return found


def filled(place: Path, captures: list[Path]) -> Store:
    """A dataset of these, which is made once."""
    made = captures[0].parent / f"dataset-{hash(tuple(captures))}"
    if not made.exists():
        for path in captures:
            add(Store(str(made)), path)
    shutil.copytree(made, place, dirs_exist_ok=True)
    return Store(str(place))


def test_a_segment_twice_is_once(tmp_path: Path, captures: list[Path]) -> None:
    store = filled(tmp_path, captures)
    before = rows_of(store)
    assert before["settings"] == len(captures)
    assert before["connections"] == sum(len(connections(one)["conn_id"]) for one in captures)
    assert all(not add(store, path).rows for path in captures)
    assert compact(store) > 0
    assert all(not add(store, path).rows for path in captures)
    assert rows_of(store) == before
    assert compact(store) == 0


def test_writers_that_race(tmp_path: Path, captures: list[Path]) -> None:
    few = captures[:4]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: add(Store(str(tmp_path)), path), few * 3))
    assert rows_of(Store(str(tmp_path))) == rows_of(filled(tmp_path.parent / "once", few))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name[0] == "."]


@pytest.mark.parametrize("at", range(10))
def test_a_writer_that_dies_is_repeated(
    tmp_path: Path, captures: list[Path], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """At each rename, before it and after it: what is there is whole, and the next add ends it."""
    count, rename = 0, os.rename

    def dies(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == at // 2 + 1:
            if at % 2:
                rename(source, target)
            raise KeyboardInterrupt
        rename(source, target)

    store = Store(str(tmp_path))
    monkeypatch.setattr(os, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        add(store, captures[0])
    monkeypatch.undo()
    whole = at == 9
    assert any("add it again" in text for text in check(store)) == (1 <= at < 9)
    assert bool(add(store, captures[0]).rows) != whole
    assert not any("add it again" in text for text in check(store))
    assert rows_of(store)["settings"] == 1


def test_a_merge_that_dies_counts_no_row_twice(
    tmp_path: Path, captures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, captures)
    before, answer = rows_of(store), ask(store, "ends")

    def dies(_: Store, part: Part) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "delete", dies)
        with pytest.raises(KeyboardInterrupt):
            compact(store)
    assert rows_of(store) == before and ask(store, "ends") == answer
    compact(store)
    assert rows_of(store) == before and ask(store, "ends") == answer
    files = [path for path in tmp_path.rglob("*.parquet")]
    assert len(files) == len(store.parts())


def test_what_all_engines_read(tmp_path: Path, captures: list[Path]) -> None:
    store = Store(str(tmp_path))
    for path in captures:
        add(store, path, ("connections", "intervals", "snapshots", "ledger"))
    allowed = {"int64", "double", "string", "bool", "binary", "timestamp[us, tz=UTC]"}
    for part in store.parts():
        file = parquet.ParquetFile(tmp_path / part.key)
        assert {str(field.type) for field in file.schema_arrow} <= allowed, part
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            assert rows.column(0).compression == "ZSTD"
            assert rows.column(0).is_stats_set or not rows.num_rows
        about = store.about(part)
        assert about["version"] == 1 and about["segments"] and about["real_ns"]
        table = store.read(part)
        if part.key.startswith("table=settings"):  # captures of before the clock was asked
            assert table["true_time_bound_ns"].to_pylist() == [None]
        if "conn_id" in table.column_names:
            ids = table["conn_id"].to_numpy()
            assert (np.diff(ids) >= 0).all()


def test_check_and_drop(tmp_path: Path, captures: list[Path]) -> None:
    rotated = [path for path in captures if "rotated" in str(path)]
    assert len(rotated) >= 3
    store = filled(tmp_path, [rotated[0], rotated[2]])
    assert any("segment" in text and "is missing" in text for text in check(store))
    add(store, rotated[1])
    assert not any("is missing" in text for text in check(store))
    compact(store)
    assert not any("lacks" in text or "again" in text for text in check(store))
    connections_part = store.parts("table=connections")[0]
    store.delete(connections_part)
    assert any("lacks its file of the table connections" in text for text in check(store))
    days = {part.date for part in store.parts()}
    assert drop(store, min(days)) == 0 and store.parts()
    assert drop(store, "9999-01-01") > 0 and not store.parts()
    with pytest.raises(UsageError):
        drop(store, "yesterday")


def test_older_and_later_versions(tmp_path: Path, captures: list[Path]) -> None:
    store = filled(tmp_path, captures[:2])
    part = store.parts("table=connections")[0]
    about, table = store.about(part), store.read(part)
    store.write(part.key, table.drop_columns(["bytes_retrans", "srtt_p50_us"]), about)
    for name in ("ends", "srtt-histogram", "worst-hosts"):
        assert ask(store, name).num_rows
    compact(store)
    assert ask(store, "ends").num_rows
    part = store.parts("table=connections")[0]
    store.write(part.key, store.read(part), about | {"version": 99})
    assert any("later version" in text for text in check(store))
    (tmp_path / part.key).write_bytes(b"PAR1 nothing")
    with pytest.raises(DamagedError):
        store.read(part)


def rewrite(path: Path, change: Any) -> None:
    """As another program does, which keeps what the file says of itself."""
    table = parquet.read_table(path, partitioning=None)
    parquet.write_table(change(table), path)


def zero_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4:-footer] = bytes(len(data) - footer - 4)
    path.write_bytes(data)


@pytest.mark.parametrize("merged", [False, True])
def test_rows_that_are_missing_or_changed(
    tmp_path: Path, captures: list[Path], merged: bool
) -> None:
    store = filled(tmp_path, captures[:2])
    if merged:
        compact(store)
    before = [*check(store)]
    part = store.parts("table=connections")[0]
    path, whole = tmp_path / part.key, (tmp_path / part.key).read_bytes()
    for change in (lambda table: table.slice(1), lambda table: table.slice(0, 7),
                   lambda table: table.take([1, 0, *range(2, table.num_rows)])):  # fmt: skip
        rewrite(path, change)
        assert any("is not as it was written" in text for text in check(store))
        with pytest.raises(DamagedError, match="is not as it was written"):
            list(store.row_groups(part))
        path.write_bytes(whole)
    zero_pages(path)
    assert len([*check(store)]) > len(before)
    path.write_bytes(whole)
    assert [*check(store)] == before
    store.write(part.key, store.read(part).slice(1), store.about(part))  # whole, but of fewer rows
    assert any("rows in the table connections; 2" in text for text in check(store))


@pytest.mark.parametrize("to", ["date=2023-11-14/host=unit/copy.parquet",
                                "date=2023-11-14/host=other/{name}",
                                "date=2023-11-15/host=unit/{name}"])  # fmt: skip


def test_a_segment_that_is_there_twice(tmp_path: Path, captures: list[Path], to: str) -> None:
    """A copy in the same folder, all tables of a host copied to another one, and to a day."""
    store = filled(tmp_path, captures[:1])
    for part in store.parts():
        name = part.key.rpartition("/")[2]
        target = tmp_path / f"table={part.table}" / to.format(name=name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tmp_path / part.key).read_bytes())
    told = [*check(store)]
    assert sum("is there twice" in text for text in told) == len(rows_of(store)), told
    if "copy" not in to:
        assert any("in another place than it was written for" in text for text in told)
    for name in ("ends", "limits", "unproven"):
        with pytest.raises(DamagedError, match="is there twice"):
            ask(store, name)
    if "copy" in to:
        with pytest.raises(DamagedError, match="is there twice"):
            compact(store)


THAT = 'retrans_ratio < 1e-3 and not (srtt_p50_us > 20000 or limit_share("app") > 50%)'


def answers(store: Store, engine: str = "duckdb") -> dict[str, pyarrow.Table]:
    some = store.parts("table=connections")[0]
    segment = store.about(some)["segments"][0]
    number = store.read(some, ["conn_id"])["conn_id"][0].as_py()
    with opened(engine) as one:
        return {name: ask(store, name, one, day=DAY, against=ANOTHER,
                          connection=f"{segment}:{number}", that=THAT) for name in QUERIES}


def test_answers_are_those_of_the_files(tmp_path: Path, captures: list[Path]) -> None:
    found = answers(filled(tmp_path, captures))
    assert all("unproven" in table.column_names for table in found.values())
    tables = [connections(one) for one in captures]
    ends: dict[str, int] = {}
    for table in tables:
        for reason in table["end_reason"]:
            ends[reason] = ends.get(reason, 0) + 1
    told: dict[str, int] = {}
    for row in found["ends"].to_pylist():
        told[row["end_reason"]] = told.get(row["end_reason"], 0) + row["connections"]
    assert told == ends
    sent = sum(int(table["bytes_sent"].sum()) for table in tables)
    assert sum(found["main-limits"]["sent"].to_pylist()) == sent
    assert sum(found["limits"]["connections"].to_pylist()) == sum(ends.values())


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in keys.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="fleet")
        yield f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()


@pytest.mark.full
def test_a_store_like_s3(tmp_path: Path, captures: list[Path], bucket: str) -> None:
    far, near = Store(f"s3://fleet/data?{bucket}"), Store(str(tmp_path))
    for store in (far, near):
        for path in captures:
            add(store, path)
            assert not add(store, path).rows
    assert rows_of(far) == rows_of(near)
    for name in ("ends", "limits"):
        assert ask(far, name).equals(ask(near, name))
    assert compact(far) == compact(near)
    assert list(check(far)) == list(check(near))
    assert ask(far, "ends").equals(ask(near, "ends"))
    assert drop(far, "9999-01-01") and not far.parts()


def test_check_and_diff_are_those_of_the_files(tmp_path: Path, captures: list[Path]) -> None:
    earlier, later = captures[:1], captures[1:3]
    store = filled(tmp_path / "one", captures[:3])
    for that in (THAT, "retrans_ratio < 1e-3 and not late_ack_us > 20000", "handshake_us < 1s"):
        (row,) = ask(store, "check", day=DAY, that=that).to_pylist()
        told = [check_capture(Capture(path), [that])[0] for path in captures[:3]]
        assert row["connections"] == sum(one.rows for one in told)
        assert row["broken"] == sum(one.failed for one in told) > 0
        no_value = re.findall(r"(\d+) of these as they have no value", str(told))
        assert row["no_value"] == sum(map(int, no_value))
    assert row["no_value"] > 0
    with pytest.raises(UsageError):
        ask(store, "check", day=DAY, that="max(srtt_p50_us) < 1s")

    store = filled(tmp_path / "two", later)
    for part in store.parts():  # the other side: another day, another host
        about = store.about(part)
        store.write(part.key.replace(DAY, ANOTHER), store.read(part), about)
        store.delete(part)
    add(store, earlier[0])
    a, b = (values_of_side([(choose_connections(connections(path))[0], None) for path in paths],
                           "connection") for paths in (earlier, later))  # fmt: skip
    compared = {one.metric.name: one for one in compare(a, b)[0]}
    rows = ask(store, "diff", day=ANOTHER, against=DAY).to_pylist()
    assert len(rows) > 5
    for row in rows:
        one = compared[row["metric"]]
        assert one.a is not None and one.b is not None
        assert (row["n_a"], row["n_b"]) == (one.a.n, one.b.n), row
        ordered = np.sort(a[row["metric"]])
        assert row["median_a"] == pytest.approx(ordered[(len(ordered) - 1) // 2], rel=1e-12)
        if one.larger is not None:
            assert row["larger"] == pytest.approx(one.larger, abs=1e-9), row


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        one = pytest.approx(one, rel=1e-12, nan_ok=True)
    return bool(one == other)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_cluster_of_spark_answers_the_same(tmp_path: Path, captures: list[Path]) -> None:
    """A master and two workers, processes of their own."""
    pytest.importorskip("pyspark")
    store = filled(tmp_path, captures)
    part, *more = store.parts(f"table=connections/date={DAY}")
    store.write(part.key, store.read(part).drop_columns(["bytes_retrans"]), store.about(part))
    for part in [one for one in store.parts() if one.name == more[-1].name]:  # what diff compares
        store.write(part.key.replace(DAY, ANOTHER), store.read(part), store.about(part))
        store.delete(part)
    here = answers(store)
    # What is compiled for much data takes most of the time of so little.
    quick = "-XX:TieredStopAtLevel=1"
    options = (f"--driver-memory 1g --driver-java-options {quick} "
               f"--conf spark.executor.extraJavaOptions={quick} "
               "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.adaptive.enabled=false")
    with mock.patch.dict(os.environ, PYSPARK_SUBMIT_ARGS=f"{options} pyspark-shell"):
        there = answers(store, "local-cluster[2,1,1024]")
    assert {*here} == {*there} == {*QUERIES}
    wrong = []
    for name in QUERIES:
        assert here[name].column_names == there[name].column_names, name
        ours, theirs = here[name].to_pylist(), there[name].to_pylist()
        assert len(ours) == len(theirs), name
        assert len(ours), name
        for one, other in zip(ours, theirs, strict=True):
            wrong += [(name, column, value, other[column]) for column, value in one.items()
                      if not is_same(value, other[column])]
    assert not wrong


def run(*words: Any) -> Any:
    done = CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)
    return done


def test_the_command(tmp_path: Path, captures: list[Path]) -> None:
    done = run("add", tmp_path, captures[0])
    assert done.exception is None and "connections 20" in done.output
    assert "there already" in run("add", tmp_path, captures[0]).output
    assert "unproven" in run("query", "ends", tmp_path, "--format", "csv").output
    assert isinstance(run("query", "nothing", tmp_path).exception, UsageError)
    assert isinstance(run("query", "story", tmp_path).exception, UsageError)
    assert isinstance(run("add", tmp_path, captures[0], "--tables", "x").exception, UsageError)
    assert "worst-hosts" in run("query", "help").output
