# SPDX-License-Identifier: Apache-2.0
"""The commands that need only files: one module each, which parses, calls and prints."""

__all__ = [
    "anonymise", "check", "choosing",
    "condense", "conform", "connections", "cut", "dataset", "decode",
    "diff",
    "export", "flamegraph", "join", "latency", "magnet_parse", "packetdrill", "pair",
    "repair", "report", "requests", "sql", "translate", "verify", "why",
]  # fmt: skip
