# SPDX-License-Identifier: Apache-2.0
"""Namespaces, a bottleneck and counted traffic: for the demo, the benchmark and the tests."""

__all__ = [
    "counters", "endpoint", "lab", "link", "namespaces", "pair", "traffic",
]  # fmt: skip
