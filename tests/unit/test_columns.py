# SPDX-License-Identifier: Apache-2.0
"""The columns and locations that a capture chooses, against the shipped schema."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tcpkmon.collector.plan import columns
from tcpkmon.collector.plan.columns import EVENT, choose_columns, make_layout
from tcpkmon.collector.plan.event_codegen import event_lines
from tcpkmon.collector.plan.event_layout import lay_out_sources
from tcpkmon.collector.plan.schema_sources import (
    TCP,
    blank_comments,
    find_sources,
    made_events,
    read_texts,
    shipped_names,
)
from tcpkmon.collector.ring import points
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.commands import check, connections, export, pmgraph, verify, why
from tcpkmon.formats.klogger.describe import IN_HEAD, describe_snapshot
from tcpkmon.formats.psc.columns import CLASSIC, FLAG_INT_HOST, FLAG_INT_NET, FLAG_STRING
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.psc.reader import open_capture
from tests.full import first
from tests.unit.psc_files import DEFAULT, write_capture

SCHEMA = columns.load_schema()
SNAPSHOT = SCHEMA.event(columns.EVENT)


def test_classic_is_the_tpm_entry_of_2000():
    made = columns.make_layout(SCHEMA, columns.choose_columns(SNAPSHOT, "classic"), ())
    assert made.entry_size == 64
    assert [(c.name, c.offset, c.length) for c in made.columns] == [
        (name, *place) for name, place in CLASSIC.items()
    ]


@pytest.mark.parametrize("text", [*columns.SETS, "srtt_us", "cpu,netns,comm"])
def test_every_column_is_aligned_and_apart(text):
    made = columns.make_layout(SCHEMA, columns.choose_columns(SNAPSHOT, text), ())
    end = 0
    for column in made.columns:
        assert column.offset >= end
        if not made.is_string(column.name):
            assert column.offset % column.length == 0, column
        end = column.offset + column.length
    assert end <= made.entry_size and made.entry_size % 8 == 0


def test_sets_grow():
    sets = [set(columns.choose_columns(SNAPSHOT, name)) for name in columns.SETS]
    assert sets[0] < sets[1] < sets[2] < sets[3]
    assert sets[3] == {field.name for field in SNAPSHOT.fields}
    assert set(columns.choose_columns(SNAPSHOT, "srtt_us")) == sets[0] | {"srtt_us"}
    # What proves a capture, and who a connection is.
    assert {"serial", "cpu", "time_ns", "conn_id", "laddr", "raddr"} <= sets[1]


def test_absent_columns_take_no_room():
    chosen = columns.choose_columns(SNAPSHOT, "srtt_us,min_rtt_us")
    full = columns.make_layout(SCHEMA, chosen, ())
    less = columns.make_layout(SCHEMA, chosen, ("min_rtt_us", "sb_net_target", "lost"))
    assert less.absent == ("min_rtt_us", "sb_net_target")
    assert "min_rtt_us" not in (less.dtype.names or ())
    assert full.dtype.fields["srtt_us"][1] == less.dtype.fields["srtt_us"][1]


@pytest.mark.parametrize("text", ["nonsense", "classic,snd_cwdn", "-srtt_us"])
def test_unknown_columns_are_named(text):
    with pytest.raises(UsageError, match="no such column"):
        columns.choose_columns(SNAPSHOT, text)


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


DECLARED = tuple(field.name for field in SCHEMA.event(EVENT).fields)
TEXT = read_texts(find_sources([TCP]))
STAMPED_IN_PSC = {"seq_no", "time", "seq"}
"""What collector/sequencer writes over or into each entry of a PSC file."""


def set_by_c() -> set[str]:
    return set(re.findall(r"\b(?:SET|COPY)\((\w+),", TEXT))


def test_each_column_of_a_psc_file_is_set_or_stamped() -> None:
    layout = make_layout(SCHEMA, choose_columns(SCHEMA.event(EVENT), "all"), ())
    stored = {column.name for column in layout.columns}
    assert stored == set(DECLARED)
    assert stored - set_by_c() - STAMPED_IN_PSC == set()
    assert STAMPED_IN_PSC - set_by_c() == {"time", "seq"}


def test_each_field_of_a_snapshot_in_a_log_is_set() -> None:
    """The collector writes nothing into a log's payload."""
    layout = make_layout(SCHEMA, choose_columns(SCHEMA.event(EVENT), "all"), ())
    fields = {f["name"] for f in describe_snapshot(SCHEMA, layout.columns, 0)["fields"]}
    assert fields <= set_by_c()
    assert set(DECLARED) - fields == IN_HEAD, "nothing else is left out"
    assert {"callvalue", "location"} < fields and set(CLASSIC) - fields == {"seq_no", "time"}


