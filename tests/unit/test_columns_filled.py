# SPDX-License-Identifier: Apache-2.0
"""Every declared column and field is filled: by the C text, or by the collector.

One that nobody fills would hold what an older record left in the ring.
"""

from __future__ import annotations

import re

import pytest

from tcpkmon.collector.plan.columns import EVENT, choose_columns, load_schema, make_layout
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
from tcpkmon.formats.klogger.describe import IN_HEAD, describe_snapshot
from tcpkmon.formats.psc.columns import CLASSIC

SCHEMA = load_schema()
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
