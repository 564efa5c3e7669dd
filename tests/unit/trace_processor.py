# SPDX-License-Identifier: Apache-2.0
"""Asks Perfetto's own trace processor what it finds in an export, and what our reader finds there.

No package has the program: TRACE_PROCESSOR names it, or it is on PATH. Else PROGRAM is None.
"""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from tcpkmon.formats.timeline.model import BEGIN, COUNTER, END, INSTANT
from tests.unit.timeline_reader import Event, Trace

Slices = Counter[tuple[str, str, str, int, int]]
"""So often: group, track, name, begin and length [ns]; 0: an instant."""
Counts = dict[tuple[str, str], list[tuple[int, str]]]
"""Group and counter: time [ns] and value, as the trace processor prints it."""
Flows = Counter[tuple[str, int, str, int]]
"""So often: name and time [ns] of both ends of an arrow."""
PROGRAM = os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
NULL = "[NULL]"
SLICES = """
    select hex(coalesce(p.name, thread.name)), hex(t.name), hex(s.name), s.ts, s.dur
    from slice s join track t on s.track_id = t.id left join track p on t.parent_id = p.id
    left join thread_track tt on tt.id = t.id left join thread using (utid)
"""
COUNTERS = """
    select hex(p.name), hex(t.name), c.ts, c.value
    from counter c join counter_track t on c.track_id = t.id
    join track p on t.parent_id = p.id order by c.ts, c.id
"""
LOST_STAT = "traced_buf_sequence_packet_loss"
FLOWS = """
    select hex(a.name), a.ts, hex(b.name), b.ts from flow
    join slice a on slice_out = a.id join slice b on slice_in = b.id
"""


def ask(trace: Path, query: str) -> list[list[str]]:
    """The rows of an answer. Perfetto does not escape quotes in it: ask for hex(name)."""
    assert PROGRAM is not None
    done = subprocess.run(
        [PROGRAM, "-Q", query, trace], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(csv.reader(done.stdout.splitlines()))[1:]


def text(digits: str) -> str:
    return bytes.fromhex(digits).decode()


def complaints(trace: Path) -> dict[str, int]:
    """What Perfetto counts as an error, as lost, or as an arrow from nowhere."""
    found = ask(
        trace, "select name, value from stats where value > 0 and"
        " (severity in ('error', 'data_loss') or name like 'flow%')"
    )  # fmt: skip
    return {name: int(value) for name, value in found}


def flows_of(trace: Trace) -> Flows:
    """The arrows, by the package's messages."""
    ways: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(trace.events, key=lambda one: one.time):
        for flow in event.flows:
            ways[flow].append(event)
    return Counter(
        (one.name, one.time, two.name, two.time)
        for way in ways.values() for one, two in pairwise(way)
    )  # fmt: skip


def found_flows(trace: Path) -> Flows:
    return Counter(
        (text(one), int(begin), text(two), int(end)) for one, begin, two, end in ask(trace, FLOWS)
    )


def events_of(trace: Trace) -> tuple[Slices, Counts]:
    """Slices and instants, and the values of each counter, by the package's messages."""
    slices: Slices = Counter()
    counts: Counts = defaultdict(list)
    for number, one in trace.tracks.items():
        group = trace.called(trace.tracks[one.parent_uuid]) if one.parent_uuid else ""
        events = sorted(
            (event for event in trace.events if event.track == number), key=lambda event: event.time
        )
        spans = [event for event in events if event.kind in (BEGIN, END)]
        for begin, end in zip(spans[::2], spans[1::2], strict=True):
            slices[group, one.name, begin.name, begin.time, end.time - begin.time] += 1
        for event in events:
            if event.kind == INSTANT:
                slices[group, one.name, event.name, event.time, 0] += 1
            elif event.kind == COUNTER:
                value = NULL if math.isnan(event.value) else f"{event.value:f}"
                counts[group, one.name].append((event.time, value))
    return slices, counts


def found_slices(trace: Path, query: str) -> Slices:
    return Counter(
        (text(group), text(line), text(name), int(time), int(length))
        for group, line, name, time, length in ask(trace, query)
    )  # fmt: skip


def found_counts(trace: Path, query: str) -> Counts:
    found: Counts = defaultdict(list)
    for group, line, time, value in ask(trace, query):
        found[text(group), text(line)].append((int(time), value))
    return found


def must_agree(out: Path, trace: Trace) -> None:
    """Slices, instants, counters and arrows are in both, one by one, and nothing else."""
    slices, counts = events_of(trace)
    assert found_slices(out, SLICES) == slices
    assert found_counts(out, COUNTERS) == counts
    assert found_flows(out) == flows_of(trace)
    assert complaints(out) == ({LOST_STAT: trace.dropped} if trace.dropped else {})
