# SPDX-License-Identifier: Apache-2.0
"""Decides without root what is recorded, and writes the C text for it."""

__all__ = [
    "budget",
    "cgroups",
    "choice",
    "columns",
    "counter_names",
    "engine_config",
    "event_codegen",
    "event_layout",
    "event_triggers",
    "extension",
    "filter_changes",
    "filters",
    "kernel_types",
    "named_groups",
    "options",
    "probes",
    "recorder",
    "request",
    "rotation",
    "schema_lint",
    "schema_sources",
    "tcp_codegen",
    "trigger_watch",
    "triggers",
]
