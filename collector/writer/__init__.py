# SPDX-License-Identifier: Apache-2.0
"""Puts ordered records into files and keeps the ledger of what was lost on the way."""

__all__ = [
    "base_events",
    "base_stream",
    "capture_info",
    "codec",
    "dump",
    "ledger",
    "log_folder",
    "note",
    "output_file",
    "own_files",
    "record_printer",
    "recorder",
    "segment_folder",
    "stream",
    "written",
]
