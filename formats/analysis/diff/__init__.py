# SPDX-License-Identifier: Apache-2.0
"""Two captures, or two groups of them, compared: settings, distributions, and what differs.

sides       which captures the arguments name, and what is read of each
settings    what their headers tell, and in what they differ
metrics     what is compared
units       the values of each metric, of connections or of runs
statistics  tests, intervals and corrections
conditions  --fail-if
courses     time courses; picture, output: for people and tools
"""

from tcpkmon.formats.analysis.diff.conditions import Condition, Judged, judge, parse_conditions
from tcpkmon.formats.analysis.diff.metrics import BY_NAME, METRICS, Metric
from tcpkmon.formats.analysis.diff.output import as_json, print_diff
from tcpkmon.formats.analysis.diff.picture import draw_diff
from tcpkmon.formats.analysis.diff.report import Report, make_report
from tcpkmon.formats.analysis.diff.sides import Run, Side, parse_sides, read_run, refuse_unproven
from tcpkmon.formats.analysis.diff.statistics import ALPHA, Compared, compare
from tcpkmon.formats.analysis.diff.units import CONNECTION, RUN

__all__ = [
    "ALPHA",
    "BY_NAME",
    "CONNECTION",
    "METRICS",
    "RUN",
    "Compared",
    "Condition",
    "Judged",
    "Metric",
    "Report",
    "Run",
    "Side",
    "as_json",
    "compare",
    "draw_diff",
    "judge",
    "make_report",
    "parse_conditions",
    "parse_sides",
    "print_diff",
    "read_run",
    "refuse_unproven",
]
