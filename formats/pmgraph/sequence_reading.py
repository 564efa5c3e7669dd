# SPDX-License-Identifier: Apache-2.0
"""Reads a capture of any format for the time-sequence graph: what is in it, then what is drawn.

Both passes are over the snapshots of why.Source, in memory that depends on the connections and on
the pixel columns.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.ports import find_missing, match_ports
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.text import address_of, endpoint
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.gaps import Spans, merge
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import Band
from tcpkmon.formats.pmgraph.sequence import NEEDED, WANTED, Reading, Sequence
from tcpkmon.formats.pmgraph.symbols import SYMBOLS

_MOST_PAGES = 4
_AROUND_S = 0.1
_OFTEN = 4096
"""Losses after which those of one pixel column become one."""


@dataclass(frozen=True)
class Drawn:
    """A connection as it is drawn, where records are missing, and what limited it."""

    title: str
    found: Sequence
    spans: Spans
    limits: tuple[Band, ...]


def open_source(reader: Reader) -> why.Source:
    """The capture as snapshots. UsageError where it lacks what the graph needs."""
    return why.Source(reader, needed=NEEDED, what="what --sequence needs")


def read_drawn(
    source: why.Source, selection: Selection, bins: int, around: str = ""
) -> tuple[list[Drawn], list[str]]:
    """The chosen connections, or the one with the most records; and notes for stderr.

    around: the name of an event, of whose first record the time is drawn.
    """
    wanted = tuple(selection.connections)
    location = _location_of(around) if around else ""
    found = _Overview(source, wanted, source.location_codes().get(location, -1))
    path = source.reader.path
    if not len(found.records):
        if wanted:
            find_missing(wanted, (), path)
        raise FileError(f"{path}: no records of connections, so there is nothing to graph")
    notes = []
    if wanted and (note := find_missing(wanted, found.pairs(), path)):
        notes.append(note)
    most = _MOST_PAGES if wanted else 1
    if len(found.records) > most:
        notes.append(f"--sequence shows {most} of {len(found.records)} connections, "
                     "those with the most records; -p chooses")  # fmt: skip
    chosen = []
    for place in np.sort(np.argsort(-found.records, kind="stable")[:most]).tolist():
        limits = found.limits(place)
        zoom = selection.zoom
        if around:
            at = found.event_at(place)
            if at is None:
                raise FileError(f"connection {found.ports(place)} has no {location}",
                                "try another event, or --zoom")  # fmt: skip
            zoom = max(at - _AROUND_S, 0.0), at + 2 * _AROUND_S
        chosen.append(_Chosen(int(found.ids[place]), found.title(place),
                              Reading(source, zoom or limits, bins, zoom),
                              BandTally(zoom or limits, bins), Losses(zoom or limits, bins)))
    _read(source, chosen, found.zero_ns)
    drawn = []
    for one in chosen:
        sequence = one.reading.finish()
        if sequence.records:
            drawn.append(Drawn(one.title, sequence, one.losses.spans(), one.tally.bands()))
        else:
            notes.append(f"connection {one.title}: no records in that time")
    if not drawn:
        raise FileError("; ".join(notes), "without --zoom and --around all is drawn")
    if not source.tells_limits:
        notes.append("no limits: the capture lacks columns that tell them")
    return drawn, notes


def _location_of(name: str) -> str:
    location = name.upper().replace("-", "_")
    if location not in SYMBOLS:
        known = ", ".join(each.lower() for each in SYMBOLS)
        raise UsageError(f"--around: no event of this name; the events are {known}")
    return location


class _Overview:
    """All connections, or those of some ports: (m,) each. zero_ns: when the time axis begins."""

    def __init__(self, source: why.Source, wanted: Many[tuple[int, int]], code: int) -> None:
        addresses = [name for name in ("laddr", "raddr") if name in source.known]
        source.names = ["conn_id", "location", "state", "lport", "rport", *addresses]
        zero_ns = source.start_ns
        found: dict[str, list[Array]] = {}
        for block in source.blocks():
            if source.start_ns is None:
                first = int(block.times_ns.min())
                zero_ns = first if zero_ns is None else min(zero_ns, first)
            for name, values in _ends_of(block, code, addresses, wanted).items():
                found.setdefault(name, []).append(values)
        self.zero_ns = zero_ns or 0
        seen = np.concatenate([*found.get("seen", []), np.zeros(0, np.int64)])
        order = np.argsort(seen, kind="stable")
        whole = {name: np.concatenate(parts)[order] for name, parts in found.items()}
        none = np.zeros(0, np.int64)
        self.ids, self.records = whole.get("ids", none), whole.get("records", none)
        self._begin, self._end, self._event = (
            whole.get(name, none) for name in ("begin", "end", "event")
        )
        self._ends = whole.get("ends", np.zeros((0, 2), np.int64))
        self._addresses = whole.get("addresses", np.zeros((0, 2), "V16"))

    def pairs(self) -> list[tuple[int, int]]:
        """Local and remote ports."""
        return [(int(one), int(other)) for one, other in self._ends]

    def ports(self, place: int) -> str:
        """lport.rport, as the report of 2000 writes a connection."""
        return ".".join(map(str, self._ends[place].tolist()))

    def title(self, place: int) -> str:
        """Addresses and ports where the capture has addresses, else ports."""
        ends = []
        for raw, port in zip(self._addresses[place], self._ends[place].tolist(), strict=True):
            if not any(raw.tobytes()):
                return self.ports(place)
            ends.append(endpoint(address_of(raw.tobytes()), port))
        return " \u2192 ".join(ends)

    def limits(self, place: int) -> tuple[float, float]:
        """Seconds of its first and last record."""
        return self._seconds(self._begin[place]), self._seconds(self._end[place])

    def event_at(self, place: int) -> float | None:
        """Seconds of the first event."""
        at = self._event[place]
        return None if at == np.iinfo(np.int64).max else self._seconds(at)

    def _seconds(self, time_ns: int) -> float:
        return max((int(time_ns) - self.zero_ns) / 1e9, 0.0)


def _ends_of(
    block: why.Block, code: int, addresses: Many[str], wanted: Many[tuple[int, int]]
) -> dict[str, Array]:
    """(m,) each, of the connections of a block; of those of some ports, of their records that
    have them."""
    rows = np.arange(len(block))
    if wanted:
        rows = np.flatnonzero(match_ports(wanted, block["lport"], block["rport"]))
    of = block.of_row[rows]
    firsts = np.flatnonzero(np.append(True, of[1:] != of[:-1])[: len(of)])
    lasts = np.append(firsts[1:], len(of))[: len(firsts)] - 1
    begins, ends = rows[firsts], rows[lasts]
    event = np.full(len(block.groups), np.iinfo(np.int64).max)
    at = rows[block["location"][rows] == code]
    np.minimum.at(event, block.of_row[at], block.times_ns[at])
    none = np.zeros(len(ends), "V16")
    raw = [block[name][ends] for name in addresses] or [none, none]
    return {
        "seen": block.at[begins], "ids": block["conn_id"][ends], "records": lasts - firsts + 1,
        "begin": block.times_ns[begins], "end": block.times_ns[ends], "event": event[of[firsts]],
        "ends": np.stack([block["lport"][ends], block["rport"][ends]], axis=1).astype(np.int64),
        "addresses": np.stack(raw, axis=1),
    }  # fmt: skip


class BandTally:
    """What held in each pixel column for the longest part of it; added piece by piece."""

    def __init__(self, limits: tuple[float, float], bins: int) -> None:
        self._edges = np.linspace(*limits, bins + 1)
        self._held: dict[str, Array] = {}

    def add(self, name: str, begins: Array, ends: Array) -> None:
        """Times (n,) in s in which it held; none lies in another, and they are in order."""
        edges = self._edges
        total = np.r_[0.0, np.cumsum(ends - begins)]
        place = np.searchsorted(begins, edges, side="right")
        until = np.maximum(place - 1, 0)
        within = np.clip(edges - begins[until], 0, (ends - begins)[until])
        covered = np.where(place > 0, total[until] + within, 0.0)
        held = self._held.setdefault(name, np.zeros(len(edges) - 1))
        held += np.diff(covered)

    def bands(self) -> tuple[Band, ...]:
        """Spans of pixel columns, by name."""
        if not self._held:
            return ()
        names = sorted(self._held)
        held = np.stack([self._held[name] for name in names])
        most = np.where(held.max(axis=0) > 0, held.argmax(axis=0), -1)
        starts = np.flatnonzero(np.r_[True, most[1:] != most[:-1]])
        stops = np.r_[starts[1:], len(most)]
        edges, codes = self._edges, most[starts]
        return tuple(
            Band(name, edges[starts[codes == code]], edges[stops[codes == code]])
            for code, name in enumerate(names) if (codes == code).any()
        )  # fmt: skip


class Losses:
    """Where records are missing, with those of a pixel column together."""

    def __init__(self, limits: tuple[float, float], bins: int) -> None:
        self._limits, self._finest = limits, (limits[1] - limits[0]) / bins
        self._begin: Array = np.empty(0)
        self._end: Array = np.empty(0)
        self._missing = 0

    def add(self, begin: Array, end: Array, missing: Array) -> None:
        """Some more, in s."""
        self._missing += int(missing.sum())
        shown = (begin <= self._limits[1]) & (end >= self._limits[0])
        self._begin = np.concatenate([self._begin, begin[shown]])
        self._end = np.concatenate([self._end, end[shown]])
        if len(self._begin) > _OFTEN:
            self._begin, self._end = merge(self._begin, self._end, self._finest)

    def spans(self) -> Spans:
        """All. Their number is that of the capture."""
        if len(self._begin):
            self._begin, self._end = merge(self._begin, self._end, self._finest)
        return Spans(self._begin, self._end, self._missing, "not known: ")


@dataclass(frozen=True)
class _Chosen:
    conn_id: int
    title: str
    reading: Reading
    tally: BandTally
    losses: Losses


def _read(source: why.Source, chosen: Many[_Chosen], zero_ns: int) -> None:
    """The second pass: the columns of the chosen connections, and their limits."""
    limits = (*why.NEEDED, *why.OPTIONAL, *why.OF_RECEIVERS) if source.tells_limits else ()
    source.names = [one for one in dict.fromkeys((*NEEDED, *WANTED, *limits))
                    if one in source.known]  # fmt: skip
    ids = np.array([one.conn_id for one in chosen], np.uint64)
    losses: why.Losses | None = None
    for block in source.blocks(ids=ids):
        losses = block.losses
        if limits:
            _tally(why.cut(block)[0], chosen, zero_ns)
        numbers = block["conn_id"][block.groups].tolist()
        spans = dict(zip(numbers, zip(block.groups, block.lasts + 1, strict=True), strict=True))
        for one in chosen:
            if one.conn_id in spans:
                rows = slice(*spans[one.conn_id])
                columns = {name: values[rows] for name, values in block.rows.items()}
                one.reading.add(columns, np.maximum(block.times_ns[rows] - zero_ns, 0) / 1e9)
    if losses is not None:
        begin, end = (times - zero_ns for times in (losses.begin_ns, losses.end_ns))
        for one in chosen:
            one.losses.add(np.maximum(begin, 0) / 1e9, end / 1e9, losses.missing)


def _tally(rows: Array, chosen: Many[_Chosen], zero_ns: int) -> None:
    """The limits of intervals, by family."""
    for one in chosen:
        mine = rows[rows["conn_id"] == one.conn_id]
        begins, ends = ((mine[name] - zero_ns) / 1e9 for name in ("start_ns", "end_ns"))
        for limit in np.unique(mine["limit"]).tolist():
            at = mine["limit"] == limit
            name = why.LIMITS[limit]
            one.tally.add(why.FAMILY.get(name, name), begins[at], ends[at])
