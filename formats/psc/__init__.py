# SPDX-License-Identifier: Apache-2.0
"""PSC files: the self-describing format of the TCP kernel monitor, written by the collector."""

from __future__ import annotations

from formats.psc.columns import CLASSIC, Column, Endian, columns_of, entry_dtype
from formats.psc.header import Header, decode_header, encode_header, writer_header
from formats.psc.reader import Capture, open_capture
from formats.psc.sequence import Gap

__all__ = [
    "CLASSIC",
    "Capture",
    "Column",
    "Endian",
    "Gap",
    "Header",
    "columns_of",
    "decode_header",
    "encode_header",
    "entry_dtype",
    "open_capture",
    "writer_header",
]
