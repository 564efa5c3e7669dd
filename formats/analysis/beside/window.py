# SPDX-License-Identifier: Apache-2.0
"""The records of the time of some packets: a window that moves over a capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.beside.states import Rows
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_BESIDE, MOST_CONNECTIONS

KEPT = {
    "conn_id", "location", "callvalue", "state", "ca_state", "snd_una", "snd_max", "snd_wnd",
    "rcv_nxt", "rcv_wnd", "snd_cwnd_segs", "snd_ssthresh", "srtt_us", "min_rtt_us", "packets_out",
    "sacked_out", "lost_out", "retrans_out", "seg_seq", "seg_ack", "seg_len", "seg_flags",
}  # fmt: skip
"""Columns that are kept: what finds packets, and what is told of them."""


class Window:
    """Holds the rows of a time, and of each connection the last row before it.

    rows: n of them. pairs: (n,) the numbers of their ends: those of two connections are one where
    addresses and ports are the same. used: (n,) whether a packet was found for them.
    """

    def __init__(self, pieces: Iterator[Rows]) -> None:
        self._pieces = pieces
        self._seen_ns = -(1 << 62)
        self._ended = False
        self._pairs: dict[bytes, int] = {}
        self.rows: Rows | None = None
        self.pairs = np.zeros(0, np.int64)
        self.used = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self.pairs)

    def move(self, low_ns: int, high_ns: int) -> None:
        """To the records of this real time. UsageError where they are too many."""
        parts = [] if self.rows is None else [self.rows]
        pairs, used, count = [self.pairs], [self.used], len(self)
        while self._seen_ns <= high_ns and not self._ended:
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
                break
            self._seen_ns = max(self._seen_ns, int(piece.real_ns.max()))
            if int(piece.real_ns.max()) < low_ns:
                piece = piece.take(np.sort(_lasts(piece["conn_id"])))
            pairs.append(self._pairs_of(piece))
            columns = {name: values for name, values in piece.columns.items() if name in KEPT}
            parts.append(replace(piece, columns=columns))
            used.append(np.zeros(len(piece), np.bool_))
            count += len(piece)
            if count > MOST_BESIDE:
                parts, pairs, used = self._less(parts, pairs, used, low_ns)
                count = len(pairs[0])
            if count > MOST_BESIDE:
                raise UsageError(
                    f"more than {MOST_BESIDE:,} records are within seconds of some packets",
                    "make the capture smaller with tcpkmon cut",
                )
        if parts:
            parts, pairs, used = self._less(parts, pairs, used, low_ns)
            self.rows, self.pairs, self.used = parts[0], pairs[0], used[0]

    @staticmethod
    def _less(
        parts: list[Rows], pairs: list[Array], used: list[Array], low_ns: int
    ) -> tuple[list[Rows], list[Array], list[Array]]:
        """Without rows that are older, but the last one of each connection."""
        rows, pair, was_used = Rows.join(parts), np.concatenate(pairs), np.concatenate(used)
        keep = rows.real_ns >= low_ns
        old = np.flatnonzero(~keep)
        if len(old):
            keep[old[_lasts(rows["conn_id"][old])]] = True
            if not keep.all():
                rows, pair, was_used = rows.take(keep), pair[keep], was_used[keep]
        return [rows], [pair], [was_used]

    def _pairs_of(self, piece: Rows) -> Array:
        ends = np.concatenate(
            [_bytes(piece["laddr"], 16), _ports(piece["lport"]),
             _bytes(piece["raddr"], 16), _ports(piece["rport"])], axis=1,
        )  # fmt: skip
        known = self._pairs
        found = [known.setdefault(key, len(known)) for key in keys_of(ends)]
        if len(known) > MOST_CONNECTIONS:
            raise UsageError(f"the capture has more than {MOST_CONNECTIONS} connections")
        return np.array(found, np.int64)

    def finish(self) -> None:
        """Read the rest of the capture, so that its reader knows all losses."""
        for _ in self._pieces:
            pass

    def find(self, ends: NDArray[np.uint8]) -> Array:
        """(m,) the numbers of these pairs of ends, (m, 36) bytes: local address and port, remote
        ones. -1: no record so far has them."""
        known = self._pairs
        return np.array([known.get(key, -1) for key in keys_of(ends)], np.int64)


def keys_of(rows: NDArray[Any]) -> list[bytes]:
    """The rows of a matrix of bytes, each as bytes."""
    rows = np.ascontiguousarray(rows)
    data, width = rows.tobytes(), rows.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]


def _bytes(values: Array, width: int) -> NDArray[np.uint8]:
    raw = np.ascontiguousarray(values).view(np.uint8)
    return raw.reshape(len(values), width)


def _ports(values: Array) -> NDArray[np.uint8]:
    return _bytes(values.astype(">u2"), 2)


def _lasts(ids: Array) -> Array:
    """(m,) the last row of each connection."""
    at: Array = np.unique(ids[::-1], return_index=True)[1]
    return len(ids) - 1 - at
