# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files: records in the original layout, of either byte order and pointer width."""

__all__ = ["control", "header", "layout", "parse", "reader", "walk"]
