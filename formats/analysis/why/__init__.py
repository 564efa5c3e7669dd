# SPDX-License-Identifier: Apache-2.0
"""Why a connection was as fast as it was: what limited it, when, and with what evidence."""

from tcpkmon.formats.analysis.blocks import Block, Losses
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.columns import CONNECTIONS, INTERVALS, NAMES, WHOLES, Column
from tcpkmon.formats.analysis.why.connections import (
    Connection,
    connection_of,
    connections_of,
    tally,
)
from tcpkmon.formats.analysis.why.folding import fold
from tcpkmon.formats.analysis.why.intervals import cut
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS, classify, in_flight
from tcpkmon.formats.analysis.why.owners import by_owner
from tcpkmon.formats.analysis.why.peers import Peers
from tcpkmon.formats.analysis.why.receiving import RECEIVING
from tcpkmon.formats.analysis.why.remedies import HostSettings
from tcpkmon.formats.analysis.why.snapshots import (
    NEEDED,
    OF_RECEIVERS,
    OPTIONAL,
    Snapshots,
    Source,
)
from tcpkmon.formats.analysis.why.tables import (
    as_arrow,
    as_frame,
    choose,
    connections,
    interval_tables,
    intervals,
    tables,
)
from tcpkmon.formats.analysis.why.together import together
from tcpkmon.formats.analysis.why.verdict import cross_check, head, verdict
from tcpkmon.formats.analysis.why.waits import Wait, has_waits, waits
from tcpkmon.formats.analysis.why.wholes import tell_wholes, wholes
from tcpkmon.formats.analysis.why.writing import row_of, rows_of, write

__all__ = [
    "CONNECTIONS",
    "FAMILY",
    "INTERVALS",
    "LIMITS",
    "NAMES",
    "NEEDED",
    "OF_RECEIVERS",
    "OPTIONAL",
    "RECEIVING",
    "WHOLES",
    "Block",
    "Column",
    "Connection",
    "HostSettings",
    "Losses",
    "Peers",
    "Snapshots",
    "Source",
    "Table",
    "Wait",
    "as_arrow",
    "as_frame",
    "by_owner",
    "choose",
    "classify",
    "connection_of",
    "connections",
    "connections_of",
    "cross_check",
    "cut",
    "fold",
    "has_waits",
    "head",
    "in_flight",
    "interval_tables",
    "intervals",
    "row_of",
    "rows_of",
    "tables",
    "tally",
    "tell_wholes",
    "together",
    "verdict",
    "waits",
    "wholes",
    "write",
]
