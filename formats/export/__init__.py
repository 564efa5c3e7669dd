# SPDX-License-Identifier: Apache-2.0
"""Writes records of any file format as Parquet, Arrow, CSV, JSON lines or Perl hashes."""

__all__ = ["forms", "table_file"]
