# SPDX-License-Identifier: Apache-2.0
"""Finds the connections of a capture, and the connection of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_CONNECTIONS
from tcpkmon.formats.base.ports import match_ports
from tcpkmon.formats.base.text import address_of, endpoint
from tcpkmon.formats.pmgraph.arrays import Array, Columns
from tcpkmon.formats.pmgraph.quantities import is_number
from tcpkmon.formats.psc.reader import Capture

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


def key_columns(capture: Capture) -> tuple[str, ...]:
    """The columns that identify a connection, if the file has them as integers."""
    if not (is_number(capture, "lport") and is_number(capture, "rport")):
        return ()
    return ("lport", "rport", *(("conn_id",) if is_number(capture, "conn_id") else ()))


def match(
    columns: Columns, wanted: Sequence[tuple[int, int]], rows: int
) -> npt.NDArray[np.bool_]:
    """(rows,) whether a record is of one of the wanted connections (none wanted: all are)."""
    if not wanted:
        return np.ones(rows, bool)
    usable = (name in columns and columns[name].dtype.kind in "iu" for name in ("lport", "rport"))
    if not all(usable):
        return np.zeros(rows, bool)
    return match_ports(wanted, columns["lport"], columns["rport"])


class Connections(Sequence[Connection]):
    """Connections in the order of their first record, as arrays: a file can have millions."""

    def __init__(self, *columns: Array) -> None:
        self._columns = columns
        self._keys, self._ports, self._counts, self._first, self._last = columns

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> Connection: ...

    @overload
    def __getitem__(self, at: slice) -> Connections: ...

    def __getitem__(self, at: int | slice) -> Connection | Connections:
        if isinstance(at, slice):
            return self._at(at)
        return _connection(*(int(column[at]) for column in self._columns))

    def _at(self, at: Array | slice) -> Connections:
        return Connections(*(column[at] for column in self._columns))

    def port_pairs(self) -> set[tuple[int, int]]:
        """Their (lport, rport)."""
        return {(ports >> 16, ports & 0xFFFF) for ports in np.unique(self._ports).tolist()}

    def known(self) -> Connections:
        """Without those that have no id, but the ports of one that has."""
        has_id = (self._keys & _HAS_ID != 0) & (self._keys != _HAS_ID)
        return self._at(has_id | ~np.isin(self._ports, self._ports[has_id]))

    def without_listeners(self) -> Connections:
        """Those with a remote port; all if none has one."""
        connected = self._ports & np.uint64(0xFFFF) != 0
        return self._at(connected) if connected.any() else self

    def largest(self, most: int) -> Connections:
        """Those with the most records."""
        return self._at(np.sort(np.argsort(-self._counts, kind="stable")[:most]))


def find_connections(capture: Capture, wanted: Sequence[tuple[int, int]] = ()) -> Connections:
    """All connections (or those with the wanted ports), in the order of their first record.

    Records with the same ports and different conn_ids are different connections. Records with the
    same conn_id are one connection, although its local port is 0 at first. Records without an id
    (0: the BPF program did not know the socket) count only if no connection with an id has their
    ports. FileError if there are more than MOST_CONNECTIONS.
    """
    names = key_columns(capture)
    tally = _Tally(capture.path)
    for piece in capture.chunks() if names else ():
        start, stop = piece.start, piece.stop
        columns = capture.columns(names, start, stop)
        mask = match(columns, wanted, stop - start) & ~capture.control(start, stop)
        rows = np.flatnonzero(mask)
        if len(rows):
            tally.add(connection_keys(columns)[rows], _ports(columns)[rows], rows + start)
    return tally.connections().known()


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
    return f"{endpoint(local, connection.lport)} \u2192 {endpoint(remote, connection.rport)}"


def algorithm_of(capture: Capture, connection: Connection) -> str:
    """The last recorded name of its congestion control, or an empty string; escaped."""
    if "ca_name" not in capture.names:
        return ""
    raw = _raw(capture, "ca_name", connection.last_row)
    return for_terminal(raw.split(b"\0")[0].decode("utf-8", "replace"))


class _Tally:
    """By key: greatest ports, count, first and last row; small if there are few keys."""

    _SUMS = (np.maximum, np.add, np.minimum, np.maximum)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[list[Array]] = []
        self._size = 0
        self._keys = np.empty(0, np.uint64)
        empty = np.empty(0, np.int64)
        self._columns: list[Array] = [np.empty(0, np.uint64), empty, empty, empty]

    def add(self, keys: Array, ports: Array, rows: Array) -> None:
        columns = [ports, np.ones(len(keys), np.int64), rows, rows]
        order, starts = _group(keys)
        self._pending.append([keys[order[starts]], *self._sum(columns, order, starts)])
        self._size += len(starts)
        if self._size > _COMPACT_AT:
            self._compact()

    def connections(self) -> Connections:
        """All connections, in the order of their first record."""
        self._compact()
        columns = [self._keys, *self._columns]
        order = np.argsort(self._columns[2], kind="stable")
        return Connections(*(column[order] for column in columns))

    def _compact(self) -> None:
        keys = np.concatenate([self._keys, *(batch.pop(0) for batch in self._pending)])
        order, starts = _group(keys)
        if len(starts) > MOST_CONNECTIONS:
            raise FileError(
                f"{self._path} has more than {MOST_CONNECTIONS} connections",
                "-p chooses some, -T prints all records",
            )
        self._keys = keys[order[starts]]
        for place, before in enumerate(self._columns):  # one after the other, to need less memory
            joined = np.concatenate([before, *(batch.pop(0) for batch in self._pending)])
            self._columns[place] = self._SUMS[place].reduceat(joined[order], starts)
        self._pending, self._size = [], 0

    def _sum(self, columns: Sequence[Array], order: Array, starts: Array) -> Iterator[Array]:
        for column, total in zip(columns, self._SUMS, strict=True):
            yield total.reduceat(column[order], starts)


def _group(keys: Array) -> tuple[Array, Array]:
    """The order of the keys, and where each other key begins in it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return order, np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(keys)])


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
