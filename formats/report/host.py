# SPDX-License-Identifier: Apache-2.0
"""What a report tells of the host, where its schemata were recorded: the way of each byte, waits
for a CPU, the disk, page-ins, system calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis import (
    Log,
    Statistics,
    disk,
    latencies,
    match_calls,
    open_log,
)
from tcpkmon.formats.analysis import latency as way
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError

_MOST = 15


@dataclass(frozen=True)
class Section:
    """A table. rows: by column; a column `share`, 0 to 1, is drawn as a bar."""

    title: str
    rows: list[dict[str, Any]]


def read_host(paths: Sequence[Path], most: int) -> list[Section]:
    """The sections of a log; `most` connections. Without its events a section is not there."""
    found: list[Section] = []
    with suppress(DamagedError), open_log(*paths) as log:  # a MAGNeT file is none of these
        parts: Sequence[Callable[[Log], Iterator[Section]]] = (
            lambda each: _way(each, most), _waits, _disk, _paging, _calls
        )  # fmt: skip
        for part in parts:
            with suppress(TcpkmonError):  # the log has no such events
                found += part(log)
    return [section for section in found if section.rows]


def _way(log: Log, most: int) -> Iterator[Section]:
    """Where the time of each byte went: a waterfall of each flow of data."""
    latency = way.Latency(log)
    survey = latency.survey
    summary = way.Summary(way.find_flows(survey, ()), survey.begin_ns, 0)
    for some in latency:
        summary.add(some)
    for flow in way.make_report(latency, summary).flows[:most]:
        spreads = flow.once or flow.again
        if not spreads:
            continue
        whole = spreads["whole"].total_ns or 1
        names = ("p50", "p95", "p99", "p99.9")
        yield Section(f"Where the time of the bytes went: {flow.name}", [
            {"part": name, "share": spread.total_ns / whole,
             **dict(zip(names, map(way.format_time, spread.quantiles_ns), strict=True)),
             "max": way.format_time(spread.most_ns)}
            for name, spread in spreads.items()
        ])  # fmt: skip


def _waits(log: Log) -> Iterator[Section]:
    yield _durations("Waited for a CPU, by thread", "tid", {
        str(key): one for key, one in latencies(log).by_key().items()
    })  # fmt: skip


def _disk(log: Log) -> Iterator[Section]:
    requests = disk.requests(log)
    rows = []
    for device in np.unique(requests["device"]).tolist():
        some = requests.where(device=device)
        queued, served = Statistics.of(some.queued_ns), Statistics.of(some.served_ns)
        rows.append({
            "device": disk.device_name(device), "requests": len(some),
            "bytes": int(some["bytes"].sum()),
            "queued p50": way.format_time(queued.median_ns),
            "queued p99": way.format_time(queued.p99_ns),
            "served p50": way.format_time(served.median_ns),
            "served p99": way.format_time(served.p99_ns),
        })  # fmt: skip
    yield Section("Disk", rows)


def _paging(log: Log) -> Iterator[Section]:
    threads, durations = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch in log.batches():
        at = batch.where(batch.format.require("PAGEIN_END", "tid", "since"))
        rows = batch.rows("PAGEIN_END", at)
        threads.append(rows["tid"].astype(np.int64))
        durations.append((batch.times_ns[at] - rows["since"]).astype(np.int64))
    every, took = np.concatenate(threads), np.concatenate(durations)
    yield _durations("Page-ins, by thread", "tid", {
        str(tid): Statistics.of(took[every == tid]) for tid in np.unique(every).tolist()
    })  # fmt: skip


def _calls(log: Log) -> Iterator[Section]:
    yield _durations("System calls", "call", match_calls(log).by_name())


def _durations(title: str, key: str, each: Mapping[str, Statistics]) -> Section:
    """Those that took the most time."""
    total = sum(one.total_ns for one in each.values()) or 1
    ordered = sorted(each.items(), key=lambda item: -item[1].total_ns)[:_MOST]
    return Section(title if len(each) <= _MOST else f"{title}: {_MOST} of {len(each)}", [
        {key: name, "share": one.total_ns / total, "count": one.count,
         "total": way.format_time(one.total_ns), "p50": way.format_time(one.median_ns),
         "p99": way.format_time(one.p99_ns), "max": way.format_time(one.most_ns)}
        for name, one in ordered
    ])  # fmt: skip
