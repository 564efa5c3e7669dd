# SPDX-License-Identifier: Apache-2.0
"""Events of schemata in the ring: numbers, sizes, and the C text that logs them."""

from __future__ import annotations

import pytest

from tcpkmon.collector.plan import event_codegen, event_layout
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import parse

SCHEMA = parse(
    "enum kind { plain, odd = -3 }\n"
    "event MADE { uint n }\n"
    "event SMALL { uint pid }\n"
    "event LARGE { ushort a ulonglong b kind c string20 text string16 ip // @address\n }\n"
    "loglevel low < event RARE { int x } >\n"
    "loglevel high < include low omit RARE event FULL { int y } >\n"
    "using high\n"
)
LAYOUT = event_layout.lay_out(SCHEMA, ["MADE"])


def text() -> str:
    return "\n".join(event_codegen.event_lines(LAYOUT))


def test_numbers_run_through_all_events_and_levels_choose_what_is_logged():
    assert [slot.number for slot in LAYOUT.slots] == [32, 33, 34, 35, 36]
    assert [slot.name for slot in LAYOUT.logged] == ["SMALL", "LARGE", "FULL"]
    assert LAYOUT.slot("LARGE").number == 34
    with pytest.raises(UsageError, match="LARGE"):
        LAYOUT.slot("LARG")


def test_fields_stand_where_a_c_compiler_puts_them():
    places = {place.field.name: place.offset for place in LAYOUT.slot("LARGE").places}
    assert places == {"a": 0, "b": 8, "c": 16, "text": 20, "ip": 40}
    assert LAYOUT.slot("LARGE").size == 56
    assert LAYOUT.entry_size == 24 + 56
    dtype = event_layout.ring_dtype(LAYOUT.entry_size)
    assert dtype.itemsize == 80
    assert (dtype.fields["time"][1], dtype.fields["location"][1]) == (4, 16)


DATA = parse(
    "event BOTH { uint a string8 text // @data\n ulonglong b // @data\n ushort c }\n"
    "loglevel one < event ALONE { uint x // @data\n } >\n"
)


def test_fields_of_data_are_left_out_of_layout_and_schema():
    whole, lean = (event_layout.lay_out(DATA, [], data) for data in (True, False))
    assert [place.field.name for place in lean.slot("BOTH").places] == ["a", "c"]
    assert [place.offset for place in lean.slot("BOTH").places] == [0, 4]
    assert (whole.entry_size, lean.entry_size) == (24 + 32, 24 + 8)
    assert [field.name for field in lean.schema.event("BOTH").fields] == ["a", "c"]
    assert lean.schema.loglevel("one").events()[0].fields == ()
    assert whole.schema == DATA


def test_values_of_fields_that_are_left_out_are_checked_and_not_evaluated():
    lines = event_codegen.event_lines(event_layout.lay_out(DATA, [], data=False))
    made = "\n".join(lines)
    assert "klogger_lean_BOTH(void *ctx, struct klogger_cpu *cpu, unsigned int a_, unsigned" in made
    assert "text_" not in made.partition("klogger_lean_BOTH(")[2].partition("\n}")[0]
    macro = next(line for line in lines if line.startswith("#define klogger_log_BOTH("))
    assert "if (0) (klogger_log_BOTH)(ctx, cpu, v0_, v1_, v2_, v3_);" in macro
    assert "klogger_lean_BOTH(ctx, cpu, v0_, v3_);" in macro
