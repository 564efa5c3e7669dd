# SPDX-License-Identifier: Apache-2.0
"""Proves from a capture file alone what is in it and what is missing; repairs and cuts files."""

from __future__ import annotations

from tcpkmon.formats.verify.chain import verify_chain
from tcpkmon.formats.verify.cut import cut_file
from tcpkmon.formats.verify.klogger import verify_folder, verify_log, verify_logs
from tcpkmon.formats.verify.magnet import proof_of, verify_magnet
from tcpkmon.formats.verify.psc import is_ours, verify_capture, verify_file
from tcpkmon.formats.verify.repair import repair_file, repair_folder, repair_log, repair_logs
from tcpkmon.formats.verify.report import (
    CAUSES,
    DOES_NOT_ADD_UP,
    Missed,
    Problem,
    Report,
    Row,
    find_unseen,
)
from tcpkmon.formats.verify.table import make_console, print_report

__all__ = [
    "CAUSES",
    "DOES_NOT_ADD_UP",
    "Missed",
    "Problem",
    "Report",
    "Row",
    "cut_file",
    "find_unseen",
    "is_ours",
    "make_console",
    "print_report",
    "proof_of",
    "repair_file",
    "repair_folder",
    "repair_log",
    "repair_logs",
    "verify_capture",
    "verify_chain",
    "verify_file",
    "verify_folder",
    "verify_log",
    "verify_logs",
    "verify_magnet",
]
