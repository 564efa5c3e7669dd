# SPDX-License-Identifier: Apache-2.0
"""Why a connection was as fast as it was: what limited it, when, and with what evidence."""

from formats.analysis.why.connections import Connection, Tally, tally
from formats.analysis.why.intervals import INTERVAL, Cutter, cut
from formats.analysis.why.limits import FAMILY, LIMITS, classify
from formats.analysis.why.snapshots import NEEDED, Snapshots, Source
from formats.analysis.why.verdict import head, verdict

__all__ = [
    "FAMILY", "INTERVAL", "LIMITS", "NEEDED", "Connection", "Cutter", "Snapshots", "Source",
    "Tally", "classify", "cut", "head", "tally", "verdict",
]  # fmt: skip
