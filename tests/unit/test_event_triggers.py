# SPDX-License-Identifier: Apache-2.0
"""Triggers on events of any schema: what they may be, and the records at which they fire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from tcpkmon.collector.plan.event_layout import EventLayout, lay_out_sources
from tcpkmon.collector.plan.event_triggers import EventWatch, compile_event_triggers
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES
from tcpkmon.formats.base.expressions import ExpressionError


@pytest.fixture(scope="module")
def sched() -> EventLayout:
    return lay_out_sources(find_sources(["sched"]))


def watch(events: EventLayout, *texts: str) -> EventWatch:
    names = [slot.name for slot in events.logged]
    return EventWatch(compile_event_triggers(texts, events, None, names, events.entry_size))


def rows(events: EventLayout, *records: tuple[str, dict[str, int]]) -> np.ndarray[Any, Any]:
    """Records as in the ring."""
    found = np.zeros((len(records), events.entry_size), np.uint8)
    for row, (name, values) in zip(found, records, strict=True):
        slot = events.slot(name)
        row[16:20] = np.array([slot.number], "u4").view(np.uint8)
        for place in slot.places:
            if place.field.name in values:
                kind = f"{'i' if place.type.signed else 'u'}{place.type.width}"
                at = EVENT_HEAD_BYTES + place.offset
                value = np.array([values[place.field.name]], kind).view(np.uint8)
                row[at : at + place.type.width] = value
    return found.view(f"V{events.entry_size}")[:, 0]


def fired(events: EventLayout, text: str, *records: tuple[str, dict[str, int]]) -> list[int]:
    """The numbers of the records at which a trigger fires alone."""
    one = watch(events, text)
    times = np.array([7])
    return [n for n, record in enumerate(records) if one.feed(rows(events, record), times)]


def test_an_event_fires_and_its_fields_tell(sched: EventLayout) -> None:
    records = (
        ("SCHEDIN", {"pid": 1}), ("SCHEDOUT", {"pid": 1}), ("SCHEDOUT", {"pid": 2}),
        ("FORK", {"pid": 2}), ("SLEEP", {"tid": 9}),
    )  # fmt: skip
    assert fired(sched, "SCHEDOUT", *records) == [1, 2]
    assert fired(sched, "schedout and pid > 1", *records) == [2]
    assert fired(sched, "(SCHEDIN or SCHEDOUT) and pid == 1", *records) == [0, 1]
    assert fired(sched, "sleep and tid == 9 or FORK", *records) == [3, 4]
    assert fired(sched, "(SLEEP or SCHEDIN) and (tid == 9 or pid == 1)", *records) == [0, 4]


def test_negative_values_and_names_of_enums(sched: EventLayout) -> None:
    records = (("SCHEDOUT", {"pid": -5}), ("SCHEDOUT", {"pid": 5}))
    assert fired(sched, "SCHEDOUT and pid < 0", *records) == [0]
    policies = (("TRY_TO_WAKEUP", {"policy": 1}), ("TRY_TO_WAKEUP", {"policy": 0}))
    assert fired(sched, "TRY_TO_WAKEUP and policy == SCHED_FIFO", *policies) == [0]


def test_a_hit_has_the_earliest_time_and_the_count(sched: EventLayout) -> None:
    data = rows(sched, *(("SCHEDIN", {"pid": n}) for n in (4, 5, 6)))
    (hit,) = watch(sched, "EXEC", "SCHEDIN and pid > 4").feed(data, np.array([10, 20, 30]))
    assert (hit.number, hit.mono_ns, hit.count, hit.conn_id) == (2, 20, 2, 0)


def test_locations_of_tcp_in_a_log() -> None:
    schema = load_schema()
    layout = make_layout(schema, choose_columns(schema.event("SNAPSHOT"), "default"), ())
    names = [*locations_of(schema)]
    found = compile_event_triggers(
        ["rto and rport == 443", "rst"], None, layout, names, layout.entry_size
    )
    data = np.zeros(3, layout.dtype)
    data["location"] = [names.index("RTO") and locations_of(schema)["RTO"]] * 2 + [
        locations_of(schema)["RESET_SENT"]
    ]
    data["rport"] = [443, 80, 80]
    data["conn_id"] = [1, 2, 3]
    hits = EventWatch(found).feed(
        data.view(f"V{layout.dtype.itemsize}"), np.array([5, 6, 7])
    )
    assert [(hit.number, hit.mono_ns, hit.conn_id) for hit in hits] == [(1, 5, 1), (2, 7, 3)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("NOSUCH", "names no event of this capture"),
        ("SCHEDIM", "did you mean 'schedin'"),
        ("pid == 1", "names no event of this capture"),
        ("EXEC for 3s", "is a moment"),
        ("all: EXEC", "is a moment"),
        ("SCHEDIN and nopid == 3", "no column, event or condition 'nopid'"),
        ("SCHEDIN or pid == 3", "give two triggers"),
        ("SCHEDIN and zero_window", "zero_window is for the schema tcp"),
        ("not SCHEDIN", "`not` works on states"),
        ("SCHEDIN and stall > 3s", "stall is for PSC files"),
    ],
)
def test_mistakes(sched: EventLayout, text: str, what: str) -> None:
    with pytest.raises(ExpressionError, match=what):
        watch(sched, text)
