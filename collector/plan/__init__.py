# SPDX-License-Identifier: Apache-2.0
"""Decides without root what is recorded, and writes the C text for it."""

__all__ = [
    "columns",
    "counter_names",
    "engine_config",
    "event_codegen",
    "event_layout",
    "filters",
    "kernel_types",
    "probes",
    "request",
    "rotation",
    "schema_lint",
    "schema_sources",
    "tcp_codegen",
]
