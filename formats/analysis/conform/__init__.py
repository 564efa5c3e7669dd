# SPDX-License-Identifier: Apache-2.0
"""Whether connections keep the rules of the RFCs: a table of rules, judged record by record."""

from tcpkmon.formats.analysis.conform.judging import RULES, Break, Verdicts, conform, why_unsure
from tcpkmon.formats.analysis.conform.rule import Rule, Step
from tcpkmon.formats.analysis.conform.walking import ALGORITHMS

__all__ = ["ALGORITHMS", "RULES", "Break", "Rule", "Step", "Verdicts", "conform", "why_unsure"]
