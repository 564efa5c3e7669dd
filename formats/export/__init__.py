# SPDX-License-Identifier: Apache-2.0
"""Records of any file format as tables and text: Parquet, Arrow, CSV, JSON lines, Perl hashes."""

from formats.export.forms import ENDINGS, FORMS, TABLES, write

__all__ = ["ENDINGS", "FORMS", "TABLES", "write"]
