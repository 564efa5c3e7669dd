# SPDX-License-Identifier: Apache-2.0
"""Triggers: the language, its mistakes, and when they fire, against a plain reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpkmon.collector.plan.columns import (
    EVENT,
    choose_columns,
    load_schema,
    locations_of,
    make_layout,
)
from tcpkmon.collector.plan.event_layout import EventLayout, lay_out_sources
from tcpkmon.collector.plan.event_triggers import EventWatch, compile_event_triggers
from tcpkmon.collector.plan.recorder import columns_for
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.plan.trigger_watch import SLOTS, Watch
from tcpkmon.collector.plan.triggers import (
    Trigger,
    compile_triggers,
    explain,
)
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES
from tcpkmon.formats.base.expressions import (
    ExpressionError,
)
from tests.full import IS_FULL

SCHEMA = load_schema()
LAYOUT = make_layout(SCHEMA, choose_columns(SCHEMA.event(EVENT), "default,seg_ack"), ())
LOCATIONS = locations_of(SCHEMA)
MS = 1_000_000


def compiled(*texts: str, locations: Any = LOCATIONS) -> tuple[Trigger, ...]:
    return compile_triggers(texts, LAYOUT, locations)


def records(**columns: list[int]) -> Any:
    rows = np.zeros(len(next(iter(columns.values()))), LAYOUT.dtype)
    rows["location"] = 1
    for name, values in columns.items():
        rows[name] = values
    return rows


def mask(text: str, **columns: list[int]) -> list[bool]:
    (trigger,) = compiled(text)
    found: list[bool] = trigger.mask(records(**columns)).tolist()
    return found


def test_events_and_conditions() -> None:
    locations = [1, LOCATIONS["RTO"], LOCATIONS["RESET_SENT"], LOCATIONS["RESET_RECEIVED"]]
    assert mask("rto", location=locations) == [False, True, False, False]
    assert mask("RTO", location=locations) == [False, True, False, False]
    assert mask("rst", location=locations) == [False, False, True, True]
    assert mask("rto or rst", location=locations) == [False, True, True, True]
    assert mask("rto and lport == 80", location=[14, 14], lport=[80, 81]) == [True, False]


def test_units() -> None:
    assert mask("srtt_us > 5ms", srtt_us=[5000, 5001]) == [False, True]
    assert mask("srtt_us > 5000", srtt_us=[5000, 5001]) == [False, True]
    assert mask("srtt_us > 5 * min_rtt_us", srtt_us=[501, 500], min_rtt_us=[100, 100]) == [
        True, False,
    ]  # fmt: skip
    # In 32 bits the product of the columns would wrap.
    assert mask("5 * min_rtt_us > 1", min_rtt_us=[2**32 - 2]) == [True]


def test_what_the_kernel_does_not_know_fulfils_nothing() -> None:
    """Before the first sample min_rtt_us is 2^32-1, and srtt_us 0."""
    assert mask("min_rtt_us > 1s", min_rtt_us=[2**32 - 1, 2_000_000]) == [False, True]
    assert mask("min_rtt_us != 1", min_rtt_us=[2**32 - 1, 2]) == [False, True]
    assert mask("not srtt_us > 5ms", srtt_us=[0, 1]) == [False, True]
    assert mask("srtt_us < 5ms", srtt_us=[0, 1]) == [False, True]
    assert mask("snd_cwnd / snd_ssthresh != 1", snd_cwnd=[1, 1], snd_ssthresh=[0, 2]) == [
        False, True,
    ]  # fmt: skip
    assert mask("pacing_rate < 2.5M", pacing_rate=[2_499_999, 2_500_000]) == [True, False]
    assert mask("srtt_us / min_rtt_us >= 2", srtt_us=[4, 4], min_rtt_us=[2, 0]) == [True, False]
    assert mask("time_ns > srtt_us", time_ns=[3000, 3000], srtt_us=[2, 4]) == [True, False]
    assert mask("time_ns - srtt_us > 1us", time_ns=[3001], srtt_us=[2]) == [True]


def test_values_of_enums_and_signs() -> None:
    assert mask("state == TCP_CLOSE_WAIT", state=[8, 1]) == [True, False]
    assert mask("ca_state == Loss and not state == TCP_CLOSE", ca_state=[4], state=[1]) == [True]
    assert mask("-srtt_us < -5", srtt_us=[5, 6]) == [False, True]
    assert mask("state > -1", state=[0]) == [True]


def test_the_locations_that_an_event_needs() -> None:
    numbers = {name: LOCATIONS[name] for name in ("RTO", "RESET_SENT", "RESET_RECEIVED")}
    rto, rst, either, both = compiled("rto", "rst", "rto or rst", "rto and seg_len > 5")
    assert rto.locations == both.locations == {numbers["RTO"]}
    assert rst.locations == {numbers["RESET_SENT"], numbers["RESET_RECEIVED"]}
    assert either.locations == set(numbers.values())
    rows = records(location=[14], conn_id=[1], seg_len=[6])
    assert len(Watch([rto, rst, either, both]).feed(rows, 0, {14})) == 3


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("srtt_uz > 5", "no column, event or condition 'srtt_uz' (did you mean 'srtt_us'?)", 0),
        ("srtt_us > 5x", "expected a number", 10),
        ("srtt_us = 5", "expected an operator, `and`, `or`, `for` or the end, found '='", 8),
        ("srtt_us >", "expected a name, a number or `(`, but the trigger ends here", 9),
        ("(srtt_us > 5", "expected `)`", 12),
        ("srtt_us > snd_cwnd", "one side is a time", 8),
        ("snd_cwnd > 5ms", "one side is a time", 9),
        ("srtt_us * rttvar", "no column, event", 10),
        ("bytes_acked > 5", "add it to --columns", 0),
        ("laddr == 5", "laddr holds no number", 0),
        ("srtt_us", "expected a condition here", 0),
        ("rto > 5", "expected a number here, found a condition", 0),
        ("rto for 5s", "an event does not last", 8),
        ("not rto", "`not` works on states", 0),
        ("rto or srtt_us > 5", "give two triggers", 4),
        ("stall", "write stall > TIME", 0),
        ("stall > 5", "write stall > TIME", 6),
        ("srtt_us > 5 for 5", "`for` takes a time", 16),
        ("1 < 2", "compares two constants", 2),
        ("srtt_us > 5 / 0", "a division by zero", 12),
        ("", "expected a name", 0),
        ("srtt_us > 5 §", "expected an operator", 12),
        ("(" * 200, "at most 40 operators", 40),
        ("x" * 2000, "at most 1000 characters", 0),
    ],
)
def test_mistakes_have_a_place(text: str, what: str, at: int) -> None:
    with pytest.raises(ExpressionError) as error:
        compiled(text)
    ((_, mistake),) = error.value.mistakes
    assert what in mistake.what
    assert mistake.at == at


def test_names_are_listed() -> None:
    listed = dict(explain(LAYOUT, {"RTO": "the timer fired"}))
    assert listed["rto"] == "the timer fired"
    assert "[us]" in listed["srtt_us"]
    assert "zero_window" in listed and "laddr" not in listed


def reference(
    series: list[tuple[int, int, bool, bool]], for_ns: int, restarts: bool, now_ns: int
) -> list[tuple[int, int]]:
    """(time, connection) of each hit: connection by connection, record by record."""
    hits = []
    for conn in {conn for conn, *_ in series}:
        since = fired = None
        own = [record[1:] for record in series if record[0] == conn]
        for when, holds, ended in own:
            if since is not None and not fired and when - since >= for_ns:
                hits.append((since + for_ns, conn))
                fired = True
            if not holds or ended:
                since = None
            elif since is None or restarts:
                since, fired = when, False
                if not for_ns:
                    hits.append((since, conn))
                    fired = True
        if since is not None and not fired and now_ns - since >= for_ns:
            hits.append((since + for_ns, conn))
    return sorted(hits)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 30), st.booleans(), st.integers(0, 9)),
        max_size=60,
    ),
    st.lists(st.integers(0, 60), max_size=6),
    st.sampled_from((0, 5, 20)),
    st.booleans(),
)
@settings(deadline=None, max_examples=300 if IS_FULL else 60)
def test_states_fire_as_in_the_reference(
    steps: list[tuple[int, int, bool, int]], cuts: list[int], wait: int, stalls: bool
) -> None:
    text = f"stall > {max(wait, 1)}ns" if stalls else f"packets_out > 0 for {wait}ns"
    wait = max(wait, 1) if stalls else wait
    (trigger,) = compiled(text)
    now, series = 0, []
    for conn, step, holds, end in steps:
        now += step
        series.append((conn, now, holds, end == 0))
    rows = np.zeros(len(series), LAYOUT.dtype)
    for row, (conn, when, holds, end) in zip(rows, series, strict=True):
        row["conn_id"], row["time_ns"], row["packets_out"] = conn, when, holds
        row["snd_sb_cc"] = holds
        row["location"] = LOCATIONS["DESTROY"] if end else 1
    watch, found = Watch([trigger]), []
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, stop in itertools.pairwise(edges):
        part = rows[start:stop]
        found += watch.feed(part, 0, set(part["location"].tolist()))
        if len(part):
            found += watch.tick(int(part["time_ns"][-1]))
    found += watch.tick(now + 7)
    expected = reference(series, wait, stalls, now + 7)
    assert sum(hit.count for hit in found) == len(expected)
    assert {(hit.mono_ns, hit.conn_id) for hit in found} <= set(expected)


def test_a_condition_fires_once_while_it_holds() -> None:
    (trigger,) = compiled("retrans_out > 3")
    watch = Watch([trigger])
    rows = records(conn_id=[5, 5, 5], retrans_out=[4, 5, 6], time_ns=[1, 2, 3])
    assert [hit.mono_ns for hit in watch.feed(rows, 0)] == [1]
    assert watch.feed(records(conn_id=[5], retrans_out=[7], time_ns=[4]), 0) == []
    assert watch.feed(records(conn_id=[5], retrans_out=[0], time_ns=[5]), 0) == []
    (hit,) = watch.feed(records(conn_id=[5], retrans_out=[4], time_ns=[6]), 0)
    assert (hit.mono_ns, hit.conn_id) == (6, 5)


def test_all_is_one_series() -> None:
    (own, together) = compiled("stall > 10ms", "all: stall > 10ms")
    watch = Watch([own, together])
    rows = records(
        conn_id=[1, 2, 2, 2], packets_out=[1, 1, 1, 1], time_ns=[0, 6 * MS, 12 * MS, 18 * MS],
        snd_sb_cc=[9, 9, 9, 9],
    )
    hits = watch.feed(rows, 0) + watch.tick(18 * MS)
    assert [(hit.number, hit.mono_ns, hit.conn_id) for hit in hits] == [(1, 10 * MS, 1)]
    hits = watch.tick(28 * MS)
    assert [(hit.number, hit.mono_ns) for hit in hits] == [(1, 28 * MS), (2, 28 * MS)]


@pytest.mark.parametrize("location, acked, fires", [(1, 9, 0), (1, 8, 1), (14, 0, 1), (1, 0, 1)])
def test_a_connection_whose_last_ack_is_of_all_does_not_stall(
    location: int, acked: int, fires: int
) -> None:
    """A segment is recorded before its ACK counts; a timer's record has no segment."""
    (trigger,) = compiled("stall > 10ms")
    watch = Watch([trigger])
    una = 2**32 - 4
    rows = records(conn_id=[1], packets_out=[1], snd_sb_cc=[9], snd_una=[una], time_ns=[0],
                   location=[location], seg_ack=[(una + acked) % 2**32])  # fmt: skip
    assert len(watch.feed(rows, 0) + watch.tick(20 * MS)) == fires


def test_a_stall_brings_its_columns() -> None:
    stored = set(choose_columns(SCHEMA.event(EVENT), columns_for("default", ["stall > 1s"])))
    assert {"seg_ack", "snd_una"} <= stored
    assert columns_for("classic", ["rto", "state == 1"]) == "classic"
    with pytest.raises(ExpressionError, match="needs the column seg_ack"):
        compile_triggers(["stall > 1s"], make_layout(SCHEMA, choose_columns(
            SCHEMA.event(EVENT), "default"), ()), LOCATIONS)  # fmt: skip


def test_a_later_connection_takes_the_slot() -> None:
    (trigger,) = compiled("packets_out > 0 for 10ns")
    watch = Watch([trigger])
    rows = records(conn_id=[1, 1 + SLOTS], packets_out=[1, 1], time_ns=[1, 5])
    assert watch.feed(rows, 0) == []
    (hit,) = watch.tick(15)
    assert (hit.conn_id, hit.count) == (1 + SLOTS, 1)


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
