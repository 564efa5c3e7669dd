# SPDX-License-Identifier: Apache-2.0
"""Proves from a capture file alone what is in it and what is missing; repairs a damaged one."""

from __future__ import annotations

from formats.verify.check import verify_capture, verify_file
from formats.verify.log_check import verify_log
from formats.verify.log_repair import repair_log
from formats.verify.log_structure import is_log
from formats.verify.log_whole import verify_folder
from formats.verify.repair import repair_file
from formats.verify.report import DOES_NOT_ADD_UP, Missed, Problem, Report, Row
from formats.verify.table import make_console, print_report

__all__ = [
    "DOES_NOT_ADD_UP",
    "Missed",
    "Problem",
    "Report",
    "Row",
    "is_log",
    "make_console",
    "print_report",
    "repair_file",
    "repair_log",
    "verify_capture",
    "verify_file",
    "verify_folder",
    "verify_log",
]
