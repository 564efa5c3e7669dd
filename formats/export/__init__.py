# SPDX-License-Identifier: Apache-2.0
"""Writes records of any file format as Parquet, Arrow, CSV, JSON lines, Perl hashes or pcapng."""

__all__ = ["bblog", "forms"]
