# SPDX-License-Identifier: Apache-2.0
"""What all rooms of formats share: errors, files, text, times, byte orders, the Reader protocol."""

__all__ = [
    "analysed",
    "arrow",
    "byteorder",
    "causes",
    "changes",
    "cli",
    "closing",
    "control",
    "errors",
    "escape",
    "expressions",
    "files",
    "installing",
    "limits",
    "ports",
    "reader",
    "reconciled",
    "restore",
    "segments",
    "shedding",
    "streamed",
    "tcp_info",
    "text",
    "times",
]  # fmt: skip
