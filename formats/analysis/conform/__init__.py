# SPDX-License-Identifier: Apache-2.0
"""Whether connections keep the rules of the RFCs: a table of rules, judged record by record."""

from tcpkmon.formats.analysis.conform.judging import RULES, Verdicts, conform, why_unsure

__all__ = ["RULES", "Verdicts", "conform", "why_unsure"]
