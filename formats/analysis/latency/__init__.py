# SPDX-License-Identifier: Apache-2.0
"""Where the time of each byte goes, layer by layer, from logs of schema magnet.

stages      the places on a byte's way, and the parts of its time between them
survey      first look at the logs: connections, peers, losses, what was recorded
records     second look: records as events
axis, joins byte ranges on one axis for all flows, and when they were where
parts       their parts, and whether they are known
measure     all of that
summary     statistics; report, text, tables, picture: for people and tools
"""

from tcpkmon.formats.analysis.latency.measure import Latency
from tcpkmon.formats.analysis.latency.picture import draw_latency
from tcpkmon.formats.analysis.latency.report import Report, as_json, find_flows, make_report
from tcpkmon.formats.analysis.latency.summary import Summary
from tcpkmon.formats.analysis.latency.survey import find_fields
from tcpkmon.formats.analysis.latency.tables import COLUMNS, PART_COLUMNS, Ranges, make_table
from tcpkmon.formats.analysis.latency.text import format_time, print_latency

__all__ = [
    "COLUMNS", "PART_COLUMNS", "Latency", "Ranges", "Report", "Summary", "as_json", "draw_latency",
    "find_fields", "find_flows", "format_time", "make_report", "make_table", "print_latency",
]  # fmt: skip
