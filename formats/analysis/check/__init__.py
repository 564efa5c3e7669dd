# SPDX-License-Identifier: Apache-2.0
"""Assertions on a capture: docs/check.md describes the language."""

from tcpkmon.formats.analysis.check.capture import CONNECTION_KINDS, Capture, share_of, times_of
from tcpkmon.formats.analysis.check.checking import check, compile_assertions, measure
from tcpkmon.formats.analysis.check.names import LEDGER
from tcpkmon.formats.analysis.check.output import as_dict, as_junit, as_lines, github_lines
from tcpkmon.formats.analysis.check.scope import TableScope
from tcpkmon.formats.analysis.check.span import Proof, find_span, write_span
from tcpkmon.formats.analysis.check.where import choose, fulfil, parse_where

__all__ = [
    "CONNECTION_KINDS",
    "LEDGER",
    "Capture",
    "Proof",
    "TableScope",
    "as_dict",
    "as_junit",
    "as_lines",
    "check",
    "choose",
    "compile_assertions",
    "find_span",
    "fulfil",
    "github_lines",
    "measure",
    "parse_where",
    "share_of",
    "times_of",
    "write_span",
]
