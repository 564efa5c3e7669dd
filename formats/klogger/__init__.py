# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: one self-describing file per CPU, written in dumps, decoded to text and tables."""

from __future__ import annotations

from formats.klogger.batch import LogBatch
from formats.klogger.choose import ALL, Choice, parse_condition
from formats.klogger.clock import LogClock, Moment, parse_time
from formats.klogger.describe import (
    IN_HEAD,
    SNAPSHOT_NUMBER,
    describe_event,
    describe_snapshot,
    make_header,
    number_events,
)
from formats.klogger.encode import (
    DUMP_BYTES_MAX,
    DUMP_HEAD,
    DUMP_HEAD_BYTES,
    DUMP_MAGIC,
    HEAD_CRC_AT,
    MAGIC,
    PREAMBLE,
    Packed,
    encode_preamble,
    finish_dump,
    pack_event,
    pack_events,
    pack_records,
)
from formats.klogger.logs import LOG_NAME, Logs, find_logs, open_logs
from formats.klogger.losses import Losses
from formats.klogger.merge import merge_logs
from formats.klogger.reader import LogReader
from formats.klogger.table import (
    NUMBERS,
    RECORD_HEAD_BYTES,
    SNAPSHOT,
    LogEvent,
    LogField,
    LogFormat,
)
from formats.klogger.walk import DumpHead, DumpWalk, list_bytes

__all__ = [
    "ALL",
    "DUMP_BYTES_MAX",
    "DUMP_HEAD",
    "DUMP_HEAD_BYTES",
    "DUMP_MAGIC",
    "HEAD_CRC_AT",
    "IN_HEAD",
    "LOG_NAME",
    "MAGIC",
    "NUMBERS",
    "PREAMBLE",
    "RECORD_HEAD_BYTES",
    "SNAPSHOT",
    "SNAPSHOT_NUMBER",
    "Choice",
    "DumpHead",
    "DumpWalk",
    "LogBatch",
    "LogClock",
    "LogEvent",
    "LogField",
    "LogFormat",
    "LogReader",
    "Logs",
    "Losses",
    "Moment",
    "Packed",
    "describe_event",
    "describe_snapshot",
    "encode_preamble",
    "find_logs",
    "finish_dump",
    "list_bytes",
    "make_header",
    "merge_logs",
    "number_events",
    "open_logs",
    "pack_event",
    "pack_events",
    "pack_records",
    "parse_condition",
    "parse_time",
]
