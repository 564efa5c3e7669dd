# SPDX-License-Identifier: Apache-2.0
"""Klogger logs in Python: events as objects, intervals, statistics."""

__all__ = ["intervals", "log"]
