# SPDX-License-Identifier: Apache-2.0
"""Two captures as one: the clocks of both hosts, and for each pair delays, losses and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, join
from tcpkmon.formats.analysis.pairing.clocks import Clocks, fit
from tcpkmon.formats.analysis.pairing.ends import read_ends
from tcpkmon.formats.analysis.pairing.matching import Pair, match
from tcpkmon.formats.analysis.pairing.messages import Delays, causes, delays, missing
from tcpkmon.formats.analysis.why import Source, Table, intervals
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.text import address_of, endpoint

QUANTILES = {"min": 0.0, "p50": 0.5, "p99": 0.99}
WAYS = ("a2b", "b2a")


@dataclass(frozen=True)
class Pairing:
    """What two captures tell together. wall: what B's time of day has more, at least and at most,
    in the middle of the captures [ns]; None where a capture does not have its time of day. whole:
    no record is missing in either. limits: the tables `intervals`."""

    pairs: Sequence[Pair]
    clocks: Clocks
    wall: tuple[int, int] | None
    whole: bool
    only: tuple[int, int]
    """Connections of A and of B that have no other end here."""
    limits: tuple[Table, Table]

    def spans(self, of: Pair, way: str) -> tuple[Delays, Array, Array]:
        """The segments that arrived, with their one-way delays, at least and at most [ns]."""
        sender, receiver = (of.a, of.b) if way == "a2b" else (of.b, of.a)
        found = delays(sender, receiver)
        if way == "a2b":  # in B's time: when it arrived, less when it was sent
            early, late = self.clocks.bounds(found.earliest), self.clocks.bounds(found.latest)
            most = found.arrived - (found.earliest + early[0])
            least = found.arrived - (found.latest + late[1])
        else:
            low, high = self.clocks.bounds(found.arrived)
            most, least = found.arrived + high - found.earliest, found.arrived + low - found.latest
        return found, np.maximum(least, 0.0), most

    def missing(self) -> Table:
        """What was sent and never arrived. times_sent, times_arrived: copies; first_ns, last_ns:
        between which they were sent, clock of the sender. certain: no record is missing, and the
        other end was still open for longer than any segment was under way."""
        rows: list[dict[str, Any]] = []
        for number, pair in enumerate(self.pairs):
            for way in WAYS:
                sender, receiver = (pair.a, pair.b) if way == "a2b" else (pair.b, pair.a)
                found = missing(sender, receiver)
                if not len(found.low):
                    continue
                _, _, most = self.spans(pair, way)
                longest = float(most.max()) if len(most) else np.inf
                if way == "a2b":
                    until = found.last + self.clocks.bounds(found.last)[1] + longest
                    is_over = until < receiver.times[-1]
                else:
                    end = receiver.times[-1:]
                    is_over = found.last + longest < end + self.clocks.bounds(end)[0]
                zero = sender.acked[0]
                rows += [
                    {"pair": number, "way": way, "offset": int(low - zero),
                     "bytes": int(high - low), "times_sent": int(sent),
                     "times_arrived": int(came), "first_ns": int(first), "last_ns": int(last),
                     "certain": bool(over and self.whole)}
                    for low, high, sent, came, first, last, over in zip(
                        found.low, found.high, found.sent, found.arrived, found.first, found.last,
                        is_over, strict=True)
                ]  # fmt: skip
        return as_table(rows, ("pair", "way", "offset", "bytes", "times_sent", "times_arrived",
                               "first_ns", "last_ns", "certain"))  # fmt: skip

    def delays(self) -> Table:
        """A row for each segment that arrived: bytes, when (the receiver's clock), delay."""
        parts: list[Table] = []
        for number, pair in enumerate(self.pairs):
            for way in WAYS:
                found, least, most = self.spans(pair, way)
                zero = pair.a.acked[0] if way == "a2b" else pair.b.acked[0]
                parts.append({
                    "pair": np.full(len(least), number), "way": np.full(len(least), way, object),
                    "offset": found.low - zero, "bytes": found.high - found.low,
                    "arrived_ns": found.arrived, "delay_min_us": least / 1000,
                    "delay_max_us": most / 1000, "copies": found.copies,
                })  # fmt: skip
        return join(parts)

    def summary(self, missed: Table) -> Table:
        """A row for each pair. missed: what missing() found."""
        rows = []
        for number, pair in enumerate(self.pairs):
            address, port, peer, peer_port = pair.a.address
            row: dict[str, Any] = {
                "pair": number, "conn_id_a": pair.a.conn_id, "conn_id_b": pair.b.conn_id,
                "a": name_of(address, port), "b": name_of(peer, peer_port), "by": pair.by,
            }  # fmt: skip
            for way in WAYS:
                _, least, most = self.spans(pair, way)
                row[f"segments_{way}"] = len(least)
                for name, share in QUANTILES.items():
                    for end, values in (("min", least), ("max", most)):
                        told = np.quantile(values, share) / 1000 if len(values) else np.nan
                        row[f"delay_{name}_{way}_{end}_us"] = float(told)
                mine = (missed["pair"] == number) & (missed["way"] == way)
                times = missed["times_sent"] - missed["times_arrived"]
                row[f"missing_{way}_bytes"] = int((missed["bytes"] * times)[mine].sum())
                row[f"missing_{way}_ranges"] = int(mine.sum())
            rows.append(row)
        return as_table(rows, tuple(rows[0]))

    def together(self) -> Table:
        """The limits of both ends on A's clock: a row for each time in which neither changes.
        unsure_us: by how much the times of B's changes may be wrong."""
        rows: list[dict[str, Any]] = []
        for number, pair in enumerate(self.pairs):
            a, b = (
                {name: table[name][table["conn_id"] == end.conn_id]
                 for name in ("start_ns", "end_ns", "limit")}
                for table, end in zip(self.limits, (pair.a, pair.b), strict=True)
            )  # fmt: skip
            times, unsure = self.clocks.middle(np.concatenate([b["start_ns"], b["end_ns"]]))
            if not np.isfinite(unsure).all():
                continue
            half = len(times) // 2
            b |= {"start_ns": times[:half], "end_ns": times[half:]}
            edges = np.unique(np.concatenate([a["start_ns"], a["end_ns"], times]))
            limits = [_limit_at(one, edges[:-1]) for one in (a, b)]
            new = np.array([n == 0 or any(one[n] != one[n - 1] for one in limits)
                            for n in range(len(edges) - 1)], np.bool_)  # fmt: skip
            starts = np.flatnonzero(new)
            for begin, end in zip(starts, [*starts[1:], len(edges) - 1], strict=True):
                rows.append({"pair": number, "start_ns": int(edges[begin]),
                             "end_ns": int(edges[end]), "limit_a": limits[0][begin],
                             "limit_b": limits[1][begin],
                             "unsure_us": float(unsure.max()) / 1000})  # fmt: skip
        return as_table(rows, ("pair", "start_ns", "end_ns", "limit_a", "limit_b", "unsure_us"))


def pair(paths_a: Sequence[Path], paths_b: Sequence[Path]) -> tuple[Pairing, list[Source]]:
    """Captures of the two ends. UsageError, FileError; DamagedError where clocks contradict.

    The sources are closed, and know what was lost.
    """
    ends, limits, about, sources, whole = [], [], [], [], True
    for paths in (paths_a, paths_b):
        with Source(*paths) as source:
            limits.append(intervals(source))
            about.append(source.about())
            ends.append(read_ends(source))
            sources.append(source)
            reader = source.reader
            whole &= reader.complete and not reader.lost and not reader.damaged
    pairs = match(*ends)
    if not pairs:
        raise UsageError(f"{paths_a[0]} and {paths_b[0]} have no connection in common",
                         "capture both ends at the same time")  # fmt: skip
    forth = [causes(one.a, one.b) for one in pairs]
    back = [causes(one.b, one.a) for one in pairs]
    most = _points([one[0] for one in forth], [one[1] for one in forth])
    least = _points([one[1] for one in back], [one[0] for one in back])
    clocks = fit(most, least)
    if clocks is None:
        raise DamagedError("the clocks of both captures contradict each other: segments arrived "
                           "before they were sent, whatever the clocks' difference",
                           "are both captures of the same connections?")  # fmt: skip
    wall = None
    if "ahead_ns" in about[0] and "ahead_ns" in about[1]:
        middle = np.array([clocks.lines[0].start // 2 + clocks.lines[-1].end // 2])
        low, high = clocks.bounds(middle)
        more = about[1]["ahead_ns"] - about[0]["ahead_ns"]
        if np.isfinite(low[0]) and np.isfinite(high[0]):
            wall = (more + int(low[0]), more + int(high[0]))
    only = (len(ends[0]) - len(pairs), len(ends[1]) - len(pairs))
    return Pairing(pairs, clocks, wall, whole, only, (limits[0], limits[1])), sources


def _points(times_a: list[Array], times_b: list[Array]) -> tuple[Array, Array]:
    at, other = np.concatenate(times_a), np.concatenate(times_b)
    return at, other - at


def _limit_at(of: Table, times: Array) -> Array:
    """(n,) the limit that holds from each time on; None outside."""
    found = np.full(len(times), None, object)
    place = np.searchsorted(of["start_ns"], times, "right") - 1
    holds = (place >= 0) & (times < of["end_ns"][place]) if len(of["start_ns"]) else place > 0
    found[holds] = of["limit"][place[holds]]
    return found


def as_table(rows: list[dict[str, Any]], names: Sequence[str]) -> Table:
    """Rows as columns: text as objects."""
    found: Table = {}
    for name in names:
        values = [row[name] for row in rows]
        is_text = any(isinstance(value, str) or value is None for value in values)
        found[name] = np.array(values, object) if is_text else np.array(values)
    return found


def name_of(address: bytes, port: int) -> str:
    """Address and port as people write them."""
    return endpoint(address_of(address), port)

