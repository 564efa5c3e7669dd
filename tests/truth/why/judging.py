# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario under a capture, and compares what `tcpkmon why` finds with the truth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.analysis.doing import CPU_WAIT, RUNNING
from tcpkmon.formats.analysis.why import (
    LIMITS,
    RECEIVING,
    Source,
    connections,
    cut,
    tables,
    waits,
)
from tcpkmon.formats.base.errors import KernelError
from tcpkmon.formats.base.sequence import has_numbers
from tests.truth.base import tell
from tests.truth.why.acts import Span
from tests.truth.why.scenarios import Scenario
from tests.truth.why.stage import CLIENT, SERVER, Played, run

NOTES = ("ca_name", "bbr_mode", "is_cwnd_limited", "rate_app_limited")
"""Columns beside the default ones that make `why` surer."""
NEW = ("sk_nospace", "sk_tsq_flags", "sk_pacing_status", "first_tx_us", "next_tx_us", "busy_us")
"""Default columns that older files lack."""
_COUNTERS = {"rwnd": "rwnd_limited_us", "sndbuf": "sndbuf_limited_us"}
_FLAGS = {
    "cwnd": ("is_cwnd_limited", -1), "app": ("rate_app_limited", -1),
    "tsq": ("sk_tsq_flags", 0b11),  # TSQ_THROTTLED, TSQ_QUEUED
    "backlog": ("sk_backlog_bytes", -1),
}  # fmt: skip
NOTED = (*_COUNTERS.values(), *(column for column, _ in _FLAGS.values()))
"""Columns by which the kernel itself says what limits."""
COLUMNS = ",".join(dict.fromkeys(("default", "rcv_rtt_us", "rcv_wscale", *NOTES, *NOTED)))

_ENOUGH = 20
Part = tuple[Sequence[str], float, dict[str, float]]


@dataclass(frozen=True)
class Judged:
    """shares: of the sharp time, by limit; more: the same with the columns NOTES; older: without
    NEW, as of older files. lost: records.

    kernel: what the kernel itself noted, in shares of that time. parts: where the truth changes,
    what was found in each part: its truths, its share of the time, the shares in it. said: the
    verdict, where the scenario names what it must not say; wrong: what of that it says.
    """

    name: str
    truth: tuple[str, ...]
    held_out: bool
    shares: dict[str, float]
    lost: int
    more: dict[str, float] = field(default_factory=dict)
    kernel: dict[str, float] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    more_parts: Sequence[Part] = ()
    said: str = ""
    wrong: Sequence[str] = ()
    family: str = ""
    older: dict[str, float] = field(default_factory=dict)
    older_parts: Sequence[Part] = ()
    first_numbers: Sequence[int] = ()
    """Sequence numbers of both directions at the connection's first record that has them."""

    @property
    def right(self) -> float:
        """In a limit that is true."""
        return _right(self.parts or [(self.truth, 1.0, self.shares)])

    @property
    def right_with_more(self) -> float:
        return _right(self.more_parts or [(self.truth, 1.0, self.more)])

    @property
    def right_in_older(self) -> float:
        return _right(self.older_parts or [(self.truth, 1.0, self.older)])


def _right(parts: Sequence[Part]) -> float:
    return sum(share * sum(found.get(name, 0.0) for name in truth) for truth, share, found in parts)

def play(
    scenario: Scenario, folder: Path, seconds: float = 0.0, columns: str = COLUMNS
) -> Judged:
    """One round; seconds: if not the scenario's own. TcpkmonError, PrivilegeError."""
    path = folder / ("why.log" if scenario.sched else "why.pm")
    with Lab(scenario.bottleneck, scenario.link) as lab:
        side = lab.b if scenario.receiver or scenario.from_b else lab.a
        options = ["--netns", side.name, "--quiet", "--columns", columns]
        if scenario.sched:
            options[-1] += ",pid,comm"
            schemata = ["tcp", "sched"]
            options += ["--locations", "default,SEND_CALL"]
        else:
            schemata = ["tcp"]
            options += ["--format", "psc"]
        with start(schemata, path, force=True, options=options, buffer_mb=32):
            played = run(lab, scenario, seconds or scenario.seconds)
    return judge(scenario, path, played)


def judge(scenario: Scenario, path: Path, played: Played) -> Judged:
    """What a capture tells of the connection that was played, in its sharp time."""
    conn_id = _find(path, played.port)
    spans = [*played.spans] or [(played.begin, played.end, scenario.truth)]
    sharp = [(begin, end) for begin, end, _ in spans]
    found: list[NDArray[Any]] = []
    for leave_out in (NOTES, (), (*NOTES, *NEW)):
        with Source(path) as source:
            sums, kernel = _sums(source, scenario.receiver, conn_id, sharp, leave_out)
            lost = source.reader.lost
        found.append(sums)
    names = (*RECEIVING, "rx_none") if scenario.receiver else LIMITS
    shares, more, older = (_shares(names, sums.sum(0)) for sums in found)
    if scenario.sched:
        kernel["cpu"] = played.busy
        shares, more, older = (_resolved(one, path, conn_id) for one in (shares, more, older))
    parts, more_parts, older_parts = (
        _parts(names, sums, spans) if played.spans else () for sums in found
    )
    said = tell("why", "-n", 1, path) if scenario.unsaid else ""
    wrong = [one for one in scenario.unsaid if re.search(one, said, re.IGNORECASE)]
    return Judged(scenario.name, scenario.truth, scenario.held_out, shares, lost, more, kernel,
                  parts, more_parts, said, wrong, scenario.family, older, older_parts,
                  _first_numbers(path, conn_id))  # fmt: skip


