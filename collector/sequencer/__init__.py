# SPDX-License-Identifier: Apache-2.0
"""Merges the records of all CPUs into one numbered stream."""

__all__ = ["buffer_pool", "clock_pairs", "ordered", "sequencer"]
