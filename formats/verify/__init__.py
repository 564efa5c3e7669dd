# SPDX-License-Identifier: Apache-2.0
"""Proves from a capture file alone what is in it and what is missing; repairs a damaged one."""

from __future__ import annotations

from formats.verify.check import verify_capture, verify_file
from formats.verify.report import Missed, Problem, Report, Row

__all__ = ["Missed", "Problem", "Report", "Row", "verify_capture", "verify_file"]
