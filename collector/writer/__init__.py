# SPDX-License-Identifier: Apache-2.0
"""Puts ordered records into files and keeps the ledger of what was lost on the way."""

__all__ = [
    "base_events",
    "base_stream",
    "capture_info",
    "dump",
    "ledger",
    "log_recorder",
    "log_tail",
    "magnet_recorder",
    "output_file",
    "own_files",
    "record_printer",
    "recorder",
    "recorder_stream",
    "segment_folder",
    "stream",
    "tail",
    "written",
]
