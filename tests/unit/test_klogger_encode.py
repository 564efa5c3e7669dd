# SPDX-License-Identifier: Apache-2.0
"""The bytes of Klogger logs: a file written out by hand, and packing against a model."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_DUMP_BYTES
from tcpkmon.formats.klogger.describe import (
    IN_HEAD,
    SNAPSHOT_NUMBER,
    describe_event,
    describe_snapshot,
    make_header,
)
from tcpkmon.formats.klogger.encode import (
    Packed,
    finish_dump,
    pack_event,
    pack_records,
)
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.psc.columns import CLASSIC, columns_of
from tcpkmon.formats.schema import load
from tests.unit.log_files import BASE, ROOT, LogMaker, make_schema, ring_rows, sample_header
from tests.unit.psc_files import from_hex

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="fixtures are little-endian")

SMALL = make_schema("event SCHEDOUT { int pid }")
TABLE = {"DUMP_BEGIN": 36, "DUMP_FINISH": 37, "SCHEDOUT": 44}

DUMP = from_hex(
    """
    4b 4c 4f 47 44 55 4d 50  # 00 "KLOGDUMP"
    02 00 00 00              # 08 index 2
    04 00 00 00              # 12 4 records
    98 00 00 00 00 00 00 00  # 16 152 bytes of body
    07 00 00 00 00 00 00 00  # 24 first serial 7
    32 d1 62 52              # 32 crc32 of the body
    ab 3b 73 ed              # 36 crc32 of bytes 0 to 36
    00 00 00 00 00 00 00 00  # 40 reserved
    24 00 2c 00 2c 00 25 00  # 48 numbers: DUMP_BEGIN, SCHEDOUT twice, DUMP_FINISH
    24 00 00 00 30 00 00 00  # 56 DUMP_BEGIN, 48 bytes
    07 00 00 00 00 00 00 00  #    serial 7
    e8 03 00 00 00 00 00 00  #    at 1000 ns
    02 00 00 00 00 00 00 00  #    index 2, and 4 bytes of padding
    64 00 00 00 00 00 00 00  #    the dump before was written from 100 ns
    c8 00 00 00 00 00 00 00  #    to 200 ns
    2c 00 00 00 20 00 00 00  # 104 SCHEDOUT, 32 bytes
    08 00 00 00 00 00 00 00  #    serial 8
    00 00 00 00 01 00 00 00  #    at 2^32 ns
    31 04 00 00 00 00 00 00  #    pid 1073
    2c 00 00 00 20 00 00 00  # 136 SCHEDOUT
    0a 00 00 00 00 00 00 00  #    serial 10: 9 was lost
    01 00 00 00 01 00 00 00
    fe ff ff ff 00 00 00 00  #    pid -2
    25 00 00 00 20 00 00 00  # 168 DUMP_FINISH
    0b 00 00 00 00 00 00 00  #    serial 11
    02 00 00 00 01 00 00 00
    98 00 00 00 00 00 00 00  #    152 bytes
    """
)


def small_format() -> LogFormat:
    table = [describe_event(SMALL, SMALL.event(name), number) for name, number in TABLE.items()]
    header = make_header(
        SMALL, table, cpu=1, cpus=2, host="h", kernel="k", version="v", buffer_bytes=4,
        low_water_percent=10, clock=(1, 2, 3), settings={},
    )  # fmt: skip
    return LogFormat.of(header)


def test_a_dump_byte_for_byte() -> None:
    log = small_format()
    rows = ring_rows([struct.pack("<i", 1073), struct.pack("<i", -2)], 24 + 8)
    packed = pack_records(
        np.array([44, 44], np.uint32), rows, np.array([8, 10], np.uint64),
        np.array([1 << 32, (1 << 32) + 1], np.uint64), log.payload_sizes,
    )  # fmt: skip
    # The ring's padding behind the payload is the kernel's zeros; here ring_rows() wrote rubbish.
    packed.body[24 + 4 : 32] = packed.body[32 + 24 + 4 : 64] = 0
    wrote = {"wrote_from": 100, "wrote_until": 200}
    begin = pack_event(log, "DUMP_BEGIN", {"index": 2, **wrote}, 7, 1000)
    assert finish_dump(log, 2, [begin, packed], 11, (1 << 32) + 2).hex() == DUMP.hex()


def test_values_of_events_made_by_hand() -> None:
    log = LogMaker().format
    values: dict[str, int | str | bytes] = {
        "a": -2, "h": (1 << 64) - 1, "how": "BATCH", "text": "gr\u00fc\u00dfe", "raw": b"\0x",
        "addr": bytes(15) + b"\1",
    }  # fmt: skip
    packed = pack_event(log, "EVERY", values, 3, 4)
    row = packed.body[24:].view(log.event("EVERY").dtype)[0]
    assert (row["a"], row["h"], row["how"]) == (-2, (1 << 64) - 1, -3)
    assert row["text"] == "grü".encode()  # ß would be cut in two
    assert bytes(row["raw"]) == b"\0x\0\0"
    assert (row["b"], row["c"]) == (0, 0)
    assert len(pack_event(log, "EMPTY", {}, 3, 4).body) == 24


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"nope": 1}, "has no field 'nope'"),
        ({"b": -1}, "cannot hold -1"),
        ({"a": 1 << 15}, "cannot hold 32768"),
        ({"how": "IDLE"}, "enum policy has no 'IDLE'"),
        ({"c": "1"}, "holds a number"),
        ({"text": 5}, "holds text"),
        ({"raw": b"12345"}, "4 bytes, not 5"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        pack_event(LogMaker().format, "EVERY", values, 1, 1)


def test_a_dump_larger_than_readers_take_is_refused() -> None:
    log = small_format()
    body = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (MOST_DUMP_BYTES,), (0,))
    with pytest.raises(UsageError, match="larger than"):
        finish_dump(log, 0, [Packed(np.zeros(1, np.uint16), body, 1)], 2, 2)


def test_a_snapshot_is_the_whole_ring_entry() -> None:
    schema = load([BASE, ROOT / "bpf" / "schemata" / "tcp.conf"])
    event = schema.event("SNAPSHOT")
    chosen = (*CLASSIC, "laddr", "ca_state", "comm", "seq", "time_ns", "serial", "cpu")
    columns, size = columns_of(event, chosen, ("m_clused",), schema)
    described = describe_snapshot(schema, columns, size)
    assert described["number"] == SNAPSHOT_NUMBER
    fields = {field["name"]: field for field in described["fields"]}
    assert "m_clused" not in fields
    assert not IN_HEAD & fields.keys(), "the record's head has them"
    assert {column.name for column in columns} > IN_HEAD
    assert fields["callvalue"] == {
        "name": "callvalue", "kind": "int", "signed": False, "offset": 12, "length": 4,
        "type": "uint",
    }  # fmt: skip
    assert fields["lport"]["network"] is True
    assert fields["laddr"]["kind"] == "address"
    assert (fields["location"]["kind"], fields["location"]["type"]) == ("enum", "location")
    assert (fields["ca_state"]["kind"], fields["comm"]["kind"]) == ("enum", "string")
    header = {**sample_header(), "events": [described]}
    log = LogFormat.of(header)
    raw = bytes(range(size))
    packed = pack_records(
        np.array([SNAPSHOT_NUMBER]), np.frombuffer(raw, f"V{size}"), np.ones(1, np.uint64),
        np.ones(1, np.uint64), log.payload_sizes, payload_start=0,
    )  # fmt: skip
    assert packed.body.tobytes()[24:] == raw
    row = packed.body[24:].view(log.event("SNAPSHOT").dtype)[0]
    assert row["lport"] == 20 * 256 + 21
    assert row["callvalue"] == int.from_bytes(raw[12:16], "little")
    # A log of before says them in the payload too.
    time = {"name": "time", "kind": "int", "signed": False, "offset": 4, "length": 8,
            "type": "ulonglong"}  # fmt: skip
    old = LogFormat.of({**header, "events": [{**described, "fields": [*fields.values(), time]}]})
    row = packed.body[24:].view(old.event("SNAPSHOT").dtype)[0]
    assert row["time"] == int.from_bytes(raw[4:12], "little")
