# SPDX-License-Identifier: Apache-2.0
"""Assertions on a capture: docs/check.md describes the language."""

from formats.analysis.check.capture import Capture
from formats.analysis.check.checking import Result, check, compile_assertions, measure
from formats.analysis.check.output import as_dict, as_junit, as_lines, github_lines

__all__ = [
    "Capture",
    "Result",
    "as_dict",
    "as_junit",
    "as_lines",
    "check",
    "compile_assertions",
    "github_lines",
    "measure",
]
