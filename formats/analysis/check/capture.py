# SPDX-License-Identifier: Apache-2.0
"""A capture as the tables that assertions are about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis import exchanges, why
from tcpkmon.formats.analysis.causes import causes
from tcpkmon.formats.analysis.check.scope import COLUMN_OF, INTERVAL, REQUEST, Table, TableScope
from tcpkmon.formats.analysis.check.span import Proof
from tcpkmon.formats.analysis.conform import conform, why_unsure
from tcpkmon.formats.base.expressions import parse_assertion, read_all
from tcpkmon.formats.base.ports import match_ports
from tcpkmon.formats.conditions import Array, Value
from tcpkmon.formats.registry import format_of

_KINDS = {"int": "number", "float": "number", "text": "text", "bool": "bool"}
CONNECTION_KINDS = {column.name: _KINDS[column.kind] for column in why.CONNECTIONS}
INTERVAL_KINDS = {f"{INTERVAL}{column.name}": _KINDS[column.kind] for column in why.INTERVALS} | {
    f"{INTERVAL}duration_us": "number"
}
_IN_MS = {
    column.name: f"{REQUEST}{column.name.removesuffix('_ns')}_ms"
    for column in exchanges.EXCHANGES if column.name.endswith("_ns") and column.name != "start_ns"
}  # fmt: skip
REQUEST_KINDS = {
    _IN_MS.get(column.name, f"{REQUEST}{column.name}"): _KINDS[column.kind]
    for column in exchanges.EXCHANGES
}


def in_ms(requests: why.Table) -> dict[str, Array]:
    """The columns of exchanges as assertions have them: with a prefix, their times in ms."""
    return {
        _IN_MS.get(name, f"{REQUEST}{name}"): values / 1e6 if name in _IN_MS else values
        for name, values in requests.items()
    }


class _Ledger(dict[str, Any]):
    """What holds for the whole capture; what takes a reading of it is found when it is asked."""

    def __getitem__(self, name: str) -> bool:
        found = super().__getitem__(name)
        return bool(found() if callable(found) else found)


_ALWAYS = ("conn_id", "location", "lport", "rport", "state")
"""What Source needs to tell the records of connections."""
_LEAVE_OUT = ("when_changed", "budget")
"""Settings by which a capture leaves out records on purpose."""


@dataclass
class Capture:
    """A capture on the disk, and what it says of all assertions. Errors as Source has them.

    proof: of a span, which has no proof in its file. keep: which rows of the table connections
    it is about; without it, all.
    """

    path: Path
    proof: Proof | None = None
    keep: Callable[[why.Table], Array] | None = None
    proven: bool = field(init=False)
    verdict: str = field(init=False)
    lost: int = field(init=False)
    connections: why.Table = field(init=False)

    def __post_init__(self) -> None:
        with why.Source(self.path) as source:
            self.connections = found = why.connections(source)
            if self.keep is not None:
                chosen = self.keep(found)
                self.connections = {name: values[chosen] for name, values in found.items()}
            reader, settings = source.reader, source.settings()
            self.lost = int(reader.lost)
            self._whole = not self.lost and reader.complete and not reader.damaged
        if self.proof is not None:
            self.proven, self.verdict = self.proof.proven, self.proof.verdict
            self.lost = self.proof.lost
            self._whole = not self.lost
            thinned = [name for name in _LEAVE_OUT if settings.get(name)]
            self._unsure = f"records are left out by {', '.join(thinned)}" if thinned else ""
            if not self.proven:
                self._unsure = self.verdict
            return
        reports = format_of(self.path).verify(self.path)
        self._unsure = why_unsure(reports)
        self.proven = bool(reports) and all(report.exit_code == 0 for report in reports)
        self.verdict = "; ".join(r.verdict for r in reports if r.exit_code) or "nothing lost"

    @cached_property
    def intervals(self) -> why.Table:
        """The table intervals."""
        return self._kept(why.intervals(self.path))

    @cached_property
    def requests(self) -> why.Table:
        """The table of exchanges."""
        return self._kept(exchanges.exchanges(self.path))

    def _kept(self, table: dict[str, Array]) -> dict[str, Array]:
        """The rows of the connections that it is about."""
        if self.keep is None:
            return table
        chosen = np.isin(table["conn_id"], self.connections["conn_id"])
        return {name: values[chosen] for name, values in table.items()}

    @cached_property
    def record_kinds(self) -> Mapping[str, str]:
        """The columns of its records that hold numbers."""
        with why.Source(self.path) as source:
            reader = source.reader
            if hasattr(reader, "columns_by_name"):
                seq = reader.seq_column  # which Source takes out
                names = [
                    name for name, column in reader.columns_by_name.items()
                    if name and column.is_integer and column != seq
                ]  # fmt: skip
            else:
                event = reader.format.find_event("SNAPSHOT")
                names = [one.name for one in event.fields if one.kind in ("int", "enum")]
        return dict.fromkeys([*names, "time_ns"], "number")

    def table(self, what: str, names: Collection[str]) -> Table:
        """The rows of one kind, with these columns and those that name a row."""
        if what == "connection":
            columns = self.connections
        elif what == "record":
            columns = self._records(names)
        else:
            columns = self._intervals(names) if what == "interval" else self._requests(names)
        holds = _Ledger(no_loss=self._whole, proven=self.proven, conforms=self._conforms)
        count = len(columns["conn_id"])
        return Table(what, columns, count, self.lost, holds, self._share, self._count_cause)

    def _intervals(self, names: Collection[str]) -> dict[str, Array]:
        """Columns of intervals, and of the connection of each."""
        made = {f"{INTERVAL}{name}": values for name, values in self.intervals.items()}
        duration = self.intervals["end_ns"] - self.intervals["start_ns"]
        made[f"{INTERVAL}duration_us"] = duration / 1e3
        return made | self._joined(self.intervals["conn_id"], names)

    def _requests(self, names: Collection[str]) -> dict[str, Array]:
        """Columns of exchanges, and of the connection of each."""
        return in_ms(self.requests) | self._joined(self.requests["conn_id"], names)

    def _joined(self, of: Array, names: Collection[str]) -> dict[str, Array]:
        """These columns of the connections with these ids."""
        ids = self.connections["conn_id"]
        order = np.argsort(ids, kind="stable")
        found = np.searchsorted(ids[order], of)
        place = order[np.minimum(found, len(ids) - 1)]
        joined = {name for name in names if name in self.connections} | {"conn_id"}
        return {name: self.connections[name][place] for name in joined}

    def _records(self, names: Collection[str]) -> dict[str, Array]:
        names = sorted({COLUMN_OF.get(n, n) if n not in self.record_kinds else n for n in names})
        wanted = [name for name in names if name not in _ALWAYS and name != "time_ns"]
        kept = ["conn_id", *wanted, *(name for name in names if name in _ALWAYS[1:])]
        pieces: dict[str, list[Array]] = {name: [] for name in [*kept, "time_ns"]}
        with why.Source(self.path) as source:
            source.names = [*_ALWAYS, *wanted]
            for piece in source.read():
                for name in kept:
                    pieces[name].append(piece[name])
                pieces["time_ns"].append(piece.times_ns)
        whole = {
            name: np.concatenate(found) if found else np.zeros(0)
            for name, found in pieces.items()
        }
        return self._kept(whole)

    def _conforms(self) -> bool:
        """Whether no rule of an RFC is broken; True too where that cannot be told."""
        with why.Source(self.path) as source:
            found = conform(source, self._unsure)
        ids = found.counts if self.keep is None else self.connections["conn_id"].tolist()
        return not found.broken([one for one in ids if one in found.counts])

    @cached_property
    def _causes(self) -> why.Table:
        return causes(self.path)

    def _count_cause(self, name: str) -> Array:
        """(n,) how often it is of each connection."""
        of, counts = np.unique(self._causes["conn_id"][self._causes["cause"] == name],
                               return_counts=True)  # fmt: skip
        by_id = dict(zip(of.tolist(), counts.tolist(), strict=True))
        ids = self.connections["conn_id"].tolist()
        return np.array([by_id.get(one, 0) for one in ids], np.float64)

    def _share(self, limit: str) -> Array:
        return share_of(self.connections, limit)


def times_of(table: why.Table, limit: str) -> tuple[Array, Array]:
    """(n,) float64: the time of a limit, with its parts, in each connection, and of all limits."""
    times = {name: table[f"us_{name}"].astype(np.float64) for name in why.LIMITS}
    mine = [us for name, us in times.items() if limit in (name, why.FAMILY.get(name))]
    return np.sum(mine, axis=0), np.sum(list(times.values()), axis=0)


def share_of(table: why.Table, limit: str) -> Array:
    """(n,) the share of a limit, with its parts, in each connection's time; NaN without time."""
    mine, total = times_of(table, limit)
    with np.errstate(all="ignore"):
        return np.where(total > 0, mine / total, np.nan)


