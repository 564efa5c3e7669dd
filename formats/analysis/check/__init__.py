# SPDX-License-Identifier: Apache-2.0
"""Assertions on a capture: docs/check.md describes the language."""

from tcpkmon.formats.analysis.check.capture import (
    CONNECTION_KINDS,
    Capture,
    choose,
    fulfil,
    parse_where,
    share_of,
    times_of,
)
from tcpkmon.formats.analysis.check.checking import (
    as_dict,
    as_junit,
    as_lines,
    check,
    compile_assertions,
    github_lines,
    measure,
)
from tcpkmon.formats.analysis.check.scope import LEDGER, TableScope
from tcpkmon.formats.analysis.check.span import Proof, find_span, write_span

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
