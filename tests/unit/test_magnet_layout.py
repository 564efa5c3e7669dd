# SPDX-License-Identifier: Apache-2.0
"""The layouts of struct magnet_data: offsets as C has them, conversion between them, control
entries."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.magnet.control import decode, encode, encode_header, text_records
from tcpkmon.formats.magnet.layout import EVERY, IP, NATIVE, TCP, Layout, convert

SIZES = {(64, False): 24, (64, True): 120, (32, False): 20, (32, True): 68}
# struct magnet_data, then struct magnet_tcp, and struct magnet_ip at its place. C pads a structure
# of 64 bits before the first long, and both at the end.
TCP_FORMATS = {64: "QQIi2H4x10QH6x", 32: "IQIi2H10IH2x"}
IP_FORMATS = {64: "QQIi2B2H2B88x", 32: "IQIi2B2H2B40x"}


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_record_is_as_c_has_it(layout: Layout) -> None:
    assert layout.size == SIZES[layout.bits, layout.data]
    head = layout.order + ("QQIi" if layout.bits == 64 else "IQIi")
    if not layout.data:
        (row,) = layout.rows(struct.pack(head, 7, 8, 9, -10))
        assert row.tolist() == (7, 8, 9, -10)
        return
    values = list(range(100, 112))
    data = struct.pack(layout.order + TCP_FORMATS[layout.bits], 7, 8, 9, -10, *values, 0x0102)
    (row,) = layout.rows(data)
    assert [int(row[name]) for name in TCP] == [*values, 0x0102]
    data = struct.pack(layout.order + IP_FORMATS[layout.bits], 7, 8, 9, -10, 4, 16, 500, 600, 64, 6)
    (row,) = layout.rows(data)
    assert [int(row[name]) for name in IP] == [4, 16, 500, 600, 64, 6]


def test_bit_fields_begin_at_the_other_end() -> None:
    native, big = NATIVE[True], Layout(">", 64, True)
    rows = np.zeros(3, native.dtype)
    rows["flags"] = [1, 2, 0x80]  # FIN, SYN, CWR
    found = convert(rows, native, big, np.full(3, "tcp"))
    assert found["flags"].tolist() == [0x8000, 0x4000, 0x0100]


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_control_entry(layout: Layout) -> None:
    values = {"kind": "CHECK", "time_ns": 5, "number": 1, "records": 0, "block": 0, "sums": []}
    data = encode(values | {"text": "x" * 300}, layout)
    rows = layout.rows(data)
    assert decode(rows, layout) == values | {"text": "x" * 300}
    for at in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[at] ^= bit
            other = layout.rows(bytes(changed))
            if (other["event"] != rows["event"]).any():
                continue  # whoever walks does not find an entry there
            with pytest.raises(DamagedError):
                decode(other, layout)
    with pytest.raises(DamagedError, match="not whole"):
        decode(rows[:-1], layout)


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_header(layout: Layout) -> None:
    data = encode_header({"a": "b" * 100}, layout)
    rows = layout.rows(data)
    assert len(rows) == 1 + text_records(int(rows["size"][0]), layout)
    assert decode(rows, layout) == {"a": "b" * 100}
    word = layout.bits // 8
    for at in {*range(8, word + 8), *range(word + 16, layout.size)}:
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DamagedError):
            decode(layout.rows(bytes(changed)), layout)
