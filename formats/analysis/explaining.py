# SPDX-License-Identifier: Apache-2.0
"""What `tcpkmon why` says of the connections of a capture: their values, and sentences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.causes import EXCUSES, OF_DROPS, Cause, Finder
from tcpkmon.formats.analysis.exchanges import waited
from tcpkmon.formats.analysis.why import (
    Connection,
    HostSettings,
    Peers,
    Source,
    Table,
    connections_of,
    tables,
    verdict,
)

Paths = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Explained:
    """A connection, the other end where the capture has it, sentences, the main one first, and the
    causes that the first ones are of."""

    connection: Connection
    peer: Connection | None
    sentences: list[str]
    causes: list[Cause]


class Explaining:
    """Explains connections of a capture. table: all of them; ids: those to explain. causes: of all,
    the strongest first."""

    def __init__(
        self, paths: Paths, table: Table, ids: NDArray[Any], causes: Iterable[Cause]
    ) -> None:
        self._table, self._peers = table, Peers(table)
        with Source(*paths) as source:
            self._settings = HostSettings(source)
            self._asked = waited(source, table, ids)
        self._causes: dict[int | None, list[Cause]] = {}
        for cause in causes:
            self._causes.setdefault(cause.conn_id, []).append(cause)

    def of(self, table: Table, rows: NDArray[np.int64]) -> Iterator[Explained]:
        """The connections in these rows of the table, or of rows that were chosen from it."""
        others = [self._peers.of(conn_id) for conn_id in table["conn_id"][rows].tolist()]
        known = np.array([other for other in others if other is not None], np.int64)
        peers = connections_of(self._table, known)
        for one, other in zip(connections_of(table, rows), others, strict=True):
            if (asked := self._asked.of(one)) is not None:
                told, one.requests_share = asked.told(one)
                one.requests = [text for _, text in told]
                one.requests_shares = [part for part, _ in told]
            peer = None if other is None else next(peers)
            for end in (one, peer):
                if end is not None:
                    end.sysctl = self._settings.of(end)
            causes = self._causes.get(one.conn_id, [])
            there = [] if peer is None else [
                it for it in self._causes.get(peer.conn_id, []) if it.cause in OF_DROPS
            ]  # fmt: skip
            if there:  # so neither the path nor the peer is gone
                causes = [it for it in causes if it.cause != "silence"]
            excused = frozenset[str]().union(*(
                EXCUSES.get(it.cause, ()) for it in (*causes, *there)
                # What was dropped here explains no losses that are many more.
                if it.cause not in OF_DROPS or 2 * it.records >= one.segments_retransmitted
            ))  # fmt: skip
            sentences = [] if "*" in excused else verdict(one, peer, excused)
            yield Explained(one, peer, [
                *(it.evidence for it in causes),
                *(f"at the other end, in this capture: {it.evidence}" for it in there), *sentences,
            ], causes)  # fmt: skip


def by_bytes(table: Table) -> NDArray[np.int64]:
    """(n,) the rows of connections, those with the most bytes first."""
    nbytes = np.maximum(table["bytes_acked"], table["bytes_received"])
    return np.argsort(-nbytes, kind="stable")


def explain(paths: Paths) -> Iterator[Explained]:
    """All connections of a capture, those with the most bytes first."""
    with Source(*paths) as source:
        finder = Finder(source)
        table, _ = tables(source, with_intervals=False, visitor=finder)
    explaining = Explaining(paths, table, table["conn_id"], finder.causes())
    yield from explaining.of(table, by_bytes(table))
