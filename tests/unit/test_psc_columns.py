# SPDX-License-Identifier: Apache-2.0
"""Columns from a schema, and the numpy type by which the collector writes and readers read."""

from __future__ import annotations

import numpy as np
import pytest

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.psc.columns import Column, columns_of, entry_dtype
from tcpkmon.formats.psc.header import Header, decode_header, encode_header
from tcpkmon.formats.schema import parse
from tests.unit.pmgraph_capture import CLASSIC as REPORT

SCHEMA = parse(
    """
    enum tcp_state { NONE = 0 }
    event SNAPSHOT {
        uint seq_no         // number @classic @pm
        uint snd_fack       // highest sacked @classic @fack
        uint m_clused       // memory @classic @sys
        ulonglong seq       // whole number @pm
        string5 name        // a name
        ushort cpu          // of it @pm
        uint sacked_out     // sacked @sack @auto
        tcp_state state     // state
    }
    """,
    "test.conf",
)
EVENT = SCHEMA.event("SNAPSHOT")


def test_classic_entry_is_the_report_s() -> None:
    columns, size = columns_of(EVENT, (), (), SCHEMA)
    assert size == 64
    found = [(column.name, column.offset, column.length) for column in columns]
    assert found == [one[:3] for one in REPORT]
    by_name = {column.name: column for column in columns}
    assert [name for name, column in by_name.items() if column.flags] == ["lport", "rport"]
    assert (by_name["seq_no"].scope, by_name["m_clused"].scope, by_name["lport"].scope) == (0, 1, 2)
    assert (by_name["snd_fack"].mask, by_name["seq_no"].mask) == (4, 0)


def test_chosen_columns_follow_packed_in_the_schema_s_order() -> None:
    columns, size = columns_of(EVENT, ("state", "sacked_out", "name", "seq", "cpu"), (), SCHEMA)
    assert columns[16:] == (
        Column("seq", 64, 8, 0, 0, 0),
        Column("name", 72, 5, 2, 0, 2),
        Column("cpu", 77, 2, 0, 0, 0),
        Column("sacked_out", 79, 4, 2, 10, 0),
        Column("state", 83, 4, 2, 0, 0),
    )
    assert size == 88
    header = Header(1, "", size, columns)
    encoded = encode_header(header)
    assert decode_header(encoded, len(encoded))[0] == header


def test_absent_columns_have_length_0() -> None:
    columns, size = columns_of(EVENT, ("seq", "cpu"), ("seq", "snd_fack", "name"), SCHEMA)
    by_name = {column.name: column for column in columns}
    assert by_name["seq"] == Column("seq", 0, 0, 0, 0, 0)
    assert by_name["cpu"].offset == 64
    assert (by_name["snd_fack"].offset, by_name["snd_fack"].length) == (32, 0)
    assert "name" not in by_name
    assert size == 72


def test_unknown_column() -> None:
    with pytest.raises(UsageError, match="no such column: bogus"):
        columns_of(EVENT, ("seq", "bogus"), (), SCHEMA)


def test_columns_that_do_not_fit() -> None:
    schema = parse("event E { string256 big uint a_name_of_twenty_four_by }", "test.conf")
    with pytest.raises(UsageError, match="256 bytes"):
        columns_of(schema.event("E"), ("big",), (), schema)
    with pytest.raises(UsageError, match="does not fit"):
        columns_of(schema.event("E"), ("a_name_of_twenty_four_by",), (), schema)


def test_entry_dtype() -> None:
    columns = [
        Column("seq_no", 0, 4),
        Column("time", 4, 8),
        Column("lport", 12, 2, flags=1),
        Column("gone", 0, 0),
        Column("name", 14, 5, flags=2),
        Column("odd", 19, 3),
        Column("wide", 24, 8),
    ]
    dtype = entry_dtype(columns, 40, "<")
    assert dtype.itemsize == 40
    assert {name: (str(kind), at) for name, (kind, at, *_) in (dtype.fields or {}).items()} == {
        "seq_no": ("uint32", 0),
        "tv_sec": ("uint32", 4),
        "tv_usec": ("uint32", 8),
        "lport": (">u2", 12),
        "name": ("|V5", 14),
        "odd": ("|V3", 19),
        "wide": ("uint64", 24),
    }
    row = np.zeros(1, entry_dtype(columns, 40, ">"))
    row["tv_usec"], row["lport"] = 258, 0x1234
    assert row.tobytes()[8:14] == b"\x00\x00\x01\x02\x12\x34"
    assert entry_dtype(columns, 40, "pdp")["wide"] == np.dtype("V8")
