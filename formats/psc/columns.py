# SPDX-License-Identifier: Apache-2.0
"""Columns of a PSC entry: which ones a capture has, where they are, and the numpy type of a row.

The classic head of each entry that tcpkmon writes (struct tpm_entry with a 4-byte u_long), by
offset in bytes:

     0         4         8         12          16         20      22      24
    +---------+---------+---------+-----------+----------+-------+-------+----------+
    | seq_no  | tv_sec  | tv_usec | callvalue | location | lport | rport | snd_cwnd |
    +---------+---------+---------+-----------+----------+-------+-------+----------+
     28        32         36         40          44          48                52
    +---------+----------+----------+-----------+-----------+-----------------+-----
    | snd_max | snd_fack | sb_hiwat | snd_sb_cc | rcv_sb_cc | sb_target_hiwat | ...
    +---------+----------+----------+-----------+-----------+-----------------+-----
     52              56                 60         64
    +---------------+------------------+----------+--- further columns, packed,
    | sb_net_target | hiwat_fair_share | m_clused |    then zeros up to a multiple of 8
    +---------------+------------------+----------+---
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_COLUMNS

if TYPE_CHECKING:
    from tcpkmon.formats.schema import Event, Field, Schema

SCOPE_PM = 0
SCOPE_SYS = 1
SCOPE_INDIV = 2

FLAG_INT_HOST = 0
FLAG_INT_NET = 1
FLAG_STRING = 2

MODS_RENO = 1
MODS_SACK = 2
MODS_FACK = 4
MODS_AUTO = 8

TIME = "time"
TIME_FIELDS = ("tv_sec", "tv_usec")
NAME_BYTES = 24
LENGTH_MAX = 0xFF
ENTRY_SIZE_MAX = 0xFFFF

CLASSIC: dict[str, tuple[int, int]] = {
    "seq_no": (0, 4),
    "time": (4, 8),
    "callvalue": (12, 4),
    "location": (16, 4),
    "lport": (20, 2),
    "rport": (22, 2),
    "snd_cwnd": (24, 4),
    "snd_max": (28, 4),
    "snd_fack": (32, 4),
    "sb_hiwat": (36, 4),
    "snd_sb_cc": (40, 4),
    "rcv_sb_cc": (44, 4),
    "sb_target_hiwat": (48, 4),
    "sb_net_target": (52, 4),
    "hiwat_fair_share": (56, 4),
    "m_clused": (60, 4),
}
"""Offset and length [bytes] of the sixteen columns of struct tpm_entry."""
CLASSIC_BYTES = 64
_GENERAL = ("seq_no", "time", "callvalue", "location", "lport", "rport")
"""What says which record it is: every kernel has it."""

_SCOPES = {"pm": SCOPE_PM, "sys": SCOPE_SYS}
_MODS = {"sack": MODS_SACK, "fack": MODS_FACK, "auto": MODS_AUTO}


@dataclass(frozen=True)
class Column:
    """One struct tpm_entry_description: offset and length [bytes]; length 0: absent."""

    name: str
    offset: int
    length: int
    scope: int = SCOPE_INDIV
    mask: int = 0
    flags: int = FLAG_INT_HOST

    def is_for(self, mods: int) -> bool:
        """Whether it means something in a kernel with these features (psc_mods)."""
        return not (self.mask and mods) or bool(self.mask & mods) or self.name in _GENERAL

    @property
    def is_time(self) -> bool:
        """Whether this is a struct timeval, of two 32-bit or two 64-bit words."""
        return self.name == TIME and self.length in (8, 16)

    @property
    def is_integer(self) -> bool:
        """Whether the value is a number of 1 to 8 bytes, not raw bytes or the time."""
        return not (self.is_time or self.is_raw) and 1 <= self.length <= 8

    @property
    def is_raw(self) -> bool:
        """Whether the value is a string or other bytes."""
        return bool(self.flags & FLAG_STRING)

    @property
    def is_network(self) -> bool:
        """Whether the value is in network order, for any byte order of the file."""
        return bool(self.flags & FLAG_INT_NET)


def columns_of(
    event: Event, chosen: Collection[str], absent: Collection[str], schema: Schema
) -> tuple[tuple[Column, ...], int]:
    """The columns of a capture of `event`, and the entry's size in bytes (a multiple of 8).

    The sixteen classic columns are first. The columns in `chosen` follow, packed, in the schema's
    order. Columns in `absent` (which this kernel lacks) have length 0; behind the classic 64 bytes
    they use no bytes. Raises UsageError for an unknown name, and for columns that do not fit.
    """
    from tcpkmon.formats.schema import field_type

    fields = {field.name: field for field in event.fields}
    unknown = sorted(name for name in chosen if name not in fields and name not in CLASSIC)
    if unknown:
        raise UsageError(
            f"no such column: {', '.join(unknown)}", f"the event {event.name} does not declare it"
        )
    columns = []
    for name, (offset, length) in CLASSIC.items():
        flags = FLAG_INT_NET if name in ("lport", "rport") else FLAG_INT_HOST
        columns.append(
            _column(fields.get(name), name, offset, 0 if name in absent else length, flags)
        )
    offset = CLASSIC_BYTES
    for field in event.fields:
        if field.name in CLASSIC or field.name not in chosen:
            continue
        kind = field_type(schema, field)
        flags = FLAG_STRING if kind.kind == "string" else FLAG_INT_HOST
        length = 0 if field.name in absent else kind.width
        columns.append(_column(field, field.name, offset if length else 0, length, flags))
        offset += length
    size = -(-offset // 8) * 8
    check_columns(columns, size)
    return tuple(columns), size


def _column(field: Field | None, name: str, offset: int, length: int, flags: int) -> Column:
    tags = field.tags if field else frozenset[str]()
    scope = next((number for tag, number in _SCOPES.items() if tag in tags), SCOPE_INDIV)
    mask = sum(bit for tag, bit in _MODS.items() if tag in tags)
    return Column(name, offset, length, scope, mask, flags)


def check_columns(columns: Sequence[Column], entry_size: int) -> None:
    """Raise UsageError if a PSC header cannot hold these columns."""
    if not 0 < entry_size <= ENTRY_SIZE_MAX:
        raise UsageError(f"an entry of {entry_size} bytes does not fit the PSC format")
    if len(columns) > MOST_COLUMNS:
        raise UsageError(f"{len(columns)} columns are more than the {MOST_COLUMNS} allowed")
    for column in columns:
        if not 0 < len(column.name.encode()) < NAME_BYTES or "\0" in column.name:
            raise UsageError(
                f"column name {column.name!r} does not fit the PSC format",
                f"use 1 to {NAME_BYTES - 1} bytes",
            )
        if not 0 <= column.length <= LENGTH_MAX:
            raise UsageError(
                f"column {column.name} of {column.length} bytes does not fit the PSC format",
                f"use at most {LENGTH_MAX}",
            )
    problem = find_conflict(columns, entry_size)
    if problem:
        raise UsageError(problem[1])


def find_conflict(columns: Sequence[Column], entry_size: int) -> tuple[int, str] | None:
    """The index and the problem of the first column that is out of range, overlaps or repeats."""
    seen: set[str] = set()
    for index, column in enumerate(columns):
        names = (column.name, *(TIME_FIELDS if column.is_time else ()))
        if not seen.isdisjoint(names):
            return index, f"column {column.name!r} is defined twice"
        seen.update(names)
        if column.length and not 0 <= column.offset <= entry_size - column.length:
            return index, (
                f"column {column.name!r} at bytes {column.offset} to "
                f"{column.offset + column.length} lies outside the entry of {entry_size} bytes"
            )
    present = [index for index, column in enumerate(columns) if column.length]
    present.sort(key=lambda index: columns[index].offset)
    for before, after in itertools.pairwise(present):
        if columns[before].offset + columns[before].length > columns[after].offset:
            return max(before, after), (
                f"columns {columns[before].name!r} and {columns[after].name!r} overlap"
            )
    return None


def entry_dtype(columns: Iterable[Column], entry_size: int, order: str = "=") -> np.dtype[Any]:
    """The numpy type of one entry: a field at its offset for each present column.

    order: "<", ">", "=" or "pdp". Integers of 1, 2, 4 and 8 bytes are unsigned in this order;
    those with FLAG_INT_NET are big-endian. The time is two fields, tv_sec and tv_usec. All other
    columns are raw, V with their length; so are integers of more than 2 bytes for "pdp". Bytes that
    belong to no column are lost when numpy joins or sorts such rows: use a view as V{entry_size}.
    """
    names: list[str] = []
    formats: list[str] = []
    offsets: list[int] = []
    for column in columns:
        if not column.length:
            continue
        if column.is_time:
            half = column.length // 2
            names += TIME_FIELDS
            formats += [_format(half, order)] * 2
            offsets += [column.offset, column.offset + half]
            continue
        names.append(column.name)
        offsets.append(column.offset)
        integer = column.is_integer and column.length in (1, 2, 4, 8)
        own = ">" if column.is_network else order
        formats.append(_format(column.length, own) if integer else f"V{column.length}")
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": entry_size}
    )


def _format(length: int, order: str) -> str:
    if order != "pdp":
        return f"{order}u{length}"
    return f"<u{length}" if length <= 2 else f"V{length}"
