# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: one self-describing file per CPU, written in dumps, decoded to text and tables."""

from __future__ import annotations

from formats.klogger.batch import LogBatch
from formats.klogger.encode import (
    DUMP_BYTES_MAX,
    Packed,
    encode_preamble,
    finish_dump,
    pack_event,
    pack_events,
    pack_records,
)
from formats.klogger.losses import Losses
from formats.klogger.merge import merge_logs
from formats.klogger.reader import LogReader
from formats.klogger.table import (
    SNAPSHOT_NUMBER,
    LogEvent,
    LogField,
    LogFormat,
    describe_event,
    describe_snapshot,
    make_header,
    number_events,
)

__all__ = [
    "DUMP_BYTES_MAX",
    "SNAPSHOT_NUMBER",
    "LogBatch",
    "LogEvent",
    "LogField",
    "LogFormat",
    "LogReader",
    "Losses",
    "Packed",
    "describe_event",
    "describe_snapshot",
    "encode_preamble",
    "finish_dump",
    "make_header",
    "merge_logs",
    "number_events",
    "pack_event",
    "pack_events",
    "pack_records",
]
