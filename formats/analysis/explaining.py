# SPDX-License-Identifier: Apache-2.0
"""What `tcpkmon why` says of the connections of a capture: their values, and sentences."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.exchanges import waited
from tcpkmon.formats.analysis.why import (
    Connection,
    Peers,
    Source,
    Table,
    connection_of,
    tables,
    verdict,
)

Paths = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Explained:
    """A connection, the other end where the capture has it, and sentences, the main one first."""

    connection: Connection
    peer: Connection | None
    sentences: list[str]


class Explaining:
    """Explains connections of a capture. table: all of them; ids: those to explain."""

    def __init__(self, paths: Paths, table: Table, ids: NDArray[Any]) -> None:
        self._table, self._peers = table, Peers(table)
        with Source(*paths) as source:
            self._asked = waited(source, table, ids)

    def of(self, table: Table, at: int) -> Explained:
        """The connection in a row of the table, or of rows that were chosen from it."""
        one = connection_of(table, at)
        if (asked := self._asked.get(one.conn_id)) is not None:
            told, share = asked.told(one)
            one = dataclasses.replace(
                one, requests=[text for _, text in told], requests_share=share,
                requests_shares=[part for part, _ in told],
            )  # fmt: skip
        other = self._peers.of(one.conn_id)
        peer = None if other is None else connection_of(self._table, other)
        return Explained(one, peer, verdict(one, peer))


def by_bytes(table: Table) -> NDArray[np.int64]:
    """(n,) the rows of connections, those with the most bytes first."""
    nbytes = np.maximum(table["bytes_acked"], table["bytes_received"])
    return np.argsort(-nbytes, kind="stable")


def explain(paths: Paths) -> Iterator[Explained]:
    """All connections of a capture, those with the most bytes first."""
    with Source(*paths) as source:
        table, _ = tables(source, with_intervals=False)
    found = Explaining(paths, table, table["conn_id"])
    for at in by_bytes(table).tolist():
        yield found.of(table, at)
