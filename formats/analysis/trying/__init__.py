# SPDX-License-Identifier: Apache-2.0
"""What `tcpkmon try` makes of a capture: its path, its work, and settings that may be better."""

from tcpkmon.formats.analysis.trying.fitting import Fitted, approach, fit, spans
from tcpkmon.formats.analysis.trying.halves import Decision, Halves, halve, judge
from tcpkmon.formats.analysis.trying.last_data import acknowledged, with_last_data
from tcpkmon.formats.analysis.trying.likeness import Likeness, look_alike, values_of
from tcpkmon.formats.analysis.trying.outcome import METRICS, Outcome
from tcpkmon.formats.analysis.trying.seen import Burst, Seen, see
from tcpkmon.formats.analysis.trying.settings import (
    Variant,
    parse_variant,
    propose,
    what_to_write,
)

__all__ = [
    "METRICS",
    "Burst",
    "Decision",
    "Fitted",
    "Halves",
    "Likeness",
    "Outcome",
    "Seen",
    "Variant",
    "acknowledged",
    "approach",
    "fit",
    "halve",
    "judge",
    "look_alike",
    "parse_variant",
    "propose",
    "see",
    "spans",
    "values_of",
    "what_to_write",
    "with_last_data",
]
