# SPDX-License-Identifier: Apache-2.0
"""A connection as an object, for the verdict; formats.analysis.why.tables has them as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.assemble import connections_table
from tcpkmon.formats.analysis.why.columns import CONNECTIONS, Column
from tcpkmon.formats.analysis.why.folding import Values, fold
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS
from tcpkmon.formats.analysis.why.receiving import RECEIVING


@dataclass
class Connection:
    """One connection, as this host saw it. Times in ns of CLOCK_MONOTONIC, else as named.

    limit_ns: how long each limit held, by name. certain_ns: the part without a lost record;
    least_ns: that by name. receiving_ns: for how long it waited as a receiver, by name of
    RECEIVING; empty where the capture does not tell. receiving_least_ns: of that, what is certain.
    Round-trip times are None where none was measured. role: active, passive or existing.
    end_reason: see the table's columns. errno: 0 for none. established: whether its handshake was
    over, or it was open before. sysctl: settings of its host, where they are known. requests: what
    formats.analysis.exchanges says of it; requests_shares: of its time, what each of them tells;
    requests_share: all that they know.
    """

    conn_id: int
    laddr: str = ""
    lport: int = 0
    raddr: str = ""
    rport: int = 0
    pid: int = 0
    comm: str = ""
    ca_name: str = ""
    role: str = "existing"
    end_reason: str = "open"
    errno: int = 0
    established: bool = True
    start: str | None = None
    start_ns: int = 0
    end_ns: int = 0
    handshake_ns: int | None = None
    records: int = 0
    lost_records: int = 0
    lost_before: int = 0
    lost_after: int = 0
    bytes_sent: int = 0
    bytes_acked: int = 0
    bytes_received: int = 0
    bytes_at_least: bool = False
    bytes_unsent: int = 0
    segments_retransmitted: int = 0
    retrans_ratio: float | None = None
    syn_retrans: int = 0
    rto_count: int = 0
    loss_probes: int = 0
    mss: int = 0
    min_rtt_us: int | None = None
    srtt_p50_us: float | None = None
    srtt_p95_us: float | None = None
    srtt_max_us: int | None = None
    cwnd_max: int = 0
    snd_wnd_min: int = 0
    snd_wnd_max: int = 0
    snd_wnd_fall: int = 0
    snd_wnd_low_us: float = 0.0
    late_ack_us: float = 0.0
    snd_wscale: int | None = None
    rcv_wscale: int | None = None
    recoveries: int = 0
    loss_rate_spread: float | None = None
    rto_unanswered: int = 0
    rto_unanswered_us: float = 0.0
    rto_bytes: int = 0
    acked_most: int = 0
    silent_us: float = 0.0
    quiet_us: float = 0.0
    queue_p95_us: float | None = None
    goodput_p50: float = 0.0
    goodput_p99: float = 0.0
    rcv_wnd_max: int = 0
    rcvbuf: int = 0
    sndbuf: int = 0
    reader_behind_max: int = 0
    zero_windows: int = 0
    limit_ns: dict[str, int] = field(default_factory=dict)
    certain_ns: int = 0
    least_ns: dict[str, int] = field(default_factory=dict)
    receiving_ns: dict[str, int] = field(default_factory=dict)
    receiving_least_ns: dict[str, int] = field(default_factory=dict)
    pacing_rate_min: float | None = None
    pacing_rate_max: float | None = None
    netns_name: str = ""
    sysctl: Mapping[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    requests_shares: list[float] = field(default_factory=list)
    requests_share: float = 0.0

    @property
    def duration_s(self) -> float:
        """From its first to its last snapshot."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def goodput(self) -> float:
        """Bytes a second that the peer acknowledged, or that arrived: the larger direction."""
        most = max(self.bytes_acked, self.bytes_received)
        return most / self.duration_s if self.duration_s else 0.0

    @property
    def sends(self) -> bool:
        """Whether it is more of a sender than of a receiver."""
        return self.bytes_acked >= self.bytes_received

    def share(self, limit: str) -> float:
        """Of the time, 0 to 1; of a family (app, rwnd, cwnd) with its parts."""
        total = sum(self.limit_ns.values())
        if not total:
            return 0.0
        return sum(
            ns for name, ns in self.limit_ns.items() if limit in (name, FAMILY.get(name))
        ) / total  # fmt: skip


_OTHER_NAMES = {"segments_retransmitted": "retransmissions", "zero_windows": "zero_window_count"}
_BY_COLUMN = {column.name: column for column in CONNECTIONS}
_COLUMNS = {
    one.name: (_BY_COLUMN[name], one.default)
    for one in fields(Connection)
    if (name := _OTHER_NAMES.get(one.name, one.name)) in _BY_COLUMN
}
"""By the names of fields: the columns that they are, and what stands for null."""
_AT_ONCE = 4096
_LIMITS, _WAITS = (
    {end: {name: f"us_{name}{end}" for name in names} for end in ("", "_min")}
    for names in (LIMITS, RECEIVING)
)
"""Names, and their columns."""
_TIMES = (
    "established_ns", "handshake_us", "uncertain_us",
    *(column for names in (*_LIMITS.values(), *_WAITS.values()) for column in names.values()),
)  # fmt: skip


def connection_of(table: Mapping[str, Array], at: int) -> Connection:
    """A row of the table connections."""
    return next(connections_of(table, np.array([at])))


def connections_of(table: Mapping[str, Array], rows: Array) -> Iterator[Connection]:
    """These rows of the table connections. numpy is slow with single values: some rows are made
    values of Python at a time."""
    for low in range(0, len(rows), _AT_ONCE):
        some = rows[low : low + _AT_ONCE]
        values = [
            _values(table[column.name][some], column, none) for column, none in _COLUMNS.values()
        ]
        times = {name: table[name][some].tolist() for name in _TIMES}
        for at, row in enumerate(zip(*values, strict=True)):
            yield _connection(dict(zip(_COLUMNS, row, strict=True)), times, at)


def _values(values: Array, column: Column, none: Any) -> list[Any]:
    listed: list[Any] = values.tolist()
    if not column.null:
        return listed
    if column.kind == "text":
        return [none if one is None else one for one in listed]
    kind = int if column.kind == "int" else float
    return [none if math.isnan(one) else kind(one) for one in listed]


def _connection(same: dict[str, Any], times: Mapping[str, list[float]], at: int) -> Connection:
    def known(columns: Mapping[str, str]) -> dict[str, int]:
        told = {name: times[column][at] for name, column in columns.items()}
        return {name: round(us * 1000) for name, us in told.items() if not math.isnan(us)}

    limits, least = (
        {name: ns for name, ns in known(_LIMITS[end]).items() if ns > 0} for end in ("", "_min")
    )
    handshake = times["handshake_us"][at]
    return Connection(
        **same,
        established=same["role"] == "existing" or not math.isnan(times["established_ns"][at]),
        handshake_ns=None if math.isnan(handshake) else round(handshake * 1000),
        limit_ns=limits,
        least_ns=least,
        receiving_ns=known(_WAITS[""]),
        receiving_least_ns=known(_WAITS["_min"]),
        certain_ns=sum(limits.values()) - round(max(times["uncertain_us"][at], 0) * 1000),
    )


def tally(blocks: Iterable[Block]) -> list[Connection]:
    """The connections of a capture."""
    found, names = list[Values](), set[str]()
    for block in blocks:
        found.append(fold(block)[0])
        names.update(block.rows)
    table = connections_table(found, names)
    return list(connections_of(table, np.arange(len(table["conn_id"]))))
