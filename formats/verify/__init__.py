# SPDX-License-Identifier: Apache-2.0
"""Proves from a capture file alone what is in it and what is missing; repairs a damaged one."""

from __future__ import annotations

from formats.verify.check import verify_capture, verify_file
from formats.verify.log_check import verify_log
from formats.verify.log_repair import repair_log
from formats.verify.log_structure import is_log
from formats.verify.log_whole import verify_folder
from formats.verify.report import Missed, Problem, Report, Row

__all__ = [
    "Missed",
    "Problem",
    "Report",
    "Row",
    "is_log",
    "repair_log",
    "verify_capture",
    "verify_file",
    "verify_folder",
    "verify_log",
]
