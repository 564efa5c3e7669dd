# SPDX-License-Identifier: Apache-2.0
"""The columns and locations that a capture chooses, against the shipped schema."""

from __future__ import annotations

import pytest

from tcpkmon.collector.plan import columns
from tcpkmon.collector.ring import points
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.psc.columns import CLASSIC

SCHEMA = columns.load_schema()
EVENT = SCHEMA.event(columns.EVENT)


def test_classic_is_the_tpm_entry_of_2000():
    made = columns.make_layout(SCHEMA, columns.choose_columns(EVENT, "classic"), ())
    assert made.entry_size == 64
    assert [(c.name, c.offset, c.length) for c in made.columns] == [
        (name, *place) for name, place in CLASSIC.items()
    ]


@pytest.mark.parametrize("text", [*columns.SETS, "srtt_us", "cpu,netns,comm"])
def test_every_column_is_aligned_and_apart(text):
    made = columns.make_layout(SCHEMA, columns.choose_columns(EVENT, text), ())
    end = 0
    for column in made.columns:
        assert column.offset >= end
        if not made.is_string(column.name):
            assert column.offset % column.length == 0, column
        end = column.offset + column.length
    assert end <= made.entry_size and made.entry_size % 8 == 0


def test_sets_grow():
    sets = [set(columns.choose_columns(EVENT, name)) for name in columns.SETS]
    assert sets[0] < sets[1] < sets[2] < sets[3]
    assert sets[3] == {field.name for field in EVENT.fields}
    assert set(columns.choose_columns(EVENT, "srtt_us")) == sets[0] | {"srtt_us"}
    # What proves a capture, and who a connection is.
    assert {"serial", "cpu", "time_ns", "conn_id", "laddr", "raddr"} <= sets[1]


def test_absent_columns_take_no_room():
    chosen = columns.choose_columns(EVENT, "srtt_us,min_rtt_us")
    full = columns.make_layout(SCHEMA, chosen, ())
    less = columns.make_layout(SCHEMA, chosen, ("min_rtt_us", "sb_net_target", "lost"))
    assert less.absent == ("min_rtt_us", "sb_net_target")
    assert "min_rtt_us" not in (less.dtype.names or ())
    assert full.dtype.fields["srtt_us"][1] == less.dtype.fields["srtt_us"][1]


@pytest.mark.parametrize("text", ["nonsense", "classic,snd_cwdn", "-srtt_us"])
def test_unknown_columns_are_named(text):
    with pytest.raises(UsageError, match="no such column"):
        columns.choose_columns(EVENT, text)


def test_locations():
    default = columns.choose_locations(SCHEMA, None)
    assert "SEGMENT_RECEIVED" in default and "TRANSMIT" not in default
    assert set(columns.choose_locations(SCHEMA, "all")) == set(columns.locations_of(SCHEMA))
    assert columns.choose_locations(SCHEMA, "rto,retransmit") == ("RETRANSMIT", "RTO")
    assert set(columns.choose_locations(SCHEMA, "-RTO")) == set(default) - {"RTO"}
    assert set(columns.choose_locations(SCHEMA, "default,transmit")) == {*default, "TRANSMIT"}
    for bad in ("nothing", "START", "all,-all"):
        with pytest.raises(UsageError):
            columns.choose_locations(SCHEMA, bad)


def test_location_numbers_are_stable():
    numbers = {m.name: m.value for m in SCHEMA.enum("location").members}
    assert numbers["SEGMENT_RECEIVED"] == 1 and numbers["REO_TIMEOUT"] == 20
    assert numbers["SEGMENT_CLOSING"] == 21
    assert numbers["START"] == 224 and numbers["EXISTING"] == 226 and numbers["COLLECTOR"] == 235
    rows = [points.row_of(number) for number in (*range(1, 22), 226)]
    assert len(set(rows)) == 22 and max(rows) < points.ROWS
    assert [points.location_of(row) for row in rows] == [*range(1, 22), 226]
