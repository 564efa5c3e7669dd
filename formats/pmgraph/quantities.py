# SPDX-License-Identifier: Apache-2.0
"""The meaning of a column for pmgraph: its values, its unit, and how it is drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.pmgraph.arrays import Array, Columns
from tcpkmon.formats.pmgraph.options import M_CLUSED_BYTES, PARAMETERS
from tcpkmon.formats.psc.reader import Capture

SEQUENCES = {
    "snd_max": "send", "snd_fack": "send", "snd_una": "send", "snd_nxt": "send",
    "write_seq": "send", "high_seq": "send", "rcv_nxt": "receive", "copied_seq": "receive",
}  # fmt: skip
"""The columns with 32-bit sequence numbers, and the direction that they count."""

_UNITS = {parameter.column: parameter.unit for parameter in PARAMETERS}
_CODES = ("location", "callvalue")


@dataclass(frozen=True)
class Quantity:
    """How a column is drawn.

    kind: "level", "sequence" or "code" (values that are no amounts). missing: the value of a record
    in which the kernel had none. members: values and names of an enumeration.
    """

    name: str
    unit: str
    kind: str
    missing: int | None = None
    members: tuple[tuple[int, str], ...] = ()

    @property
    def panel(self) -> str:
        """The name of the panel; quantities with the same name share a vertical axis."""
        if self.kind == "sequence":
            return f"sequence {SEQUENCES.get(self.name, '')}"
        return self.name if self.kind == "code" else self.unit


def cluster_bytes(capture: Capture) -> int:
    """The size of one mbuf cluster in bytes, from KIND_MCLSIZE; FileError if the file has none."""
    size = capture.header.mclsize
    if not size:
        raise FileError(
            f"{capture.path}: no cluster size (KIND_MCLSIZE), so m_clused cannot be shown in bytes",
            "--show m_clused shows the number of clusters",
        )
    return int(size)


def find_maximum_bytes(capture: Capture) -> int:
    """The maximum of m_clused times the cluster size over all snapshots, in bytes (0: none).

    Raises UsageError without m_clused, FileError without a cluster size.
    """
    require(capture, (M_CLUSED_BYTES,))
    require_numbers(capture, (M_CLUSED_BYTES,))
    size = cluster_bytes(capture)
    most = 0
    for piece in capture.chunks():
        start, stop, _ = piece.indices(len(capture))
        used = capture.column("m_clused", start, stop)[~capture.control(start, stop)]
        most = max(most, int(used.max(initial=0)))
    return most * size


def source_of(capture: Capture, name: str) -> str:
    """The file's column from which `name` is read."""
    return "m_clused" if _is_derived(capture, name) else name


def is_number(capture: Capture, name: str) -> bool:
    """Whether the file has this column, and as integers."""
    column = capture.columns_by_name.get(source_of(capture, name))
    return column is not None and column.is_integer


def _is_derived(capture: Capture, name: str) -> bool:
    return name == M_CLUSED_BYTES and name not in capture.columns_by_name


def factor_of(capture: Capture, name: str) -> int:
    """The factor from the values of source_of(capture, name) to those of `name`."""
    return cluster_bytes(capture) if _is_derived(capture, name) else 1


def derive(capture: Capture, name: str, columns: Columns) -> Array:
    """(n,) values of a column or of m_clused_bytes, from the columns of the file."""
    values = columns[source_of(capture, name)]
    if _is_derived(capture, name):
        values = values.astype(np.uint64) * np.uint64(factor_of(capture, name))
    return values


def require(capture: Capture, names: tuple[str, ...]) -> None:
    """Raise UsageError for the first of `names` that the file does not have."""
    for name in names:
        if source_of(capture, name) not in capture.names:
            raise UsageError(
                f"{capture.path} has no column {source_of(capture, name)}",
                f"it has {' '.join(capture.names)}",
            )
        if _is_derived(capture, name):
            cluster_bytes(capture)


def require_numbers(capture: Capture, names: tuple[str, ...]) -> None:
    """Raise FileError for the first of `names` whose values are raw bytes or the time."""
    for name in names:
        if not is_number(capture, name):
            raise FileError(
                f"{capture.path}: column {source_of(capture, name)} holds no numbers",
                "-T prints it",
            )


def describe(capture: Capture, name: str) -> Quantity:
    """The properties of a column: from the schema in the file if there is one, else the report."""
    width = capture.find_column(source_of(capture, name)).length
    if name in SEQUENCES and width == 4:
        return Quantity(name, "bytes", "sequence", missing=0)
    if name == "location":
        seen = [(code, capture.location_name(code)) for code in range(256)]
        named = tuple((code, text) for code, text in seen if has_locations(capture) and text)
        return Quantity(name, "", "code", members=tuple(m for m in named if not m[1].isdigit()))
    if name in _CODES:
        return Quantity(name, "", "code")
    unit, doc, members = _from_schema(capture, name)
    missing = capture.none_of(name)
    if missing is None and (stated := re.search(r"2\^(\d{1,2})-1: ", doc)):
        missing = 2 ** int(stated[1]) - 1  # files of versions before tags declared it
    return Quantity(
        name,
        unit or _UNITS.get(name, "bytes" if name.endswith("_bytes") else ""),
        "code" if members else "level",
        missing=missing,
        members=members,
    )


def has_locations(capture: Capture) -> bool:
    """Whether the location numbers are those of tcpkmon; other programs use others."""
    return capture.schema is not None or bool(capture.control(0, 1).any())


def _from_schema(capture: Capture, name: str) -> tuple[str, str, tuple[tuple[int, str], ...]]:
    """Unit, doc text and (of an enumeration) members of a column; empty if not declared."""
    schema = capture.schema
    if schema is None:
        return "", "", ()
    for event in schema.events:
        for field in event.fields:
            if field.name == name:
                enums = [enum for enum in schema.enums if enum.name == field.type]
                members = tuple((m.value, m.name) for enum in enums for m in enum.members)
                return field.unit, field.doc, members
    return "", "", ()
