# SPDX-License-Identifier: Apache-2.0
"""The header of PSC files: exact bytes, round trips, and refusal of all that is hostile."""

from __future__ import annotations

import json
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.psc.columns import Column, columns_of, entry_dtype
from tcpkmon.formats.psc.header import (
    KIND_CHECKSUM,
    Header,
    decode_header,
    encode_header,
    read_header,
    writer_header,
)
from tcpkmon.formats.schema import parse
from tests.unit.psc_files import END, describe, entry_size, from_hex, record
from tests.unit.psc_files import REPORT_COLUMNS as REPORT

SEQ = describe("seq_no", 0, 4)
COLUMN = Column("seq_no", 0, 4, 0)


def decode(data: bytes, size: int | None = None) -> Header:
    return decode_header(data, len(data) if size is None else size)[0]


def test_encoded_bytes() -> None:
    header = Header(
        mods=11,
        version="1.0",
        entry_size=64,
        columns=(Column("lport", 20, 2, 2, 0, 1), Column("snd_fack", 32, 0, 2, 4, 0)),
        endian=Endian.BIG,
        mclsize=4096,
        extras={0x100: [b"host"]},
    )
    expected = from_hex(
        """
        00 02 00 0c  31 2e 30 00 00 00 00 00                # VERSION
        00 01 00 08  00 0b 00 00                            # MODS
        00 05 00 08  00 00 00 01                            # ENDIAN
        00 06 00 08  00 00 10 00                            # MCLSIZE
        00 03 00 08  00 40 00 00                            # TABLE_ENTRY_SIZE
        00 04 00 24  6c 70 6f 72 74 00 00 00 00 00 00 00    # DATA_DEFINITION lport
                     00 00 00 00 00 00 00 00 00 00 00 00
                     00 14  02  02  00 00  00 01
        00 04 00 24  73 6e 64 5f 66 61 63 6b 00 00 00 00    # DATA_DEFINITION snd_fack, absent
                     00 00 00 00 00 00 00 00 00 00 00 00
                     00 20  00  02  00 04  00 00
        01 00 00 08  68 6f 73 74                            # HOST
        00 00 00 04                                         # END
        """
    )
    assert encode_header(header) == expected
    assert decode_header(expected, len(expected)) == (header, len(expected))


@st.composite
def headers(draw: st.DrawFn) -> Header:
    names = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
            .filter(lambda name: len(name.encode()) <= 23)
            .filter(lambda name: name not in ("tv_sec", "tv_usec")),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    offset = 0
    columns = []
    for index, name in enumerate(names):
        offset += draw(st.integers(0, 9))
        length = draw(st.integers(1 if index == 0 else 0, 255))
        scope, mask = draw(st.integers(0, 255)), draw(st.integers(0, 65535))
        columns.append(Column(name, offset, length, scope, mask, draw(st.integers(0, 65535))))
        offset += length
    kinds = st.integers(7, 65535).filter(lambda kind: kind != KIND_CHECKSUM)
    datas = st.lists(st.binary(max_size=40), min_size=1, max_size=3)
    return Header(
        mods=draw(st.integers(0, 65535)),
        version=draw(st.text("0123456789.", max_size=8)),
        entry_size=offset + draw(st.integers(0, 9)),
        columns=tuple(draw(st.permutations(columns))),
        endian=draw(st.sampled_from(Endian)),
        mclsize=draw(st.integers(0, 2**32 - 1)),
        extras=draw(st.dictionaries(kinds, datas, max_size=4)),
    )


@given(headers(), st.binary(max_size=30))
def test_round_trip(header: Header, entries: bytes) -> None:
    encoded = encode_header(header)
    data = encoded + entries
    assert decode_header(data, len(data)) == (header, len(encoded))


@pytest.mark.parametrize(
    "value", [b"\x00\x01", b"\x00\x01\x00\x00", b"\x00\x00\x00\x01", b"\x00\x01\xbe\xef"]
)
def test_short_values_in_every_form(value: bytes) -> None:
    header = decode(
        record(1, value) + record(5, value) + record(3, value) + describe("b", 0, 1) + END
    )
    assert (header.mods, header.endian, header.entry_size) == (1, Endian.BIG, 1)


