# SPDX-License-Identifier: Apache-2.0
"""Finds the connections of a capture, and the connection of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formats.base.escape import for_terminal
from formats.base.text import address_of
from formats.pmgraph.arrays import Array, Columns
from formats.pmgraph.quantities import is_number
from formats.psc.reader import Capture

_COMPACT_AT = 1 << 20
_HAS_ID = np.uint64(1 << 63)
_INET, _INET6 = 2, 10


@dataclass(frozen=True)
class Connection:
    """One connection: its ports, its id (0: the file has none), and the range of its rows."""

    lport: int
    rport: int
    conn_id: int
    key: int
    records: int
    first_row: int
    last_row: int

    @property
    def ports(self) -> str:
        """lport.rport, as the report writes a connection."""
        return f"{self.lport}.{self.rport}"


def has_ports(capture: Capture) -> bool:
    """Whether the file has the ports of connections."""
    return is_number(capture, "lport") and is_number(capture, "rport")


def key_columns(capture: Capture) -> tuple[str, ...]:
    """The columns that identify a connection, if the file has them as integers."""
    if not has_ports(capture):
        return ()
    return ("lport", "rport", *(("conn_id",) if is_number(capture, "conn_id") else ()))


def match_ports(
    columns: Columns, wanted: Sequence[tuple[int, int]], rows: int
) -> npt.NDArray[np.bool_]:
    """(rows,) whether a record has one of the wanted port pairs (none wanted: all have)."""
    if not wanted:
        return np.ones(rows, bool)
    usable = (name in columns and columns[name].dtype.kind in "iu" for name in ("lport", "rport"))
    if not all(usable):
        return np.zeros(rows, bool)
    pairs = np.array([(left << 16) | right for left, right in wanted], np.uint64)
    return np.isin(_ports(columns), pairs)


def find_connections(capture: Capture, wanted: Sequence[tuple[int, int]] = ()) -> list[Connection]:
    """All connections (or those with the wanted ports), in the order of their first record.

    Records with the same ports and different conn_ids are different connections. Records with the
    same conn_id are one connection, although its local port is 0 at first. Records without an id
    (0: the BPF program did not know the socket) count only if no connection with an id has their
    ports.
    """
    names = key_columns(capture)
    if not names:
        return []
    tally = _Tally()
    for piece in capture.chunks():
        start, stop = piece.start, piece.stop
        columns = capture.columns(names, start, stop)
        mask = match_ports(columns, wanted, stop - start) & ~capture.control(start, stop)
        rows = np.flatnonzero(mask)
        if len(rows):
            tally.add(connection_keys(columns)[rows], _ports(columns)[rows], rows + start)
    tally.compact()
    order = np.argsort(tally.first, kind="stable").tolist()
    found = [_connection(*(int(column[index]) for column in tally.columns())) for index in order]
    known = {connection.ports for connection in found if connection.conn_id}
    return [one for one in found if one.conn_id or one.ports not in known]


def connection_keys(columns: Columns) -> npt.NDArray[np.uint64]:
    """(n,) a number for each record, which is equal exactly for records of one connection."""
    ports = _ports(columns)
    if "conn_id" not in columns:
        return ports
    ids = columns["conn_id"].astype(np.uint64)
    return np.where(ids != 0, ids | _HAS_ID, ports)


class Finder:
    """Finds the connections of records, as indices into a list."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        keys = np.array([connection.key for connection in connections], np.uint64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def split(self, columns: Columns, rows: Array) -> Iterator[tuple[int, Array]]:
        """Yield (index of a connection, its records among `rows`).

        columns: with the key columns of a chunk of the file. rows: (n,) indices into them.
        """
        if not len(self._keys):
            return
        keys = connection_keys(columns)[rows]
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        hits = self._keys[places] == keys
        rows, places = rows[hits], places[hits]
        if not len(rows):
            return
        order = np.argsort(places, kind="stable")
        present, starts = np.unique(places[order], return_index=True)
        for place, group in zip(present, np.split(rows[order], starts[1:]), strict=True):
            yield int(self._order[place]), group