def test_no_setter_is_for_an_undeclared_column() -> None:
    named = set(re.findall(r"\b(?:SET|COPY|HAS|NEEDS)\((\w+)\b", TEXT))
    assert named - {"column"} <= set(DECLARED)


@pytest.mark.parametrize("name", sorted({*shipped_names()} - {"base", TCP}))
def test_each_field_of_each_event_is_stored_by_each_klogger_call(name: str) -> None:
    """Clang checks that a call has as many values as its event has fields."""
    sources = find_sources([name])
    layout = lay_out_sources(sources)
    text = blank_comments(read_texts(sources))
    called = set(re.findall(r"\bklogger\(\s*(\w+)", text))
    called |= set(re.findall(r"\bSECTION_ENDS\(\w+, (\w+)\)", text))  # a macro that calls it
    declared = {event.name for event in layout.schema.events} - {*made_events(layout.schema)}
    # Linux has no big kernel lock any more.
    assert declared - called <= {"BKL_LOCK_FINISH"}, "each event is logged by some call"
    made = "\n".join(event_lines(layout))
    assert layout.logged
    for slot in layout.logged:
        body = made.partition(f"klogger_log_{slot.name}(")[2].partition("\n}")[0]
        for place in slot.places:
            stores = re.findall(rf"record \+ {24 + place.offset}\b.*\b{place.field.name}_", body)
            assert stores, f"{slot.name}.{place.field.name}"


COMMANDS: dict[str, tuple[Any, list[str]]] = {
    "verify": (verify.command, []),
    "why": (why.command, ["-v"]),
    "intervals": (why.command, ["--intervals"]),
    "connections": (connections.command, ["--columns", "all"]),
    "check": (check.command, ["srtt_max_us < 5", "--unproven-ok"]),
    "export": (export.command, ["--format", "csv"]),
    "pmgraph": (pmgraph.command, ["-T"]),
}


@pytest.mark.parametrize("name", first(10, ["lport", "location", "snd_max", *DEFAULT]))
def test_a_column_of_another_type(tmp_path: Path, name: str) -> None:
    whole = write_capture(tmp_path / "whole.pm", 60, 2)
    with open_capture(whole) as capture:
        header = capture.header
    body = whole.read_bytes()[len(encode_header(header)) :]
    (column,) = (one for one in header.columns if one.name == name)
    others = [replace(column, flags=flags)
              for flags in (FLAG_INT_HOST, FLAG_INT_NET, FLAG_STRING, FLAG_STRING | FLAG_INT_NET)
              if flags != column.flags]  # fmt: skip
    others += [replace(column, length=length) for length in (1, 3) if length < column.length]
    for other in others:
        columns = tuple(other if one is column else one for one in header.columns)
        path = tmp_path / "changed.pm"
        try:
            path.write_bytes(encode_header(replace(header, columns=columns)) + body)
        except TcpkmonError:  # the format has no such column
            continue
        for what, (command, options) in COMMANDS.items():
            ended = CliRunner().invoke(command, [str(path), *options]).exception
            assert ended is None or isinstance(ended, (SystemExit, TcpkmonError)), (what, other)
