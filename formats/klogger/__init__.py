# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: one self-describing file per CPU, written in dumps, decoded to text and tables."""

from tcpkmon.formats.klogger.merge import merge_logs
from tcpkmon.formats.klogger.reader import LogReader

__all__ = [
    "LogReader", "batch", "chain", "choose", "clock", "describe", "encode", "lines",
    "logs", "merge_logs", "overlap", "reader", "source", "table", "tables", "walk",
]  # fmt: skip