def read_chunks(
    capture: Capture, connections: Sequence[Connection], names: Iterable[str]
) -> Iterator[tuple[Columns, Iterator[tuple[int, Array]]]]:
    """Yield for each chunk of the file the columns `names`, and what Finder.split() finds there."""
    finder = Finder(connections)
    needed = {*names, *key_columns(capture)}
    first = min((one.first_row for one in connections), default=0)
    last = max((one.last_row for one in connections), default=-1)
    for piece in capture.chunks():
        if first < piece.stop and piece.start <= last:
            columns = capture.columns(needed, piece.start, piece.stop)
            snapshots = np.flatnonzero(~capture.control(piece.start, piece.stop))
            yield columns, finder.split(columns, snapshots)


def title_of(capture: Capture, connection: Connection) -> str:
    """Its addresses and ports if the file has addresses, else its ports."""
    row = connection.last_row
    local = _address(capture, "laddr", row)
    remote = _address(capture, "raddr", row)
    if not local or not remote:
        return connection.ports
    return f"{_endpoint(local, connection.lport)} \u2192 {_endpoint(remote, connection.rport)}"


def algorithm_of(capture: Capture, connection: Connection) -> str:
    """The last recorded name of its congestion control, or an empty string; escaped."""
    if "ca_name" not in capture.names:
        return ""
    raw = _raw(capture, "ca_name", connection.last_row)
    return for_terminal(raw.split(b"\0")[0].decode("utf-8", "replace"))


class _Tally:
    """By key: count, greatest ports, first and last row; small if there are few keys."""

    def __init__(self) -> None:
        self._pending: list[tuple[Array, ...]] = []
        self._size = 0
        self.keys = self.ports = np.empty(0, np.uint64)
        self.counts = self.first = self.last = np.empty(0, np.int64)

    def columns(self) -> tuple[Array, ...]:
        return self.keys, self.ports, self.counts, self.first, self.last

    def add(self, keys: Array, ports: Array, rows: Array) -> None:
        self._pending.append(_group(keys, ports, np.ones(len(keys), np.int64), rows, rows))
        self._size += len(self._pending[-1][0])
        if self._size > _COMPACT_AT:
            self.compact()

    def compact(self) -> None:
        batches = [self.columns(), *self._pending]
        joined = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        self.keys, self.ports, self.counts, self.first, self.last = _group(*joined)
        self._pending, self._size = [], 0


def _group(
    keys: Array, ports: Array, counts: Array, first: Array, last: Array
) -> tuple[Array, ...]:
    """By key: greatest ports, sum of counts, least first row and greatest last row."""
    if not len(keys):
        return keys, ports, counts, first, last
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return (
        ordered[starts],
        np.maximum.reduceat(ports[order], starts),
        np.add.reduceat(counts[order], starts),
        np.minimum.reduceat(first[order], starts),
        np.maximum.reduceat(last[order], starts),
    )


def _ports(columns: Columns) -> npt.NDArray[np.uint64]:
    low = np.uint64(0xFFFF)
    local = columns["lport"].astype(np.uint64) & low
    remote = columns["rport"].astype(np.uint64) & low
    ports: npt.NDArray[np.uint64] = (local << np.uint64(16)) | remote
    return ports


def _connection(key: int, ports: int, records: int, first: int, last: int) -> Connection:
    conn_id = key & ~int(_HAS_ID) if key & int(_HAS_ID) else 0
    return Connection(ports >> 16, ports & 0xFFFF, conn_id, key, records, first, last)


def _raw(capture: Capture, name: str, row: int) -> bytes:
    values = capture.column(name, row, row + 1)
    return values.tobytes() if values.dtype.kind in "SV" else b""


def _address(capture: Capture, name: str, row: int) -> str:
    raw = _raw(capture, name, row) if name in capture.names else b""
    family = _INET6
    if is_number(capture, "family"):
        family = int(capture.column("family", row, row + 1)[0])
    if len(raw) != 16 or family not in (_INET, _INET6) or not any(raw):
        return ""
    return address_of(raw)


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
