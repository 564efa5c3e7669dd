# SPDX-License-Identifier: Apache-2.0
"""Why a connection was as fast as it was: what limited it, when, and with what evidence."""

from formats.analysis.why.assemble import Table
from formats.analysis.why.columns import CONNECTIONS, INTERVALS, NAMES, Column
from formats.analysis.why.connections import Connection, connection_of, tally
from formats.analysis.why.grouping import Grouped
from formats.analysis.why.intervals import INTERVAL, Cutter, cut
from formats.analysis.why.limits import FAMILY, LIMITS, classify
from formats.analysis.why.peers import Peers
from formats.analysis.why.receiving import RECEIVING
from formats.analysis.why.snapshots import NEEDED, Snapshots, Source
from formats.analysis.why.tables import (
    as_arrow,
    as_frame,
    choose,
    connections,
    intervals,
    renamed,
    tables,
)
from formats.analysis.why.together import together
from formats.analysis.why.verdict import cross_check, head, verdict
from formats.analysis.why.waits import Wait, has_waits, waits
from formats.analysis.why.writing import row_of, rows_of, write

__all__ = [
    "CONNECTIONS",
    "FAMILY",
    "INTERVAL",
    "INTERVALS",
    "LIMITS",
    "NAMES",
    "NEEDED",
    "RECEIVING",
    "Column",
    "Connection",
    "Cutter",
    "Grouped",
    "Peers",
    "Snapshots",
    "Source",
    "Table",
    "Wait",
    "as_arrow",
    "as_frame",
    "choose",
    "classify",
    "connection_of",
    "connections",
    "cross_check",
    "cut",
    "has_waits",
    "head",
    "intervals",
    "renamed",
    "row_of",
    "rows_of",
    "tables",
    "tally",
    "together",
    "verdict",
    "waits",
    "write",
]
