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

from tcpkmon.formats.analysis.diff.output import (
    Report,
    as_json,
    make_report,
    number_text,
    print_diff,
    value_text,
)
from tcpkmon.formats.analysis.diff.picture import draw_diff
from tcpkmon.formats.analysis.diff.sides import (
    RUN,
    Run,
    Side,
    parse_folder,
    parse_sides,
    read_run,
    refuse_unproven,
    values_of_run,
    values_of_side,
)
from tcpkmon.formats.analysis.diff.statistics import (
    ALPHA,
    BY_NAME,
    DIFFERS,
    METRICS,
    SAME,
    SHARE,
    SHARED,
    Compared,
    Metric,
    change_text,
    compare,
    interval_text,
    judge,
    least_p,
    parse_conditions,
    parse_metrics,
    scipy_stats,
)

__all__ = [
    "ALPHA",
    "BY_NAME",
    "DIFFERS",
    "METRICS",
    "RUN",
    "SAME",
    "SHARE",
    "SHARED",
    "Compared",
    "Metric",
    "Report",
    "Run",
    "Side",
    "as_json",
    "change_text",
    "compare",
    "draw_diff",
    "interval_text",
    "judge",
    "least_p",
    "make_report",
    "number_text",
    "parse_conditions",
    "parse_folder",
    "parse_metrics",
    "parse_sides",
    "print_diff",
    "read_run",
    "refuse_unproven",
    "scipy_stats",
    "value_text",
    "values_of_run",
    "values_of_side",
]