# --where: a condition on the columns of connections, or of requests, chooses among them, the same
# in all commands.

_OF_BOTH = {
    name: kind for name, kind in CONNECTION_KINDS.items() if f"{REQUEST}{name}" in REQUEST_KINDS
}
_WHERE_KINDS = {"connection": CONNECTION_KINDS, "request": _OF_BOTH | REQUEST_KINDS}


def parse_where(text: str, what: str = "connection") -> Value:
    """A condition, as in `tcpkmon check`. what: connection, or request. ExpressionError."""

    def read(text: str) -> Value:
        scope = TableScope(_WHERE_KINDS[what], {}, what)
        value = scope.want("bool", parse_assertion(text).node)
        scope.end()
        return value

    return read_all([text], read)[0]


def fulfil(table: why.Table, where: Value, what: str = "connection") -> Array:
    """(n,) which rows fulfil it. A condition on null holds for none."""
    count = len(table["conn_id"])
    columns = dict(table) if what == "connection" else {**table, **in_ms(table)}
    rows = Table(what, columns, count, 0, {}, lambda limit: share_of(table, limit))
    return np.broadcast_to(where.holds(rows), count)


def choose(
    table: why.Table, where: Value | None, ports: tuple[tuple[int, int], ...] = (),
    what: str = "connection",
) -> why.Table:  # fmt: skip
    """The rows that fulfil the condition, and have these pairs of ports, see base.ports."""
    kept = np.ones(len(table["conn_id"]), np.bool_)
    if where is not None:
        kept &= fulfil(table, where, what)
    if ports:
        kept &= match_ports(ports, table["lport"], table["rport"])
    if kept.all():
        return table
    return {name: values[kept] for name, values in table.items()}
