# SPDX-License-Identifier: Apache-2.0
"""Which connections a capture holds, and to which of them each of its records belongs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from formats.base.escape import for_terminal
from formats.base.text import address_of
from formats.pmgraph.quantities import is_number

if TYPE_CHECKING:
    from formats.psc.reader import Capture

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]

_COMPACT_AT = 1 << 20
_HAS_ID = np.uint64(1 << 63)
_INET, _INET6 = 2, 10


@dataclass(frozen=True)
class Connection:
    """One connection: its ports, its id (0: the file has none), and the rows where it occurs."""

    lport: int
    rport: int
    conn_id: int
    key: int
    records: int
    first_row: int
    last_row: int

    @property
    def ports(self) -> str:
        """As the report writes a connection: lport.rport."""
        return f"{self.lport}.{self.rport}"


def has_ports(capture: Capture) -> bool:
    """Whether the file tells connections apart at all."""
    return is_number(capture, "lport") and is_number(capture, "rport")


def key_columns(capture: Capture) -> tuple[str, ...]:
    """The columns that tell connections apart, of those that the file has as integers."""
    if not has_ports(capture):
        return ()
    return ("lport", "rport", *(("conn_id",) if is_number(capture, "conn_id") else ()))


def match_ports(
    columns: Columns, wanted: Sequence[tuple[int, int]], rows: int
) -> npt.NDArray[np.bool_]:
    """Which of so many records have one of these port pairs (none wanted: all do)."""
    if not wanted:
        return np.ones(rows, bool)
    usable = (name in columns and columns[name].dtype.kind in "iu" for name in ("lport", "rport"))
    if not all(usable):
        return np.zeros(rows, bool)
    pairs = np.array([(left << 16) | right for left, right in wanted], np.uint64)
    return np.isin(_ports(columns), pairs)


def find_connections(capture: Capture, wanted: Sequence[tuple[int, int]] = ()) -> list[Connection]:
    """All connections (or those with the wanted ports), in the order of their first record.

    Records with the same ports but another conn_id are another connection; those with the same
    conn_id are one, though its local port is 0 before it was chosen. Records without an id (0: the
    kernel side did not know the socket) count only where no other has their ports.
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
    """One number per record that is the same for records of the same connection only."""
    ports = _ports(columns)
    if "conn_id" not in columns:
        return ports
    ids = columns["conn_id"].astype(np.uint64)
    return np.where(ids != 0, ids | _HAS_ID, ports)


class Finder:
    """Maps the keys of records to indices into a list of connections."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        keys = np.array([connection.key for connection in connections], np.uint64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def split(self, columns: Columns, rows: Array) -> Iterator[tuple[int, Array]]:
        """Yield (index of a connection, those of `rows` that are its records).

        `columns` are the key columns of a piece of the file, `rows` count from its start.
        """
        if not len(rows) or not len(self._keys):
            return
        keys = connection_keys(columns)[rows]
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        hits = self._keys[places] == keys
        rows, places = rows[hits], places[hits]
        order = np.argsort(places, kind="stable")
        present, starts = np.unique(places[order], return_index=True)
        for place, group in zip(present, np.split(rows[order], starts[1:]), strict=True):
            yield int(self._order[place]), group


def title_of(capture: Capture, connection: Connection) -> str:
    """Its addresses and ports where the file has addresses, else its ports."""
    row = connection.last_row
    local = _address(capture, "laddr", row)
    remote = _address(capture, "raddr", row)
    if not local or not remote:
        return connection.ports
    return f"{_endpoint(local, connection.lport)} \u2192 {_endpoint(remote, connection.rport)}"


def algorithm_of(capture: Capture, connection: Connection) -> str:
    """Name of its congestion control as last recorded, or nothing; escaped."""
    if "ca_name" not in capture.names:
        return ""
    raw = _raw(capture, "ca_name", connection.last_row)
    return for_terminal(raw.split(b"\0")[0].decode("utf-8", "replace"))


class _Tally:
    """Per key: count, ports (the greatest), first and last row; bounded while the keys are few."""

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
    """One row per key: greatest ports, sum of counts, least first and greatest last row."""
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