def _first_numbers(path: Path, conn_id: int) -> Sequence[int]:
    with Source(path) as source:
        for piece in source.read():
            at = np.flatnonzero((piece["conn_id"] == conn_id) & has_numbers(piece.columns))[:1]
            if len(at):
                return [int(piece[name][at[0]]) for name in ("snd_una", "rcv_nxt")]
    return []


def check_spread(found: Sequence[Judged]) -> None:
    """First numbers are the kernel's own, hashes of addresses and ports with a secret: over the
    whole range. KernelError: of 20 connections and more, all in one half of it."""
    numbers = np.array([one.first_numbers for one in found if one.first_numbers], np.int64)
    upper = (numbers >= 1 << 31).sum(0) if len(numbers) >= _ENOUGH else []
    if any(count in (0, len(numbers)) for count in upper):
        raise KernelError("all first sequence numbers are in one half of their range",
                          "an analysis that is wrong in the other half would pass")  # fmt: skip


def _parts(names: Sequence[str], sums: NDArray[Any], spans: Sequence[Span]) -> list[Part]:
    """Spans of the same truth together."""
    truths = list(dict.fromkeys(truth for _, _, truth in spans))
    together = [sums[[truth == one for _, _, one in spans]].sum(0) for truth in truths]
    total = max(float(sums.sum()), 1.0)
    return [(truth, float(one.sum()) / total, _shares(names, one))
            for truth, one in zip(truths, together, strict=True)]  # fmt: skip


def _shares(names: Sequence[str], sums: NDArray[Any]) -> dict[str, float]:
    total = max(float(sums.sum()), 1.0)
    return {name: float(ns / total) for name, ns in zip(names, sums, strict=True) if ns}


def _sums(
    source: Source, receiver: bool, conn_id: int, sharp: Sequence[tuple[float, float]],
    leave_out: Sequence[str],
) -> tuple[NDArray[Any], dict[str, float]]:  # fmt: skip
    """What `why` finds in each of these times without these columns [ns], (times, limits), and what
    the kernel noted in all."""
    has_notes = source.known.issuperset(NOTED)
    source.names = list(dict.fromkeys([*source.names, *(NOTED if has_notes else ())]))
    noted = Noted()
    names = (*RECEIVING, "rx_none") if receiver else LIMITS
    sums = np.zeros((len(sharp), len(names)))
    for block in source.blocks(ids=np.array([conn_id], np.uint64)):
        kept = {name: values for name, values in block.rows.items() if name not in leave_out}
        rows, steps = cut(block.with_rows(kept))
        for number, times in enumerate(sharp):
            spans = _clipped(steps.start_ns, steps.end_ns, times)
            if has_notes:
                noted.add(block.rows, spans)
            if receiver:
                assert steps.receiving is not None
                known = steps.receiving % len(names)  # -1: rx_none
                sums[number] += np.bincount(known, spans, len(names))
            else:
                sums[number] += _of_rows(rows, times)
    return sums, noted.shares()


def _of_rows(rows: Any, sharp: tuple[float, float]) -> Any:
    spans = _clipped(rows["start_ns"], rows["end_ns"], sharp)
    return np.bincount(rows["limit"], spans, len(LIMITS))


def _find(path: Path, port: int) -> int:
    table = connections(path)
    ends = zip(table["conn_id"], table["laddr"], table["lport"], table["rport"], strict=True)
    (one,) = (
        int(conn_id) for conn_id, address, local, remote in ends
        if (address == CLIENT and local == port) or (address == SERVER and remote == port)
    )  # fmt: skip
    return one


def _clipped(starts: Any, ends: Any, sharp: tuple[float, float]) -> NDArray[np.int64]:
    begin, end = (int(one * 1e9) for one in sharp)
    low = np.maximum(starts, begin)
    found: NDArray[np.int64] = np.maximum(np.minimum(ends, end) - low, 0)
    return found


def _resolved(shares: dict[str, float], path: Path, conn_id: int) -> dict[str, float]:
    """Where the schema sched tells what the sender did meanwhile: cpu is a part of app and unknown.

    Over the whole connection: its begin is short beside the rest.
    """
    told = dict(shares)
    for one in waits(path, *tables(path)):
        if one.conn_id != conn_id or one.why not in ("app", "unknown"):
            continue
        part = sum(one.did.get(what, 0) for what in (RUNNING, CPU_WAIT)) / max(one.span_ns, 1)
        for name in ("app", "idle", "nagle") if one.why == "app" else ("unknown",):
            moved = told.get(name, 0.0) * part
            told[name] = told.get(name, 0.0) - moved
            told["cpu"] = told.get("cpu", 0.0) + moved
    return told


class Noted:
    """What the kernel noted: the growth of its counters, and flags by the time before a record."""

    def __init__(self) -> None:
        self._total, self._sums = 0, dict.fromkeys((*_COUNTERS, *_FLAGS), 0)

    def add(self, columns: Mapping[str, Any], spans: Any) -> None:
        """The next snapshots of one connection, and their times within the sharp time."""
        self._total += int(spans.sum())
        inside = np.flatnonzero(spans)
        if not len(inside):
            return
        for name, column in _COUNTERS.items():
            values = columns[column][inside].astype(np.int64)
            self._sums[name] += 1000 * int(values[-1] - values[0])
        for name, (column, bits) in _FLAGS.items():
            held = columns[column].astype(np.int64) & bits > 0
            self._sums[name] += int(spans[held].sum())

    def shares(self) -> dict[str, float]:
        return {name: ns / self._total for name, ns in self._sums.items() if self._total}
