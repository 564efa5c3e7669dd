# SPDX-License-Identifier: Apache-2.0
"""PSC files: the self-describing format of the TCP kernel monitor, written by the collector."""

__all__ = [
    "columns", "header", "lines", "pieces", "reader", "sequence", "states",
    "tables", "values",
]  # fmt: skip
