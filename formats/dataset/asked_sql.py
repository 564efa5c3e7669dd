# SPDX-License-Identifier: Apache-2.0
"""SQL over the tables of a dataset, by DuckDB: as over those of a capture, `proven` with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.dataset.store import Part, Store, is_dataset
from tcpkmon.formats.tables import SHIPPED, Column, Query, View

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
