# SPDX-License-Identifier: Apache-2.0
"""Captures and logs as tables and text: Parquet, Arrow, CSV, JSON lines."""

__all__ = ["columns", "log_text"]