def test_unknown_kinds_are_kept_and_skipped() -> None:
    header = decode(record(7, b"") + entry_size(4) + record(0xFFFF, b"xyz") + SEQ + END)
    assert header.columns == (Column("seq_no", 0, 4, 2),)
    assert header.extras == {7: [b""], 0xFFFF: [b"xyz"]}


HOSTILE = {
    "empty": (b"", 0, "no KIND_END"),
    "half a record": (b"\0\x02\0", 0, "no KIND_END"),
    "no end": (entry_size(4) + SEQ, 44, "no KIND_END"),
    "record of length 0": (entry_size(4) + b"\0\x07\0\0" + END, 8, "length 0"),
    "record of length 3": (entry_size(4) + b"\0\x07\0\x03" + END, 8, "length 3"),
    "record beyond the file": (entry_size(4) + b"\0\x07\xff\xff" + END, 8, "beyond"),
    "end with data": (entry_size(4) + SEQ + b"\0\0\0\x08abcd", 44, "KIND_END"),
    "no entry size": (SEQ + END, 36, "without the size"),
    "entry size 0": (SEQ + entry_size(0) + END, 36, "size of an entry is 0"),
    "entry size of 1 byte": (SEQ + record(3, b"\1") + END, 36, "1 bytes of data"),
    "entry size of 8 bytes": (SEQ + record(3, bytes(8)) + END, 36, "8 bytes of data"),
    "entry size twice": (entry_size(4) + SEQ + entry_size(8) + END, 44, "is there twice"),
    "endian twice": (record(5, bytes(4)) * 2 + entry_size(4) + SEQ + END, 8, "is there twice"),
    "unknown byte order": (entry_size(4) + SEQ + record(5, b"\0\3") + END, 44, "byte order 3"),
    "wide byte order": (entry_size(4) + SEQ + record(5, b"\0\0\1\0") + END, 44, "byte order 256"),
    "endian without data": (record(5, b"") + entry_size(4) + SEQ + END, 0, "0 bytes"),
    "mods without data": (record(1, b"") + entry_size(4) + SEQ + END, 0, "0 bytes"),
    "mclsize of 2 bytes": (record(6, b"\1\2") + entry_size(4) + SEQ + END, 0, "2 bytes"),
    "no column": (entry_size(4) + END, 8, "no column"),
    "only absent columns": (entry_size(4) + describe("a", 0, 0) + END, 44, "no column"),
    "description too short": (entry_size(4) + record(4, bytes(31)) + END, 8, "of 31 bytes"),
    "description too long": (entry_size(4) + record(4, bytes(33)) + END, 8, "of 33 bytes"),
    "column without a name": (entry_size(4) + describe("", 0, 4) + END, 8, "without a name"),
    "column past the entry": (entry_size(4) + describe("a", 1, 4) + END, 8, "outside the entry"),
    "column far outside": (entry_size(4) + describe("a", 65535, 255) + END, 8, "outside"),
    "column wider than entry": (entry_size(4) + describe("a", 0, 255) + END, 8, "outside"),
    "overlap": (entry_size(8) + SEQ + describe("b", 3, 2) + END, 44, "overlap"),
    "overlap, earlier one later": (
        entry_size(8) + describe("b", 2, 4) + describe("a", 0, 3) + END,
        44,
        "overlap",
    ),
    "same bytes twice": (entry_size(8) + SEQ + describe("b", 0, 4) + END, 44, "overlap"),
    "same name twice": (entry_size(8) + SEQ + describe("seq_no", 4, 4) + END, 44, "twice"),
    "name taken by the time": (
        entry_size(12) + describe("time", 0, 8) + describe("tv_sec", 8, 4) + END,
        44,
        "twice",
    ),
    "too many columns": (
        entry_size(65535) + b"".join(describe(f"c{n}", n, 1) for n in range(4097)) + END,
        8 + 36 * 4096,
        "4096 columns",
    ),
    "too many records": (record(9, b"") * 65536 + END, 4 * 65536, "65536 records"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header_names_the_offset(name: str) -> None:
    data, offset, what = HOSTILE[name]
    with pytest.raises(DamagedError, match=what) as caught:
        decode(data)
    assert caught.value.message.startswith(f"at offset {offset}: ")
    assert caught.value.exit_code == 5


def test_header_beyond_16_mib() -> None:
    big = record(9, bytes(65531))
    data = big * (1 + (16 << 20) // len(big))
    for part in (data[: 16 << 20], data):  # as the reader gives it, and whole
        with pytest.raises(
            DamagedError, match=r"at offset \d+: the header is longer than 16777216"
        ):
            decode(part, 1 << 30)


def test_little_is_read_of_a_file_with_a_short_header() -> None:
    big = record(9, bytes(65531))
    for more, counts in ((b"", [1 << 18]), (big * 5, [1 << 18, 16 << 20])):
        data, read = more + entry_size(4) + SEQ + END, []

        def first(count: int, data: bytes = data, read: list[int] = read) -> bytes:
            read.append(count)
            return data[:count]

        assert read_header(first, 1 << 30)[1] == len(data)
        assert read == counts


def test_names_from_a_file_may_be_anything() -> None:
    header = decode(
        entry_size(8) + describe(b"\xff\x1b[31m\n", 0, 4) + describe(b"n" * 24, 4, 4) + END
    )
    assert [column.name for column in header.columns] == ["\\xff\x1b[31m\n", "n" * 24]


BAD = {
    "name too long": Header(1, "", 4, (Column("n" * 24, 0, 4),)),
    "no name": Header(1, "", 4, (Column("", 0, 4),)),
    "nul in name": Header(1, "", 4, (Column("a\0b", 0, 4),)),
    "column too long": Header(1, "", 300, (Column("a", 0, 256),)),
    "outside": Header(1, "", 4, (Column("a", 2, 4),)),
    "overlap": Header(1, "", 8, (Column("a", 0, 4), Column("b", 3, 4))),
    "twice": Header(1, "", 8, (Column("a", 0, 4), Column("a", 4, 4))),
    "entry size": Header(1, "", 65536, (COLUMN,)),
    "entry size 0": Header(1, "", 0, (COLUMN,)),
    "version": Header(1, "123456789", 4, (COLUMN,)),
    "mods": Header(65536, "", 4, (COLUMN,)),
    "mclsize": Header(1, "", 4, (COLUMN,), mclsize=2**32),
    "scope": Header(1, "", 4, (Column("a", 0, 4, 256),)),
    "extra of a known kind": Header(1, "", 4, (COLUMN,), extras={3: [b""]}),
    "extra kind": Header(1, "", 4, (COLUMN,), extras={65536: [b""]}),
    "extra too long": Header(1, "", 4, (COLUMN,), extras={256: [bytes(65532)]}),
    "too long": Header(1, "", 4, (COLUMN,), extras={256: [bytes(65531)] * 257}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_format_cannot_hold(name: str) -> None:
    with pytest.raises(UsageError):
        encode_header(BAD[name])


def test_writer_header() -> None:
    schema = "event SNAPSHOT { uint seq_no }\n" + "// " + "é" * 50_000 + "\n"
    settings = {"ports": [5001], "name": "λ", "deep": {"a": None}}
    header = writer_header(
        [COLUMN],
        8,
        mods=11,
        version="0.1.0",
        mclsize=4096,
        host="böx",
        kernel="6.18.0 #1 SMP x86_64",
        clock=(123, 456, 7),
        schema=schema,
        settings=settings,
    )
    assert header.endian == (Endian.LITTLE if sys.byteorder == "little" else Endian.BIG)
    encoded = encode_header(header)
    assert len(encoded) % 4 == 0
    assert len(header.extras[0x103]) == 2  # a record's length is 16 bits
    assert all(len(data) % 4 == 0 for listed in header.extras.values() for data in listed)
    read = decode(encoded)
    assert read == header
    assert read.text(0x100) == "böx"
    assert read.text(0x101) == "6.18.0 #1 SMP x86_64"
    assert read.text(0x103) == schema
    assert json.loads(read.text(0x104) or "") == settings
    assert read.clock() == (123, 456, 7)
    assert b"\x01\x02\x00\x1c" + struct.pack(">QQQ", 123, 456, 7) in encoded


@pytest.mark.parametrize("magic", ["d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a"])
def test_packets_are_told_from_damage(magic: str) -> None:
    with pytest.raises(DamagedError, match="holds packets") as caught:
        decode(bytes.fromhex(magic) + bytes(100))
    assert "Wireshark" in caught.value.hint


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
