# SPDX-License-Identifier: Apache-2.0
"""The engines that answer questions to a dataset, and which of its files they are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.installing import needed
from tcpkmon.formats.dataset.store import Part, Store, is_dataset
from tcpkmon.formats.tables import SHIPPED, Column, Query, View

DUCKDB = "duckdb"
_OURS = ("duckdb", "_duckdb", "ibis", "pyspark", "py4j")


@dataclass
class Engine:
    """An engine that is open. session: a backend of Ibis. kind: duckdb or spark."""

    session: Any
    kind: str

    def table(self, store: Store, name: str, parts: Sequence[Part]) -> Any:
        """These files as an Ibis table: columns that an older file lacks are null; date and host
        are text."""
        paths = [f"{store.base}/{part.key}" for part in parts]
        if self.kind == DUCKDB:
            if not store.is_local:
                if not self.session.con.filesystem_is_registered("tcpkmon"):
                    self.session.con.register_filesystem(_fsspec(store))
                paths = [f"tcpkmon://{path}" for path in paths]
            return self.session.read_parquet(paths, table_name=name, union_by_name=True,
                                             hive_partitioning=True,
                                             hive_types_autocast=False)  # fmt: skip
        scheme = "" if store.is_local else "s3a://"
        from pyspark.sql import SparkSession

        reader = SparkSession.active().read.options(
            mergeSchema="true", basePath=f"{scheme}{store.base}/table={name}")  # fmt: skip
        reader.parquet(*(scheme + path for path in paths)).createOrReplaceTempView(name)
        return self.session.table(name)


@dataclass
class Files:
    """Gives an engine the files that a question needs, by the partitions in their names.

    touched: those that it was given, by table.
    """

    store: Store
    engine: Engine
    touched: dict[str, list[Part]] = field(default_factory=dict)

    def table(
        self, name: str, days: Sequence[str] = (), keep: Callable[[Part], bool] | None = None
    ) -> Any:
        """A table, of these days (all of them), of the files to keep. UsageError without any."""
        folders = [f"table={name}/date={day}" for day in days] or [f"table={name}"]
        found = [part for folder in folders for part in self.store.parts(folder)]
        if not found:
            raise UsageError(f"{self.store.url} has no table {name}"
                             + (f" of {' or '.join(days)}" if days else ""))  # fmt: skip
        chosen = [part for part in found if keep is None or keep(part)] or found[:1]
        self.store.schemas(chosen)  # no segment twice
        self.touched[name] = chosen
        return self.engine.table(self.store, name, chosen)


@contextmanager
def opened(engine: str) -> Iterator[Engine]:
    """engine: duckdb, or the master of a Spark cluster (spark://HOST:PORT, local[N]). UsageError,
    FileError."""
    if engine == DUCKDB:
        session = ibis().duckdb.connect()
    else:
        with told(engine):
            session = _spark(engine)
    try:
        yield Engine(session, DUCKDB if engine == DUCKDB else "spark")
    finally:
        session.disconnect()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turns the engines' errors into ours."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _OURS:
            raise
        raise FileError(f"{what}: {' '.join(str(error).split())[:300]}") from error


def ibis() -> Any:
    """The module. UsageError."""
    with needed("questions to a dataset need ibis, which", "ibis-framework[duckdb]"):
        import ibis as found
    return found


def _spark(master: str) -> Any:
    with needed("--engine needs pyspark, which", "pyspark"):
        import pyspark
        from pyspark.sql import SparkSession
    if master.startswith("local-cluster"):  # workers start what the package has
        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    build = SparkSession.builder.master(master).appName("tcpkmon")
    if master.startswith("local"):  # one machine: not the 200 parts of each step that Spark makes
        build = build.config("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.debug.maxToStringFields": "1000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        build = build.config(name, value)
    return ibis().pyspark.connect(build.getOrCreate())


def _fsspec(store: Store) -> Any:
    """pyarrow's file system for DuckDB, which knows fsspec's."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    class Wrapped(ArrowFSWrapper):  # type: ignore[misc]
        protocol = "tcpkmon"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("tcpkmon://")

    return Wrapped(store.files)


# SQL over the tables of a dataset, by DuckDB: as over those of a capture, `proven` with each.

_SEGMENTS = "settings"
_TEXTS = {
    "segment_id": "the segment: its row in the table settings says more",
    "host": "name of the machine",
    "date": "the day of the capture (UTC)",
    "proven": "of the segment: nothing was lost, and that is proven",
}


class DatasetQuery(Query):
    """Asks a dataset. views: its tables; each has segment_id, host, date and proven.

    UsageError for a place without segments, DamagedError where a segment is there twice.
    """

    of = "the dataset"

    def __init__(self, store: Store) -> None:
        self.store = store
        parts: dict[str, list[Part]] = {}
        for part in store.parts():
            parts.setdefault(part.table, []).append(part)
        if _SEGMENTS not in parts:
            raise UsageError(f"{store.url} holds no segment", "tcpkmon dataset add DIR FILE...")
        self._tables = {name: self._open(some) for name, some in parts.items()}
        self.views = {name: _view(name, table) for name, table in self._tables.items()}
        self._start({})

    def _open(self, parts: list[Part]) -> Any:
        """The files of a table as a pyarrow.dataset.Dataset: columns that one lacks are null."""
        import pyarrow
        from pyarrow import dataset

        schemas = self.store.schemas(parts)
        keys = pyarrow.schema([("date", pyarrow.string()), ("host", pyarrow.string())])
        hive = dataset.partitioning(keys, flavor="hive")
        paths = [f"{self.store.base}/{part.key}" for part in parts]
        return dataset.dataset(
            paths, pyarrow.unify_schemas([*schemas, keys]), "parquet", self.store.files, hive,
            self.store.base,
        )  # fmt: skip

    def _register(self, base: Any) -> None:
        """`proven` of connections and intervals is theirs; in others it is that of the segment.
        Nothing is proven in a segment that contradicts itself."""
        for name, table in self._tables.items():
            base.register(f"_{name}", table)
        for name, table in self._tables.items():
            has = "proven" in table.schema.names
            proven = (f"coalesce({'t' if has else 's'}.proven and "
                      f"s.exit_code <> {DamagedError.exit_code}, false)")  # fmt: skip
            kept = "* exclude (proven)" if has else "*"
            base.execute(f'create view "{name}" as select t.{kept}, {proven} as proven from '
                         f'"_{name}" t join "_{_SEGMENTS}" s using (segment_id)')  # fmt: skip

    def complaints(self) -> Iterator[str]:
        """What is not proven, of all segments."""
        rows = self._tables[_SEGMENTS].to_table(["file", "date", "host", "proven", "verdict"])
        for row in rows.to_pylist():
            if not row["proven"]:
                yield f"{row['file']} of {row['host']}, {row['date']}: {row['verdict']}"


def open_query(names: Sequence[str]) -> Query:
    """A dataset, or captures; use `with`. UsageError where both are named, or two datasets."""
    if not any(map(is_dataset, names)):
        return Query([Path(name) for name in names])
    if len(names) > 1:
        raise UsageError("a dataset is asked alone",
                         "tcpkmon dataset add DIR FILE... adds captures")  # fmt: skip
    return DatasetQuery(Store(names[0]))


def _view(name: str, table: Any) -> View:
    text, columns = SHIPPED.get(name, ("a row for each segment", ()))
    known = {column.name: column for column in columns}
    made = [known.get(field.name) or Column(field.name, str(field.type), "",
                                            _TEXTS.get(field.name, ""), True)
            for field in table.schema]  # fmt: skip
    if "proven" not in known and "proven" not in table.schema.names:
        made.append(Column("proven", "bool", "", _TEXTS["proven"], False))
    return View(name, text, tuple(made), lambda opened, names: iter(()))
