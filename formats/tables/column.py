# SPDX-License-Identifier: Apache-2.0
"""What a column of a table is: its Arrow type, unit and meaning; tables that are as declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow

TIME = "timestamp[us, UTC]"
_LARGEST = (1 << 63) - 1
_UNIT = re.compile(r"\s*\[([^\]]+)\]$")


@dataclass(frozen=True)
class Column:
    """type: TIME or one of `arrow`, as Arrow calls it. null: whether it can be null."""

    name: str
    type: str
    unit: str = ""
    text: str = ""
    null: bool = True

    @property
    def arrow(self) -> Any:
        """Its pyarrow type."""
        pyarrow = import_pyarrow()
        if self.type == TIME:
            return pyarrow.timestamp("us", "UTC")
        return {
            "int64": pyarrow.int64, "uint64": pyarrow.uint64, "double": pyarrow.float64,
            "string": pyarrow.string, "bool": pyarrow.bool_, "binary": pyarrow.binary,
        }[self.type]()  # fmt: skip


def declared(name: str, kind: str, text: str, null: bool) -> Column:
    """A column of an analysis: its unit is at the end of its text, in brackets, or its name tells.

    kind: int, float, text or bool. The text `start` is a time.
    """
    kinds = {"int": "int64", "float": "double", "text": "string", "bool": "bool"}
    found = _UNIT.search(text)
    unit = found[1] if found else _unit_of(name)
    text = _UNIT.sub("", text)
    return Column(name, TIME if name == "start" else kinds[kind], unit, text, null)


def _unit_of(name: str) -> str:
    for unit in ("us", "ns", "bytes"):
        if name.startswith(f"{unit}_") or name.endswith(f"_{unit}"):
            return unit
    return ""


def lines(text: str) -> tuple[Column, ...]:
    """Columns that are declared line by line: name | type | unit | meaning; `?`: can be null."""
    found = []
    for line in text.strip().splitlines():
        name, kind, unit, meaning = (part.strip() for part in line.split("|"))
        kind = kind.replace("time", TIME)
        found.append(Column(name, kind.rstrip("?"), unit, meaning, kind.endswith("?")))
    return tuple(found)


def schema_of(columns: Iterable[Column]) -> Any:
    """The pyarrow.Schema of these columns; what they mean is in the fields' metadata."""
    pyarrow = import_pyarrow()
    return pyarrow.schema([
        pyarrow.field(one.name, one.arrow, True, {"unit": one.unit, "text": one.text})
        for one in columns
    ])  # fmt: skip


def conform(table: Any, columns: Sequence[Column]) -> Any:
    """A pyarrow.Table with these columns in their types; what `table` lacks is null.

    A whole number that has no room in its type (2^63 and more in an int64) is null.
    """
    pyarrow = import_pyarrow()
    arrays = []
    for column in columns:
        if column.name not in table.column_names:
            arrays.append(pyarrow.nulls(table.num_rows, column.arrow))
            continue
        values = table[column.name]
        if values.type == pyarrow.uint64() and column.type == "int64":
            fits = pyarrow.compute.less_equal(values, pyarrow.scalar(_LARGEST, pyarrow.uint64()))
            values = pyarrow.compute.if_else(fits, values, pyarrow.scalar(None, pyarrow.uint64()))
        arrays.append(values.cast(column.arrow, safe=column.type != TIME))
    return pyarrow.Table.from_arrays(arrays, schema=schema_of(columns))
